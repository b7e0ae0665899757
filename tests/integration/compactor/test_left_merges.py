"""Leftovers of crashed merges: more files than the limit of orphans, and still no work for an operator."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

import compactor.deletion.janitor
from compactor.deletion.janitor import Janitor, JanitorLimits, TooManyOrphansError
from compactor.merging.execute import MergeEngine
from compactor.worker import Engine
from metadata.contract.agents import each_live_file
from metadata.contract.jobs import ClaimedJob, CommitMerge, JobState, NewJob
from metadata.contract.leases import WriterLease
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from storage.format.file_properties import FileProperties
from storage.format.file_writer import FileWriter
from storage.format.inspect import FileReport, inspect_file
from storage.keys import PROBE_PREFIX, file_key
from storage.objects import ObjectStat, ObjectStore
from storage.wrappers.wrapper import WrappedStore
from tests.fixtures.compacted_systems import LEVEL_ONLY, System
from tests.fixtures.compacted_systems import start_beside as start
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.waiting import until
from wire.crc import crc32c
from wire.records import NewRecord, build_batch

CLOCK, IDS = SystemClock(), SystemIds()
HOUR_MS = 3_600_000


class Crashes:
    """An engine that writes all its outputs and then disappears."""

    def __init__(self, system: System) -> None:
        self._system = system
        self.crashed = asyncio.Event()
        self.outputs: Sequence[str] = ()

    def __call__(self, lease: WriterLease) -> Engine:
        self._engine = MergeEngine(store=self._system.store, runtime=Runtime(clock=CLOCK, ids=IDS), lease=lease)
        return self

    async def run(self, claimed: ClaimedJob, **options: Any) -> CommitMerge:
        commit = await self._engine.run(claimed, **options)
        self.outputs = [each.key for each in commit.outputs]
        self.crashed.set()
        await asyncio.Event().wait()
        return commit


class Listed(WrappedStore):
    """A store that counts reads of its clock, one before each listing. Its objects look an hour older than they are."""

    def __init__(self, inner: ObjectStore, *, ahead_ms: int) -> None:
        super().__init__(inner)
        self.ahead_ms = ahead_ms
        self.probes = 0

    async def head(self, key: str) -> ObjectStat:
        stat = await super().head(key)
        self.probes += key.startswith(PROBE_PREFIX)
        return replace(stat, last_modified_ms=stat.last_modified_ms + self.ahead_ms)

    async def list(self, prefix: str = "", *, start_after: str = "") -> AsyncIterator[ObjectStat]:
        async for stat in super().list(prefix, start_after=start_after):
            yield replace(stat, last_modified_ms=stat.last_modified_ms - HOUR_MS)


class Left:
    """Files of merges, written by hand, and a janitor."""

    def __init__(self, system: System) -> None:
        self.system = system
        self.metrics = Metrics()

    def janitor(self, **options: Any) -> Janitor:
        return Janitor(
            store=self.system.store,
            metadata=self.system.metadata,
            runtime=Runtime(clock=CLOCK, ids=IDS, metrics=self.metrics),
            limits=JanitorLimits(**{"grace_ms": 0, "orphan_age_ms": 0, **options}),
        )

    async def job(self) -> ClaimedJob:
        """A claimed merge over a new file."""
        await self.system.write("t", 1)
        *_, file = [each async for each in each_live_file(self.system.metadata.agents)]
        lease = await self.system.metadata.compactors.register_compactor("test")
        await self.system.metadata.compactors.create_job(
            NewJob(kind="level", spec={}, l0_file_ids=[file.file_id], limit_ms=60_000)
        )
        claimed = await self.system.metadata.compactors.claim_job(lease)
        assert claimed is not None
        return claimed

    async def files(self, job_id: int, *, epoch: int, count: int) -> list[str]:
        return [await self._file(job_id, epoch) for _ in range(count)]

    async def _file(self, job_id: int, epoch: int) -> str:
        now_ms = CLOCK.wall_ms()
        key = file_key(level=1, writer_id=999, epoch=0, file_uuid=IDS.uuid7(now_ms), created_ms=now_ms)
        properties = FileProperties(
            job_id=job_id,
            kind="level",
            epoch=epoch,
            level=1,
            file_class="plain",
            inputs=(),
            topics={},
            created_ms=now_ms,
        )
        await FileWriter(self.system.store, key, level=1, created_ms=now_ms).finish(properties)
        return key

    async def l0_files(self, count: int) -> None:
        """Write L0 files that are an hour old by their keys."""
        for _ in range(count):
            begun_ms = CLOCK.wall_ms() - HOUR_MS
            key = file_key(level=0, writer_id=998, epoch=0, file_uuid=IDS.uuid7(begun_ms), created_ms=begun_ms)
            await self.system.store.put_if_absent(key, b"any bytes", crc32c=crc32c(b"any bytes"))

    async def done(self, claimed: ClaimedJob) -> None:
        """The next attempt ends the job. Its inputs hold nothing live any more, so there are no outputs."""
        [topic] = await self.system.metadata.agents.list_topics()
        await self.system.metadata.agents.delete_topic(topic.topic_id)
        commit = CommitMerge(job_id=claimed.job.job_id, epoch=claimed.job.epoch, outputs=[], covered={})
        await self.system.metadata.compactors.commit_merge(commit)


@pytest.fixture
async def left(system: System) -> Left:
    await system.client.create_topic("t", partitions=1)
    return Left(system)


async def test_a_crashed_merge_of_many_outputs_is_swept_once_another_attempt_has_done_it(
    system: System, start_compactor: StartCompactor
) -> None:
    # given a merge of thirty outputs whose compactor disappears just before the commit
    await system.client.create_topic("t", partitions=30)
    for partition in range(30):
        await system.client.produce("t", partition, build_batch([NewRecord(1_700_000_000_000, b"k", bytes(70_000))]))
    options = {**LEVEL_ONLY, "output_bytes": 65_536, "orphan_age_ms": 2_000}
    engine = Crashes(system)
    first = await start(system, start_compactor, engine=engine, **options)
    await engine.crashed.wait()
    assert len(engine.outputs) >= 25
    for each in (*first.compactor._lanes, *first.compactor._chores):
        await each.cancel()
    first.compactor._lease, lease = None, first.compactor._lease
    assert lease is not None
    await system.metadata.compactors.unregister_compactor(lease)  # as if its ten seconds were over
    # when another compactor does the merge again
    second = await start(system, start_compactor, **options)
    await until(lambda: second.merges("done") >= 1)

    # then the leftovers of the first go by themselves
    async def are_gone() -> bool:
        there = {stat.key async for stat in system.store.list("l1/")}
        return not there & set(engine.outputs)

    await until(are_gone)
    assert second.metric("orphans_refused") == 0
    assert await system.fsck() == []


async def test_files_of_attempts_of_a_job_that_is_done_are_swept_however_many(left: Left) -> None:
    claimed = await left.job()
    files = await left.files(claimed.job.job_id, epoch=claimed.job.epoch, count=25)
    # as long as the job may fail for good, its files may be the last copies of their records
    await left.system.metadata.compactors.unregister_compactor(WriterLease(writer_id=claimed.job.holder or 0, epoch=0))
    with pytest.raises(TooManyOrphansError, match="25 of 26 objects are unknown"):
        await left.janitor().sweep_orphans()
    lease = await left.system.metadata.compactors.register_compactor("another")
    again = await left.system.metadata.compactors.claim_job(lease)
    assert again is not None and again.job.epoch == claimed.job.epoch + 1
    await left.done(again)
    # and once it is done they need not be counted
    assert (await left.janitor().sweep_orphans()).deleted == 25
    there = {stat.key async for stat in left.system.store.list("l1/")}
    assert not there & set(files)


@pytest.mark.parametrize("why", ["too many", "clocks"])
async def test_a_compactor_that_refuses_says_so_once_and_lists_no_more_often_than_ever(
    left: Left, start_compactor: StartCompactor, capsys: pytest.CaptureFixture[str], why: str
) -> None:
    # given more orphans than may go, or a store whose clock is ten minutes ahead
    await left.l0_files(21)
    store = Listed(left.system.store, ahead_ms=600_000 if why == "clocks" else 0)
    rounds = {"orphan_check_interval_ms": 50, "orphan_age_ms": 60_000}
    running = await start_compactor(store=store, metadata=left.system.metadata, **rounds)
    # when the janitor has come by again and again
    await until(lambda: store.probes >= 5)
    # then its alarm stands, each round was one like others, and the log has one line
    assert running.metric("orphans_refused") == 1
    assert running.metric("compactor_errors_total", loop="orphans") == 0
    said = capsys.readouterr().err
    assert said.count("the sweep of orphans refuses") == 1 and "round failed" not in said
    # and when the reason is gone it goes on
    store.ahead_ms = 0
    left_there = [stat.key async for stat in store.list("l0/")][:5]
    await store.delete_many(left_there)
    await until(lambda: running.metric("orphans_deleted_total") >= 15)
    assert running.metric("orphans_refused") == 0


async def test_of_a_job_that_failed_and_of_one_that_nobody_knows_files_are_counted(left: Left) -> None:
    claimed = await left.job()
    await left.files(claimed.job.job_id, epoch=claimed.job.epoch, count=15)
    await left.files(12_345, epoch=1, count=6)
    await left.system.metadata.compactors.fail_job(claimed.job.job_id, claimed.job.epoch, error="crashed too often")
    job = await left.system.metadata.compactors.job(claimed.job.job_id)
    assert job is not None and job.state is JobState.FAILED
    with pytest.raises(TooManyOrphansError, match="21 of 22 objects are unknown"):
        await left.janitor().sweep_orphans()


async def test_what_is_not_counted_does_not_hide_what_is(left: Left, monkeypatch: pytest.MonkeyPatch) -> None:
    # in one round: over several rounds the count stops when it is sure, which depends on the files' random names
    monkeypatch.setattr(compactor.deletion.janitor, "FOOTERS_AT_ONCE", 30)
    claimed = await left.job()
    await left.files(claimed.job.job_id, epoch=claimed.job.epoch, count=25)
    await left.files(12_345, epoch=1, count=5)
    await left.done(claimed)
    await left.l0_files(16)
    with pytest.raises(TooManyOrphansError, match=r"^21 of 47 .* \(25 of merges that lost nothing are not"):
        await left.janitor().sweep_orphans()
    assert (await left.janitor(orphan_refuse_files=21).sweep_orphans()).deleted == 46


async def test_no_footer_is_read_where_there_are_too_many_in_any_case_or_few_enough(
    left: Left, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    async def counted(store: ObjectStore, key: str, **options: Any) -> FileReport:
        read.append(key)
        return await inspect_file(store, key, **options)

    monkeypatch.setattr(compactor.deletion.janitor, "inspect_file", counted)
    claimed = await left.job()
    await left.files(claimed.job.job_id, epoch=claimed.job.epoch, count=25)
    await left.done(claimed)
    await left.l0_files(21)
    with pytest.raises(TooManyOrphansError):
        await left.janitor().sweep_orphans()
    assert read == []
    # nor if the check would have to read more than its limit
    monkeypatch.setattr(compactor.deletion.janitor, "FOOTERS_AT_ONCE", 2)
    monkeypatch.setattr(compactor.deletion.janitor, "FOOTERS_MAX", 10)
    with pytest.raises(TooManyOrphansError, match="46 of 47 objects"):
        await left.janitor(orphan_refuse_files=35).sweep_orphans()
    assert read == []
    # otherwise it reads no more than it needs to decide
    assert (await left.janitor(orphan_refuse_files=44).sweep_orphans()).deleted == 46 and len(read) == 2
    assert (await left.janitor().sweep_orphans()).orphans == 0 and len(read) == 2
