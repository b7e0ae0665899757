"""What the memory store shows of L1 and above: to the planner, to readers, to the invariants."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from metadata.configs.topic import as_int, resolve
from metadata.contract import service as s
from metadata.contract.compaction import (
    CompactionView,
    FileClass,
    FileView,
    JobState,
    LeveledExtent,
    NotCompactedError,
    PartitionView,
    SystemView,
)
from metadata.contract.scan import L0FileRow, TopicSnapshot, partition_snapshots, unknown_topic
from metadata.memory.tables import File, MemoryDatabase, Partition
from metadata.rules.packed_index import iter_index
from metadata.rules.retention import RetentionPolicy, cleanable_through, expiry_ms, retention_policy
from runtime.clock import Clock


class MemoryViews:
    """Part of `MemoryMetadata`."""

    database: MemoryDatabase
    _clock: Clock

    async def compaction_view(self) -> CompactionView:
        db = self.database
        busy_l0, busy_extents = db.busy()
        policies = {topic_id: retention_policy(db.in_force(topic)) for topic_id, topic in db.topics.items()}
        views: list[PartitionView] = []
        for topic_id, policy in policies.items():
            if policy.compacts:
                views += _partition_views(db, db.topics[topic_id])
        return CompactionView(
            now_ms=self._clock.wall_ms(),
            files=[_file_view(db, file, policies) for _, file in sorted(db.files.items()) if file.is_live],
            partitions=views,
            busy_files=frozenset(busy_l0 | {db.extents[id_].row.file_id for id_ in busy_extents if id_ in db.extents}),
            busy_extents=frozenset(busy_extents),
            live_jobs=_live_jobs(db),
            last_daily_ms=max(
                (
                    job.row.created_ms
                    for job in db.jobs.values()
                    if job.row.kind == "daily" and job.row.state is not JobState.FAILED
                ),
                default=None,
            ),
        )

    async def partition_views(self, topic_id: uuid.UUID) -> Sequence[PartitionView]:
        return _partition_views(self.database, self._known_topic(topic_id))

    async def request_compaction(self, topic_id: uuid.UUID) -> Mapping[int, int]:
        topic = self._known_topic(topic_id)
        configs = self.database.in_force(topic)
        if not retention_policy(configs).compacts:
            raise NotCompactedError(f"topic {topic.name!r} is not compacted", remedy="set cleanup.policy=compact")
        min_lag_ms = as_int(resolve(configs), "min.compaction.lag.ms")
        through: dict[int, int] = {}
        for partition_id in topic.partition_ids:
            partition = self.database.partitions[partition_id]
            offset = cleanable_through(
                self._stretches(partition_id),
                end_offset=partition.next_offset,
                min_lag_ms=min_lag_ms,
                now_ms=self._clock.wall_ms(),
            )
            through[partition_id] = offset
            state = partition.cleaned
            has_work = (
                offset > state.cleaned_through_offset
                or state.passes_needed > 1
                or any(row.has_tombstones and row.base_offset < offset for row in self.database.leveled(partition_id))
            )
            if offset > partition.log_start_offset and has_work:
                wanted = max(offset, state.requested_through_offset or 0)
                partition.cleaned = replace(state, requested_through_offset=wanted)
        return through

    async def leveled_extents(self, partition_id: int, offset: int, *, limit: int = 64) -> Sequence[LeveledExtent]:
        return [row for row in self.database.leveled(partition_id) if row.last_offset >= offset][:limit]

    async def leveled_extents_by_timestamp(
        self, partition_id: int, timestamp_ms: int, *, from_offset: int = 0, limit: int = 16
    ) -> Sequence[LeveledExtent]:
        rows = await self.leveled_extents(partition_id, from_offset, limit=len(self.database.extents))
        return [row for row in rows if row.max_timestamp_ms >= timestamp_ms and row.record_count][:limit]

    async def largest_leveled_timestamp(self, partition_id: int) -> LeveledExtent | None:
        rows = (row for row in self.database.leveled(partition_id) if row.record_count)
        return max(rows, key=lambda row: row.max_timestamp_ms, default=None)

    async def system_view(self) -> SystemView:
        db = self.database
        now_ms = self._clock.wall_ms()
        live = [file for _, file in sorted(db.files.items()) if file.is_live]
        inputs: list[tuple[int, int, int | None]] = []
        for job in db.live_jobs():
            inputs += [(job.row.job_id, file_id, None) for file_id in job.l0_files]
            inputs += [(job.row.job_id, db.extents[id_].row.file_id, id_) for id_ in job.extents]
        rows = (extent.row for extent in db.extents.values() if extent.dead_ms is None)
        return SystemView(
            now_ms=now_ms,
            watermarks=[watermarks_of(id_, partition) for id_, partition in sorted(db.partitions.items())],
            l0_files=[l0_file(file.info) for file in live if file.info.level == 0],
            extents=sorted(rows, key=lambda row: (row.partition_id, row.base_offset)),
            live_extents={file.info.file_id: file.info.live_extents for file in live if file.info.level > 0},
            job_inputs=inputs,
            pins=[pin.created_ms for pin in db.pins.values() if pin.expires_ms > now_ms],
        )

    async def topic_snapshot(self, name: str) -> TopicSnapshot:
        db = self.database
        topic = next((each for each in db.topics.values() if each.name == name), None)
        if topic is None:
            raise unknown_topic(name, (each.name for each in db.topics.values()))
        live = (file.info for _, file in sorted(db.files.items()) if file.is_live and file.info.level == 0)
        return TopicSnapshot(
            topic=topic,
            taken_ms=self._clock.wall_ms(),
            partitions=partition_snapshots(
                [watermarks_of(id_, db.partitions[id_]) for id_ in topic.partition_ids],
                [L0FileRow(info.file_id, info.key, info.size_bytes, info.created_ms, info.index) for info in live],
                [row for id_ in topic.partition_ids for row in db.leveled(id_)],
            ),
        )

    def _known_topic(self, topic_id: uuid.UUID) -> s.Topic:
        topic = self.database.topics.get(topic_id)
        if topic is None:
            raise s.UnknownTopicError(f"there is no topic with id {topic_id}")
        return topic

    def _stretches(self, partition_id: int) -> Iterable[tuple[int, int]]:
        """(base offset, largest timestamp) of what lives of a partition, on any level."""
        start = self.database.partitions[partition_id].log_start_offset
        for row in self.database.leveled(partition_id):
            yield row.base_offset, row.max_timestamp_ms
        for file in self.database.files.values():
            if file.is_live and file.info.level == 0:
                for row in iter_index(file.info.index):
                    if row.partition_id == partition_id and row.last_offset >= start:
                        yield row.base_offset, row.max_timestamp_ms


def watermarks_of(partition_id: int, partition: Partition) -> s.Watermarks:
    return s.Watermarks(
        partition_id=partition_id,
        log_start_offset=partition.log_start_offset,
        last_stable_offset=partition.next_offset,
        high_watermark=partition.next_offset,
    )


def l0_file(info: s.FileInfo) -> s.L0File:
    if info.writer_id is None or info.epoch is None or info.seq is None:
        raise s.WentBackError(f"file {info.file_id} is live or dead in L0 but has no writer")
    return s.L0File(
        file_id=info.file_id,
        key=info.key,
        writer_id=info.writer_id,
        epoch=info.epoch,
        seq=info.seq,
        size_bytes=info.size_bytes,
        created_ms=info.created_ms,
        index=info.index,
        live=info.state is s.FileState.LIVE,
    )


def _live_jobs(db: MemoryDatabase) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for job in db.live_jobs():
        found[job.row.kind].append(job.row.input_bytes)
    return dict(found)


def _file_view(db: MemoryDatabase, file: File, policies: Mapping[uuid.UUID, RetentionPolicy]) -> FileView:
    info = file.info
    extents = [db.extents[id_] for id_ in file.extents]
    live = [extent.row for extent in extents if extent.dead_ms is None]
    deaths = [extent.dead_ms for extent in extents if extent.dead_ms is not None]
    expiries = (
        (
            row.max_timestamp_ms if row.max_timestamp_ms >= 0 else info.created_ms,
            policies[db.partitions[row.partition_id].topic_id].expires_after_ms,
        )
        for row in live
    )
    return FileView(
        file_id=info.file_id,
        level=info.level,
        file_class=None if info.file_class is None else FileClass(info.file_class),
        lo=file.lo,
        hi=file.hi,
        run_id=info.file_id if info.job_id is None else info.job_id,
        size_bytes=info.size_bytes,
        live_bytes=sum(row.length for row in live) if info.level else info.size_bytes,
        oldest_dead_ms=min(deaths, default=None),
        max_timestamp_ms=file.max_timestamp_ms,
        expires_ms=expiry_ms(expiries) if info.level else None,
        created_ms=info.created_ms,
        trouble_until_ms=file.trouble_until_ms,
        trouble=file.trouble,
    )


def _partition_views(db: MemoryDatabase, topic: s.Topic) -> list[PartitionView]:
    views: list[PartitionView] = []
    for number, partition_id in enumerate(topic.partition_ids):
        partition = db.partitions[partition_id]
        state = partition.cleaned
        views.append(
            PartitionView(
                partition_id=partition_id,
                topic_id=topic.topic_id,
                topic_name=topic.name,
                partition=number,
                configs=db.in_force(topic),
                config_version=db.config_versions.get(topic.topic_id, 1),
                log_start_offset=partition.log_start_offset,
                last_stable_offset=partition.next_offset,
                high_watermark=partition.next_offset,
                cleaned_through_offset=state.cleaned_through_offset,
                last_cleaned_ms=state.last_cleaned_ms,
                last_forced_ms=partition.last_forced_ms,
                passes_needed=state.passes_needed,
                requested_through_offset=state.requested_through_offset,
                extents=db.leveled(partition_id),
            )
        )
    return views
