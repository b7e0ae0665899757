"""From submissions to one L0 file and the commit that goes with it. Pure.

Batches are grouped by partition, ascending by partition id, and keep their order of arrival inside it: the commit
function chains the sequences of a producer in that order. Bytes are joined once; records are never re-encoded. On
topics with LogAppendTime the header is stamped here, at the last moment before the bytes are fixed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agents.write.submission import PendingBatch, Submission
from metadata.service import BatchResult, L0Batch
from storage.file_format import ExtentSource, SealedFile, build_file
from wire.batch import BATCH_HEADER_BYTES, stamp_log_append_time


@dataclass(frozen=True, slots=True)
class SealedL0:
    file: SealedFile
    batches: tuple[L0Batch, ...]
    """In file order, as the commit wants them."""
    submissions: Sequence[Submission]
    places: tuple[tuple[int, int], ...]
    """For each of `batches`: (submission, batch inside it) it came from."""

    def results_by_submission(self, results: Sequence[BatchResult]) -> list[list[BatchResult]]:
        """Turn the commit's results, in file order, back into one list per submission."""
        answers: list[list[BatchResult | None]] = [[None] * len(each.batches) for each in self.submissions]
        for (submission, batch), result in zip(self.places, results, strict=True):
            answers[submission][batch] = result
        return [[result for result in answer if result is not None] for answer in answers]


def seal(submissions: Sequence[Submission], *, now_ms: int) -> SealedL0:
    """Lay out one file. `now_ms` is wall time, for LogAppendTime."""
    grouped: dict[int, list[tuple[int, int, PendingBatch]]] = {}
    for submission_number, submission in enumerate(submissions):
        for batch_number, batch in enumerate(submission.batches):
            grouped.setdefault(batch.partition_id, []).append((submission_number, batch_number, batch))
    order = sorted(grouped)
    file = build_file(
        [_extent([batch for _, _, batch in grouped[key]], now_ms) for key in order], level=0, created_ms=now_ms
    )
    batches: list[L0Batch] = []
    places: list[tuple[int, int]] = []
    for key, start in zip(order, file.positions, strict=True):
        position = start
        for submission_number, batch_number, batch in grouped[key]:
            batches.append(_commit_row(batch, position, now_ms))
            places.append((submission_number, batch_number))
            position += len(batch.records)
    return SealedL0(file, tuple(batches), submissions, tuple(places))


def _extent(batches: Sequence[PendingBatch], now_ms: int) -> ExtentSource:
    chunks: list[bytes | memoryview] = []
    for batch in batches:
        if batch.log_append_time:
            chunks += [stamp_log_append_time(batch.records, now_ms), batch.records[BATCH_HEADER_BYTES:]]
        else:
            chunks.append(batch.records)
    return ExtentSource(
        topic_id=batches[0].topic_id,
        partition=batches[0].partition,
        chunks=chunks,
        record_count=sum(batch.header.records_count for batch in batches),
        min_timestamp_ms=min(_timestamps(batch, now_ms)[0] for batch in batches),
        max_timestamp_ms=max(_timestamps(batch, now_ms)[1] for batch in batches),
    )


def _timestamps(batch: PendingBatch, now_ms: int) -> tuple[int, int]:
    if batch.log_append_time:
        return now_ms, now_ms
    # The base timestamp is the first record's, not the least; a header cannot say more.
    return min(batch.header.base_timestamp_ms, batch.header.max_timestamp_ms), batch.header.max_timestamp_ms


def _commit_row(batch: PendingBatch, position: int, now_ms: int) -> L0Batch:
    header = batch.header
    min_timestamp_ms, max_timestamp_ms = _timestamps(batch, now_ms)
    return L0Batch(
        partition_id=batch.partition_id,
        position=position,
        length=len(batch.records),
        record_count=header.last_offset_delta + 1,
        min_timestamp_ms=min_timestamp_ms,
        max_timestamp_ms=max_timestamp_ms,
        log_append_time_ms=now_ms if batch.log_append_time else -1,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
    )
