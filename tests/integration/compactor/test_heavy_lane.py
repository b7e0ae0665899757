"""A compactor with a cluster: a long merge on the cluster does not delay merges in the compactor."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from compactor.heavy.engine import HeavyEngine, HeavyOptions, PlanStore
from compactor.heavy.submitter import Phase, Submission, SubmissionState
from compactor.merging.execute import MergeEngine
from compactor.planning.options import MergeMemory
from compactor.planning.plan import new_job
from compactor.planning.spec import GIB, MergeKind, MergeSpec
from compactor.worker import Engine
from metadata.contract.files import FileState
from metadata.contract.jobs import JobState, MergeJob
from metadata.contract.leases import WriterLease
from metadata.erasures.contract import KeyMark, NewErasure
from runtime.runtime import Runtime
from storage.cluster import check_cluster
from tests.fixtures.compacted_systems import LEVEL_ONLY, System, start_beside
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.erasures import hash_of
from tests.fixtures.heavy_merges import InProcessSubmitter
from tests.fixtures.waiting import until
from wire.records import walk

HEAVY_BYTES = 1_000_000
"""The planned size; the real files are small."""
QUIET = {**LEVEL_ONLY, "l2_runs_min": 1_000}
"""Options under which only L0 files are merged, and the jobs that a test requests."""


class FullCluster:
    """A `Submitter` whose drivers wait until the cluster has room."""

    name = "full"

    def __init__(self, inner: InProcessSubmitter) -> None:
        self.inner = inner
        self.has_room = asyncio.Event()
        self.cancelled = 0

    async def submit(self, plan_url: str, **asked: Any) -> WaitingDriver:
        return WaitingDriver(self, plan_url, asked)


class WaitingDriver:
    def __init__(self, cluster: FullCluster, plan_url: str, asked: dict[str, Any]) -> None:
        self._cluster, self._plan_url, self._asked = cluster, plan_url, asked
        self._inner: Submission | None = None

    async def state(self) -> SubmissionState:
        if not self._cluster.has_room.is_set():
            return SubmissionState(Phase.PENDING, "job run 7 is QUEUED")
        if self._inner is None:
            self._inner = await self._cluster.inner.submit(self._plan_url, **self._asked)
        return await self._inner.state()

    async def cancel(self) -> None:
        self._cluster.cancelled += 1
        if self._inner is not None:
            await self._inner.cancel()

    async def let_go(self) -> None:
        await self.cancel()


async def engines_with(system: System) -> tuple[FullCluster, Callable[[WriterLease], Engine]]:
    identity = await system.metadata.cluster_identity()
    await check_cluster(system.store, cluster_id=identity.cluster_id, store_bound=identity.store_bound)
    runtime = Runtime()
    cluster = FullCluster(InProcessSubmitter(system.store, runtime))

    def engine(lease: WriterLease) -> Engine:
        return HeavyEngine(
            embedded=MergeEngine(store=system.store, runtime=runtime, lease=lease, memory=MergeMemory(keys_max=1_000)),
            submitter=cluster,
            plans=PlanStore(system.store, None, identity.cluster_id),
            clock=runtime.clock,
            lease=lease,
            options=HeavyOptions(bytes_min=HEAVY_BYTES, unit_bytes=1, poll_ms=10),
        )

    return cluster, engine


async def leveled(system: System, start_compactor: StartCompactor, *topics: str) -> None:
    """Topics with two files each in L1."""
    for topic in topics:
        await system.client.create_topic(topic, partitions=1)
    first = await start_beside(system, start_compactor, **QUIET)
    for topic in topics * 2:
        await system.write(topic, 3)
        await until(lambda: has_no_l0(system))
    await first.compactor.stop()


async def has_no_l0(system: System) -> bool:
    return 0 not in await system.levels()


async def merge_of(system: System, topic: str, planned_bytes: int) -> int:
    """A job over the whole topic, as if it had been planned with this many bytes."""
    [partition_id] = next(
        each for each in await system.metadata.agents.list_topics() if each.name == topic
    ).partition_ids
    extents = await system.metadata.readers.leveled_extents(partition_id, 0)
    assert len(extents) >= 2
    spec = MergeSpec(
        kind=MergeKind.MERGE,
        now_ms=await system.metadata.now_ms(),
        limit_ms=600_000,
        level=2,
        output_bytes=GIB,
        dedupe=False,
        extent_ids=tuple(each.extent_id for each in extents),
        input_bytes=planned_bytes,
    )
    return await system.metadata.compactors.create_job(new_job(spec))


async def job(system: System, job_id: int) -> MergeJob:
    found = await system.metadata.compactors.job(job_id)
    assert found is not None
    return found


async def test_small_merges_go_on_beside_a_heavy_one_which_takes_no_memory_here(
    system: System, start_compactor: StartCompactor
) -> None:
    cluster, engine = await engines_with(system)
    # given a heavy merge, planned first, and another behind it
    await leveled(system, start_compactor, "large", "later", "small", "smaller")
    written = [await system.values(topic) for topic in ("large", "small")]
    heavy, second = [await merge_of(system, topic, HEAVY_BYTES) for topic in ("large", "later")]
    running = await start_beside(system, start_compactor, engine=engine, heavy_bytes_min=HEAVY_BYTES, **QUIET)

    async def state(job_id: int, wanted: JobState) -> bool:
        return (await job(system, job_id)).state is wanted

    # when the cluster has no room
    await until(lambda: state(heavy, JobState.RUNNING))
    small, smaller = await merge_of(system, "small", HEAVY_BYTES - 1), await merge_of(system, "smaller", 0)
    for job_id in (small, smaller):
        await until(lambda job_id=job_id: state(job_id, JobState.DONE))

    # then the compactor does the small ones itself, one heavy merge waits and reports it, the other has not begun
    assert "engine" not in (await job(system, small)).result
    assert await state(heavy, JobState.RUNNING) and await state(second, JobState.READY)
    await until(lambda: tells(system, heavy))
    assert running.metric("merge_memory_bytes") == 0
    # and when there is room, both are done on the cluster
    cluster.has_room.set()
    for job_id in (heavy, second):
        await until(lambda job_id=job_id: state(job_id, JobState.DONE))
        assert (await job(system, job_id)).result["engine"] == "full"
    assert [await system.values(topic) for topic in ("large", "small")] == written
    assert (running.merges("done"), running.merges("failed")) == (4, 0)


async def tells(system: System, job_id: int) -> bool:
    waiting = await job(system, job_id)
    progress = waiting.progress
    if not str(progress.get("step", "")).startswith("full: pending"):
        return False
    units = len(
        waiting.spec["extent_ids"]
    )  # each is one merge; on a busy machine the writes of a topic may cause more of them
    assert progress["step"] == f"full: pending, 0 of {units} units done; job run 7 is QUEUED"
    assert progress["engine"] == "full"
    return True


async def test_a_compactor_that_stops_gives_its_heavy_merge_back_and_one_without_a_cluster_takes_it(
    system: System, start_compactor: StartCompactor
) -> None:
    cluster, engine = await engines_with(system)
    await leveled(system, start_compactor, "large")
    heavy = await merge_of(system, "large", HEAVY_BYTES)
    first = await start_beside(system, start_compactor, engine=engine, heavy_bytes_min=HEAVY_BYTES, **QUIET)

    async def waits_there() -> bool:
        return (await job(system, heavy)).state is JobState.RUNNING and bool(cluster.inner.tokens) is False

    await until(waits_there)
    await first.compactor.stop()
    given_back = await job(system, heavy)
    assert (given_back.state, given_back.attempts) == (JobState.READY, 0)
    # when a compactor without a cluster comes, then its merge lane takes merges of every size
    await start_beside(system, start_compactor, **QUIET)

    async def is_done() -> bool:
        return (await job(system, heavy)).state is JobState.DONE

    await until(is_done)
    assert "engine" not in (await job(system, heavy)).result


async def test_an_erasing_merge_of_any_size_runs_here_and_takes_the_marks_of_its_partitions(
    system: System, start_compactor: StartCompactor
) -> None:
    # given a topic whose first record has a key to erase, and a cluster without room
    _, engine = await engines_with(system)
    await leveled(system, start_compactor, "large")
    topic = next(each for each in await system.metadata.agents.list_topics() if each.name == "large")
    extents = await system.metadata.readers.leveled_extents(topic.partition_ids[0], 0)
    body = await system.store.get(extents[0].key)
    first = next(walk(memoryview(body)[extents[0].position :]))
    assert first.key is not None
    erasure_id = await system.metadata.erasures.request_erasure(
        NewErasure(
            topic_id=topic.topic_id,
            marks={0: [KeyMark(hash_of(bytes(first.key)), 1)]},
            begin_ms=3_600_000,
            deadline_ms=7_200_000,
            secret=bytes(32),
        )
    )
    # when a merge is planned that would be large enough for the cluster
    spec = MergeSpec(
        kind=MergeKind.ERASE,
        now_ms=await system.metadata.now_ms(),
        limit_ms=600_000,
        level=1,
        output_bytes=GIB,
        dedupe=False,
        file_ids=tuple(sorted({each.file_id for each in extents})),
        input_bytes=HEAVY_BYTES,
    )
    job_id = await system.metadata.compactors.create_job(new_job(spec))
    running = await start_beside(system, start_compactor, engine=engine, heavy_bytes_min=HEAVY_BYTES, **QUIET)

    async def is_done() -> bool:
        return (await job(system, job_id)).state is JobState.DONE

    await until(is_done)
    # then the compactor has done it, and no live file is pending
    result = (await job(system, job_id)).result
    assert ("engine" in result, result["records_erased"]) == (False, 1)
    await until(lambda: running.metric("erased_records_total") == 1)  # counted after the commit
    pending = await system.metadata.erasures.pending_files(erasure_id)
    assert [each for each in pending if each.state is FileState.LIVE] == []
