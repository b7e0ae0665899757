"""One GET per block and zone: what agents of a zone fetch for each other, and what a bad neighbour costs."""

from __future__ import annotations

import asyncio
import socket
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from agents.read.blocks import blocks_of
from agents.read.cache import BlockCache
from agents.zone import client as zone_client
from agents.zone.frames import AnswerHead, Outcome, Request, answer_crc, encode_answer
from agents.zone.server import ZoneServer
from siltstone.kafka.client import connected
from storage.memory import MemoryStore
from tests.fixtures.agents import RunningAgent, StartAgent, read_all
from tests.fixtures.certificates import Authority
from tests.fixtures.fleet import Fleet, fleet
from tests.fixtures.hand_merges import HandMerger
from tests.fixtures.waiting import until
from wire.records import NewRecord, build_batch

PARTITIONS = 8
PATIENCE_MS, SOON_MS = 30_000.0, 50.0
"""How long an agent waits for a neighbour: nobody is late on a slow machine, or only who never answers."""
ZONES = ("a", "b")
OUTCOMES = ("served", "busy", "late", "failed", "corrupt")


class CountingStore:
    """One agent's way to the store that all agents share: its GETs are counted by block, for its zone."""

    def __init__(self, inner: MemoryStore, gets: Counter[tuple[str, int]]) -> None:
        self._inner = inner
        self.gets = gets

    def __getattr__(self, name: str) -> object:
        return getattr(self._inner, name)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        for block in blocks_of(start, length):
            self.gets[key, block] += 1
        # Long enough for the readers of other agents to come for the same block.
        await asyncio.sleep(0.02)
        return await self._inner.get_range(key, start, length)


@dataclass
class Zones:
    fleet: Fleet
    gets: dict[str, Counter[tuple[str, int]]]
    written: dict[tuple[int, int], bytes] = field(default_factory=dict[tuple[int, int], bytes])

    @property
    def agents(self) -> list[RunningAgent]:
        return self.fleet.agents

    async def write(self, rounds: int, *, through: list[int] | None = None) -> None:
        """Batches to every partition, through these agents at once."""

        async def produce(number: int) -> None:
            async with connected(self.agents[number].address) as client:
                for turn in range(rounds):
                    for partition in range(PARTITIONS):
                        value = f"{number} {turn} {partition} ".encode() * 500
                        base = await client.produce("t", partition, build_batch([NewRecord(1, None, value)]))
                        self.written[partition, base] = value

        await asyncio.gather(*(produce(number) for number in through or range(len(self.agents))))

    async def read_everywhere(self, numbers: list[int] | None = None) -> None:
        """Every record of every partition, through each of these agents, and right."""

        async def read(agent: RunningAgent, partition: int) -> None:
            async with connected(agent.address) as client:
                found = {
                    offset: bytes(record.value or b"") for offset, record in await read_all(client, "t", partition)
                }
            assert found == {offset: value for (part, offset), value in self.written.items() if part == partition}

        agents = [self.agents[number] for number in numbers or range(len(self.agents))]
        await asyncio.gather(*(read(agent, partition) for agent in agents for partition in range(PARTITIONS)))

    def asked(self, outcome: str) -> float:
        return sum(agent.metric("zone_requests_total", outcome=outcome) for agent in self.agents)

    def gets_per_block_and_zone(self) -> float:
        blocks = {place for gets in self.gets.values() for place in gets}
        return sum(sum(gets.values()) for gets in self.gets.values()) / (len(blocks) * len(self.gets))


@asynccontextmanager
async def zones(
    start_agent: StartAgent,
    *,
    count: int = 4,
    names: tuple[str, ...] = ZONES,
    is_on: bool = True,
    patience_ms: float = PATIENCE_MS,
    **settings: object,
) -> AsyncIterator[Zones]:
    inner, gets = MemoryStore(), {name: Counter[tuple[str, int]]() for name in names}

    async def start(*, store: object, agent_zone: str, **options: object) -> RunningAgent:
        return await start_agent(store=CountingStore(inner, gets[agent_zone]), agent_zone=agent_zone, **options)

    more = {"zone_listen": "127.0.0.1:0"} if is_on else {}
    async with fleet(start, count, zones=names, **more, **settings) as agents:
        async with connected(agents[0].address) as client:
            await client.create_topic("t", partitions=PARTITIONS)
        await agents.know_each_other()
        await agents.know_topic("t")
        with patch.object(zone_client, "ANSWER_MS", patience_ms):
            yield Zones(agents, gets)


async def test_a_zone_fetches_each_block_once(start_agent: StartAgent) -> None:
    async with zones(start_agent) as world:
        await world.write(6)
        await asyncio.gather(*(world.read_everywhere() for _ in range(2)))
        assert world.gets_per_block_and_zone() <= 1.05
        assert world.asked("served") > 20
        assert sum(agent.metric("zone_bytes_total", direction="sent") for agent in world.agents) == sum(
            agent.metric("zone_bytes_total", direction="received") for agent in world.agents
        )
        assert sum(world.asked(each) for each in ("late", "failed", "corrupt")) == 0


async def test_without_the_zone_every_agent_fetches_what_others_wrote(start_agent: StartAgent) -> None:
    async with zones(start_agent, is_on=False) as world:
        await world.write(6)
        await world.read_everywhere()
        # three of four agents fetch each file, in two zones
        assert world.gets_per_block_and_zone() == pytest.approx(1.5)
        assert world.asked("served") == 0


# ---- bad neighbours


async def never_answers(self: ZoneServer, request: Request, connection: Any) -> None:
    await asyncio.Event().wait()


async def is_busy(self: ZoneServer, request: Request, connection: Any) -> None:
    await connection.send(deque([encode_answer(AnswerHead(outcome=Outcome.BUSY))]))


async def says_nothing_of_ours(self: ZoneServer, request: Request, connection: Any) -> None:
    await connection.send(deque([b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"]))


def wrong(change: Callable[[Request, bytes], tuple[int, bytes]]) -> Callable[..., Any]:
    """A server whose answers are changed: (their CRC, their bytes)."""

    async def answers(self: ZoneServer, request: Request, connection: Any) -> None:
        found = await self._pools[request.pool].pieces(
            request.key, request.file_bytes, request.start, request.length, direct=True
        )
        crc, data = change(request, bytes(found.joined()))
        await connection.send(
            deque([encode_answer(AnswerHead(outcome=Outcome.SERVED, length=request.length, crc=crc)), data])
        )

    return answers


def flipped(request: Request, data: bytes) -> tuple[int, bytes]:
    return answer_crc(request, 0, [data]), data[:-9] + bytes([data[-9] ^ 1]) + data[-8:]


def of_another_file(request: Request, data: bytes) -> tuple[int, bytes]:
    """Right bytes with a right CRC, of another file of the same length."""
    other = replace(request, key="l1" + request.key[2:])
    return answer_crc(other, 0, [data[::-1]]), data[::-1]


async def dies_while_it_serves(self: ZoneServer, request: Request, connection: Any) -> None:
    head = AnswerHead(outcome=Outcome.SERVED, length=request.length, crc=0)
    await connection.send(deque([encode_answer(head), bytes(request.length // 2)]))
    connection.end()


async def is_of_another_cluster(self: ZoneServer, request: Request, connection: Any) -> None:
    self._cluster_id = "another"
    await ANSWER(self, request, connection)


ANSWER = ZoneServer.answer


@pytest.mark.parametrize(
    ("answers", "outcome"),
    [
        (never_answers, "late"),
        (is_busy, "busy"),
        (says_nothing_of_ours, "failed"),
        (dies_while_it_serves, "failed"),
        (is_of_another_cluster, "failed"),
        (wrong(flipped), "corrupt"),
        (wrong(of_another_file), "corrupt"),
    ],
    ids=lambda value: getattr(value, "__name__", value),
)
async def test_a_bad_neighbour_costs_gets_and_no_record(
    start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, answers: Callable[..., Any], outcome: str
) -> None:
    patience_ms = SOON_MS if outcome == "late" else PATIENCE_MS
    async with zones(start_agent, names=("a",), count=3, patience_ms=patience_ms) as world:
        monkeypatch.setattr(ZoneServer, "answer", answers)
        await world.write(6)
        await world.read_everywhere()
        assert world.asked(outcome) > 0
        assert sum(world.asked(each) for each in OUTCOMES) == world.asked(outcome)
        # each agent fetched what it did not write
        assert world.gets_per_block_and_zone() == pytest.approx(2)
        if outcome != "busy":
            # nobody is asked again at once: at most the requests that were under way together
            assert world.asked(outcome) < sum(world.gets["a"].values()) / 2


async def test_an_owner_that_goes_leaves_its_files_to_the_others(start_agent: StartAgent) -> None:
    async with zones(start_agent, names=("a",), count=3) as world:
        await world.write(3)
        await world.agents[0].agent.stop()
        await until(lambda: all(len(each.agent._membership.agents) == 2 for each in world.agents[1:]))  # type: ignore[union-attr]
        await world.read_everywhere([1, 2])
        assert world.asked("served") > 0
        assert world.gets_per_block_and_zone() == pytest.approx(1), "files of the one that went are fetched once"


async def test_a_neighbour_that_is_frozen_costs_no_more_than_a_deadline(start_agent: StartAgent) -> None:
    """Its kernel takes connections and requests, and nobody reads them: as of a process that was stopped."""
    async with zones(start_agent, names=("a",), count=2, patience_ms=SOON_MS) as world:
        frozen = socket.create_server(("127.0.0.1", 0))
        try:
            await world.write(3, through=[0])
            members = world.agents[1].agent._membership
            assert members is not None
            members.agents = [
                replace(each, address=replace(each.address, zone_port=frozen.getsockname()[1]))
                for each in members.agents
            ]
            await world.read_everywhere([1])
            assert world.agents[1].metric("zone_requests_total", outcome="late") > 0
            assert sum(world.agents[1].metric("zone_requests_total", outcome=each) for each in OUTCOMES) < 20
        finally:
            frozen.close()


async def test_two_agents_that_each_take_the_other_for_the_owner_do_not_wait_for_each_other(
    start_agent: StartAgent,
) -> None:
    async with zones(start_agent, names=("a",), count=2, cache_hot_bytes=0, cache_cold_bytes=0) as world:
        await world.write(2)
        for number, each in enumerate(world.agents):
            members = each.agent._membership
            assert members is not None
            members.agents = [other for other in members.agents if other.writer_id != members.node_id]
            assert len(members.agents) == 1, number
        # nobody waits out its patience: a fetch would end before
        await world.read_everywhere()
        assert world.asked("served") + world.asked("busy") > 0
        assert world.asked("late") + world.asked("failed") == 0


async def test_agents_without_a_zone_or_of_another_one_are_never_asked(start_agent: StartAgent) -> None:
    async with zones(start_agent, count=2) as world:
        await world.write(2)
        await world.read_everywhere()
        assert [world.asked(each) for each in OUTCOMES] == [0] * len(OUTCOMES)
        assert world.gets_per_block_and_zone() == pytest.approx(0.5)


# ---- bytes of files that are gone


async def test_bytes_of_merged_files_leave_the_memory_of_all_agents(start_agent: StartAgent) -> None:
    async with zones(start_agent, names=("a",), count=3) as world:
        await world.write(3)
        await world.read_everywhere()
        metadata = world.fleet.services[0].inner
        merged = set().union(*map(keys_of, world.agents))
        assert merged
        merger = await HandMerger.start(metadata, world.agents[0].store)
        await merger.merge(l0_files=await merger.live_l0())
        # while the files still lie in the store, for readers that have not heard of it
        await until(lambda: not any(keys_of(agent) & merged for agent in world.agents))
        await world.read_everywhere()
        assert not any(keys_of(agent) & merged for agent in world.agents)
        # of merged files too, a block is fetched once
        assert world.gets_per_block_and_zone() <= 1.05


async def test_bytes_of_files_that_nobody_hears_of_leave_by_their_age(start_agent: StartAgent) -> None:
    async with zones(start_agent, names=("a",), count=3, gc_grace_ms=400) as world:
        await world.write(2)
        await world.read_everywhere()
        assert any(keys_of(agent) for agent in world.agents)
        await until(lambda: not any(keys_of(agent) for agent in world.agents))
        # and they can be read again
        await world.read_everywhere()


async def test_bytes_from_a_neighbour_are_as_old_as_they_are_there(start_agent: StartAgent) -> None:
    async with zones(start_agent, names=("a",), count=2) as world:
        await world.write(1, through=[0])
        await asyncio.sleep(0.2)
        await world.read_everywhere([1])
        assert world.agents[1].metric("zone_requests_total", outcome="served") > 0
        at_home, here = (known_of(agent) for agent in world.agents)
        assert here and all(known_ms <= at_home[key] for key, known_ms in here.items())


def caches_of(agent: RunningAgent) -> list[BlockCache]:
    return [agent.agent._reads.hot_cache, agent.agent._reads._cold_cache]


def keys_of(agent: RunningAgent) -> set[str]:
    return {key for cache in caches_of(agent) for key, _ in cache._at}


def known_of(agent: RunningAgent) -> dict[str, float]:
    return {key: body.known_ms for cache in caches_of(agent) for (key, _), body in cache._at.items()}


async def test_a_zone_fetches_each_block_once_over_tls(start_agent: StartAgent, tmp_path: Path) -> None:
    authority = Authority()
    files = authority.agent(["zone.silt.internal"]).write(tmp_path / "agent")
    tls = {
        "zone_tls_cert_file": str(files.cert),
        "zone_tls_key_file": str(files.key),
        "zone_tls_ca_file": str(authority.write(tmp_path / "ca.pem")),
    }
    async with zones(start_agent, **tls) as world:
        await world.write(4)
        await world.read_everywhere()
        for agent in world.agents:
            assert agent.agent.has_certificates
            agent.agent.reload_certificates()
        await world.write(2)
        await world.read_everywhere()
        assert world.gets_per_block_and_zone() <= 1.05
        assert world.asked("served") > 20
        assert sum(world.asked(each) for each in ("late", "failed", "corrupt")) == 0
