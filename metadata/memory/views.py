"""The views that callers get, built from rows of the memory store."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence

from metadata.contract.compactors import FileView, PartitionView
from metadata.contract.errors import WentBackError
from metadata.contract.files import FileInfo, FileState, L0File
from metadata.contract.leveled import FileClass, LeveledExtent
from metadata.contract.topics import (
    Topic,
    Watermarks,
)
from metadata.memory.tables import File, MemoryDatabase
from metadata.rules.retention import (
    RetentionPolicy,
    expiry_ms,
)


def watermarks_of(db: MemoryDatabase, partition_id: int) -> Watermarks:
    partition = db.partitions[partition_id]
    return Watermarks(
        partition_id=partition_id,
        log_start_offset=partition.log_start_offset,
        last_stable_offset=db.last_stable_offset(partition_id),
        high_watermark=partition.next_offset,
    )


def l0_file(info: FileInfo) -> L0File:
    if info.writer_id is None or info.epoch is None or info.seq is None:
        raise WentBackError(f"L0 file {info.file_id} has no writer, although its state is {info.state.value}")
    return L0File(
        file_id=info.file_id,
        key=info.key,
        writer_id=info.writer_id,
        epoch=info.epoch,
        seq=info.seq,
        size_bytes=info.size_bytes,
        created_ms=info.created_ms,
        index=info.index,
        live=info.state is FileState.LIVE,
        inline=info.inline,
        txn_rows=info.txn_rows,
    )


def live_jobs(db: MemoryDatabase) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for job in db.live_jobs():
        found[job.row.kind].append(job.row.input_bytes)
    return dict(found)


def file_view(db: MemoryDatabase, file: File, policies: Mapping[uuid.UUID, RetentionPolicy]) -> FileView:
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
        uncompressed_bytes=sum(row.cap_bytes for row in live) if info.level else 0,
        is_inline=bool(info.inline),
    )


def partition_views_of(db: MemoryDatabase, topic: Topic) -> list[PartitionView]:
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
                last_stable_offset=db.last_stable_offset(partition_id),
                high_watermark=partition.next_offset,
                cleaned_through_offset=state.cleaned_through_offset,
                last_cleaned_ms=state.last_cleaned_ms,
                last_forced_ms=partition.last_forced_ms,
                passes_needed=state.passes_needed,
                requested_through_offset=state.requested_through_offset,
                extents=db.leveled(partition_id),
                last_pass_took_ms=state.last_pass_took_ms,
                aborted=aborted_of(db, partition_id),
            )
        )
    return views


def aborted_of(db: MemoryDatabase, partition_id: int) -> Sequence[tuple[int, int, int]]:
    """As in `PartitionView`."""
    stable = db.last_stable_offset(partition_id)
    found = [
        (each.producer_id, each.first_offset, each.last_offset)
        for each in db.transactions.aborted
        if each.partition_id == partition_id and each.first_offset < stable
    ]
    return sorted(found, key=lambda each: each[1])


def shown_to_readers(row: LeveledExtent) -> LeveledExtent:
    """The row without what Postgres does not read for agents, readers and operators."""
    return row._replace(uncompressed_bytes=None, committed_ms=None, earliest_horizon_ms=None, erased_through=0)
