"""A compactor in the test's own event loop, beside a real agent, on both metadata stores: its work, and the fate of
merges when something fails.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from compactor.planning.spec import MergeKind
from metadata.contract.errors import MetadataUnavailableError, SchemaMismatchError, WentBackError
from metadata.contract.files import FileState
from metadata.contract.jobs import ClaimedJob, CommitMerge, JobState, MergeCommitted
from storage.wrappers.faulty import Fault, FaultRule
from tests.fixtures.agents import read_all
from tests.fixtures.compacted_systems import LEVEL_ONLY, Gate, System
from tests.fixtures.compacted_systems import start_beside as start
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.metadata_parts import Wrapped
from tests.fixtures.waiting import until

LATE_MS_MAX = 10_000
"""Far above the 50 ms between two plans, for a busy machine."""


async def test_files_are_leveled_merged_deduped_and_the_old_ones_deleted_while_readers_see_all(
    system: System, start_compactor: StartCompactor
) -> None:
    await system.client.create_topic("plain", partitions=1)
    await system.client.create_topic(
        "kv", partitions=1, configs={"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01"}
    )
    compactor = await start(system, start_compactor)
    for _ in range(6):
        await system.write("plain", 3)
        await system.write("kv", 3)
    written = await system.values("plain")
    assert len(written) == 180
    await until(lambda: _is_settled(system))
    assert await system.values("plain") == written
    kept = await read_all(system.client, "kv")
    assert len(kept) == 5 and {offset for offset, _ in kept} == set(range(175, 180))
    assert await system.fsck() == []
    await until(lambda: compactor.metric("deleted_files_total") >= 36)
    assert compactor.merges("failed") == 0
    assert compactor.metric("cleaned_records_total") >= 175 - 5
    assert compactor.metric("level_files", level="2") >= 1


async def _is_settled(system: System) -> bool:
    """Whether L0 is empty, L2 has a run, and the compacted partition is cleaned to its end."""
    topics = {topic.name: topic for topic in await system.metadata.agents.list_topics()}
    [kv] = await system.metadata.operators.partition_views(topics["kv"].topic_id)
    levels = await system.levels()
    return 0 not in levels and 2 in levels and kv.cleaned_through_offset == kv.high_watermark > 0


async def test_eight_times_eight_files_lead_to_the_first_dedupe_by_the_compactors_own_clock(
    system: System, start_compactor: StartCompactor
) -> None:
    """The rules of `test_worked_examples.py`, where the test moves the clock: here nobody tells the compactor when."""
    await system.client.create_topic("kv", partitions=1, configs={"cleanup.policy": "compact"})
    enough: dict[str, Any] = {**LEVEL_ONLY, "l0_files_min": 8, "l1_runs_min": 8, "l0_wait_ms": 200}
    enough |= {"compaction_l0_wait_max_ms": 3_600_000, "l0_bytes_min": 1 << 40, "mostly_dead_bytes_min": 1 << 40}
    compactor = await start(system, start_compactor, **enough)
    # when a producer writes until the first runs have been merged
    async with asyncio.timeout(120):
        while (merged := await system.job(JobState.DONE, MergeKind.MERGE)) is None:
            await system.write("kv", 1)
    # then each job took eight files at least, of which the oldest had waited, and the merge took the first eight runs
    leveled = [job for job in await system.metadata.operators.jobs(states=[JobState.DONE]) if job.kind == "level"]
    assert all(job.input_files >= 8 for job in leveled)
    assert merged.input_files == 8 <= len(leveled)
    # and it was made as soon as there were eight, not after runs that nobody had asked for
    eighth_ms = sorted(job.finished_ms or 0 for job in leveled)[7]
    assert 0 <= merged.created_ms - eighth_ms < LATE_MS_MAX
    # and consumers see the newest record of each key
    kept = [offset for offset, _ in await read_all(system.client, "kv")]
    assert kept == sorted(set(kept)) and len(kept) < 10 * next(system.sent)
    assert compactor.merges("failed") == 0


async def test_a_merge_with_a_missing_input_fails_is_told_and_the_rest_goes_on(
    system: System, start_compactor: StartCompactor
) -> None:
    await system.client.create_topic("t", partitions=1)
    await system.write("t", 3)
    lost = (await system.metadata.operators.files())[0]
    await system.store.delete_many([lost.key])
    compactor = await start(system, start_compactor, **LEVEL_ONLY)
    await until(lambda: system.job(JobState.FAILED))
    failed = await system.job(JobState.FAILED)
    assert failed is not None and lost.key in failed.error
    assert compactor.metric("merges_total", kind="level", outcome="failed") == 1
    # then: other files are leveled; the lost one is left alone for a while
    await system.write("t", 3)

    async def leveled() -> bool:
        files = await system.metadata.operators.files(limit=1000)
        return [file.key for file in files if file.level == 0 and file.state is FileState.LIVE] == [lost.key]

    await until(leveled)
    assert len(await system.metadata.operators.jobs(states=[JobState.FAILED])) == 1


async def test_a_fault_of_the_engine_fails_its_merge_alone(system: System, start_compactor: StartCompactor) -> None:
    await system.client.create_topic("t", partitions=1)

    class Faulted:
        async def run(self, claimed: ClaimedJob, **_: Any) -> CommitMerge:
            raise ZeroDivisionError("a fault of ours")

    compactor = await start(system, start_compactor, engine=lambda _: Faulted(), **LEVEL_ONLY)
    await system.write("t", 3)
    await until(lambda: system.job(JobState.FAILED))
    failed = await system.job(JobState.FAILED)
    assert failed is not None and failed.error == "ZeroDivisionError: a fault of ours"
    assert compactor.compactor.ready and not compactor.compactor.failed.done()


async def test_a_store_that_is_away_gives_the_merge_back_and_it_is_done_later(
    system: System, start_compactor: StartCompactor
) -> None:
    await system.client.create_topic("t", partitions=1)
    await system.write("t", 3)
    system.faults.rules = (
        FaultRule(fault=Fault.LOST_REQUEST, op="get"),
        FaultRule(fault=Fault.LOST_REQUEST, op="get_range"),
    )
    compactor = await start(system, start_compactor, **LEVEL_ONLY)
    await until(lambda: compactor.metric("compactor_errors_total", loop="level") >= 2)
    assert await system.job(JobState.FAILED) is None
    assert compactor.metric("merges_total", kind="level", outcome="given_back") >= 2
    system.faults.rules = ()
    await until(lambda: compactor.merges("done") == 1)
    assert len(await system.values("t")) == 30


async def test_an_object_that_the_store_cannot_give_holds_up_its_own_merge_alone(
    system: System, start_compactor: StartCompactor
) -> None:
    await system.client.create_topic("t", partitions=1)
    await system.write("t", 3)
    sick = (await system.metadata.operators.files())[0]
    system.faults.rules = (FaultRule(fault=Fault.UNREACHABLE, key=sick.key),)
    compactor = await start(system, start_compactor, **LEVEL_ONLY)
    await until(lambda: compactor.metric("merges_total", kind="level", outcome="given_back") >= 2)

    async def rests() -> bool:
        job = await system.job(JobState.READY)
        return job is not None and sick.key in job.error and job.not_before_ms > job.created_ms

    await until(rests)
    # then: later files are leveled, though the oldest job has not run
    await system.write("t", 3)
    await until(lambda: compactor.merges("done") == 1)
    assert await system.job(JobState.FAILED) is None
    # and the job ends when the store recovers
    system.faults.rules = ()
    await until(lambda: compactor.merges("done") == 2)
    assert len(await system.values("t")) == 60


async def test_a_commit_whose_answer_was_lost_is_asked_again_until_it_is_answered(
    system: System, start_compactor: StartCompactor
) -> None:
    await system.client.create_topic("t", partitions=1)
    await system.write("t", 3)
    calls: list[CommitMerge] = []

    async def commit_merge(commit: CommitMerge) -> MergeCommitted:
        committed = await system.metadata.compactors.commit_merge(commit)
        calls.append(commit)
        if len(calls) < 3:
            raise MetadataUnavailableError("the answer was lost")
        return committed

    metadata = Wrapped(system.metadata, commit_merge=commit_merge)
    compactor = await start(system, start_compactor, metadata=metadata, **LEVEL_ONLY)
    await until(lambda: compactor.merges("done") == 1)
    assert len(calls) == 3 and calls[0] is calls[1] is calls[2]
    assert len([file for file in await system.metadata.operators.files() if file.level == 1]) == 1
    assert len(await system.values("t")) == 30


async def test_told_to_stop_it_gives_its_merge_and_its_duties_back_at_once(
    system: System, start_compactor: StartCompactor
) -> None:
    await system.client.create_topic("t", partitions=1)
    await system.write("t", 3)
    gate = Gate(system)
    first = await start(system, start_compactor, engine=gate.engine, **LEVEL_ONLY)
    await gate.waiting.wait()
    began = time.monotonic()
    await first.compactor.stop()
    assert time.monotonic() - began < 5
    job = await system.job(JobState.READY)
    assert job is not None and job.epoch == 1
    assert list(await system.metadata.compactors.live_compactors()) == []
    # then: another one takes it over at once, though neither lease nor duty has run out
    second = await start(system, start_compactor, **LEVEL_ONLY)
    await until(lambda: second.merges("done") == 1, timeout_s=5)
    assert second.metric("compactor_duty", duty="plan") == 1
    assert len(await system.values("t")) == 30


async def test_one_that_lost_its_job_stops_and_commits_nothing(system: System, start_compactor: StartCompactor) -> None:
    await system.client.create_topic("t", partitions=1)
    await system.write("t", 3)
    gate = Gate(system)
    sleeper = await start(system, start_compactor, engine=gate.engine, **LEVEL_ONLY)
    await gate.waiting.wait()
    # given: the job is returned without its knowledge, and another compactor does it
    running = await system.job(JobState.RUNNING)
    assert running is not None
    await system.metadata.compactors.give_back_job(running.job_id, running.epoch)
    other = await start(system, start_compactor, **LEVEL_ONLY)
    await until(lambda: other.merges("done") == 1)
    gate.open.set()
    await until(lambda: sleeper.metric("merges_total", kind="level", outcome="lost") == 1)
    assert sleeper.merges("done") == 0
    assert len(await system.values("t")) == 30
    assert await system.fsck() == []


async def test_leveling_does_not_wait_behind_a_long_merge(system: System, start_compactor: StartCompactor) -> None:
    await system.client.create_topic("t", partitions=1)
    gate = Gate(system)

    compactor = await start(system, start_compactor, engine=gate.only(MergeKind.MERGE))
    while not gate.waiting.is_set():
        await system.write("t", 3)
    done = compactor.metric("merges_total", kind="level", outcome="done")
    await system.write("t", 3)
    await until(lambda: compactor.metric("merges_total", kind="level", outcome="done") > done)
    assert compactor.metric("merges_total", kind="merge", outcome="done") == 0
    gate.open.set()
    await until(lambda: compactor.metric("merges_total", kind="merge", outcome="done") >= 1)


async def test_a_topic_deleted_under_a_running_merge_leaves_nothing_in_the_bucket(
    system: System, start_compactor: StartCompactor
) -> None:
    await system.client.create_topic("t", partitions=1)
    await system.write("t", 6)
    gate = Gate(system)
    compactor = await start(system, start_compactor, engine=gate.engine)
    await gate.waiting.wait()
    [topic] = await system.metadata.agents.list_topics()
    await system.metadata.agents.delete_topic(topic.topic_id)
    gate.open.set()

    async def nothing_left() -> bool:
        objects = [stat.key async for stat in system.store.list() if stat.key.startswith("l")]
        live_or_dead = {FileState.LIVE, FileState.DEAD}
        files = [file for file in await system.metadata.operators.files(limit=1000) if file.state in live_or_dead]
        return not objects and not files

    await until(nothing_left)
    assert await system.fsck() == []
    assert compactor.merges("failed") == 0


async def test_a_schema_that_does_not_take_the_compactor_any_more_halts_it_and_fails_no_merge(
    system: System, start_compactor: StartCompactor
) -> None:
    async def commit_merge(commit: CommitMerge) -> MergeCommitted:
        raise SchemaMismatchError("this program is too old")

    await system.client.create_topic("t", partitions=1)
    await system.write("t", 3)
    metadata = Wrapped(system.metadata, commit_merge=commit_merge)
    compactor = await start(system, start_compactor, metadata=metadata, **LEVEL_ONLY)
    with pytest.raises(SchemaMismatchError):
        await asyncio.wait_for(compactor.compactor.failed, 30)
    assert await system.job(JobState.FAILED) is None, "another program may do it"


async def test_a_metadata_store_that_went_back_in_time_halts_the_compactor(
    system: System, start_compactor: StartCompactor
) -> None:
    async def compaction_view() -> Any:
        raise WentBackError("the database was restored")

    metadata = Wrapped(system.metadata, compaction_view=compaction_view)
    compactor = await start(system, start_compactor, metadata=metadata)
    with pytest.raises(WentBackError):
        await asyncio.wait_for(compactor.compactor.failed, 10)
