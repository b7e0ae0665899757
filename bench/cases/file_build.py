"""Building one L0 file of 8 MiB: batches of many partitions, in order of arrival, into one body and its commit rows.

This is an agent's work on its event loop between the last byte that arrived and the PUT. The join copies the bytes
once, so the limit is one copy of 8 MiB into fresh memory, and a CRC-32C over it.
"""

from __future__ import annotations

import sys
import time
import uuid
from collections.abc import Iterator, Sequence

from agents.write.seal import seal
from agents.write.submission import PendingBatch, Submission
from bench.measures.limits import FILE_BYTES, crc32c_gb_per_s, least_seconds
from bench.registry import Size
from bench.table import Cell, Column, Table
from metadata.contract.l0_commit import BatchResult
from wire.batch import BATCH_HEADER_BYTES, read_header
from wire.records import NewRecord, build_batch

NOW_MS = 1_800_000_000_000
SHAPES = ((1, 1), (1, 8), (100, 1), (100, 8), (1000, 1), (1000, 8))
"""The partitions of a file, and the batches of each."""
PRODUCE_REQUEST_BYTES = 1 << 20


class _NoPromise:
    def done(self) -> bool:
        return True

    def set_result(self, result: Sequence[BatchResult], /) -> None: ...


def run(size: Size) -> Iterator[Table]:
    yield measure(SHAPES, repeats=10 if size is Size.SMALL else 50)


def measure(shapes: Sequence[tuple[int, int]], *, repeats: int, bytes_count: int = FILE_BYTES) -> Table:
    """One row per (partitions, batches per partition)."""
    chunk = memoryview(bytes(bytes_count))
    copy_s = least_seconds(lambda: b"".join((chunk,)), repeats=repeats)
    crc_s = bytes_count / crc32c_gb_per_s(bytes_count) / 1e9
    rows: list[list[Cell]] = []
    for partitions, batches in shapes:
        print(f"{partitions} partitions x {batches} batches", file=sys.stderr)
        submissions = some_submissions(partitions, batches, bytes_count=bytes_count)
        least_ms, cpu_ms = _times_ms(submissions, repeats)
        rows.append(
            [partitions, batches, least_ms, cpu_ms, least_ms / copy_s / 1000, least_ms * 1000 / (partitions * batches)]
        )
    return Table(
        f"Building a file of {bytes_count / 2**20:g} MiB",
        f"Limits in this run: one copy {copy_s * 1000:.2f} ms, one CRC-32C {crc_s * 1000:.2f} ms."
        " The least of all repeats; CPU is their mean.",
        (
            Column("partitions"),
            Column("batches each"),
            Column("time", "ms", 2),
            Column("CPU", "ms", 2),
            Column("of one copy", "x", 1),
            Column("per batch", "us", 1),
        ),
        rows,
    )


def some_submissions(partitions: int, batches: int, *, bytes_count: int = FILE_BYTES) -> list[Submission]:
    """Requests of about 1 MiB with one batch per partition each, as clients send them, until `bytes_count` is full."""
    batch_bytes = bytes_count // (partitions * batches)
    overhead = len(build_batch([NewRecord(NOW_MS, None, b"")])) + 8
    records = memoryview(build_batch([NewRecord(NOW_MS, None, bytes(max(batch_bytes - overhead, 0)))]))
    assert len(records) >= BATCH_HEADER_BYTES
    header, topic_id = read_header(records), uuid.UUID(int=7)
    per_request = max(1, min(partitions, PRODUCE_REQUEST_BYTES // batch_bytes))
    submissions: list[Submission] = []
    for _ in range(batches):
        for start in range(0, partitions, per_request):
            numbers = range(start, min(start + per_request, partitions))
            # Copies, because real batches do not all lie at one place of the processor's cache.
            pending = [
                PendingBatch(number + 1, topic_id, number, memoryview(bytes(records)), header, False)
                for number in numbers
            ]
            submissions.append(Submission(pending, _NoPromise()))
    return submissions


def _times_ms(submissions: Sequence[Submission], repeats: int) -> tuple[float, float]:
    """The least wall time, and the mean CPU time, of one file."""
    started = time.process_time()
    least_s = least_seconds(lambda: seal(submissions, now_ms=NOW_MS), repeats=repeats)
    return least_s * 1000, (time.process_time() - started) * 1000 / repeats
