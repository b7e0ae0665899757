"""The records of erased keys taken out of one partition, window by window, by the rules of
`compactor/erasing/oracle.py`.

One pass: whatever a record's neighbours are, its key and its offset alone decide. Batches above every mark are not even
read, and a window without a marked record is returned as it is, so nothing is compressed again in vain. The eraser
holds the marks (40 bytes a key, and an index), the payloads and columns of a chunk (`compactor/cleaning/payloads.py`),
and the window that it returns. It writes nothing.

An unreadable batch is an error here, while the cleaner passes over one: the records that an erasure has to remove may
be in it.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from compactor.cleaning.payloads import (
    Chunk,
    CodecAtError,
    CorruptRecordAtError,
    Payloads,
    corrupt_record,
    first_rows_of,
    joined,
)
from compactor.cleaning.unreadable import RECORDS_MAX
from compactor.erasing.kernels import judge
from compactor.erasing.marks_table import MarksTable
from runtime.errors import SiltstoneError
from wire.batch import BATCH_HEADER_BYTES
from wire.crc import Body
from wire.kernels.batches import BatchTable
from wire.kernels.hashing import hash_keys
from wire.kernels.rewrite import rewrite
from wire.kernels.scan import KeyColumns
from wire.records import DECOMPRESSED_BYTES_MAX

_LOOKED_UP_AT_ONCE = 4096
"""Rows hashed and looked up together: their hashes stay in the processor's cache."""


class UnreadableBatchError(SiltstoneError):
    """The records of a batch cannot be read, so nobody knows whether erased ones are among them."""

    def __init__(self, position: int, base_offset: int, message: str) -> None:
        super().__init__(message)
        self.position = position
        """First byte of the batch in the window."""
        self.base_offset = base_offset


class ErasedWindow(NamedTuple):
    """A window without the marked records."""

    data: Body
    """Whole batches, joined; the window itself when it had no marked record."""
    table: BatchTable
    """The table of the batches in `data`, with the true uncompressed sizes of those that were read."""
    erased: int
    """Records that went."""


class PartitionEraser:
    def __init__(self, marks: MarksTable, *, decompressed_bytes_max: int = DECOMPRESSED_BYTES_MAX) -> None:
        self._marks = marks
        self._payloads = Payloads(kept_bytes_max=0, decompressed_bytes_max=decompressed_bytes_max)

    def erase(self, data: Body, table: BatchTable) -> ErasedWindow:
        """Takes any window of whole batches; `table` covers all of `data`. The caller has checked the batches' CRCs.

        Raises UnreadableBatchError for a batch that reaches below a mark.
        """
        read_end = int(table.base_offsets.searchsorted(self._marks.end_offset))
        if not read_end:
            return ErasedWindow(data, table, 0)
        read = _rows(table, 0, read_end)
        try:
            _refuse_large(read)
            parts = [
                self._erased_chunk(data, read, chunk) for chunk in self._payloads.chunks(data, read, 0, last_pass=True)
            ]
        except (CorruptRecordAtError, CodecAtError) as error:
            raise UnreadableBatchError(error.position, error.base_offset, error.message) from error
        erased = sum(part.erased for part in parts)
        if not erased:
            sizes = table.uncompressed_sizes.copy()
            sizes[:read_end] = np.concatenate([part.table.uncompressed_sizes for part in parts])
            return ErasedWindow(data, table._replace(uncompressed_sizes=sizes), 0)
        if read_end < len(table.positions):
            parts.append(_as_it_is(data, _rows(table, read_end, len(table.positions))))
        if len(parts) == 1:
            return parts[0]
        return ErasedWindow(*joined([(part.data, part.table) for part in parts]), erased)

    def _erased_chunk(self, data: Body, table: BatchTable, chunk: Chunk) -> ErasedWindow:
        part = chunk.of(table)._replace(uncompressed_sizes=chunk.ends - chunk.starts + BATCH_HEADER_BYTES)
        columns, first_rows = chunk.columns(table), first_rows_of(part)
        verdicts = judge(columns, part, first_rows, self._ends(chunk, columns))
        if verdicts.broken_row >= 0:
            batch = int(np.searchsorted(first_rows, verdicts.broken_row, side="right")) - 1
            delta = columns.offset_deltas[verdicts.broken_row]
            message = f"offset delta {delta} is not above the one before it, or above the batch's last"
            raise corrupt_record(table, chunk.first + batch, verdicts.broken_row - int(first_rows[batch]), message)
        if not verdicts.erased:
            return _as_it_is(data, part)
        window = np.frombuffer(data, dtype=np.uint8)
        written, out_table = rewrite(window, part, chunk.arena, columns, first_rows, verdicts.keep, verdicts.rewrites)
        return ErasedWindow(written.data, out_table, verdicts.erased)

    def _ends(self, chunk: Chunk, columns: KeyColumns) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        """For each record of the chunk, the exclusive end of the offsets at which its key is erased."""
        rows = len(columns.key_lengths)
        ends = np.zeros(rows, dtype=np.int64)
        for start in range(0, rows, _LOOKED_UP_AT_ONCE):
            stop = min(start + _LOOKED_UP_AT_ONCE, rows)
            lengths = columns.key_lengths[start:stop]
            hashes = hash_keys(chunk.arena, columns.key_positions[start:stop], lengths)
            ends[start:stop] = self._marks.ends_of(hashes, lengths)
        return ends


def _refuse_large(table: BatchTable) -> None:
    """Raises CorruptRecordAtError for a batch with more records than are read at once."""
    large = (table.record_counts > RECORDS_MAX).nonzero()[0]
    if len(large):
        batch = int(large[0])
        message = f"{int(table.record_counts[batch])} records in one batch are more than are read at once"
        raise corrupt_record(table, batch, RECORDS_MAX, message)


def _as_it_is(data: Body, part: BatchTable) -> ErasedWindow:
    start, end = int(part.positions[0]), int(part.positions[-1] + part.sizes[-1])
    return ErasedWindow(memoryview(data)[start:end], part._replace(positions=part.positions - start), 0)


def _rows(table: BatchTable, start: int, stop: int) -> BatchTable:
    return BatchTable._make(column[start:stop] for column in table)
