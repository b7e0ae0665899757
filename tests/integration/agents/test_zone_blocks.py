"""One GET per block and zone: what agents of a zone fetch for each other, and what a bad neighbour costs."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from unittest.mock import patch

import pytest

from agents.read.blocks import blocks_of
from agents.zone.server import ZoneServer
from siltstone.kafka.client import connected
from storage.memory import MemoryStore
from tests.fixtures.agents import RunningAgent, StartAgent, read_all
from tests.fixtures.fleet import Fleet, fleet
from wire.records import NewRecord, build_batch

PARTITIONS = 8
ZONES = ("a", "b")


class CountingStore:
    """One agent's way to the store that all agents share: its GETs are counted by block, for its zone."""

    def __init__(self, inner: MemoryStore, gets: Counter[tuple[str, int]]) -> None:
        self._inner = inner
        self.gets = gets
        self.broken = False

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
    start_agent: StartAgent, *, count: int = 4, names: tuple[str, ...] = ZONES, is_on: bool = True, **settings: object
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
        yield Zones(agents, gets)


@contextmanager
def answers_by_hand(reply: object) -> Iterator[None]:
    """The server's method that answers requests, replaced."""
    with patch.object(ZoneServer, "answer", reply):
        yield


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
