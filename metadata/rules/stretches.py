"""The stretches of an L0 file that hold accepted batches. Pure; the commit function makes them in SQL."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from metadata.contract.l0_commit import BatchResult, L0Batch
from metadata.contract.operators import HeldBytes
from metadata.rules.packed_index import IndexRow, iter_index, rows_of


def stretches(batches: Sequence[L0Batch], results: Iterable[BatchResult]) -> Iterator[IndexRow]:
    """One row per run of accepted batches of a partition whose bytes and offsets follow each other without a gap.

    A refused or duplicate batch leaves a hole in the bytes, so it ends a stretch. The rows are in arrival order.
    """
    row: IndexRow | None = None
    for batch, result in zip(batches, results, strict=True):
        # Its bytes lie in the file but belong to no offset.
        if result.error or result.duplicate:
            continue
        new = IndexRow(
            partition_id=batch.partition_id,
            base_offset=result.base_offset,
            last_offset=result.base_offset + batch.record_count - 1,
            position=batch.position,
            length=batch.length,
            min_timestamp_ms=batch.min_timestamp_ms,
            max_timestamp_ms=batch.max_timestamp_ms,
        )
        if row is not None and _touches(row, new):
            row = _joined(row, new)
        else:
            if row is not None:
                yield row
            row = new
    if row is not None:
        yield row


def _touches(row: IndexRow, new: IndexRow) -> bool:
    return (
        row.partition_id == new.partition_id
        and row.position + row.length == new.position
        and row.last_offset + 1 == new.base_offset
    )


def _joined(row: IndexRow, new: IndexRow) -> IndexRow:
    return row._replace(
        last_offset=new.last_offset,
        length=row.length + new.length,
        min_timestamp_ms=min(row.min_timestamp_ms, new.min_timestamp_ms),
        max_timestamp_ms=max(row.max_timestamp_ms, new.max_timestamp_ms),
    )


def held_rows(
    file_id: int, key: str, index: bytes, dead_ms: int | None, partition_ids: frozenset[int]
) -> Iterator[HeldBytes]:
    """The rows of an L0 file for these partitions. The rows of a file live and die with it."""
    for row in iter_index(rows_of(index, partition_ids) or index[:1]):
        yield HeldBytes(
            *(row.partition_id, row.base_offset, row.last_offset, file_id, key, 0, row.position, row.length),
            *(0, 0, False, dead_ms, dead_ms),
        )
