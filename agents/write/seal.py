"""From submissions to one L0 file and its commit. Pure.

Batches are grouped by partition, ascending by partition id, and keep their order of arrival within it, because the
commit function chains a producer's sequences in that order. Bytes are joined once; records are never re-encoded. On
topics with LogAppendTime the header is stamped here, at the last moment before the bytes are fixed.

The bytes of a long batch were read once, for its CRC; the checksums of the extent and the file are derived from that
one.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from agents.write.entering import Entering, entering
from agents.write.submission import PendingBatch, Submission
from metadata.contract.l0_commit import NOT_ENTERED, BatchResult, L0Batch
from storage.format.file_format import ExtentSource, SealedFile, build_file
from wire.batch import BATCH_HEADER_BYTES, TRANSACTIONAL_BIT, crc_of_batch, stamp_log_append_time
from wire.crc import JOINED_BYTES_MIN

_Place: TypeAlias = tuple[int, int]
"""(submission, batch inside it)"""


@dataclass(frozen=True, slots=True)
class SealedL0:
    file: SealedFile
    batches: tuple[L0Batch, ...]
    """In file order, as the commit wants them."""
    submissions: Sequence[Submission]
    places: tuple[_Place, ...]
    """The origin of each of `batches`."""
    entering: Entering | None = None
    """None: no batch is transactional."""

    def results_by_submission(self, results: Sequence[BatchResult]) -> list[list[BatchResult]]:
        """Turn the commit's results, in file order, back into one list per submission."""
        answers: list[list[BatchResult | None]] = [[None] * len(each.batches) for each in self.submissions]
        for (submission, batch), result in zip(self.places, results, strict=True):
            answers[submission][batch] = result
        return [[result for result in answer if result is not None] for answer in answers]


def seal(submissions: Sequence[Submission], *, now_ms: int) -> SealedL0:
    """Lay out one file. `now_ms` is wall time, for LogAppendTime."""
    grouped: defaultdict[int, list[tuple[PendingBatch, _Place]]] = defaultdict(list)
    for submission_number, submission in enumerate(submissions):
        for batch_number, batch in enumerate(submission.batches):
            grouped[batch.partition_id].append((batch, (submission_number, batch_number)))
    extents: list[ExtentSource] = []
    rows: list[L0Batch] = []
    places: list[_Place] = []
    position = 0
    transactional: list[tuple[int, L0Batch, PendingBatch]] = []
    # One stretch of bytes for each partition: the commit and the footer expect its batches side by side.
    for partition_id in sorted(grouped):
        first = len(rows)
        for batch, place in grouped[partition_id]:
            row = _commit_row(batch, position, now_ms)
            if batch.header.attributes & TRANSACTIONAL_BIT:
                row = row._replace(txn_seq=NOT_ENTERED)
                transactional.append((len(rows), row, batch))
            rows.append(row)
            places.append(place)
            position += len(batch.records)
        extents.append(_extent([batch for batch, _ in grouped[partition_id]], rows[first:], now_ms))
    file = build_file(extents, level=0, created_ms=now_ms)
    return SealedL0(file, tuple(rows), submissions, tuple(places), entering(transactional))


def _commit_row(batch: PendingBatch, position: int, now_ms: int) -> L0Batch:
    header = batch.header
    append_time_ms = -1
    # The base timestamp is the first record's, not the least; a header cannot hold more.
    max_timestamp_ms = header.max_timestamp_ms
    min_timestamp_ms = min(header.base_timestamp_ms, max_timestamp_ms)
    if batch.log_append_time:
        append_time_ms = min_timestamp_ms = max_timestamp_ms = now_ms
    return L0Batch(
        batch.partition_id,
        position,
        len(batch.records),
        header.last_offset_delta + 1,
        min_timestamp_ms,
        max_timestamp_ms,
        append_time_ms,
        header.producer_id,
        header.producer_epoch,
        header.base_sequence,
    )


def _extent(batches: Sequence[PendingBatch], rows: Sequence[L0Batch], now_ms: int) -> ExtentSource:
    """The extent of one partition; `rows` are the rows of its batches."""
    chunks: list[bytes | memoryview] = []
    crcs: list[int | None] = []
    record_count, some_long = 0, False
    for batch in batches:
        records = batch.records
        record_count += batch.header.records_count
        if batch.log_append_time:
            chunks += (stamp_log_append_time(records, now_ms), records[BATCH_HEADER_BYTES:])
            # The stamp changes bytes that the client's CRC covers, so the known one is of no use.
            crcs += (None, None)
        # Below this size, deriving a checksum takes longer than summing the bytes again.
        elif len(records) < JOINED_BYTES_MIN:
            chunks.append(records)
            crcs.append(None)
        else:
            chunks.append(records)
            crcs.append(crc_of_batch(records, batch.header))
            some_long = True
    return ExtentSource(
        topic_id=batches[0].topic_id,
        partition=batches[0].partition,
        chunks=chunks,
        record_count=record_count,
        min_timestamp_ms=min([row.min_timestamp_ms for row in rows]),
        max_timestamp_ms=max([row.max_timestamp_ms for row in rows]),
        chunk_crcs=crcs if some_long else (),
    )
