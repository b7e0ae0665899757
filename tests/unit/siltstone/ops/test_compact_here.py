"""A pass that this process runs by itself, and its report when a job under way holds it up."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from compactor.heavy.submitter import SubmitError
from compactor.merging.memory_gate import MemoryGate
from compactor.planning.spec import SPARK_LIMIT_BASE_MS, MergeKind
from compactor.worker import Engine, Worker, WorkerMemory
from metadata.contract.jobs import JobState
from metadata.contract.topics import Topic
from metadata.memory.store import MemoryMetadata
from runtime.clock import SystemClock
from runtime.settings.table import Settings
from siltstone.ops.compaction.compact_here import compact_here
from siltstone.ops.compaction.compact_now import StillCompactingError
from siltstone.ops.compaction.run_job import JobFailedError, Parts
from siltstone.processes.spark_note import EngineChoice
from storage.memory import MemoryStore
from tests.fixtures.heavy_merges import LIMIT_MS, HeavySystem, latest

LONG_MS = 60_000


class TimedSystem(HeavySystem):
    """A system on the machine's clock, because the waits here run beside threads."""

    def __init__(self) -> None:
        super().__init__()
        self.clock = SystemClock()  # type: ignore[assignment]
        self.metadata = MemoryMetadata(runtime=self.runtime)
        self.store = MemoryStore(self.clock)

    @property
    def parts(self) -> Parts:
        return Parts(
            settings=Settings(),
            store=self.store,
            metadata=self.metadata,
            runtime=self.runtime,
        )

    async def worker(self, engine: Engine | None = None) -> Worker:
        lease = await self.metadata.compactors.register_compactor("here")
        return Worker(
            metadata=self.metadata,
            engine=self.embedded(lease) if engine is None else engine,
            lease=lease,
            memory=WorkerMemory(gate=MemoryGate(1 << 40)),
            runtime=self.runtime,
        )


@pytest.fixture
async def system() -> AsyncIterator[TimedSystem]:
    system = TimedSystem()
    await system.begin()
    yield system


async def keyed(system: TimedSystem) -> Topic:
    topic = await system.topic("users", cleanup_policy="compact")
    for number in range(3):
        await system.write(topic, [[(b"k%d" % (n % 3), b"%d:%d" % (number, n)) for n in range(8)]])
    return topic


async def test_a_job_that_an_earlier_pass_left_is_run_first(system: TimedSystem) -> None:
    topic = await keyed(system)
    (partition_id,) = topic.partition_ids
    left = await system.merge_all(topic, deduped=[partition_id])
    here = await system.worker()
    done = await compact_here(system.parts, here, "users", LONG_MS, choice=EngineChoice.EMBEDDED)
    job = await system.metadata.compactors.job(left)
    assert job is not None and job.state is JobState.DONE
    assert done.after.records == 3
    # and the report names this job, but not the jobs that had ended before
    assert [each.job_id for each in done.jobs] == [left]
    assert await system.records(partition_id) == latest(system.written[partition_id])


async def test_merges_of_others_that_wait_take_no_places_of_a_pass_that_is_run_here(system: TimedSystem) -> None:
    # given as many live jobs as compactors have places for
    await keyed(system)
    others = await system.topic("others", partitions=Settings().compactor_jobs_max)
    await system.write(others, [[(None, b"x")] for _ in others.partition_ids])
    for partition_id in others.partition_ids:
        (extent,) = await system.extents(partition_id)
        await system.create(system.spec(MergeKind.MERGE, extent_ids=(extent.extent_id,)))
    # when another topic, which none of these jobs touches, is compacted here, then it is compacted
    here = await system.worker()
    done = await compact_here(system.parts, here, "users", 5_000, choice=EngineChoice.EMBEDDED)
    assert done.after.records == 3


async def test_one_that_another_compactor_runs_is_named_and_no_request_is_promised(system: TimedSystem) -> None:
    topic = await keyed(system)
    left = await system.merge_all(topic, deduped=topic.partition_ids)
    other = await system.metadata.compactors.register_compactor("elsewhere")
    await system.claim(other)
    here = await system.worker()
    said = f"job {left} .merge. is run by compactor {other.writer_id} at elsewhere"
    with pytest.raises(StillCompactingError, match=said) as raised:
        await compact_here(system.parts, here, "users", 300, choice=EngineChoice.EMBEDDED)
    assert "no request was stored" in raised.value.remedy and "stays" not in raised.value.remedy


async def test_one_that_fails_again_ends_the_pass(system: TimedSystem) -> None:
    topic = await keyed(system)
    left = await system.merge_all(topic, deduped=topic.partition_ids)

    class Fails:
        async def run(self, *_: object, **__: object) -> object:
            raise SubmitError("no such cluster")

    here = await system.worker(Fails())  # type: ignore[arg-type]
    with pytest.raises(JobFailedError, match=f"job {left} .* no such cluster"):
        await compact_here(system.parts, here, "users", LONG_MS, choice=EngineChoice.EMBEDDED)


async def test_one_with_too_little_time_for_a_cluster_is_left_to_the_compactors(
    system: TimedSystem, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = await keyed(system)
    monkeypatch.setattr("tests.fixtures.heavy_merges.LIMIT_MS", SPARK_LIMIT_BASE_MS - 1)
    left = await system.merge_all(topic, deduped=topic.partition_ids)
    here = await system.worker()
    with pytest.raises(StillCompactingError, match=f"job {left} .merge. waits for a compactor"):
        await compact_here(system.parts, here, "users", 300, choice=EngineChoice.SPARK)
    assert LIMIT_MS >= SPARK_LIMIT_BASE_MS
