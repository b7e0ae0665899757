"""The parts of a topic that a filter leaves to be read.

pyarrow decides. Each part has a *guarantee*, an expression that is true of all its records: its topic, its partition, a
range of offsets and the largest timestamp. pyarrow drops a part whose guarantee contradicts the filter. Of timestamps
only the largest is known: the header of a batch holds no least one. (A producer that writes a largest timestamp which
is too small hides its records from a filter by time, as it hides them from a look-up by time.) Large files tell the
largest timestamp of each of their blocks; if the filter is about time, that is compared too.

In the views by key a part is a whole partition and guarantees nothing else. A filter must not change which record of a
key is the latest, so offsets and times are compared after the view.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from operator import attrgetter
from typing import Any, NamedTuple

from metadata.contract.readers import TopicSnapshot
from siltstone.reading.arrow import ds, fs
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import LOG, SCHEMA, ScanOptions, Slice
from spark_jobs.scan.decode import TIMESTAMP_MS_LIMIT
from spark_jobs.scan.plan import plan_slices
from spark_jobs.scan.windows import block_stretches
from storage.format.block_index import BLOCK_BYTES

FRAGMENT_BYTES = 8 << 20
"""The size of a part, about: small enough that a filter spares much, and large enough for a good read."""
FRAGMENTS_MAX = 4_096
"""Larger topics have larger parts, not more."""
FORMAT = ds.IpcFileFormat()
NOWHERE = fs.SubTreeFileSystem("/dev/null", fs.LocalFileSystem())
"""A place without files, should pyarrow look for one: a fragment of ours has a guarantee and no file."""


class PartIndex:
    """Finds the parts for a filter."""

    def __init__(self, snapshot: TopicSnapshot, options: ScanOptions) -> None:
        """Raises as `plan_slices`."""
        self._options = options
        self._parts = _parts_of(snapshot, options)
        self.fragments = [_fragment(str(number), _guarantee(part, options)) for number, part in enumerate(self._parts)]
        """As pyarrow's fragments; the path is the number of the part."""
        self._dataset = _dataset_of(self.fragments)

    def parts(self, store: BlockingStore, condition: Any = None) -> Iterator[Slice]:
        """The parts that may have records for which an expression of pyarrow is true, joined where they touch."""
        if condition is None:
            return joined(self._parts)
        kept = [self._parts[int(each.path)] for each in self._dataset.get_fragments(filter=condition)]
        return joined(self._newer(store, joined(kept), condition) if self._options.view == LOG else kept)

    def _newer(self, store: BlockingStore, parts: Iterable[Slice], condition: Any) -> Iterator[Slice]:
        """The parts without the blocks of large files whose newest record is too old for the condition."""
        for partition, group in groupby(parts, key=attrgetter("partition")):

            def may_hold(latest_ms: int, partition: int = partition) -> bool:
                guarantee = _in_partition(self._options, partition) & _not_after(latest_ms)
                return any(True for _ in _dataset_of([_fragment("", guarantee)]).get_fragments(filter=condition))

            if may_hold(-TIMESTAMP_MS_LIMIT):
                yield from group  # the condition is not about time
                continue
            stretches = [each for part in group for each in stretches_of(store, part)]
            # pyarrow is asked some times, not for each of what may be a million blocks.
            times_ms = sorted({each.latest_ms for each in stretches})
            first = bisect_left(times_ms, True, key=may_hold)
            for part, start, end, latest_ms in stretches:
                if first < len(times_ms) and latest_ms >= times_ms[first]:
                    yield part.of(start, end)


class _Stretch(NamedTuple):
    """Offsets of a part, and the largest timestamp of their records."""

    part: Slice
    start: int
    end: int
    latest_ms: int


def stretches_of(store: BlockingStore, part: Slice) -> Iterator[_Stretch]:
    """A part by extents and, of those that have an index of blocks, by blocks. Reads the indexes."""
    cursor = part.start
    for piece in part.pieces:
        bounds = [(piece.last_offset + 1, piece.max_timestamp_ms)]
        if piece.flagged_reason is not None:
            bounds = [(piece.last_offset + 1, TIMESTAMP_MS_LIMIT)]
        elif piece.length > BLOCK_BYTES:
            bounds = [(end, latest_ms) for _, end, latest_ms in block_stretches(store, piece)]
        # Offsets that no extent holds are never left out, so that they are missed.
        is_gap = piece.base_offset > cursor
        for end, latest_ms in bounds:
            if cursor < (end := min(end, part.end)):
                yield _Stretch(part, cursor, end, TIMESTAMP_MS_LIMIT if is_gap else latest_ms)
                cursor, is_gap = end, False
    if cursor < part.end:
        yield _Stretch(part, cursor, part.end, TIMESTAMP_MS_LIMIT)


def joined(parts: Iterable[Slice]) -> Iterator[Slice]:
    """The parts, in order; neighbours of one partition become one, which is read faster."""
    run: list[Slice] = []
    for part in parts:
        if run and (run[-1].partition, run[-1].end) != (part.partition, part.start):
            yield _one(run)
            run = []
        run.append(part)
    if run:
        yield _one(run)


def _one(run: Sequence[Slice]) -> Slice:
    # An extent that was cut and a transaction that reaches over a border are in several parts; a dict keeps the order.
    pieces = dict.fromkeys(piece for part in run for piece in part.pieces)
    aborted = dict.fromkeys(each for part in run for each in part.aborted)
    return replace(run[0], end=run[-1].end, pieces=tuple(pieces), aborted=tuple(aborted))


def _parts_of(snapshot: TopicSnapshot, options: ScanOptions) -> Sequence[Slice]:
    total = sum(each.length for part in snapshot.partitions for each in (*part.l0, *part.extents))
    return plan_slices(snapshot, options, slice_bytes=max(FRAGMENT_BYTES, total // FRAGMENTS_MAX))


def _guarantee(part: Slice, options: ScanOptions) -> Any:
    found = _in_partition(options, part.partition)
    if options.view != LOG:
        return found
    found &= (ds.field("offset") >= part.start) & (ds.field("offset") < part.end)
    if any(piece.flagged_reason is not None for piece in part.pieces):
        return found  # a file with damage may hold other times than its row says
    return found & _not_after(max((piece.max_timestamp_ms for piece in part.pieces), default=TIMESTAMP_MS_LIMIT))


def _in_partition(options: ScanOptions, partition: int) -> Any:
    return (ds.field("topic") == options.topic) & (ds.field("partition") == pa.scalar(partition, pa.int32()))


def _not_after(latest_ms: int) -> Any:
    clipped_ms = max(-TIMESTAMP_MS_LIMIT, min(latest_ms, TIMESTAMP_MS_LIMIT))  # as in the column
    return ds.field("timestamp") <= pa.scalar(clipped_ms * 1000, SCHEMA.field("timestamp").type)


def _fragment(path: str, guarantee: Any) -> Any:
    return FORMAT.make_fragment(path, filesystem=NOWHERE, partition_expression=guarantee)


def _dataset_of(parts: Sequence[Any]) -> Any:
    return ds.FileSystemDataset(parts, SCHEMA, FORMAT, NOWHERE)
