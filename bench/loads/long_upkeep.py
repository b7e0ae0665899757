"""Merges, retention and the janitor of a long run: real calls over made-up files, in a process of its own."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator, Mapping, Sequence
from multiprocessing.synchronize import Event

from metadata.contract.jobs import ClaimedJob, CommitMerge, NewJob, OutputExtent, OutputFile
from metadata.contract.leveled import FileClass
from metadata.postgres.store import PostgresMetadata
from metadata.rules.packed_index import iter_index

L0_FILES_MAX = 250
L1_FILES = 10
"""So many of them become one file of L2."""
LIMIT_MS = 3_600_000
BYTES_PER_OFFSET = 100
EVERY_S = 1.0

Ranges = Mapping[int, Sequence[tuple[int, int]]]


def upkeep_process(url: str, kept_ms: int, ended: Event) -> None:
    """Works until `ended` is set. Files, rows and silent producers go `kept_ms` after they are no longer needed."""
    asyncio.run(_upkeep(url, kept_ms, ended))


async def _upkeep(url: str, kept_ms: int, ended: Event) -> None:
    metadata = PostgresMetadata(url, producer_id_expiration_ms=kept_ms)
    await metadata.open()
    keys = (f"merged/long/{number}.silt" for number in itertools.count())
    try:
        while not ended.is_set():
            while await merge(metadata, keys) == L0_FILES_MAX and not ended.is_set():
                pass  # more are waiting
            await sweep(metadata, kept_ms)
            await asyncio.sleep(EVERY_S)
    finally:
        await metadata.close()


async def merge(metadata: PostgresMetadata, keys: Iterator[str]) -> int:
    """The oldest L0 files become one of L1; enough files of L1 become one of L2. Returns how many they were of L0."""
    view = await metadata.compactors.compaction_view()
    l0 = [file.file_id for file in view.files if file.level == 0][:L0_FILES_MAX]
    l1 = [file.file_id for file in view.files if file.level == 1]
    if l0:
        await _run(metadata, NewJob(kind="level", spec={}, l0_file_ids=l0, limit_ms=LIMIT_MS), 1, next(keys))
    if len(l1) >= L1_FILES:
        await _run(metadata, NewJob(kind="merge", spec={}, file_ids=l1, limit_ms=LIMIT_MS), 2, next(keys))
    return len(l0)


async def sweep(metadata: PostgresMetadata, kept_ms: int) -> None:
    """Retention, then the janitor. No object stands behind a file, so a dead one is deleted at once."""
    while (await metadata.deletion.expire()).extents:
        pass
    after = None
    while (after := (await metadata.deletion.expire_producers(after=after)).after) is not None:
        pass
    while dead := await metadata.deletion.dead_files(grace_ms=0):
        await metadata.deletion.files_deleted([file.file_id for file in dead])
    await metadata.deletion.forget_rows(before_ms=await metadata.now_ms() - kept_ms)


async def _run(metadata: PostgresMetadata, job: NewJob, level: int, key: str) -> None:
    # A new lease for each job: the clock of the database may be so fast that an older one has ended.
    lease = await metadata.compactors.register_compactor("bench")
    job_id = await metadata.compactors.create_job(job)
    claimed = await metadata.compactors.claim_job(lease, job_id=job_id)
    if claimed is None:
        raise RuntimeError(f"job {job_id} was not given to its only compactor")
    covered = await asyncio.to_thread(_ranges, claimed)
    outputs = [_output(covered, level, key, await metadata.now_ms())] if covered else []
    await metadata.compactors.commit_merge(
        CommitMerge(job_id=job_id, epoch=claimed.job.epoch, outputs=outputs, covered=covered)
    )
    await metadata.compactors.unregister_compactor(lease)


def _ranges(claimed: ClaimedJob) -> dict[int, list[tuple[int, int]]]:
    ranges: dict[int, list[tuple[int, int]]] = {}
    for file in claimed.l0_files:
        for row in iter_index(file.index):
            partition = claimed.partitions.get(row.partition_id)
            if partition is not None and row.last_offset >= partition.log_start_offset:
                ranges.setdefault(row.partition_id, []).append((row.base_offset, row.last_offset))
    for extent in claimed.extents:
        if extent.partition_id in claimed.partitions:
            ranges.setdefault(extent.partition_id, []).append((extent.base_offset, extent.last_offset))
    return {partition_id: sorted(each) for partition_id, each in sorted(ranges.items())}


def _output(ranges: Ranges, level: int, key: str, now_ms: int) -> OutputFile:
    """One file with an extent for each unbroken stretch."""
    extents: list[OutputExtent] = []
    for partition_id, of_partition in ranges.items():
        base, last = of_partition[0]
        for next_base, next_last in of_partition[1:]:
            if next_base != last + 1:
                extents.append(_extent(partition_id, base, last, now_ms))
                base = next_base
            last = next_last
        extents.append(_extent(partition_id, base, last, now_ms))
    return OutputFile(
        key=key,
        level=level,
        file_class=FileClass("plain"),
        size_bytes=sum(extent.length for extent in extents),
        crc32c=1,
        config_version=1,
        extents=extents,
    )


def _extent(partition_id: int, base: int, last: int, now_ms: int) -> OutputExtent:
    records = last - base + 1
    return OutputExtent(
        partition_id=partition_id,
        base_offset=base,
        last_offset=last,
        position=0,
        length=records * BYTES_PER_OFFSET,
        block_index_position=0,
        block_index_length=0,
        record_count=records,
        crc32c=0,
        min_timestamp_ms=now_ms,
        max_timestamp_ms=now_ms,
        has_tombstones=False,
    )
