"""Strangers take next to nothing from an agent before they have shown that they speak its protocol."""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Iterator

import pytest

import agents.server
from runtime.clock import SystemClock
from runtime.log_bursts import WINDOW_MS
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.log_lines import LogLines
from tests.fixtures.waiting import until
from tests.integration.agents.listeners.strangers import Strangers
from tests.integration.agents.test_connections import HeldStore, framed, produce
from wire.api import encode_request
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic

MIB = 1 << 20
ASKS = b"".join(encode_request(18, 0, 1, "x", ApiVersionsRequest()))


class MovedClock(SystemClock):
    """A clock that a test moves forward."""

    def __init__(self) -> None:
        self.ahead_ms = 0.0

    def monotonic_ms(self) -> float:
        return super().monotonic_ms() + self.ahead_ms


@pytest.fixture
def strangers() -> Iterator[Strangers]:
    opened = Strangers()
    yield opened
    opened.close()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """The agent looks at its connections every 20 ms."""
    monkeypatch.setattr(agents.server, "SWEEP_MS", 20)


async def asks(raw: RawConnection) -> None:
    await raw.call(ApiVersionsRequest(), ApiVersionsResponse, 0)


def evicted(running: RunningAgent, reason: str) -> float:
    return running.metric("connections_evicted_total", reason=reason)


async def test_however_many_sockets_are_silent_who_talks_is_served_throughout(
    dial: Dial, start_agent: StartAgent, strangers: Strangers
) -> None:
    running = await start_agent(preauth_timeout_ms=600_000, connection_creation_rate=1_000)
    honest = await dial.raw(running.address)
    await asks(honest)
    # when 2,000 sockets come from the same address, as fast as they can, and say nothing
    storm = threading.Thread(target=strangers.come, args=(running.address, 2_000))
    storm.start()
    came = 0
    while storm.is_alive() or evicted(running, "preauth_connections_max") < 1_700:
        # then old and new clients have their answers meanwhile
        newcomer = await dial.raw(running.address)
        await asks(newcomer)
        await newcomer.close()
        await asks(honest)
        came += 1
        # and the silent ones hold no more than their share
        assert running.agent._server is not None
        assert running.agent._server._admission.unproved <= 200
    await asyncio.to_thread(storm.join)
    assert came > 1
    await until(lambda: running.metric("connections") <= 201)
    assert running.metric("connections_refused_total", reason="connections_max") == 0


async def test_the_oldest_silent_one_goes_first(dial: Dial, start_agent: StartAgent, log_lines: LogLines) -> None:
    clock = MovedClock()
    running = await start_agent(clock=clock, preauth_connections_max=3, preauth_timeout_ms=600_000)
    first, second, third = [await dial.raw(running.address) for _ in range(3)]
    await until(lambda: running.metric("connections") == 3)
    await asks(second)
    fourth = await dial.raw(running.address)
    await until(lambda: running.metric("connections") == 4)
    # when two more come
    fifth = await dial.raw(running.address)
    assert await first.is_closed_by_peer()
    sixth = await dial.raw(running.address)
    assert await third.is_closed_by_peer()
    # then the others are there, the oldest of all included, which has talked
    for each in (second, fourth, fifth, sixth):
        await asks(each)
    assert evicted(running, "preauth_connections_max") == 2
    # and the log has one line that names one of them and the setting
    (line,) = log_lines.named("connection evicted before its first request")
    assert line["reason"] == "preauth_connections_max"
    assert line["setting"] == "preauth.connections.max"
    assert line["peer"].startswith("127.0.0.1:")
    # and, when the storm is over, one with the number of the others
    clock.ahead_ms += WINDOW_MS
    await until(lambda: len(log_lines.named("connection evicted before its first request")) == 2)
    assert log_lines.named("connection evicted before its first request")[1]["left_out"] == 1


async def test_a_full_agent_takes_a_newcomer_for_a_silent_one_and_refuses_it_if_all_talk(
    dial: Dial, start_agent: StartAgent, log_lines: LogLines
) -> None:
    running = await start_agent(connections_max=2)
    silent = await dial.raw(running.address)
    await until(lambda: running.metric("connections") == 1)
    talks, comes = await dial.raw(running.address), await dial.raw(running.address)
    assert await silent.is_closed_by_peer()
    await asks(talks)
    await asks(comes)
    assert await (await dial.raw(running.address)).is_closed_by_peer()
    assert evicted(running, "connections_max") == 1
    assert running.metric("connections_refused_total", reason="connections_max") == 1
    (line,) = log_lines.named("connection refused")
    assert (line["setting"], line["reason"]) == ("connections.max", "connections_max")


async def test_a_first_request_must_come_in_time_however_it_trickles(
    dial: Dial, start_agent: StartAgent, often: None
) -> None:
    clock = MovedClock()
    running = await start_agent(clock=clock, preauth_timeout_ms=2_000)
    silent, trickles, talks = [await dial.raw(running.address) for _ in range(3)]
    await asks(talks)
    for byte in ASKS[:-1]:
        await trickles.send(bytes([byte]))
        await asks(talks)
    assert evicted(running, "preauth_timeout") == 0
    clock.ahead_ms += 2_000
    assert await silent.is_closed_by_peer()
    assert await trickles.is_closed_by_peer()
    await asks(talks)
    assert evicted(running, "preauth_timeout") == 2


async def test_a_first_request_that_waits_for_us_is_not_late(dial: Dial, start_agent: StartAgent, often: None) -> None:
    store, clock = HeldStore(), MovedClock()
    running = await start_agent(
        store=store,
        clock=clock,
        preauth_timeout_ms=2_000,
        produce_buffer_bytes_max=400_000,
        produce_file_bytes=400_000,
        produce_early_bytes=200_000,
        message_max_bytes=400_000,
    )
    await (await dial.kafka(running.address)).create_topic("t", partitions=1)
    server = running.agent._server
    assert server is not None
    # given a full write path, and a newcomer whose first request is one more Produce
    store.holds = True
    pushes = await dial.raw(running.address)
    await pushes.send(framed(produce(b"x" * 300_000)) * 2)
    await until(lambda: server.produce_is_full)
    newcomer = await dial.raw(running.address)
    await newcomer.send(framed(produce(b"y")))
    await until(lambda: server._admission.unproved == 1 and server.talking()[-1].waits_for_us)
    # when more time goes by than it may take, but not three times as much
    for _ in range(2):
        clock.ahead_ms += 1_900
        await asyncio.sleep(0.1)
    # then it is served as soon as there is room
    store.holds = False
    store.let_go()
    assert len(await newcomer.read_frame()) > 0
    assert evicted(running, "preauth_timeout") == 0


async def test_who_is_idle_is_closed_and_who_waits_for_an_answer_or_talks_is_not(
    dial: Dial, start_agent: StartAgent, often: None
) -> None:
    clock = MovedClock()
    running = await start_agent(clock=clock, connections_idle_max_ms=3_000)
    await (await dial.kafka(running.address)).create_topic("t", partitions=1)
    idle, trickles, polls, talks = [await dial.raw(running.address) for _ in range(4)]
    for each in (idle, trickles, polls, talks):
        await asks(each)
    parts = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=MIB)]
    await polls.begin(
        FetchRequest(max_wait_ms=60_000, min_bytes=1, max_bytes=MIB, topics=[FetchTopic(topic="t", partitions=parts)]),
        11,
    )
    await trickles.send(struct.pack(">i", 1_000))
    clock.ahead_ms += 1_600
    # when they go on in their ways: a byte at a time of a request is no life
    await trickles.send(b"\0")
    await asks(talks)
    clock.ahead_ms += 1_600
    assert await idle.is_closed_by_peer()
    assert await trickles.is_closed_by_peer()
    # then the one that polls has its answer, and the one that talks too
    await asks(talks)
    await (await dial.kafka(running.address)).produce("t", 0, produce_batch())
    assert len(await polls.read_frame()) > 0
    assert evicted(running, "idle") == 3, "the client that made the topic fell idle as well"


def produce_batch() -> bytes:
    (topic,) = produce(b"v").topic_data
    return bytes(topic.partition_data[0].records or b"")


async def test_who_trickles_a_large_request_does_not_hold_up_the_others_for_ever(
    dial: Dial, start_agent: StartAgent, often: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agents.server, "SILENT_MS_MAX", 200)
    running = await start_agent(request_bytes_max=MIB, socket_request_max_bytes=MIB, message_max_bytes=MIB)
    await (await dial.kafka(running.address)).create_topic("t", partitions=1)
    server = running.agent._server
    assert server is not None
    whole = framed(produce(b"x" * 900_000))
    trickles, waits = await dial.raw(running.address), await dial.raw(running.address)
    await trickles.send(whole[:700_000])
    await until(lambda: len(server._large) == 1)
    await waits.send(whole[:700_000])
    await until(lambda: server.requests_are_full)
    rest = asyncio.create_task(waits.send(whole[700_000:]))
    # when the one that may go on does so, a byte at a time
    with pytest.raises(ConnectionError):
        for byte in whole[700_000:]:
            await trickles.send(bytes([byte]))
            await asyncio.sleep(0.01)
    # then the other one has its turn
    assert len(await waits.read_frame()) > 0
    await rest


async def test_an_address_may_have_so_many_connections_and_another_address_as_many(
    dial: Dial, start_agent: StartAgent, log_lines: LogLines
) -> None:
    running = await start_agent(max_connections_per_ip=2)
    kept = [await dial.raw(running.address) for _ in range(2)]
    for each in kept:
        await asks(each)
    assert await (await dial.raw(running.address)).is_closed_by_peer()
    host, _, port = running.address.rpartition(":")
    other = RawConnection(*await asyncio.open_connection(host, int(port), local_addr=("127.0.0.2", 0)))
    await asks(other)
    await other.close()
    assert running.metric("connections_refused_total", reason="per_ip") == 1
    (line,) = log_lines.named("connection refused")
    assert line["setting"] == "max.connections.per.ip"


async def test_above_the_rate_clients_wait_for_their_turn_and_nobody_is_turned_away(
    dial: Dial, start_agent: StartAgent, log_lines: LogLines
) -> None:
    running = await start_agent(connection_creation_rate=1)
    clients = [await dial.raw(running.address) for _ in range(12)]
    for each in clients[:10]:
        await asks(each)
    assert running.metric("accept_pauses_total", reason="rate") >= 1
    for each in clients[10:]:
        await asks(each)
    (line,) = log_lines.named("connections come faster than they are accepted")
    assert line["setting"] == "connection.creation.rate"


async def test_connections_that_are_reset_at_once_leave_nothing_behind(
    dial: Dial, start_agent: StartAgent, strangers: Strangers
) -> None:
    running = await start_agent()
    await asyncio.to_thread(strangers.come, running.address, 300, resets=True)
    await asks(await dial.raw(running.address))
    await until(lambda: running.metric("connections") == 1)
    server = running.agent._server
    assert server is not None
    assert (server._admission.open, server._admission.unproved) == (1, 0)
