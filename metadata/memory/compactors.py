"""The calls of a compactor, in the memory store: duties, the planner's view, jobs and the commit of a merge.

Every method is atomic: it never waits.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from metadata.configs.broker import retention_check_ms
from metadata.contract.compactors import CompactionView, PartitionView
from metadata.contract.files import FileInfo, FileState
from metadata.contract.jobs import (
    JOB_ATTEMPTS_MAX,
    ClaimedJob,
    CommitMerge,
    InputPartition,
    JobState,
    L0Input,
    MergeCommitted,
    MergeJob,
    MergeRefusedError,
    NewJob,
    OutputExtent,
    OutputFile,
)
from metadata.contract.leases import JOB_LEASE_MS, WriterLease
from metadata.contract.leveled import LeveledExtent
from metadata.contract.tail import ChangeKind
from metadata.contract.topics import (
    Topic,
)
from metadata.memory.erasures import erasing_files, stamp_of_output
from metadata.memory.tables import Compactor, Extent, File, Job, MemoryDatabase
from metadata.memory.views import file_view, live_jobs, partition_views_of
from metadata.rules import jobs as job_rules
from metadata.rules.merge_commit import (
    InputRange,
    check_output_keys,
    cleaned,
    decide_commit,
    merged_detail,
    pass_took_ms,
)
from metadata.rules.packed_index import encode_index, iter_index
from metadata.rules.refusals import compactor_lease_ended
from metadata.rules.retention import (
    retention_policy,
)
from runtime.clock import Clock


class MemoryCompactors:
    """The memory implementation of `CompactorMetadata`."""

    def __init__(self, database: MemoryDatabase, clock: Clock) -> None:
        self.database = database
        self._clock = clock

    # -- compactors and duties

    async def register_compactor(self, host: str) -> WriterLease:
        db = self.database
        node_id, db.next_node_id = db.next_node_id, db.next_node_id + 1
        db.compactors[node_id] = Compactor(host, self._clock.wall_ms() + JOB_LEASE_MS)
        return WriterLease(writer_id=node_id, epoch=0)

    async def beat_compactor(self, lease: WriterLease) -> None:
        compactor = self.database.compactors.get(lease.writer_id)
        if compactor is None:
            raise compactor_lease_ended(lease)
        compactor.lease_until_ms = self._clock.wall_ms() + JOB_LEASE_MS

    async def unregister_compactor(self, lease: WriterLease) -> None:
        self.database.compactors.pop(lease.writer_id, None)
        for job in self.database.live_jobs():
            if job.row.holder == lease.writer_id and job.row.state is JobState.RUNNING:
                _give_back(job)

    async def live_compactors(self) -> Sequence[tuple[int, str]]:
        now_ms = self._clock.wall_ms()
        return [
            (node_id, compactor.host)
            for node_id, compactor in sorted(self.database.compactors.items())
            if job_rules.holds(compactor.lease_until_ms, now_ms, JOB_LEASE_MS)
        ]

    async def take_duty(self, name: str, lease: WriterLease, *, ttl_ms: int) -> bool:
        now_ms = self._clock.wall_ms()
        holder, until_ms = self.database.duties.get(name, (lease.writer_id, 0))
        compactor = self.database.compactors.get(holder)
        is_alive = compactor is not None and job_rules.holds(compactor.lease_until_ms, now_ms, JOB_LEASE_MS)
        if holder != lease.writer_id and until_ms > now_ms and is_alive:
            return False
        self.database.duties[name] = (lease.writer_id, now_ms + ttl_ms)
        return True

    # -- planning and jobs

    async def compaction_view(self) -> CompactionView:
        db = self.database
        busy_l0, busy_extents = db.busy()
        policies = {topic_id: retention_policy(db.in_force(topic)) for topic_id, topic in db.topics.items()}
        views: list[PartitionView] = []
        for topic_id, policy in policies.items():
            if policy.compacts:
                views += partition_views_of(db, db.topics[topic_id])
        return CompactionView(
            now_ms=self._clock.wall_ms(),
            files=[file_view(db, file, policies) for _, file in sorted(db.files.items()) if file.is_live],
            partitions=views,
            busy_files=frozenset(busy_l0 | {db.extents[id_].row.file_id for id_ in busy_extents if id_ in db.extents}),
            busy_extents=frozenset(busy_extents),
            live_jobs=live_jobs(db),
            retention_check_ms=retention_check_ms(db.broker_configs),
            last_daily_ms=max(
                (
                    job.row.created_ms
                    for job in db.jobs.values()
                    if job.row.kind == "daily" and job.row.state is not JobState.FAILED
                ),
                default=None,
            ),
            erasing_files=erasing_files(db),
        )

    async def create_job(self, job: NewJob) -> int:
        db = self.database
        l0_files = sorted(set(job.l0_file_ids))
        # All checks before the first change: a refusal must leave nothing behind.
        of_files = {file_id: self._live_extents(file_id) for file_id in job.file_ids}
        missing = (
            {id_ for id_ in job.extent_ids if id_ not in db.extents or db.extents[id_].dead_ms is not None}
            or {file_id for file_id, extents in of_files.items() if not extents}
            or {file_id for file_id in l0_files if not self._is_live_l0(file_id)}
        )
        if missing:
            raise job_rules.inputs_not_live(missing)
        extents = set(job.extent_ids).union(*of_files.values())
        busy_l0, busy_extents = db.busy()
        if not busy_l0.isdisjoint(l0_files) or not busy_extents.isdisjoint(extents):
            raise job_rules.inputs_held()
        now_ms = self._clock.wall_ms()
        for partition_id in job.forced_partition_ids:
            if partition_id in db.partitions:
                db.partitions[partition_id].last_forced_ms = now_ms
        job_id, db.next_job_id = db.next_job_id, db.next_job_id + 1
        row = MergeJob(
            job_id=job_id,
            kind=job.kind,
            state=JobState.READY,
            epoch=0,
            spec=dict(job.spec),
            holder=None,
            attempts=0,
            created_ms=now_ms,
            started_ms=None,
            deadline_ms=None,
            finished_ms=None,
            lease_until_ms=None,
            not_before_ms=now_ms + job.rest_ms if job.rest_ms else 0,
            input_files=len({*l0_files, *(db.extents[id_].row.file_id for id_ in extents)}),
            input_bytes=job.input_bytes,
            progress={},
            result={},
            error="",
        )
        db.jobs[job_id] = Job(row=row, asked=job, l0_files=tuple(l0_files), extents=tuple(sorted(extents)))
        return job_id

    async def claim_job(
        self,
        lease: WriterLease,
        *,
        kinds: Sequence[str] = (),
        job_id: int | None = None,
        bytes_min: int = 0,
        bytes_below: int | None = None,
    ) -> ClaimedJob | None:
        now_ms = self._clock.wall_ms()
        for job in self.database.live_jobs():
            row = job.row
            leased = job_rules.holds(row.lease_until_ms, now_ms, JOB_LEASE_MS)
            is_held = row.state is JobState.RUNNING and leased
            rests = row.state is JobState.READY and job_rules.rests(row.not_before_ms, now_ms)
            asked = (not kinds or row.kind in kinds) and job_id in (None, row.job_id)
            asked = asked and row.input_bytes >= bytes_min and (bytes_below is None or row.input_bytes < bytes_below)
            if is_held or (rests and job_id is None) or not asked:
                continue
            if row.attempts >= JOB_ATTEMPTS_MAX:
                self._fail(
                    job,
                    job_rules.given_up(row.attempts),
                    self._input_files(job),
                    job_rules.EXHAUSTED_RETRY_MS,
                    again_after_ms=job_rules.EXHAUSTED_AGAIN_RETRY_MS,
                )
                continue
            job.row = replace(
                row,
                state=JobState.RUNNING,
                epoch=row.epoch + 1,
                holder=lease.writer_id,
                attempts=row.attempts + 1,
                started_ms=now_ms,
                deadline_ms=now_ms + job.asked.limit_ms,
                lease_until_ms=now_ms + JOB_LEASE_MS,
                progress={},
                error="",
            )
            return self._claimed(job, now_ms)
        return None

    async def beat_job(self, job_id: int, epoch: int, *, progress: Mapping[str, object] | None = None) -> None:
        job = self._running(job_id, epoch, progress=progress)
        job.row = replace(job.row, lease_until_ms=self._clock.wall_ms() + JOB_LEASE_MS)

    async def give_back_job(self, job_id: int, epoch: int, *, trouble: str = "", file_ids: Sequence[int] = ()) -> None:
        job = self.database.jobs.get(job_id)
        if job is None or job.row.epoch != epoch or job.row.state is not JobState.RUNNING:
            return
        # Without trouble (a compactor that stops) nothing counts against the job.
        if trouble:
            job.give_backs += 1
        # After this many times the trouble will not pass soon: fail the job, so that the planner plans around it.
        if trouble and job.give_backs >= job_rules.GIVE_BACKS_MAX:
            retry_after_ms = job_rules.UNREADABLE_RETRY_MS if file_ids else job_rules.UNWRITTEN_RETRY_MS
            self._fail(job, trouble, file_ids or self._input_files(job), retry_after_ms)
            return
        _give_back(job)
        if trouble:
            rest_ms = job_rules.give_back_rest_ms(job.give_backs)
            job.row = replace(job.row, not_before_ms=self._clock.wall_ms() + rest_ms, error=trouble)

    async def fail_job(
        self, job_id: int, epoch: int, *, error: str, file_ids: Sequence[int] = (), retry_after_ms: int = 60_000
    ) -> None:
        job = self.database.jobs.get(job_id)
        if job is not None and job.row.epoch == epoch and job.row.state is JobState.RUNNING:
            self._fail(job, error, file_ids, retry_after_ms)

    async def job(self, job_id: int) -> MergeJob | None:
        job = self.database.jobs.get(job_id)
        return None if job is None else job.row

    # -- the commit

    async def commit_merge(self, commit: CommitMerge) -> MergeCommitted:
        db = self.database
        job = db.jobs.get(commit.job_id)
        if job is not None and job.row.epoch == commit.epoch and job.committed is not None:
            return job.committed  # a repeat after a lost answer
        job = self._running(commit.job_id, commit.epoch, by_ms=commit.commit_by_ms)
        try:
            decision = decide_commit(commit, self._input_ranges(job), db.log_starts())
            keys = [output.key for output in commit.outputs]
            check_output_keys(keys, known=db.file_ids.keys(), forgotten_key_hour=db.forgotten_key_hour)
        except MergeRefusedError as error:
            # The inputs rest for a while: planned again at once, the same merge would be refused again.
            self._fail(job, str(error), self._input_files(job), job_rules.REFUSED_RETRY_MS)
            raise
        now_ms = self._clock.wall_ms()
        input_files = [db.files[id_] for id_ in self._input_files(job) if id_ in db.files]
        # Outputs stand for all that their inputs stood for, whichever extents each of them holds.
        lo, hi = min((file.lo for file in input_files), default=0), max((file.hi for file in input_files), default=0)
        db.kill_extents(job.extents, now_ms=now_ms)
        for file_id in job.l0_files:
            db.files[file_id].dies(now_ms)
        file_ids = [
            self._insert_output(job, output, trimmed, (lo, hi), now_ms)
            for output, trimmed in zip(commit.outputs, decision.trimmed, strict=True)
        ]
        for pass_ in commit.cleaned:
            if pass_.partition_id in db.partitions:
                partition = db.partitions[pass_.partition_id]
                took_ms = pass_took_ms(job.row.kind, job.row.started_ms, now_ms)
                partition.cleaned = cleaned(partition.cleaned, pass_, now_ms=now_ms, took_ms=took_ms)
                db.transactions.forget_aborted(pass_.partition_id, pass_.aborted_gone)
        job.committed = MergeCommitted(file_ids=tuple(file_ids), trimmed_extents=decision.trimmed_extents)
        job.row = replace(
            job.row, state=JobState.DONE, finished_ms=now_ms, lease_until_ms=None, result=dict(commit.summary)
        )
        detail = merged_detail(commit, job.l0_files)
        if detail is not None:
            db.append_change(ChangeKind.MERGED, None, detail, now_ms=now_ms)
        return job.committed

    async def notify(self) -> None:
        self.database.give_news()

    # -- inside

    def _insert_output(
        self, job: Job, output: OutputFile, trimmed: Sequence[bool], range_: tuple[int, int], now_ms: int
    ) -> int:
        db = self.database
        file_id, db.next_file_id = db.next_file_id, db.next_file_id + 1
        live = len(trimmed) - sum(trimmed)
        info = FileInfo(
            file_id=file_id,
            key=output.key,
            level=output.level,
            state=FileState.LIVE if live else FileState.DEAD,
            writer_id=None,
            epoch=None,
            seq=None,
            size_bytes=output.size_bytes,
            crc32c=output.crc32c,
            created_ms=now_ms,
            index=encode_index(()),
            file_class=output.file_class.value,
            dead_ms=None if live else now_ms,
            live_extents=live,
            job_id=job.row.job_id,
        )
        db.file_ids[output.key] = file_id
        file = db.files[file_id] = File(info=info, lo=range_[0], hi=range_[1])
        read = [db.extents[id_].row for id_ in job.extents]
        for extent, is_trimmed in zip(output.extents, trimmed, strict=True):
            stamped = replace(extent, erased_through=stamp_of_output(db, extent, job.l0_files, read))
            extent_id, db.next_extent_id = db.next_extent_id, db.next_extent_id + 1
            row = leveled_extent(extent_id, file_id, output, stamped)
            db.extents[extent_id] = Extent(row=row, dead_ms=now_ms if is_trimmed else None)
            file.extents.append(extent_id)
            file.max_timestamp_ms = max(file.max_timestamp_ms, extent.max_timestamp_ms)
            if not is_trimmed:
                db.partitions[extent.partition_id].extents.append(extent_id)
        return file_id

    def _live_extents(self, file_id: int) -> Sequence[int]:
        """The live extents of a file of L1 or above."""
        file = self.database.files.get(file_id)
        return [] if file is None else [id_ for id_ in file.extents if self.database.extents[id_].dead_ms is None]

    def _is_live_l0(self, file_id: int) -> bool:
        file = self.database.files.get(file_id)
        return file is not None and file.is_live and file.info.level == 0

    def _running(
        self, job_id: int, epoch: int, *, by_ms: int | None = None, progress: Mapping[str, object] | None = None
    ) -> Job:
        """The running job, if the caller holds it and its time limit has not passed; else raises JobLostError.

        `progress` is kept. A job past its limit fails, with its last step in the error.
        """
        job = self.database.jobs.get(job_id)
        if job is None or job.row.epoch != epoch or job.row.state is not JobState.RUNNING:
            raise job_rules.job_lost(job_id, epoch)
        if progress is not None:
            job.row = replace(job.row, progress=dict(progress))
        deadline_ms = job.row.deadline_ms or 0
        if self._clock.wall_ms() > (deadline_ms if by_ms is None else min(deadline_ms, by_ms)):
            self._fail(job, job_rules.past_limit(progress), (), 0)
            raise job_rules.job_late(job_id)
        return job

    def _fail(
        self, job: Job, error: str, file_ids: Iterable[int], retry_after_ms: int, *, again_after_ms: int | None = None
    ) -> None:
        now_ms = self._clock.wall_ms()
        job.row = replace(job.row, state=JobState.FAILED, finished_ms=now_ms, lease_until_ms=None, error=error)
        for file_id in file_ids:
            if file_id in self.database.files:
                file = self.database.files[file_id]
                is_again = file.trouble_until_ms > now_ms - job_rules.AGAIN_WITHIN_MS
                rest_ms = again_after_ms if is_again and again_after_ms is not None else retry_after_ms
                file.trouble_until_ms, file.trouble = now_ms + rest_ms, error

    def _input_files(self, job: Job) -> list[int]:
        extents = self.database.extents
        return sorted({*job.l0_files, *(extents[id_].row.file_id for id_ in job.extents if id_ in extents)})

    def _input_ranges(self, job: Job) -> Iterable[InputRange]:
        for file_id in job.l0_files:
            file = self.database.files[file_id]
            for row in iter_index(file.info.index):
                yield InputRange(row.partition_id, row.base_offset, row.last_offset, file.is_live)
        for extent_id in job.extents:
            extent = self.database.extents[extent_id]
            row = extent.row
            yield InputRange(row.partition_id, row.base_offset, row.last_offset, extent.dead_ms is None)

    def _claimed(self, job: Job, now_ms: int) -> ClaimedJob:
        db = self.database
        files = [db.files[file_id].info for file_id in job.l0_files]
        rows = [db.extents[id_].row for id_ in job.extents if db.extents[id_].dead_ms is None]
        held = {row.partition_id for info in files for row in iter_index(info.index)}
        held |= {row.partition_id for row in rows}
        return ClaimedJob(
            job=job.row,
            now_ms=now_ms,
            l0_files=[
                L0Input(
                    file_id=info.file_id,
                    key=info.key,
                    size_bytes=info.size_bytes,
                    created_ms=info.created_ms,
                    index=info.index,
                    inline=info.inline,
                )
                for info in files
                if info.state is FileState.LIVE
            ],
            extents=sorted(rows, key=lambda row: (row.partition_id, row.base_offset)),
            partitions={
                partition_id: self._input_partition(topic, number, partition_id)
                for topic in db.topics.values()
                for number, partition_id in enumerate(topic.partition_ids)
                if partition_id in held
            },
        )

    def _input_partition(self, topic: Topic, number: int, partition_id: int) -> InputPartition:
        partition = self.database.partitions[partition_id]
        return InputPartition(
            partition_id=partition_id,
            topic_id=topic.topic_id,
            topic_name=topic.name,
            partition=number,
            configs=self.database.in_force(topic),
            config_version=self.database.config_versions.get(topic.topic_id, 1),
            log_start_offset=partition.log_start_offset,
            last_stable_offset=self.database.last_stable_offset(partition_id),
            high_watermark=partition.next_offset,
        )


def leveled_extent(extent_id: int, file_id: int, output: OutputFile, extent: OutputExtent) -> LeveledExtent:
    return LeveledExtent(
        extent_id=extent_id,
        partition_id=extent.partition_id,
        base_offset=extent.base_offset,
        last_offset=extent.last_offset,
        file_id=file_id,
        key=output.key,
        level=output.level,
        file_size_bytes=output.size_bytes,
        position=extent.position,
        length=extent.length,
        block_index_position=extent.block_index_position,
        block_index_length=extent.block_index_length,
        record_count=extent.record_count,
        crc32c=extent.crc32c,
        min_timestamp_ms=extent.min_timestamp_ms,
        max_timestamp_ms=extent.max_timestamp_ms,
        has_tombstones=extent.has_tombstones,
        flagged_reason=extent.flagged_reason,
        uncompressed_bytes=extent.uncompressed_bytes,
        committed_ms=extent.committed_ms,
        earliest_horizon_ms=extent.earliest_horizon_ms,
        erased_through=extent.erased_through,
    )


def _give_back(job: Job) -> None:
    """Make the job ready again. This is no failed attempt, because its holder gave the job back itself."""
    attempts = max(job.row.attempts - 1, 0)
    job.row = replace(job.row, state=JobState.READY, attempts=attempts, deadline_ms=None, lease_until_ms=None)
