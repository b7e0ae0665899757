"""The Metadata answer for 50,000 partitions: built for the first time, repeated, and after one topic was added.

Three agents in this process over stores in memory; one of them answers through its handler and its encoder, without a
socket. The event loop is watched meanwhile: a stall is the CPU time between two turns of another task. On a machine of
its own, another connection of this agent would wait that long.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import sys
import time
import uuid
from collections.abc import AsyncGenerator, Generator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass

from agents.agent import Agent
from agents.broker import Broker
from agents.handlers import metadata_api
from bench.cases.metadata_clients import metadata_clients
from bench.registry import Size
from bench.table import Cell, Column, Table
from metadata.contract.topics import Topic
from metadata.memory.store import MemoryMetadata
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from siltstone.processes.garbage import SELDOM
from storage.memory import MemoryStore
from wire.api import RequestHeader, encode_response
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.schema import Octets

AGENTS = 3
PARTITIONS = 50_000
TOPICS = {Size.SMALL: (1, 50_000), Size.FULL: (1, 50, 5_000, 50_000)}
VERSION = 12
REPEATS = 20
TICK_S = 0.0005


@dataclass(frozen=True, slots=True)
class Answer:
    seconds: float
    cpu_s: float
    longest_stall_s: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Figures:
    first: Answer
    repeated: Answer
    """The median of REPEATS answers."""
    changed: Answer
    """The first answer after one more topic was added."""


def run(size: Size) -> Iterator[Table]:
    yield asyncio.run(measure([(topics, PARTITIONS // topics) for topics in TOPICS[size]]))
    yield metadata_clients(size)


async def measure(shapes: Sequence[tuple[int, int]]) -> Table:
    """Two rows per (topics, partitions of each): a request for all topics, and one for a single name."""
    rows: list[list[Cell]] = []
    for topics, partitions in shapes:
        for one in (False, True):
            print(f"{topics} topics x {partitions} partitions, {'one' if one else 'all'} asked", file=sys.stderr)
            async with _broker() as broker:
                with _collecting_as_agents_do():
                    figures = await _measure(broker, topics, partitions, one=one)
            rows.append(
                [
                    topics,
                    partitions,
                    "one" if one else "all",
                    figures.first.seconds * 1000,
                    figures.first.cpu_s * 1000,
                    figures.first.longest_stall_s * 1000,
                    figures.repeated.seconds * 1000,
                    figures.changed.seconds * 1000,
                    figures.changed.longest_stall_s * 1000,
                    figures.first.bytes / 2**20,
                    figures.first.cpu_s / figures.repeated.cpu_s,
                ]
            )
    return Table(
        f"Metadata v{VERSION} of {AGENTS} agents, answered by one of them",
        "Changed: the first answer after one more topic was made. Stall: the longest time the event loop was held up."
        " Stalls and the ratio are CPU time.",
        (
            Column("topics"),
            Column("partitions each"),
            Column("asked for"),
            Column("first", "ms", 2),
            Column("its CPU", "ms", 2),
            Column("its stall", "ms", 2),
            Column("repeated", "ms", 3),
            Column("changed", "ms", 2),
            Column("its stall", "ms", 2),
            Column("answer", "MiB", 3),
            Column("first to repeated", "x", 0),
        ),
        rows,
    )


async def _measure(broker: Broker, topics: int, partitions: int, *, one: bool) -> Figures:
    everything = [_topic(number, partitions) for number in range(topics)]
    broker.topic_cache.load(everything)
    gc.collect()
    gc.freeze()
    names = [MetadataRequestTopic(name=everything[topics // 2].name)] if one else None
    first = await _answer(broker, names)
    repeated = sorted([await _answer(broker, names) for _ in range(REPEATS)], key=lambda answer: answer.seconds)
    broker.topic_cache.load([*everything, _topic(topics, 1)])
    return Figures(first, repeated[REPEATS // 2], await _answer(broker, names))


def _topic(number: int, partitions: int) -> Topic:
    first_id = number * partitions + 1
    return Topic(
        topic_id=uuid.UUID(int=0x018F2F6E_5A1B_7C3D_9E4F_000000000000 + number),
        name=f"orders.region-{number:05}",
        partition_ids=tuple(range(first_id, first_id + partitions)),
        configs={},
        created_ms=0,
    )


async def _answer(broker: Broker, topics: list[MetadataRequestTopic] | None) -> Answer:
    header = RequestHeader(3, VERSION, 1, "bench")
    request = MetadataRequest(topics=topics, allow_auto_topic_creation=False)
    stalls: list[float] = [0.0]
    watch = asyncio.create_task(_watch(stalls))
    await asyncio.sleep(2 * TICK_S)
    stalls.clear()
    started, cpu_started = time.perf_counter(), time.thread_time()
    parts = await _encoded(broker, header, request)
    seconds, cpu_s = time.perf_counter() - started, time.thread_time() - cpu_started
    await asyncio.sleep(2 * TICK_S)
    watch.cancel()
    return Answer(seconds, cpu_s, max(stalls), sum(len(part) for part in parts))


async def _encoded(broker: Broker, header: RequestHeader, request: MetadataRequest) -> list[Octets]:
    answer = metadata_api.handle(broker, header, request)
    response: MetadataResponse = await answer if inspect.isawaitable(answer) else answer
    return encode_response(header, response)


@contextmanager
def _collecting_as_agents_do() -> Generator[None]:
    """Garbage is collected as rarely as in an agent's process; with 50,000 topics each collection is a long stall."""
    before = gc.get_threshold()
    gc.set_threshold(*SELDOM)
    yield
    gc.set_threshold(*before)
    gc.unfreeze()


async def _stop(agents: Sequence[Agent]) -> None:
    """Stop them together: an agent that stops while others stay serves on until they know."""
    await asyncio.gather(*(agent.stop() for agent in agents))


async def _watch(stalls: list[float]) -> None:
    """Record, again and again, the CPU time until this task has its turn."""
    while True:
        started = time.thread_time()
        await asyncio.sleep(TICK_S)
        stalls.append(time.thread_time() - started)


@asynccontextmanager
async def _broker() -> AsyncGenerator[Broker]:
    """The parts of one agent among three."""
    metadata, store = MemoryMetadata(), MemoryStore()
    await metadata.open()
    async with AsyncExitStack() as stack:
        agents: list[Agent] = []
        for _ in range(AGENTS):
            agent = Agent(
                settings=Settings(listen="127.0.0.1:0"),
                store=store,
                metadata=metadata,
                runtime=Runtime(),
            )
            await agent.start()
            agents.append(agent)
        stack.push_async_callback(_stop, agents)
        server = agents[-1]._server  # pyright: ignore[reportPrivateUsage] - nobody else asks an agent for its parts
        assert server is not None
        assert len(server.broker.membership.agents) == AGENTS, "the last to join sees all"
        yield server.broker
