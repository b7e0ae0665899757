"""The calls of operators, in the memory store. Every method is atomic: it never waits."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

from metadata.configs.topic import as_int, resolve
from metadata.contract.compactors import PartitionView
from metadata.contract.files import FileInfo, FileState
from metadata.contract.jobs import (
    JobState,
    MergeJob,
)
from metadata.contract.leases import JOB_LEASE_MS, LEASE_MS
from metadata.contract.operators import (
    AbortedRow,
    EnteredPartition,
    GroupLag,
    GroupLags,
    GroupsView,
    HeldBytes,
    HeldView,
    Observation,
    OngoingTransaction,
    StrayOffset,
    SystemView,
    TransactionsView,
)
from metadata.contract.topics import (
    Topic,
)
from metadata.memory.groups import summary_of
from metadata.memory.tables import File, Job, MemoryDatabase
from metadata.memory.transactions import info_of
from metadata.memory.views import l0_file, partition_views_of, shown_to_readers, watermarks_of
from metadata.rules.history import ServerHistory, history_moved
from metadata.rules.jobs import holds
from metadata.rules.packed_index import iter_index
from metadata.rules.refusals import not_compacted, unknown_topic_id
from metadata.rules.retention import cleanable_through, retention_policy
from metadata.rules.stretches import held_rows
from metadata.rules.unread import FirstUnread, times_in_l0
from runtime.clock import Clock


class MemoryOperators:
    """The memory implementation of `OperatorMetadata`."""

    def __init__(self, database: MemoryDatabase, clock: Clock) -> None:
        self.database = database
        self._clock = clock

    async def files(self, *, after_file_id: int = 0, limit: int = 1000) -> Sequence[FileInfo]:
        ids = sorted(file_id for file_id in self.database.files if file_id > after_file_id)
        return [self.database.files[file_id].info for file_id in ids[:limit]]

    async def jobs(
        self,
        *,
        states: Sequence[JobState] = (),
        topic_id: uuid.UUID | None = None,
        result: str = "",
        limit: int = 100,
    ) -> Sequence[MergeJob]:
        chosen = [
            job.row
            for _, job in sorted(self.database.jobs.items(), reverse=True)
            if (not states or job.row.state in states)
            and (topic_id is None or self._concerns(job, topic_id))
            and (not result or result in job.row.result)
        ]
        return chosen[:limit]

    async def partition_views(self, topic_id: uuid.UUID) -> Sequence[PartitionView]:
        return partition_views_of(self.database, self._known_topic(topic_id))

    async def held_bytes(self, partition_ids: Sequence[int]) -> Sequence[HeldBytes]:
        wanted = frozenset(partition_ids)
        states = (FileState.LIVE, FileState.DEAD)
        files = [file for file in self.database.files.values() if file.info.state in states]
        found = [each for file in files for each in self._held_extents(file) if each.partition_id in wanted]
        for info in (file.info for file in files if file.info.level == 0 and not file.info.inline):
            found += held_rows(info.file_id, info.key, info.index, info.dead_ms, wanted)
        return sorted(found, key=lambda each: each[:4])

    async def request_compaction(self, topic_id: uuid.UUID) -> Mapping[int, int]:
        topic = self._known_topic(topic_id)
        configs = self.database.in_force(topic)
        if not retention_policy(configs).compacts:
            raise not_compacted(topic.name)
        min_lag_ms = as_int(resolve(configs), "min.compaction.lag.ms")
        through: dict[int, int] = {}
        for partition_id in topic.partition_ids:
            partition = self.database.partitions[partition_id]
            offset = cleanable_through(
                self._stretches(partition_id),
                end_offset=self.database.last_stable_offset(partition_id),
                min_lag_ms=min_lag_ms,
                now_ms=self._clock.wall_ms(),
            )
            through[partition_id] = offset
            state = partition.cleaned
            # A pass over a partition that is cleaned already helps only if one of these holds.
            has_work = (
                offset > state.cleaned_through_offset
                or state.passes_needed > 1
                or any(row.has_tombstones and row.base_offset < offset for row in self.database.leveled(partition_id))
            )
            if offset > partition.log_start_offset and has_work:
                wanted = max(offset, state.requested_through_offset or 0)
                partition.cleaned = replace(state, requested_through_offset=wanted)
        return through

    async def system_view(self) -> SystemView:
        db = self.database
        now_ms = self._clock.wall_ms()
        live = [file for _, file in sorted(db.files.items()) if file.is_live]
        inputs: list[tuple[int, int, int | None]] = []
        for job in db.live_jobs():
            inputs += [(job.row.job_id, file_id, None) for file_id in job.l0_files]
            inputs += [(job.row.job_id, db.extents[id_].row.file_id, id_) for id_ in job.extents]
        rows = (shown_to_readers(extent.row) for extent in db.extents.values() if extent.dead_ms is None)
        return SystemView(
            now_ms=now_ms,
            watermarks=[watermarks_of(db, id_) for id_ in sorted(db.partitions)],
            l0_files=[l0_file(file.info) for file in live if file.info.level == 0],
            extents=sorted(rows, key=lambda row: (row.partition_id, row.base_offset)),
            live_extents={file.info.file_id: file.info.live_extents for file in live if file.info.level > 0},
            job_inputs=inputs,
            pins=[pin.created_ms for pin in db.pins.values() if pin.expires_ms > now_ms],
        )

    async def transactions_view(self) -> TransactionsView:
        db = self.database
        rows = db.transactions
        return TransactionsView(
            watermarks=[watermarks_of(db, id_) for id_ in sorted(db.partitions)],
            ongoing=[
                OngoingTransaction(id_, row.producer_id, row.producer_epoch, row.txn_seq)
                for id_, row in sorted(rows.by_id.items())
                if row.is_ongoing
            ],
            entered=self._entered(),
            aborted=[
                AbortedRow(each, None)
                for each in sorted(rows.aborted, key=lambda each: (each.partition_id, each.last_offset))
            ],
        )

    async def held_view(self, transactional_ids: Sequence[str] = ()) -> HeldView:
        db, rows, entered = self.database, self.database.transactions, self._entered()
        return HeldView(
            now_ms=self._clock.wall_ms(),
            infos=[
                info_of(id_, row, {at: each.first_offset for at, each in rows.partitions_of(row.producer_id).items()})
                for id_, row in sorted(rows.by_id.items())
                if row.is_ongoing or id_ in transactional_ids
            ],
            entered=entered,
            watermarks=[
                watermarks_of(db, id_) for id_ in sorted({row.partition_id for row in entered}) if id_ in db.partitions
            ],
            topics=sorted(db.topics.values(), key=lambda topic: topic.name),
        )

    def _entered(self) -> Sequence[EnteredPartition]:
        return [
            EnteredPartition(*at, row.epoch, row.txn_seq, row.first_offset)
            for at, row in sorted(self.database.transactions.entered.items())
        ]

    async def groups_view(self) -> GroupsView:
        db = self.database
        return GroupsView(
            groups=[(summary_of(group_id, group), group.record) for group_id, group in sorted(db.groups.items())],
            last_epoch=db.last_group_epoch,
            stray_offsets=[
                StrayOffset(group_id, place)
                for group_id, group in sorted(db.groups.items())
                for place in sorted(group.offsets)
                if not db.has_partition(place)
            ],
        )

    async def pins(self) -> Sequence[tuple[int, str, int, int]]:
        now_ms = self._clock.wall_ms()
        return [
            (pin_id, pin.holder, pin.created_ms, pin.expires_ms)
            for pin_id, pin in sorted(self.database.pins.items())
            if pin.expires_ms > now_ms
        ]

    async def observe(self, *, lags_max: int) -> Observation:
        db, now_ms = self.database, self._clock.wall_ms()
        leased = [each for each in db.writers.values() if holds(each.lease_until_ms, now_ms, LEASE_MS)]
        draining = sum(each.draining for each in leased)
        lags = sorted(self._lags(), key=lambda each: (-each.lag, each.group_id, each.topic))
        return Observation(
            now_ms=now_ms,
            agents={"serving": len(leased) - draining, "draining": draining},
            compactors=sum(holds(each.lease_until_ms, now_ms, JOB_LEASE_MS) for each in db.compactors.values()),
            lags=GroupLags(largest=lags[:lags_max], pairs=len(lags), total_lag=sum(each.lag for each in lags)),
            postgres=None,
        )

    async def adopt_history(self, present: ServerHistory) -> None:
        if present != self.database.server:
            raise history_moved(present, self.database.server)
        self.database.adopted = present

    # -- inside

    def _concerns(self, job: Job, topic_id: uuid.UUID) -> bool:
        topic = self.database.topics.get(topic_id)
        ids = set[int]() if topic is None else set(topic.partition_ids)
        inputs = {self.database.extents[id_].row.partition_id for id_ in job.extents} if job.is_live else set[int]()
        return not ids.isdisjoint(inputs | set(job.asked.forced_partition_ids))

    def _held_extents(self, file: File) -> Iterator[HeldBytes]:
        for each in (self.database.extents[id_] for id_ in file.extents):
            row, dead_ms, file_dead_ms = each.row, each.dead_ms, file.info.dead_ms
            yield HeldBytes(
                *(row.partition_id, row.base_offset, row.last_offset, row.file_id, row.key, row.level),
                *(row.position, row.length, row.block_index_position, row.block_index_length),
                *(row.flagged_reason is not None, file_dead_ms if dead_ms is None else dead_ms, file_dead_ms),
            )

    def _known_topic(self, topic_id: uuid.UUID) -> Topic:
        topic = self.database.topics.get(topic_id)
        if topic is None:
            raise unknown_topic_id(topic_id)
        return topic

    def _stretches(self, partition_id: int) -> Iterable[tuple[int, int]]:
        """(base offset, largest timestamp) of the live extents of a partition, on all levels."""
        start = self.database.partitions[partition_id].log_start_offset
        for row in self.database.leveled(partition_id):
            yield row.base_offset, row.max_timestamp_ms
        for file in self.database.files.values():
            if file.is_live and file.info.level == 0:
                for row in iter_index(file.info.index):
                    if row.partition_id == partition_id and row.last_offset >= start:
                        yield row.base_offset, row.max_timestamp_ms

    def _lags(self) -> Iterator[GroupLag]:
        for group_id, group in self.database.groups.items():
            lags: dict[uuid.UUID, int] = {}
            newest_ms: dict[uuid.UUID, int] = {}
            unread: dict[uuid.UUID, list[FirstUnread]] = {}
            for (topic_id, partition), committed in group.offsets.items():
                topic = self.database.topics.get(topic_id)
                if topic is None:
                    continue
                partition_id = topic.partition_ids[partition]
                log = self.database.partitions[partition_id]
                first = max(committed.offset, 0)
                lags[topic_id] = lags.get(topic_id, 0) + max(log.next_offset - first, 0)
                newest_ms[topic_id] = max(newest_ms.get(topic_id, 0), committed.committed_ms)
                if max(first, log.log_start_offset) < log.next_offset:
                    place = FirstUnread(partition_id, max(first, log.log_start_offset))
                    unread.setdefault(topic_id, []).append(place)
            for topic_id, lag in lags.items():
                yield GroupLag(
                    group_id=group_id,
                    topic=self.database.topics[topic_id].name,
                    lag=lag,
                    newest_commit_ms=newest_ms[topic_id],
                    oldest_unread_ms=self._oldest_unread_ms(unread.get(topic_id, [])),
                )

    def _oldest_unread_ms(self, places: Sequence[FirstUnread]) -> int | None:
        times: list[int | None] = []
        in_l0: list[FirstUnread] = []
        for place in places:
            behind = (row for row in self.database.leveled(place.partition_id) if row.last_offset >= place.offset)
            row = next((row for row in behind if row.record_count), None)
            if row is None:
                in_l0.append(place)
            else:
                times.append(row.max_timestamp_ms if row.max_timestamp_ms >= 0 else row.committed_ms)
        live = (each for each in self.database.files.values() if each.is_live and each.info.level == 0)
        files = [(each.info.created_ms, each.info.index) for each in live]
        times += times_in_l0(in_l0, files, is_cut=False).values()
        return min((each for each in times if each is not None), default=None)
