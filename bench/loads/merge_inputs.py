"""Inputs of merges, made fast: record batches of one shape by the million, in L1 files in a store.

Every batch is a copy of one template; keys, values, offsets and checksums are written over it for thousands of batches
at a time. Compressed batches are made from those one by one.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import numpy as np
from numpy.typing import NDArray

from compactor.planning.spec import GIB, MergeKind, MergeSpec, PartitionSpec
from metadata.contract.jobs import ClaimedJob, CommitMerge, InputPartition, JobState, L0Input, MergeJob, OutputExtent
from metadata.contract.leases import WriterLease
from metadata.contract.leveled import FileClass, LeveledExtent
from metadata.rules.packed_index import IndexRow, encode_index
from runtime.ids import SystemIds
from storage.format.file_format import ExtentRow, ExtentSource, build_file
from storage.format.file_properties import FileProperties
from storage.format.file_writer import FileWriter
from storage.keys import file_key
from storage.objects import ObjectStore
from wire.batch import BATCH_HEADER_BYTES, BATCH_OVERHEAD_BYTES, CRC_COVERS_FROM, CRC_POSITION, read_header
from wire.codecs import Codec, compress
from wire.crc import crc32c
from wire.kernels.batches import read_batches
from wire.kernels.scan import scan_records
from wire.records import NewRecord, build_batch

NOW_MS = 1_800_000_000_000
DAY_MS = 86_400_000
KEY_BYTES = 16
BATCH_RECORDS = 100
MADE_AT_ONCE = 256
"""Batches."""
FILES_MAX = 1000
"""The most files of a partition; the ids of the next partition's files begin there."""
LEASE = WriterLease(writer_id=9, epoch=0)
PARTITION_ID = 1
TOPIC_ID = uuid.UUID(int=7)

Bytes = NDArray[np.uint8]
Store = TypeVar("Store", bound=ObjectStore)


def numbered_keys(numbers: NDArray[np.int64]) -> Bytes:
    """[n, 16]: "key-" and twelve digits."""
    keys = np.empty((len(numbers), KEY_BYTES), dtype=np.uint8)
    keys[:, :4] = np.frombuffer(b"key-", dtype=np.uint8)
    left = numbers.copy()
    for at in range(KEY_BYTES - 1, 3, -1):
        left, digit = np.divmod(left, 10)
        keys[:, at] = digit + ord("0")
    return keys


def json_values(value_bytes: int, *, count: int = 4096, seed: int = 5) -> Bytes:
    """[count, value_bytes]: objects with numbers and words; zstd shrinks 100 of them in a batch to about a third."""
    chance = np.random.default_rng(seed)
    words = [b"pending", b"shipped", b"returned", b"delivered", b"Lisbon", b"Oslo", b"Krakow", b"Graz"]
    rows = np.empty((count, value_bytes), dtype=np.uint8)
    for row in rows:
        value = b""
        while len(value) < value_bytes:
            a, b = (words[at] for at in chance.integers(0, len(words), 2))
            value += b'{"id":%d,"state":"%s","city":"%s","cents":%d},' % (
                chance.integers(0, 10**9),
                a,
                b,
                chance.integers(0, 10**7),
            )
        row[:] = np.frombuffer(value, dtype=np.uint8, count=value_bytes)
    return rows


def stamped_batches(
    keys: Bytes, values: Bytes, *, base_offset: int = 0, codec: Codec = Codec.NONE, batch_records: int = BATCH_RECORDS
) -> Iterator[bytes]:
    """Batches of `batch_records`, some at a time, as joined bytes: one record per row of `keys`, offsets dense.

    `values` are taken in turn. Rows that do not fill a batch are left out.
    """
    template, key_positions, value_positions = _template(values.shape[1], batch_records)
    batches = len(keys) // batch_records
    for first in range(0, batches, MADE_AT_ONCE):
        count = min(MADE_AT_ONCE, batches - first)
        rows = np.arange(first * batch_records, (first + count) * batch_records).reshape(count, batch_records)
        # Keys and values have fixed lengths, so they can be written over the template without moving anything else.
        block = np.tile(template, (count, 1))
        for record, (key_at, value_at) in enumerate(zip(key_positions, value_positions, strict=True)):
            block[:, key_at : key_at + KEY_BYTES] = keys[rows[:, record]]
            block[:, value_at : value_at + values.shape[1]] = values[rows[:, record] % len(values)]
        block[:, :8] = (rows[:, :1] + base_offset).astype(">i8").view(np.uint8)
        yield b"".join(_finished(batch, codec) for batch in block)


def _template(value_bytes: int, batch_records: int) -> tuple[Bytes, Sequence[int], Sequence[int]]:
    """(a batch, where its keys lie, where its values lie)."""
    made = build_batch([NewRecord(NOW_MS + n, bytes(KEY_BYTES), bytes(value_bytes)) for n in range(batch_records)])
    arena = np.frombuffer(made, dtype=np.uint8)
    start, end, count = (np.array([n], dtype=np.int64) for n in (BATCH_HEADER_BYTES, len(made), batch_records))
    columns = scan_records(arena, start, end, count)
    # The template's records have no headers: the count 0, one byte, ends each record.
    headers_bytes = 1
    return arena, columns.key_positions.tolist(), (columns.record_ends - headers_bytes - value_bytes).tolist()


def _finished(batch: Bytes, codec: Codec) -> bytes:
    """The batch with its length and checksum, compressed if need be."""
    if codec is not Codec.NONE:
        payload = compress(codec, batch[BATCH_HEADER_BYTES:].data)
        batch = np.concatenate((batch[:BATCH_HEADER_BYTES], np.frombuffer(payload, dtype=np.uint8)))
        batch[8:12] = np.frombuffer((len(batch) - BATCH_OVERHEAD_BYTES).to_bytes(4, "big"), dtype=np.uint8)
        batch[22] = codec
    crc = crc32c(batch[CRC_COVERS_FROM:].data)
    batch[CRC_POSITION : CRC_POSITION + 4] = np.frombuffer(crc.to_bytes(4, "big"), dtype=np.uint8)
    return batch.tobytes()


@dataclass
class MergeInputFiles(Generic[Store]):
    """One compacted partition in L1 files, an extent in each, and the claims over it."""

    store: Store
    partition_id: int = PARTITION_ID
    extents: list[LeveledExtent] = field(default_factory=list[LeveledExtent])
    next_offset: int = 0

    async def add_file(self, batches: Iterator[bytes], *, level: int = 1) -> None:
        """Add a file of batches that continue the log."""
        key = file_key(level=level, writer_id=1, epoch=1, file_uuid=SystemIds().uuid7(NOW_MS), created_ms=NOW_MS)
        writer = FileWriter(self.store, key, level=level, created_ms=NOW_MS)
        writer.start_extent(TOPIC_ID, self.partition_id)
        first = self.next_offset
        for data in batches:
            table = read_batches(data, check_crc=False)
            self.next_offset = int(table.last_offsets[-1]) + 1
            await writer.write(data, table)
        writer.end_extent(first, self.next_offset - 1)
        properties = FileProperties(
            job_id=1,
            kind="level",
            epoch=1,
            level=level,
            file_class=FileClass.COMPACTED.value,
            inputs=(),
            topics={},
            created_ms=NOW_MS,
            flagged={},
        )
        written = await writer.finish(properties)
        (row,) = written.rows
        self._add_extent(written.key, written.size_bytes, level, row)

    def adopt(self, commit: CommitMerge) -> None:
        """Replace the present files by a merge's outputs."""
        self.extents.clear()
        for output in commit.outputs:
            for extent in output.extents:
                self._add_extent(output.key, output.size_bytes, output.level, extent)

    def _add_extent(self, key: str, file_bytes: int, level: int, row: ExtentRow | OutputExtent) -> None:
        number = self.partition_id * FILES_MAX + len(self.extents)
        self.extents.append(
            LeveledExtent(
                extent_id=number,
                partition_id=self.partition_id,
                base_offset=row.base_offset,
                last_offset=row.last_offset,
                file_id=number,
                key=key,
                level=level,
                file_size_bytes=file_bytes,
                position=row.position,
                length=row.length,
                block_index_position=row.block_index_position,
                block_index_length=row.block_index_length,
                record_count=row.record_count,
                crc32c=row.crc32c,
                min_timestamp_ms=row.min_timestamp_ms,
                max_timestamp_ms=row.max_timestamp_ms,
                has_tombstones=True,
                flagged_reason=None,
            )
        )

    @property
    def bytes(self) -> int:
        return sum(extent.length for extent in self.extents)

    def claim(self, *, passes: int = 1) -> ClaimedJob:
        """A dedupe of all of it, from L1 to L2."""
        end = self.next_offset
        partition = PartitionSpec(
            partition_id=self.partition_id,
            log_start_offset=0,
            last_stable_offset=end,
            high_watermark=end,
            first_uncleanable_offset=end,
            whole_through_offset=end,
            delete_horizon_ms=NOW_MS + DAY_MS,
            passes=passes,
        )
        spec = MergeSpec(
            kind=MergeKind.MERGE,
            now_ms=NOW_MS,
            limit_ms=DAY_MS,
            level=2,
            output_bytes=GIB,
            dedupe=True,
            extent_ids=tuple(extent.extent_id for extent in self.extents),
            partitions={self.partition_id: partition},
            input_bytes=self.bytes,
        )
        return ClaimedJob(
            job=_job(spec),
            now_ms=NOW_MS,
            l0_files=(),
            extents=tuple(self.extents),
            partitions={self.partition_id: input_partition(self.partition_id, end)},
        )


def input_partition(partition_id: int, end: int, *, policy: str = "compact") -> InputPartition:
    """A partition whose log ends at `end`."""
    return InputPartition(
        partition_id=partition_id,
        topic_id=TOPIC_ID,
        topic_name="users",
        partition=partition_id,
        configs={"cleanup.policy": policy},
        config_version=1,
        log_start_offset=0,
        last_stable_offset=end,
        high_watermark=end,
    )


def claim_of_all(claims: Sequence[ClaimedJob]) -> ClaimedJob:
    """One job that does the work of all."""
    specs = [MergeSpec.from_json(each.job.spec) for each in claims]
    spec = replace(
        specs[0],
        extent_ids=tuple(extent_id for each in specs for extent_id in each.extent_ids),
        partitions={partition_id: one for each in specs for partition_id, one in each.partitions.items()},
        input_bytes=sum(each.input_bytes for each in specs),
    )
    return replace(
        claims[0],
        job=_job(spec),
        extents=tuple(extent for each in claims for extent in each.extents),
        partitions={partition_id: one for each in claims for partition_id, one in each.partitions.items()},
    )


async def leveling_claim(store: ObjectStore, *, partitions: int, files: int, batch: bytes) -> ClaimedJob:
    """A job that levels L0 files with one such batch of each partition."""
    header = read_header(batch)
    l0_files: list[L0Input] = []
    for number in range(files):
        sources = [ExtentSource(TOPIC_ID, at, [batch], header.records_count, 0, 0) for at in range(partitions)]
        body = build_file(sources, level=0, created_ms=NOW_MS).body
        key = file_key(level=0, writer_id=1, epoch=1, file_uuid=SystemIds().uuid7(NOW_MS), created_ms=NOW_MS)
        await store.put_if_absent(key, body, crc32c=crc32c(body))
        first = number * header.records_count
        last = first + header.records_count - 1
        rows = [IndexRow(at, first, last, at * len(batch), len(batch), NOW_MS, NOW_MS) for at in range(partitions)]
        l0_files.append(
            L0Input(file_id=number + 1, key=key, size_bytes=len(body), created_ms=NOW_MS, index=encode_index(rows))
        )
    spec = MergeSpec(
        kind=MergeKind.LEVEL,
        now_ms=NOW_MS,
        limit_ms=DAY_MS,
        level=1,
        output_bytes=GIB,
        dedupe=False,
        input_bytes=files * partitions * len(batch),
    )
    end = files * header.records_count
    return ClaimedJob(
        job=_job(spec),
        now_ms=NOW_MS,
        l0_files=tuple(l0_files),
        extents=(),
        partitions={at: input_partition(at, end, policy="delete") for at in range(partitions)},
    )


def _job(spec: MergeSpec) -> MergeJob:
    return MergeJob(
        job_id=1,
        kind=spec.kind.value,
        state=JobState.RUNNING,
        epoch=1,
        spec=spec.to_json(),
        holder=LEASE.writer_id,
        attempts=1,
        created_ms=NOW_MS,
        started_ms=NOW_MS,
        deadline_ms=NOW_MS + DAY_MS,
        finished_ms=None,
        lease_until_ms=NOW_MS + DAY_MS,
        input_files=0,
        input_bytes=spec.input_bytes,
        progress={},
        result={},
        error="",
    )
