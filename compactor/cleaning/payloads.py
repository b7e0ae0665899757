"""A window of batches in chunks that kernels can walk: payloads decompressed, in bounded memory.

A chunk is a few neighbouring batches and an *arena* that holds their payloads. If no batch is compressed, the arena is
the window itself, and most windows are one chunk. Otherwise the payloads are copied side by side into an arena, and
chunks are cut at about `CHUNK_BYTES` or one batch, however large the decompressed batches are. Decompressed payloads
are kept for the next pass up to a bound; the others are decompressed again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from wire.batch import BATCH_HEADER_BYTES, CODEC_MASK
from wire.codecs import Codec, CodecError, decompress
from wire.crc import Body
from wire.kernels.batches import BatchTable, broken_crc, check_crcs
from wire.kernels.scan import CorruptPayloadError, KeyColumns, PayloadChecksumError, scan_records
from wire.records import CorruptRecordError

CHUNK_BYTES = 4 << 20
"""The size of a chunk of decompressed payloads."""
PLAIN_CHUNK_BYTES = 16 << 20
"""The size of a chunk of a window without compressed batches, which is in memory anyway."""
CHUNK_RECORDS = 1 << 17
"""Records of a chunk: the columns take 41 bytes a record."""
_CODECS: tuple[Codec, ...] = tuple(Codec)


class CorruptRecordAtError(CorruptRecordError):
    """A record breaks a rule of the format. Names the batch that holds the record."""

    def __init__(self, position: int, base_offset: int, record_index: int, message: str) -> None:
        super().__init__(record_index, f"{message} (in the batch of base offset {base_offset} at position {position})")
        self.position = position
        """First byte of the batch in the window."""
        self.base_offset = base_offset


class CodecAtError(CodecError):
    """A batch cannot be decompressed, or its decompressed size is above the limit."""

    def __init__(self, position: int, base_offset: int, message: str) -> None:
        super().__init__(f"{message} (the batch of base offset {base_offset} at position {position})")
        self.position = position
        """First byte of the batch in the window."""
        self.base_offset = base_offset


class Chunk(NamedTuple):
    """Batches `first` to `stop` (exclusive) of a window's table."""

    first: int
    stop: int
    arena: NDArray[np.uint8]
    starts: NDArray[np.int64]
    """Where each payload starts in the arena."""
    ends: NDArray[np.int64]
    crcs_due: bool
    """The CRC-32C of its batches is not checked yet. The arena is the window then."""

    def of(self, table: BatchTable) -> BatchTable:
        return BatchTable._make(column[self.first : self.stop] for column in table)

    def columns(self, table: BatchTable) -> KeyColumns:
        """The records of the chunk; `table` is the window's.

        Raises CorruptRecordAtError, and CorruptBatchAtError when a CRC-32C is wrong.
        """
        counts = table.record_counts[self.first : self.stop]
        try:
            return scan_records(self.arena, self.starts, self.ends, counts, check_crc=self.crcs_due)
        except PayloadChecksumError as error:
            raise broken_crc(table, self.first + error.payload_index) from error
        except CorruptPayloadError as error:
            message = error.message.removeprefix(f"record {error.record_index}: ")
            raise corrupt_record(table, self.first + error.payload_index, error.record_index, message) from error


def corrupt_record(table: BatchTable, batch: int, record_index: int, message: str) -> CorruptRecordAtError:
    return CorruptRecordAtError(int(table.positions[batch]), int(table.base_offsets[batch]), record_index, message)


def first_rows_of(part: BatchTable) -> NDArray[np.int64]:
    """The index of each batch's first record in a chunk of these batches, and the number of records at the end."""
    rows = np.zeros(len(part.positions) + 1, dtype=np.int64)
    np.cumsum(part.record_counts, out=rows[1:])
    return rows


def joined(parts: Sequence[tuple[Body, BatchTable]]) -> tuple[Body, BatchTable]:
    """Pieces of a window, each with its table, as one piece with one table."""
    tables: list[BatchTable] = []
    position = 0
    for data, table in parts:
        tables.append(table._replace(positions=table.positions + position))
        position += len(data)
    table = BatchTable._make(np.concatenate(columns) for columns in zip(*tables, strict=True))
    return b"".join(data for data, _ in parts), table


class Payloads:
    """The payloads of one partition, pass after pass."""

    def __init__(self, *, kept_bytes_max: int, decompressed_bytes_max: int) -> None:
        self._kept: dict[int, bytes] = {}
        """Decompressed payloads by the batch's number in the partition."""
        self._kept_bytes = 0
        self._kept_bytes_max = kept_bytes_max
        self._decompressed_bytes_max = decompressed_bytes_max

    def chunks(
        self, data: Body, table: BatchTable, first_batch: int, *, crcs_due: bool = False, last_pass: bool = False
    ) -> Iterator[Chunk]:
        """The chunks of a window.

        Args:
            first_batch: the number of the window's first batch in the partition.
            crcs_due: no CRC-32C of the batches was checked yet. This method checks them before it decompresses;
                `Chunk.columns` checks those of plain chunks.
            last_pass: payloads are not kept any longer.

        Raises CorruptBatchAtError, CodecAtError.
        """
        if not (table.attributes & CODEC_MASK).any():
            return self._plain(data, table, crcs_due)
        if crcs_due:
            check_crcs(data, table)
        return self._unfolded(data, table, first_batch, last_pass)

    def _plain(self, data: Body, table: BatchTable, crcs_due: bool) -> Iterator[Chunk]:
        window = np.frombuffer(data, dtype=np.uint8)
        ends = table.positions + table.sizes
        starts = table.positions + BATCH_HEADER_BYTES
        rows = np.cumsum(table.record_counts)
        first, rows_before = 0, 0
        while first < len(ends):
            by_bytes = int(np.searchsorted(ends, int(table.positions[first]) + PLAIN_CHUNK_BYTES, side="right"))
            by_rows = int(np.searchsorted(rows, rows_before + CHUNK_RECORDS, side="right"))
            # A batch is never divided, however large: chunks end between batches.
            stop = max(first + 1, min(by_bytes, by_rows))
            yield Chunk(first, stop, window, starts[first:stop], ends[first:stop], crcs_due)
            first, rows_before = stop, int(rows[stop - 1])

    def _unfolded(self, data: Body, table: BatchTable, first_batch: int, last_pass: bool) -> Iterator[Chunk]:
        view = memoryview(data)
        parts: list[Body] = []
        first = chunk_bytes = records = 0
        starts, ends = table.positions + BATCH_HEADER_BYTES, table.positions + table.sizes
        for index, (start, end, attributes, count) in enumerate(
            zip(starts.tolist(), ends.tolist(), table.attributes.tolist(), table.record_counts.tolist(), strict=True)
        ):
            payload: Body = view[start:end]
            codec = int(attributes) & CODEC_MASK
            # A batch without records has no payload to decompress, whatever codec its header names.
            if codec and count:
                payload = self._payload(_CODECS[codec], payload, first_batch + index, table, index, last_pass)
            size_bytes = len(payload)
            if parts and (chunk_bytes + size_bytes > CHUNK_BYTES or records + count > CHUNK_RECORDS):
                yield _in_one_arena(first, parts)
                parts, first, chunk_bytes, records = [], index, 0, 0
            parts.append(payload)
            chunk_bytes += size_bytes
            records += count
        if parts:
            yield _in_one_arena(first, parts)

    def _payload(
        self, codec: Codec, payload: Body, number: int, table: BatchTable, index: int, last_pass: bool
    ) -> bytes:
        # The last pass frees each payload as it takes it, so memory falls while the rewrite runs.
        kept = self._kept.pop(number, None) if last_pass else self._kept.get(number)
        if kept is not None:
            return kept
        try:
            plain = decompress(codec, payload, bytes_max=self._decompressed_bytes_max)
        except CodecError as error:
            raise CodecAtError(int(table.positions[index]), int(table.base_offsets[index]), error.message) from error
        if not last_pass and self._kept_bytes + len(plain) <= self._kept_bytes_max:
            self._kept[number] = plain
            self._kept_bytes += len(plain)
        return plain


def _in_one_arena(first: int, parts: list[Body]) -> Chunk:
    ends = np.cumsum(np.array([len(part) for part in parts], dtype=np.int64))
    starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
    arena = np.frombuffer(parts[0] if len(parts) == 1 else b"".join(parts), dtype=np.uint8)
    return Chunk(first, first + len(parts), arena, starts, ends, False)
