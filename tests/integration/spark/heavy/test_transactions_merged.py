"""Merges here and merges on Spark over topics with committed, aborted and open transactions. Stock consumers of either
isolation level see what a model of the written records says, before and after, and no object holds what a dedupe
removed.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from compactor.compactor import embedded_engine
from compactor.heavy.engine import HeavyEngine, HeavyOptions, PlanStore
from compactor.planning.options import MergeMemory
from compactor.worker import Engine
from metadata.contract.compactors import PartitionView
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.files import FileState
from metadata.contract.jobs import JobState, MergeJob
from metadata.contract.leases import WriterLease
from metadata.contract.store import MetadataStore
from metadata.contract.topics import Watermarks
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from storage.cluster import check_cluster
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.urls import open_store, parse_store_url
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.both_readers import COMMITTED, UNCOMMITTED, Read, aiokafka, librdkafka
from tests.fixtures.compactors import RunningCompactor, StartCompactor
from tests.fixtures.random_transactions import Place, RandomTransactions
from tests.fixtures.s3 import BucketUrl
from tests.fixtures.spark_merges import SessionSubmitter
from tests.fixtures.waiting import until
from tests.fixtures.written_history import Seen

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")
PLAIN, KEYED, PARTITIONS = "plain", "keyed", 2
GRACE_MS = 2_000
KEYS, ROUNDS = 40, 5
PASS_KEYS_MAX, DEEP_ROUNDS = 16, 60
"""So many rounds write more keys to each partition than one pass takes."""
NEVER = {"forced_dirty_wait_ms": 3_600_000, "forced_dirty_bytes_min": 1 << 40}
"""No pass but those that are asked for."""
LEVEL_ONLY = {"l0_files_min": 1, "l1_runs_min": 1_000, "l2_runs_min": 1_000, "mostly_dead_fraction": 1.0, **NEVER}
MERGES = {"l1_runs_min": 2, "l2_runs_min": 2, "mostly_dead_fraction": 1.0, "job_limit_base_ms": 120_000, **NEVER}
WAIT_S = 120


async def answered(ask: Callable[[], Awaitable[T]]) -> T:
    """Ask again where Postgres does not answer in time, as it may on a busy machine."""
    found: list[T] = []

    async def is_answered() -> bool:
        with suppress(MetadataUnavailableError):
            found.append(await ask())
        return bool(found)

    await until(is_answered, WAIT_S)
    return found[0]


class System:
    def __init__(self, metadata: MetadataStore, store_url: str, agent: RunningAgent, start: StartCompactor) -> None:
        self.metadata, self.agent, self._store_url, self._start = metadata, agent, store_url, start
        self.store: ObjectStore = agent.store
        self.ids: dict[Place, int] = {}

    async def begin(self, dial: Dial) -> None:
        seed = Random().getrandbits(32)
        print(f"seed {seed}")
        client = await dial.kafka(self.agent.address)
        for name, policy in ((PLAIN, "delete"), (KEYED, "compact")):
            configs = {"cleanup.policy": policy, "retention.ms": "-1"}
            await client.create_topic(name, partitions=PARTITIONS, configs=configs)
        self.topics = {each.name: each for each in await self.metadata.agents.list_topics()}
        self.ids = {(each.name, at): id_ for each in self.topics.values() for at, id_ in enumerate(each.partition_ids)}
        self.cluster_id = (await self.metadata.cluster_identity()).cluster_id
        self.sent = await asyncio.to_thread(
            RandomTransactions, self.agent.address, list(self.ids), Random(seed), keys=KEYS
        )

    async def write(self, *, slow_commits: bool | None = None) -> None:
        """Transactions that cross the end of a slow one and the begin of the next; the files are leveled in between."""
        await asyncio.to_thread(self.sent.write, ROUNDS)
        if slow_commits is not None:
            await asyncio.to_thread(self.sent.slow.end, commits=slow_commits)
        await self.compacts(dedupes=False, **LEVEL_ONLY)
        await asyncio.to_thread(self.sent.write, ROUNDS)
        await asyncio.to_thread(self.sent.begin_slow)
        await self.compacts(dedupes=False, **LEVEL_ONLY)
        await asyncio.to_thread(self.sent.write, ROUNDS)
        await self.check_readers()
        await self.compacts(dedupes=False, **LEVEL_ONLY)

    # ---- merges

    async def compactor(self, **settings: Any) -> RunningCompactor:
        return await self._start(store=self.store, metadata=self.metadata, gc_grace_ms=GRACE_MS, **settings)

    async def compacts(self, *, dedupes: bool, **settings: Any) -> list[MergeJob]:
        """Run a compactor until nothing is left to do. Returns the jobs that it did."""
        known = await self._jobs()
        running = await self.compactor(**settings)
        await until(self._is_leveled, WAIT_S)
        if dedupes:
            await until(lambda: self._has_merged(len(known)), WAIT_S)
            await answered(lambda: self.metadata.operators.request_compaction(self.topics[KEYED].topic_id))
            try:
                await until(self._is_clean, WAIT_S)
            except TimeoutError:
                views = await self._views()
                jobs = await self._jobs()
                pytest.fail(f"not clean: {views}, after {jobs[: len(jobs) - len(known)]}")
        await until(self._is_idle, WAIT_S)
        assert running.merges("failed") == 0
        await running.compactor.stop()
        jobs = await self._jobs()
        return [each for each in jobs[: len(jobs) - len(known)] if each.state is JobState.DONE]

    async def _has_merged(self, known: int) -> bool:
        """The first merges are over. A pass that began beside them would come to their inputs, and go on later."""
        jobs = await self._jobs()
        return len(jobs) > known and await self._is_idle()

    async def _is_leveled(self) -> bool:
        files = await answered(lambda: self.metadata.operators.files(limit=10_000))
        return all(each.level for each in files if each.state is FileState.LIVE)

    async def _is_clean(self) -> bool:
        return all(
            each.requested_through_offset is None and each.cleaned_through_offset == each.last_stable_offset
            for each in await self._views()
        )

    async def _is_idle(self) -> bool:
        return not any(each.state in (JobState.READY, JobState.RUNNING) for each in await self._jobs())

    async def _jobs(self) -> Sequence[MergeJob]:
        return await answered(lambda: self.metadata.operators.jobs(limit=10_000))

    async def _views(self) -> Sequence[PartitionView]:
        return await answered(lambda: self.metadata.operators.partition_views(self.topics[KEYED].topic_id))

    async def _watermarks(self, partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
        return await answered(lambda: self.metadata.agents.watermarks(partition_ids))

    async def note_cleaned(self) -> None:
        """The model hears how far the dedupe came, which is how far it may come."""
        marks = await self._watermarks(list(self.ids.values()))
        for place, log in self.sent.histories.items():
            if place[0] == KEYED:
                log.cleaned_through = log.last_stable_offset(log.end)
                assert log.cleaned_through == marks[self.ids[place]].last_stable_offset

    def on_spark(self, spark: SparkSession, *, keyed_unit_bytes: int) -> Callable[[WriterLease], Engine]:
        """Every merge but those of L0 files, in small units."""

        def engine(lease: WriterLease) -> Engine:
            return HeavyEngine(
                embedded=embedded_engine(Settings(), self.store, Runtime(), lease=lease),
                submitter=SessionSubmitter(spark),
                plans=PlanStore(self.store, parse_store_url(self._store_url), self.cluster_id),
                clock=SystemClock(),
                lease=lease,
                options=HeavyOptions(
                    bytes_min=0,
                    unit_bytes=4_000,
                    keyed_unit_bytes=keyed_unit_bytes,
                    memory=MergeMemory(keys_max=5),
                    poll_ms=100.0,
                ),
            )

        return engine

    # ---- readers

    async def check_readers(self) -> None:
        for read in (librdkafka, aiokafka):
            for topic in (PLAIN, KEYED):
                for isolation in (COMMITTED, UNCOMMITTED):
                    await self._check(read, topic, isolation)

    async def _check(self, read: Read, topic: str, isolation: str) -> None:
        logs = {number: self.sent.histories[topic, number] for number in range(PARTITIONS)}
        ends = {number: log.end for number, log in logs.items()}
        expected = {number: log.uncommitted() for number, log in logs.items()}
        if isolation == COMMITTED:
            ends = {number: log.last_stable_offset(log.end) for number, log in logs.items()}
            expected = {number: log.committed() for number, log in logs.items()}
        marks = await self._watermarks(list(self.topics[topic].partition_ids))
        for number, log in logs.items():
            mark = marks[self.ids[topic, number]]
            stable = log.last_stable_offset(log.end)
            assert (mark.last_stable_offset, mark.high_watermark) == (stable, log.end), (topic, number)

        async def sees_it() -> bool:
            seen = await asyncio.to_thread(read, self.agent.address, topic, isolation, ends)
            for number, log in logs.items():
                check_order(seen[number])
                hidden = log.never_shown() if isolation == COMMITTED else set[bytes]()
                assert not hidden & values(seen[number]), (topic, number, isolation)
            last.update(seen)
            return seen == expected

        # For a part of the grace, an agent may read the extents that a merge has just replaced.
        last: dict[int, list[Seen]] = {}
        with suppress(TimeoutError):
            await until(sees_it, 20)
        assert last == expected, (read.__name__, topic, isolation)

    # ---- the bucket

    async def found(self, wanted: set[bytes]) -> set[bytes]:
        """The values that some object holds."""
        missing = set(wanted)
        for key in [stat.key async for stat in self.store.list("")]:
            with suppress(ObjectNotFoundError):  # the janitor may delete it meanwhile
                body = await self.store.get(key)
                missing -= {each for each in missing if each in body}
        return wanted - missing

    async def check_bucket(self) -> None:
        """Once no transaction is open, nothing of an aborted one is left in a compacted topic."""
        logs = [log for place, log in self.sent.histories.items() if place[0] == KEYED]
        aborted = {value for log in logs for value in log.never_shown()}
        gone = {value for log in logs for value in log.gone()}
        assert len(aborted) > 5
        assert aborted <= gone
        left = {value for log in logs for value in values(log.uncommitted())}
        assert await self.found(left) == left, "the search finds nothing"
        janitor = await self.compactor(**MERGES)

        async def is_gone() -> bool:
            return not await self.found(gone)

        await until(is_gone, 60)
        await janitor.compactor.stop()
        assert await self.found(left) == left


def values(seen: list[Seen]) -> set[bytes]:
    return {each.value for each in seen if each.value is not None}


def check_order(seen: list[Seen]) -> None:
    offsets = [each.offset for each in seen]
    assert offsets == sorted(set(offsets))


@pytest.fixture
async def system(
    s3_url: BucketUrl, postgres_url: str, start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial
) -> AsyncIterator[System]:
    url = s3_url()
    metadata, store = open_metadata(postgres_url), open_store(url)
    await metadata.open()
    await store.open()
    await check_cluster(store, cluster_id=(await metadata.cluster_identity()).cluster_id, store_bound=False)
    agent = await start_agent(store=store, metadata=metadata, gc_grace_ms=GRACE_MS)
    yield System(metadata, url, agent, start_compactor)
    await agent.agent.stop()
    await store.close()
    await metadata.close()


@pytest.mark.timeout(900)
@pytest.mark.parametrize("keyed_unit_bytes", [pytest.param(1 << 20, id="whole"), pytest.param(1, id="sliced")])
async def test_readers_see_what_was_committed_whatever_spark_merges(
    system: System, spark: SparkSession, dial: Dial, keyed_unit_bytes: int
) -> None:
    await system.begin(dial)
    await system.write()
    engine = system.on_spark(spark, keyed_unit_bytes=keyed_unit_bytes)
    settings = {**MERGES, "engine": engine, "heavy_bytes_min": 0, "l2_runs_min": 1_000}
    did(await system.compacts(dedupes=True, **settings), on="session")
    await system.note_cleaned()
    await system.check_readers()


@pytest.mark.timeout(900)
async def test_readers_see_what_was_committed_and_no_object_holds_what_a_deep_pass_removed(
    system: System, dial: Dial
) -> None:
    await system.begin(dial)
    await system.write()
    did(await system.compacts(dedupes=True, **MERGES), on="")
    await system.note_cleaned()
    await system.check_readers()
    await asyncio.to_thread(system.sent.write, DEEP_ROUNDS)
    await asyncio.to_thread(system.sent.end_quick)
    await asyncio.to_thread(system.sent.slow.end, commits=False)
    jobs = await system.compacts(dedupes=True, **MERGES, dedupe_keys_max=PASS_KEYS_MAX)
    assert max(each.result.get("passes", 0) for each in jobs) > 1
    await system.note_cleaned()
    await system.check_readers()
    await system.check_bucket()


def did(jobs: list[MergeJob], *, on: str) -> None:
    """Some merged both topics and some deduped, all on this engine ("": in the compactor)."""
    merges = [each for each in jobs if each.kind != "level"]
    assert "merge" in {each.kind for each in merges}
    assert sum(each.result["deduped_partitions"] for each in merges) >= PARTITIONS
    assert {each.result.get("engine", "") for each in merges} == {on}
