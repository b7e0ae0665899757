"""An idle system costs nothing in the object store: its requests are counted over hours of virtual time, and priced.

Three agents and a compactor run on the simulation's loop, in which hours take seconds. The metadata store is the one in
memory. It has no backup of its own, so a small part here hands the compactor the rows of its topics.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from compactor.compactor import Compactor
from compactor.intervals import Tuning
from metadata.contract.backup import SEQUENCES, BackupInstant, DoneJob, JobCursor, TakeRows
from metadata.memory.store import MemoryMetadata
from metadata.postgres.backup.tables import TABLES
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from siltstone.ops.cost.estimate import IDLE_LISTS_PER_HOUR, idle_requests_usd, prices_with
from storage.objects import Body, Deleted, MultipartUpload, ObjectStat, ObjectStore
from storage.wrappers.wrapper import WrappedStore
from tests.simulation import loop as simulation_loop
from tests.simulation.consumers import Consumer
from tests.simulation.fleet import Seat
from tests.simulation.loop import SimulationLoop
from tests.simulation.producers import IdempotentProducer
from tests.simulation.stores import Stage
from tests.simulation.world import World

HOUR_S = 3_600
SETTLE_HOURS = 2
"""Merges, the grace of their inputs and the first snapshots are over by then."""
IDLE_HOURS = 5
AGENTS = 3
AGENT_SETTINGS = {"tail_poll_ms": 10_000, "produce_linger_ms": 250}
"""Looks at the metadata store take nearly all of the time here. An object store that is asked at each of them would be
asked hundreds of times an hour still."""
FREE_OPS = ("delete",)


class Counting(WrappedStore):
    """Counts requests as a store bills them: a listing of up to 1,000 objects is one."""

    def __init__(self, inner: ObjectStore, now_s: Callable[[], float]) -> None:
        super().__init__(inner)
        self._now_s = now_s
        self.requests: list[tuple[float, str, str]] = []
        """When, which request, and for which key or prefix."""

    def count(self, op: str, key: str) -> None:
        self.requests.append((self._now_s(), op, key))

    def since(self, start_s: float) -> list[tuple[float, str, str]]:
        return [each for each in self.requests if each[0] >= start_s and each[1] not in FREE_OPS]

    async def get(self, key: str) -> bytes:
        self.count("get", key)
        return await super().get(key)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        self.count("get", key)
        return await super().get_range(key, start, length)

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        self.count("put", key)
        await super().put_if_absent(key, body, crc32c=crc32c)

    async def head(self, key: str) -> ObjectStat:
        self.count("head", key)
        return await super().head(key)

    async def delete_many(self, keys: Sequence[str]) -> Deleted:
        self.count("delete", keys[0])
        return await super().delete_many(keys)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        self.count("list", prefix)
        async for stat in super().list(prefix, start_after=start_after):
            yield stat

    async def start_multipart(self, key: str) -> MultipartUpload:
        self.count("put", key)
        return await super().start_multipart(key)

    async def abort_multiparts(self, *, older_than_ms: int) -> int:
        self.count("list", "uploads")
        return await super().abort_multiparts(older_than_ms=older_than_ms)


class TopicsBackup:
    """Keeps `BackupMetadata` for a store in memory: the rows of its topics, the other tables empty."""

    def __init__(self, metadata: MemoryMetadata) -> None:
        self._metadata = metadata

    async def rows(self, take: TakeRows) -> BackupInstant:
        snapshot = await self._metadata.agents.snapshot()
        for table in TABLES.values():
            await take(table, ())
            if table.name == "topics":
                topics = snapshot.topics
                await take(
                    table, [(each.topic_id, each.name, {**each.configs}, 1, each.created_ms, 1) for each in topics]
                )
        return BackupInstant(
            taken_ms=await self._metadata.now_ms(),
            cluster_id=self._metadata.database.cluster_id,
            cursor=snapshot.cursor,
            sequences=dict.fromkeys(SEQUENCES, 0),
        )

    async def done_jobs(self, cursor: JobCursor | None) -> tuple[Sequence[DoneJob], JobCursor]:
        return (), cursor or JobCursor(highest=0, live=frozenset(), told=frozenset())


class OneThread(SimulationLoop):
    """Runs at once what others would run in a thread."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:  # type: ignore[override]
        done = self.create_future()
        done.set_result(func(*args))
        return done


class IdleWorld(World):
    """A world without faults, whose agents and compactor ask a store that counts."""

    def __init__(self) -> None:
        super().__init__(1)
        self.faults.heal()
        # One store, so that each request is counted once.
        self.stores.plan = (Stage.ALONE,)
        inner = self.stores.first
        self.counting = Counting(inner, self.loop.time)
        self.stores.first = self.counting  # type: ignore[assignment]
        self.server.backup = TopicsBackup(self.server)  # type: ignore[assignment]
        self.seats = [Seat(self, number, AGENT_SETTINGS) for number in range(AGENTS)]
        self.addresses = [seat.address for seat in self.seats]
        self.compactor: Compactor | None = None

    async def begin(self) -> None:
        """Agents, a compactor, and some records."""
        await self.server.agents.create_topic("steady", partitions=len(self.partitions), configs={})
        for seat in self.seats:
            seat.start()
        producer = IdempotentProducer(self, "writer", self.partitions[0], 12)
        producer.start()
        self.compactor = Compactor(
            settings=Settings(),
            store=self.counting,
            metadata=self.server,
            runtime=Runtime(clock=self.server_clock, ids=SystemIds(seed=7), metrics=Metrics()),
            tuning=Tuning(in_thread=False),
        )
        await self.compactor.start()
        while not producer.is_done:
            await asyncio.sleep(1)
        assert not self.violations


@pytest.fixture
def idle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[IdleWorld]:
    monkeypatch.setattr(simulation_loop, "CALLBACKS_MAX", 100_000_000)
    monkeypatch.setattr("tests.simulation.world.SimulationLoop", OneThread)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    world = IdleWorld()
    with world.logged():
        yield world
        world.loop.end()


def run(world: IdleWorld, work: Coroutine[Any, Any, None]) -> None:
    world.loop.run_until_complete(world.loop.create_task(work, context=world.loop.outside.context))


def too_often(requests: Sequence[tuple[float, str, str]], hours: float) -> list[str]:
    """The requests that an idle system must not make: all but listings, and a listing more than once an hour."""
    found = [f"{op} {key} after {at_s:.0f} s" for at_s, op, key in requests if op != "list"]
    counts = Counter(prefix for _, _, prefix in requests)
    # One more than the hours: a listing may fall on either end of the time.
    return found + [f"{prefix}: {times} listings" for prefix, times in counts.items() if times > hours + 1]


@pytest.mark.timeout(600)  # its hours take half a minute of a processor
def test_an_idle_system_only_lists_and_each_prefix_once_an_hour(idle: IdleWorld) -> None:
    counting = idle.counting

    async def story() -> None:
        await idle.begin()
        await asyncio.sleep(SETTLE_HOURS * HOUR_S)
        assert {"put", "get", "list"} <= {op for _, op, _ in counting.requests}, "it was not idle before"
        assert any(key.startswith("catalog/snapshots/") for _, op, key in counting.requests if op == "put")
        # given a consumer that has read the last records and waits at the end of the log
        consumer = Consumer(idle, "waiting", idle.partitions, from_latest=True)
        consumer.start()
        await asyncio.sleep(60)
        # when hours pass
        start_s = idle.loop.time()
        await asyncio.sleep(600)
        consumer.process.kill()
        await asyncio.sleep(IDLE_HOURS * HOUR_S - 600)
        # then
        requests = counting.since(start_s)
        assert too_often(requests, IDLE_HOURS) == []
        assert 0 < len(requests) / IDLE_HOURS <= IDLE_LISTS_PER_HOUR
        assert idle_requests_usd(prices_with({}), lists_per_hour=len(requests) / IDLE_HOURS) <= 5
        assert not idle.violations
        # and changes are still noticed: a new topic is in the backup within seconds
        start_s = idle.loop.time()
        await idle.server.agents.create_topic("new", partitions=1, configs={})
        await asyncio.sleep(60)
        backup = [each for each in counting.since(start_s - HOUR_S) if each[2].startswith("catalog/")]
        increments = [at_s for at_s, op, key in backup if op == "put" and key.startswith("catalog/increments/")]
        assert any(at_s >= start_s for at_s in increments), (start_s, backup, idle.server.database.duties)
        assert not idle.violations

    run(idle, story())


def test_a_loop_that_lists_each_minute_is_found(idle: IdleWorld) -> None:
    async def lister() -> None:
        while True:
            assert [stat async for stat in idle.counting.list("catalog/")]
            await asyncio.sleep(60)

    async def story() -> None:
        await idle.begin()
        idle.start(idle.new_process("lister"), lister())
        start_s = idle.loop.time()
        await asyncio.sleep(HOUR_S / 2)
        found = too_often(counting.since(start_s), 1 / 2)
        assert any(each.startswith("catalog/: ") for each in found), found

    counting = idle.counting
    run(idle, story())
