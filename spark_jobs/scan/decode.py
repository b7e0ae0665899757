"""From windows to *blocks* of records as columns, and from those to Arrow record batches.

Left out are records outside the slice, those of control batches, and those of aborted transactions if the slice names
any. Batches are decompressed some MiB at a time, whatever they unfold to. A batch whose CRC-32C is right but whose
records cannot be read is lost by itself (`losses.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compactor.cleaning.payloads import Chunk, CodecAtError, CorruptRecordAtError, Payloads
from compactor.cleaning.rules import AbortedBatches
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.columns import Bytes, Rows, gathered, headers_of, values_of
from spark_jobs.scan.contract import CHANGE, DELETE, SCHEMA, TIMESTAMP_TYPE, UPSERT, Slice, schema_of
from spark_jobs.scan.losses import Losses
from spark_jobs.scan.windows import Window
from wire.batch import CONTROL_BIT, LOG_APPEND_TIME_BIT, TRANSACTIONAL_BIT
from wire.kernels.batches import BatchTable
from wire.kernels.scan import KeyColumns
from wire.records import DECOMPRESSED_BYTES_MAX

TIMESTAMP_MS_LIMIT = 2**63 // 1000 - 1
"""The largest timestamp in Arrow's microseconds; later ones are shown as this."""


class Block(NamedTuple):
    """Records of one partition in offset order. `columns` may hold others beside them."""

    arena: NDArray[np.uint8]
    columns: KeyColumns
    rows: Rows
    """The rows of `columns` that belong to the block."""
    offsets: NDArray[np.int64]
    """One per row, as in `timestamps_ms`."""
    timestamps_ms: NDArray[np.int64]
    is_append_time: NDArray[np.bool_] | None
    """None if no timestamp is the broker's."""

    def keep(self, wanted: NDArray[np.bool_]) -> Block:
        return self._replace(
            rows=self.rows[wanted],
            offsets=self.offsets[wanted],
            timestamps_ms=self.timestamps_ms[wanted],
            is_append_time=None if self.is_append_time is None else self.is_append_time[wanted],
        )


class Decoder:
    """The decoder of one slice."""

    def __init__(self, part: Slice, losses: Losses) -> None:
        self._start, self._end = part.start, part.end
        self._aborted = AbortedBatches(part.aborted)
        self._losses = losses

    def blocks(self, window: Window) -> Iterator[Block]:
        """Raises DataLossError."""
        start = max(self._start, window.from_offset)
        table = self._wanted(window.table, start)
        if not len(table.positions):
            return
        try:
            for block in self._decoded(window, table, start):
                start = int(block.offsets[-1]) + 1  # where to go on if the next one fails
                yield block
        except (CodecAtError, CorruptRecordAtError):
            # One batch at a time: only the unreadable one is lost, and its neighbours in the chunk are not.
            yield from self._one_by_one(window, self._wanted(table, start), start)

    def _wanted(self, table: BatchTable, start: int) -> BatchTable:
        wanted = (table.last_offsets >= start) & (table.base_offsets < self._end) & (table.record_counts > 0)
        wanted &= (table.attributes & CONTROL_BIT) == 0
        if self._aborted:
            for row in np.flatnonzero(wanted & ((table.attributes & TRANSACTIONAL_BIT) != 0)).tolist():
                wanted[row] = not self._aborted.holds(int(table.producer_ids[row]), int(table.base_offsets[row]))
        return table if wanted.all() else BatchTable._make(column[wanted] for column in table)

    def _one_by_one(self, window: Window, table: BatchTable, start: int) -> Iterator[Block]:
        for row in range(len(table.positions)):
            one = BatchTable._make(column[row : row + 1] for column in table)
            try:
                yield from self._decoded(window, one, start)
            except (CodecAtError, CorruptRecordAtError) as error:
                base, last = int(one.base_offsets[0]), int(one.last_offsets[0])
                first = max(base, start)
                self._losses.lost(first, min(last, self._end - 1), error.message, window.piece_of(base))

    def _decoded(self, window: Window, table: BatchTable, start: int) -> Iterator[Block]:
        payloads = Payloads(kept_bytes_max=0, decompressed_bytes_max=DECOMPRESSED_BYTES_MAX)
        for chunk in payloads.chunks(window.data, table, 0, last_pass=True):
            block = self._block(chunk, chunk.columns(table), chunk.of(table), start)
            if len(block.rows):
                yield block

    def _block(self, chunk: Chunk, columns: KeyColumns, table: BatchTable, start: int) -> Block:
        counts = table.record_counts
        offsets = np.repeat(table.base_offsets, counts) + columns.offset_deltas
        timestamps_ms = np.repeat(table.base_timestamps_ms, counts) + columns.timestamp_deltas
        is_append_time = (table.attributes & LOG_APPEND_TIME_BIT) != 0
        appended: NDArray[np.bool_] | None = None
        if is_append_time.any():
            appended = np.repeat(is_append_time, counts)
            timestamps_ms[appended] = np.repeat(table.max_timestamps_ms, counts)[appended]
        block = Block(chunk.arena, columns, np.arange(len(offsets)), offsets, timestamps_ms, appended)
        if int(table.base_offsets[0]) < start or int(table.last_offsets[-1]) >= self._end:
            return block.keep((offsets >= start) & (offsets < self._end))
        return block


# ---- Arrow --------------------------------------------------------------------------------------------------------


class BatchMaker:
    """Makes record batches of some columns of one partition."""

    def __init__(self, topic: str, partition: int, columns: Sequence[str]) -> None:
        self._topic, self._partition = topic.encode(), partition
        self._columns = tuple(columns)
        self._schema = schema_of(columns)
        self._needs_values = bool({"value", "headers"} & set(columns))

    def batches(self, block: Block, batch_rows: int) -> Iterator[Any]:
        """Record batches of at most `batch_rows` rows each."""
        count = len(block.rows)
        values = values_of(block.arena, block.columns, block.rows) if self._needs_values else None
        make: dict[str, Callable[[], Any]] = {
            "topic": lambda: _constant(self._topic, count),
            "partition": lambda: pa.array(np.full(count, self._partition, dtype=np.int32)),
            "offset": lambda: pa.array(block.offsets),
            "timestamp": lambda: _timestamps(block.timestamps_ms),
            "key": lambda: _binary(
                gathered(block.arena, block.columns.key_positions[block.rows], block.columns.key_lengths[block.rows])
            ),
            "value": lambda: _binary(gathered(block.arena, values.positions, values.lengths)),  # type: ignore[union-attr]
            "headers": lambda: _headers(block.arena, values),
            TIMESTAMP_TYPE: lambda: _timestamp_types(block, count),
            CHANGE: lambda: _changes(block),
        }
        whole = pa.RecordBatch.from_arrays([make[name]() for name in self._columns], schema=self._schema)
        for at in range(0, count, batch_rows):
            yield whole.slice(at, batch_rows)


def _validity(is_valid: NDArray[np.bool_] | None) -> Any:
    return None if is_valid is None else pa.py_buffer(np.packbits(is_valid, bitorder="little"))


def _binary(column: Bytes, kind: Any = None) -> Any:
    buffers = [_validity(column.is_valid), pa.py_buffer(column.offsets), pa.py_buffer(column.data)]
    return pa.Array.from_buffers(kind or pa.binary(), len(column.offsets) - 1, buffers)


def _constant(text: bytes, count: int) -> Any:
    offsets = np.arange(count + 1, dtype=np.int32) * len(text)
    return pa.Array.from_buffers(pa.string(), count, [None, pa.py_buffer(offsets), pa.py_buffer(text * count)])


def _timestamps(timestamps_ms: NDArray[np.int64]) -> Any:
    clipped = np.clip(timestamps_ms, -TIMESTAMP_MS_LIMIT, TIMESTAMP_MS_LIMIT) * 1000
    return pa.Array.from_buffers(pa.timestamp("us", tz="UTC"), len(clipped), [None, pa.py_buffer(clipped)])


def _timestamp_types(block: Block, count: int) -> Any:
    appended = np.zeros(count, dtype=np.int32) if block.is_append_time is None else block.is_append_time
    return pa.array(appended.astype(np.int32))


def _changes(block: Block) -> Any:
    is_delete = pa.array(block.columns.value_is_null[block.rows].astype(np.int32))
    return pa.DictionaryArray.from_arrays(is_delete, pa.array([UPSERT, DELETE])).dictionary_decode()


def _headers(arena: NDArray[np.uint8], values: Any) -> Any:
    fields = headers_of(arena, values)
    keys = gathered(arena, fields.key_positions, fields.key_lengths)
    column = _binary(gathered(arena, fields.value_positions, fields.value_lengths))
    element = SCHEMA.field("headers").type.value_field
    pairs = pa.StructArray.from_arrays([_text(keys), column], fields=list(element.type))
    offsets = np.zeros(len(values.header_counts) + 1, dtype=np.int32)
    np.cumsum(values.header_counts, out=offsets[1:])
    kind = SCHEMA.field("headers").type
    return pa.Array.from_buffers(kind, len(offsets) - 1, [None, pa.py_buffer(offsets)], children=[pairs])


def _text(keys: Bytes) -> Any:
    """Header keys as text; brokers do not check whether they are."""
    # ASCII needs no decoding: the bytes are valid UTF-8 as they are.
    if (keys.data < 0x80).all():
        return _binary(keys, pa.string())
    raw, offsets = keys.data.tobytes(), keys.offsets.tolist()
    return pa.array([raw[at:end].decode("utf-8", "replace") for at, end in pairwise(offsets)], pa.string())
