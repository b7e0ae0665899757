"""Merges for tests: real jobs and commits over made-up bytes."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from metadata.contract.jobs import (
    ClaimedJob,
    CleanedPartition,
    CommitMerge,
    MergeCommitted,
    NewJob,
    OutputExtent,
    OutputFile,
)
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import FileClass, LeveledExtent
from metadata.contract.store import MetadataStore
from metadata.rules.invariants.all_levels import check_log_1, check_log_2, check_log_3, live_extents
from metadata.rules.invariants.leveled import check_file_3, check_merge_1, check_sum_1
from metadata.rules.packed_index import iter_index
from tests.contract.metadata_worlds import World, Writer, batch

LIMIT_MS = 60_000
BYTES_PER_OFFSET = 10
_numbers = itertools.count(1)

Ranges = dict[int, list[tuple[int, int]]]


def output_key(level: int = 1, hour: str = "2024010100") -> str:
    return f"l{level}/a7/{hour}/900-0-{next(_numbers)}.silt"


def job(kind: str = "level", **fields: Any) -> NewJob:
    return NewJob(**{"kind": kind, "spec": {"n": 1}, "limit_ms": LIMIT_MS, **fields})


def read_ranges(claimed: ClaimedJob) -> Ranges:
    """The ranges that a merge reads: live extents, and rows of L0 files above the log start at the claim."""
    ranges: Ranges = {}
    for file in claimed.l0_files:
        for row in iter_index(file.index):
            partition = claimed.partitions.get(row.partition_id)
            if partition is not None and row.last_offset >= partition.log_start_offset:
                ranges.setdefault(row.partition_id, []).append((row.base_offset, row.last_offset))
    for extent in claimed.extents:
        if extent.partition_id in claimed.partitions:
            ranges.setdefault(extent.partition_id, []).append((extent.base_offset, extent.last_offset))
    return {partition_id: sorted(of_partition) for partition_id, of_partition in sorted(ranges.items())}


def output_extent(partition_id: int, base: int, last: int, **fields: Any) -> OutputExtent:
    values: dict[str, Any] = {
        "position": 0,
        "length": (last - base + 1) * BYTES_PER_OFFSET,
        "block_index_position": 0,
        "block_index_length": 0,
        "record_count": last - base + 1,
        "crc32c": 0,
        "min_timestamp_ms": 10,
        "max_timestamp_ms": 20,
        "has_tombstones": False,
        **fields,
    }
    return OutputExtent(partition_id=partition_id, base_offset=base, last_offset=last, **values)


def output_file(*extents: OutputExtent, level: int = 1, key: str = "", file_class: str = "plain") -> OutputFile:
    return OutputFile(
        key=key or output_key(level),
        level=level,
        file_class=FileClass(file_class),
        size_bytes=sum(extent.length for extent in extents),
        crc32c=1,
        config_version=1,
        extents=extents,
    )


def outputs_of(
    ranges: Mapping[int, Sequence[tuple[int, int]]], *, level: int = 1, join: bool = True, **fields: Any
) -> OutputFile:
    """One file with an extent for each unbroken stretch (with `join=False` for each range)."""
    extents: list[OutputExtent] = []
    for partition_id, of_partition in ranges.items():
        for base, last in of_partition:
            before = extents[-1] if extents else None
            if join and before and (before.partition_id, before.last_offset + 1) == (partition_id, base):
                extents[-1] = output_extent(partition_id, before.base_offset, last, **fields)
            else:
                extents.append(output_extent(partition_id, base, last, **fields))
    return output_file(*extents, level=level)


def commit_of(claimed: ClaimedJob, *outputs: OutputFile, **fields: Any) -> CommitMerge:
    """The commit of a sound merge, or of one with these outputs."""
    ranges = read_ranges(claimed)
    made = outputs or ((outputs_of(ranges),) if ranges else ())
    values = {"covered": ranges, "summary": {"seconds": 1}, **fields}
    return CommitMerge(job_id=claimed.job.job_id, epoch=claimed.job.epoch, outputs=made, **values)


async def claim(service: MetadataStore, new: NewJob, *, lease: WriterLease | None = None) -> ClaimedJob:
    lease = lease or await service.compactors.register_compactor("host")
    job_id = await service.compactors.create_job(new)
    claimed = await service.compactors.claim_job(lease)
    assert claimed is not None
    assert claimed.job.job_id == job_id
    return claimed


async def merge(
    service: MetadataStore,
    *,
    l0: Sequence[int] = (),
    files: Sequence[int] = (),
    level: int = 1,
    join: bool = True,
    cleaned: Sequence[CleanedPartition] = (),
    **fields: Any,
) -> MergeCommitted:
    """Create, claim and commit a merge of these files into one."""
    claimed = await claim(service, job(l0_file_ids=l0, file_ids=files))
    output = outputs_of(read_ranges(claimed), level=level, join=join, **fields)
    return await service.compactors.commit_merge(commit_of(claimed, output, cleaned=cleaned))


async def extents_of(service: MetadataStore, partition_id: int) -> list[LeveledExtent]:
    return list(await service.readers.leveled_extents(partition_id, 0, limit=1_000))


async def spans(service: MetadataStore, partition_id: int) -> list[tuple[int, int]]:
    return [(extent.base_offset, extent.last_offset) for extent in await extents_of(service, partition_id)]


async def broken(service: MetadataStore) -> list[str]:
    """Every invariant of metadata that does not hold."""
    files = await service.operators.files(limit=100_000)
    view = await service.operators.system_view()
    marks = {mark.partition_id: mark for mark in view.watermarks}
    extents = live_extents(view.l0_files, marks, view.extents)
    violations = [
        *check_log_1(files, marks, complete=False),
        *check_log_2(extents, marks),
        *check_log_3(extents, marks),
        *check_file_3(view),
        *check_sum_1(view),
        *check_merge_1(view),
    ]
    return [f"{violation.id}: {violation.message}" for violation in violations]


async def two_extents(world: World, *, configs: dict[str, str] | None = None) -> tuple[int, int]:
    """Two partition ids, of topics `orders` and `others`. Each has [0, 9] and [10, 19] in L1, in two shared files."""
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("orders", partitions=1, configs=configs or {})
    other = await world.service.agents.create_topic("others", partitions=1, configs={})
    one, two = topic.partition_ids[0], other.partition_ids[0]
    for _ in range(2):
        file = await writer.commit(batch(one, 10), batch(two, 10))
        await merge(world.service, l0=[file.file_id])
    return one, two


async def l1_files(world: World) -> list[int]:
    return [file.file_id for file in (await world.service.compactors.compaction_view()).files if file.level == 1]
