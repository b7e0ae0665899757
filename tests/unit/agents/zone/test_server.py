"""The server and the client of the zone over real sockets: bounds, bad bytes, and connections that are used again."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from agents.read.cache import BLOCK_BYTES
from agents.zone import client
from agents.zone import server as zone_server
from agents.zone.client import Neighbours
from agents.zone.frames import REQUEST_BYTES_MAX, Outcome, encode_request
from agents.zone.lines import dial
from metadata.contract.leases import AgentAddress, AgentInfo
from runtime.runtime import Runtime
from tests.fixtures.metric_values import metric_value
from tests.fixtures.waiting import until
from tests.fixtures.zone_servers import BODY, FIRST, KEY, LAST, Serving, serving


async def test_bytes_come_as_they_are_from_memory_or_by_one_get_for_all() -> None:
    async with serving() as here:
        found = await asyncio.gather(*(here.lines.ask(here.address, FIRST) for _ in range(12)))
        assert {bytes(body) for _, body in found} == {BODY[: 2 * BLOCK_BYTES]}
        assert here.store.gets == 1
        for request in (LAST, FIRST, replace(FIRST, start=3 * BLOCK_BYTES, length=len(BODY) - 3 * BLOCK_BYTES)):
            _, body = await here.lines.ask(here.address, request)
            assert body == BODY[request.start : request.start + request.length]
        assert here.store.gets == 3
        await until(lambda: not here.pinned_bytes)
        assert len(here.server._connections) <= 8, "idle connections are bounded, and used again"


async def test_above_its_bounds_it_says_busy_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zone_server, "SERVES_MAX", 3)
    async with serving() as here:
        here.store.gate.clear()
        waiting = [asyncio.create_task(here.outcome(LAST)) for _ in range(3)]
        await until(lambda: here.server._serving == 3)
        assert await here.outcome(LAST) is Outcome.BUSY
        here.store.gate.set()
        assert await asyncio.gather(*waiting) == [Outcome.SERVED] * 3
        assert await here.outcome(LAST) is Outcome.SERVED
        monkeypatch.setattr(zone_server, "SERVED_BYTES_MAX", FIRST.length - 1)
        assert await here.outcome(FIRST) is Outcome.BUSY
        assert await here.outcome(LAST) is Outcome.SERVED
        assert (here.server._serving, here.server._serving_bytes) == (0, 0)


async def test_one_that_asks_another_for_a_block_serves_it_to_nobody_meanwhile() -> None:
    asked: set[int] = {1}
    async with serving(Serving(is_asking=lambda key, blocks: key == KEY and bool(asked & set(blocks)))) as here:
        assert await here.outcome(FIRST) is Outcome.BUSY
        assert await here.outcome(LAST) is Outcome.SERVED
        asked.clear()
        assert await here.outcome(FIRST) is Outcome.SERVED


async def test_a_stranger_and_a_file_that_is_gone_are_refused() -> None:
    async with serving() as here:
        assert await here.outcome(replace(LAST, cluster_id="d")) is Outcome.STRANGER
        assert await here.outcome(replace(LAST, key="l1/aa/2026010100/gone")) is Outcome.FAILED
        # an object that ends before its recorded size
        assert await here.outcome(replace(LAST, file_bytes=len(BODY) + 9, length=16)) is Outcome.FAILED
        assert await here.outcome(LAST) is Outcome.SERVED


@pytest.mark.parametrize(
    "data",
    [
        b"GET / HTTP/1.1\r\nHost: here\r\n\r\n" + b"x" * 20,
        bytes(64),
        encode_request(LAST)[:3] + b"\x02" + encode_request(LAST)[4:],
        encode_request(replace(LAST, key="\xff"))[:-2] + b"\xff\xfe",
        encode_request(LAST) + b"more",
        encode_request(LAST) * (REQUEST_BYTES_MAX // len(encode_request(LAST)) + 2),
    ],
    ids=["another protocol", "nothing", "another version", "no text", "more than a request", "many requests"],
)
async def test_what_is_no_request_closes_the_connection(data: bytes) -> None:
    async with serving() as here:
        here.store.gate.clear()
        assert await here.says(data) == b""
        here.store.gate.set()
        assert await here.outcome(LAST) is Outcome.SERVED
        await until(lambda: here.server._serving == 0)


async def test_an_answer_that_nobody_reads_is_cut_and_gives_its_bytes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zone_server, "SEND_MS_MAX", 200)
    async with serving() as here:
        _, writer = await asyncio.open_connection(*here.address, limit=1)
        whole = replace(FIRST, length=len(BODY))
        # more than the socket's buffers take, over many connections
        others = [await asyncio.open_connection(*here.address, limit=1) for _ in range(3)]
        for each in (writer, *(other for _, other in others)):
            each.transport.pause_reading()  # type: ignore[attr-defined]
            each.write(encode_request(whole))
        await until(lambda: here.store.gets > 0 and here.server._serving == 0 and not here.pinned_bytes)
        for each in (writer, *(other for _, other in others)):
            each.transport.abort()
        assert await here.outcome(LAST) is Outcome.SERVED


async def test_a_request_that_is_given_up_frees_the_server() -> None:
    async with serving() as here:
        here.store.gate.clear()
        asking = asyncio.create_task(here.outcome(FIRST))
        await until(lambda: here.server._serving == 1)
        asking.cancel()
        await until(lambda: here.server._serving == 0)
        here.store.gate.set()
        # its GET went on, for the next who asks
        assert await here.outcome(FIRST) is Outcome.SERVED
        assert here.store.gets == 1


async def test_a_client_knows_what_it_asks_for_and_forgets_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "ANSWER_MS", 30_000.0)
    async with serving() as here:
        neighbours = Neighbours(dial, Runtime(metrics=here.metrics))
        host, port = here.address
        owner = AgentInfo(writer_id=1, epoch=1, address=AgentAddress(host=host, port=1, zone="a", zone_port=port))
        here.store.gate.clear()
        asking = [asyncio.create_task(neighbours.ask(owner, FIRST)) for _ in range(2)]
        await until(lambda: here.server._serving == 2)
        assert neighbours.is_asking(KEY, range(1, 3)) and not neighbours.is_asking(KEY, range(2, 9))
        asking[0].cancel()
        await asyncio.gather(*asking[:1], return_exceptions=True)
        assert neighbours.is_asking(KEY, range(2)), "one of the two goes on"
        here.store.gate.set()
        found = await asking[1]
        assert found is not None and found.data == BODY[: FIRST.length]
        assert not neighbours.is_asking(KEY, range(9))
        # one that was given up counts for nothing, and not against the neighbour
        assert await neighbours.ask(owner, LAST) is not None
        counts = {
            each: metric_value(here.metrics, "zone_requests_total", {"outcome": each}) for each in ("served", "failed")
        }
        assert counts == {"served": 2, "failed": 0}
        neighbours.keep_only(())
