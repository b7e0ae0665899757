"""The last record of each key of many partitions, on Spark: keys go by hash to reducers, and offsets come back.

    map tasks      read the keys of their places, split about `BUFFER_ROWS` of them at a time by hash
    reduce tasks   find the largest offset of each key in a bucket, and count the rows of each place
    group tasks    join the offsets of a place from all buckets, and call `take`

Rows of Spark are blobs of some hundred records (`columns.py`), 40 bytes a record on the first way and 8 a key on the
second. Nothing is collected, and no task's memory grows with the data but by the offsets of one place. Every task may
be tried any number of times: the results do not depend on the order in which blobs arrive.

Spark calls no function for a task without rows. So each map task tells the reduce tasks that they exist, and each
reduce task the groups, by *markers*: rows with a negative number.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, closing, nullcontext
from itertools import pairwise
from typing import TYPE_CHECKING, Any, cast

import numpy as np
from numpy.typing import NDArray

from compactor.heavy.key_scan import ROW_BYTES, KeyBlock
from runtime.errors import BugError
from spark_jobs.keys.columns import Offsets, Rows, count_in_places, cut_pieces, last_offsets, rows_of, split
from spark_jobs.keys.layout import KeyPlace as KeyPlace
from spark_jobs.keys.layout import Layout, part_of, sizes
from spark_jobs.keys.layout import Surviving as Surviving
from spark_jobs.keys.spread import keys_of_tasks
from spark_jobs.scan.arrow import pa

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

RecordBatch = Any
"""The type of pyarrow, which has no type hints."""
KEYS_TYPE = "to int, bucket int, rows binary"
FOUND_TYPE = "to int, place int, rows long, offsets binary"
BUFFER_ROWS = 1 << 20
"""Rows that a map task holds before it splits them: 40 MB, and as much again while it does."""
BLOB_ROWS = 256
"""Rows in one value. A batch of Arrow has up to 10,000 of them, Spark's default, so it stays near 100 MB."""
BLOBS_PER_BATCH = 4096
BLOB_OFFSETS = 1024

Read = Callable[[int], Iterator[KeyBlock]]


Take = Callable[[int, Surviving], Iterator[RecordBatch]]
During = Callable[[], AbstractContextManager[object]]


def surviving(
    session: SparkSession,
    places: Sequence[KeyPlace],
    read: Read,
    take: Take,
    schema: str,
    *,
    during: During = nullcontext,
    description: str = "",
) -> DataFrame:
    """A frame of the batches that `take` yields for all places, of `schema`. Nothing runs before the result is used.

    `read(number)` yields the keys of a place, offsets rising. `take(number, surviving)` is called once for every place,
    and once more for each further try of its task. `during` is entered by each task, of all three kinds, as long as it
    runs. All three run in tasks and are pickled. `places`: by partition and offset. `description`, if any, is shown in
    Spark's pages for all jobs that this thread starts from now on.

    Raises BugError for places that overlap or are out of order; tasks raise the errors of `read` and `take`, and
    BugError for a row outside its place.
    """
    if description:
        session.sparkContext.setJobDescription(description)
    if not places:
        return cast(Any, session).createDataFrame([], schema)
    layout = sizes(places)
    numbers = session.range(0, layout.map_tasks, 1, layout.map_tasks)
    mapped = _mapped(numbers, during, _split_keys, KEYS_TYPE, layout, read)
    spread = mapped.repartition(layout.reduce_tasks, "to")
    # A task with one bucket needs no order: Spark does not copy its rows once more.
    if layout.reduce_tasks < layout.buckets:
        spread = spread.sortWithinPartitions("bucket")
    found = _mapped(spread, during, _find_survivors, FOUND_TYPE, layout).repartition(layout.groups, "to")
    if layout.groups < layout.places:
        found = found.sortWithinPartitions("place")
    return _mapped(found, during, _take_places, schema, layout, take)


def own_session(spark: SparkSession) -> SparkSession:
    """A session beside this one, with smaller batches of Arrow: about 40 MB of blobs at once."""
    session: Any = spark.newSession()
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(BLOBS_PER_BATCH))
    return session


def _mapped(
    frame: DataFrame, during: During, function: Callable[..., Iterator[RecordBatch]], schema: str, *bound: object
) -> DataFrame:
    return cast(Any, frame).mapInArrow(functools.partial(_run, during, functools.partial(function, *bound)), schema)


def _run(
    during: During, function: Callable[[Iterator[RecordBatch]], Iterator[RecordBatch]], batches: Iterator[RecordBatch]
) -> Iterator[RecordBatch]:
    """One task. It begins before Spark has fetched and sorted its rows, which may take longer than the work on them."""
    with during():
        yield from function(batches)


# ---- map tasks


def _split_keys(layout: Layout, read: Read, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Rows of KEYS_TYPE. Each batch holds numbers of map tasks."""
    for batch in batches:
        for task in batch.column(0).to_pylist():
            yield _markers(layout.reduce_tasks, range(task, layout.reduce_tasks, layout.map_tasks), _keys_batch)
            first, end = layout.map_edges[task : task + 2].tolist()
            of_first, of_last = (int(each) for each in part_of(layout.place_edges, np.array([first, end - 1])))
            for partition in range(of_first, of_last + 1):
                base, stop = layout.place_edges[partition : partition + 2].tolist()
                yield from _split_places(layout, partition, range(max(first, base), min(end, stop)), read)


def _split_places(layout: Layout, partition: int, places: range, read: Read) -> Iterator[RecordBatch]:
    """The keys of some places of one partition."""
    waiting: list[KeyBlock] = []
    rows = 0
    for place in places:
        with closing(_generator(read(int(layout.numbers[place])))) as blocks:
            for block in blocks:
                if not len(block.offsets):
                    continue
                _check_inside(layout, place, block.offsets)
                waiting.append(block)
                rows += len(block.offsets)
                if rows >= BUFFER_ROWS:
                    yield _split_batch(layout, partition, waiting)
                    waiting, rows = [], 0
    if waiting:
        yield _split_batch(layout, partition, waiting)


def _split_batch(layout: Layout, partition: int, blocks: Sequence[KeyBlock]) -> RecordBatch:
    first, end = layout.bucket_edges[partition : partition + 2].tolist()
    rows, edges = split(blocks, end - first)
    pieces = cut_pieces(edges, BLOB_ROWS)
    buckets = pieces.owners + first
    blobs = _binary(rows.reshape(-1).view(np.uint8), pieces.edges * ROW_BYTES)
    return _keys_batch(keys_of_tasks(layout.reduce_tasks)[part_of(layout.reduce_edges, buckets)], buckets, blobs)


def _keys_batch(to: NDArray[np.int32], buckets: NDArray[np.int64], blobs: Any) -> RecordBatch:
    columns = [pa.array(to), pa.array(buckets.astype(np.int32)), blobs]
    return pa.RecordBatch.from_arrays(columns, names=["to", "bucket", "rows"])


def _check_inside(layout: Layout, place: int, offsets: Offsets) -> None:
    base, last = int(layout.base_offsets[place]), int(layout.last_offsets[place])
    if int(offsets[0]) < base or int(offsets[-1]) > last:
        number = int(layout.numbers[place])
        raise BugError(f"place {number} from {base} to {last} gave offsets from {offsets[0]} to {offsets[-1]}")


# ---- reduce tasks


def _find_survivors(layout: Layout, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """Rows of FOUND_TYPE, of all buckets of a task. Rows of one bucket follow one another, except for markers."""
    done: set[int] = set()
    bucket = -1
    waiting: list[Rows] = []
    for number, chunk in _runs(batches, "bucket", "rows"):
        if number < 0:
            groups = range(-1 - number, layout.groups, layout.reduce_tasks)
            yield _markers(layout.groups, groups, _found_batch)
            continue
        if number != bucket:
            if waiting:
                yield _found_in(layout, bucket, waiting)
            _once(done, number, "bucket")
            bucket, waiting = number, []
        waiting.append(rows_of(chunk))
    if waiting:
        yield _found_in(layout, bucket, waiting)


def _found_in(layout: Layout, bucket: int, chunks: list[Rows]) -> RecordBatch:
    rows = chunks[0] if len(chunks) == 1 else np.concatenate(chunks)
    chunks.clear()  # they are as large as `rows`
    (partition,) = part_of(layout.bucket_edges, np.array([bucket])).tolist()
    first, end = layout.place_edges[partition : partition + 2].tolist()
    lasts = layout.last_offsets[first:end]
    counts = np.zeros(end - first, dtype=np.int64)
    count_in_places(rows, layout.base_offsets[first:end], lasts, counts)
    offsets = last_offsets(rows)
    # Every offset lies in a place, so where places end decides.
    edges = np.append(0, np.searchsorted(offsets, lasts, side="right"))
    owners, piece_edges = cut_pieces(edges, BLOB_OFFSETS, at_least=counts > 0)
    is_first = np.append(True, np.diff(owners) > 0)
    places = owners + first
    to = keys_of_tasks(layout.groups)[part_of(layout.group_edges, places)]
    blobs = _binary(offsets.view(np.uint8), piece_edges * offsets.itemsize)
    return _found_batch(to, places, blobs, np.where(is_first, counts[owners], 0))


def _found_batch(
    to: NDArray[np.int32], places: NDArray[np.int64], blobs: Any, rows: NDArray[np.int64] | None = None
) -> RecordBatch:
    counted = np.zeros(len(places), dtype=np.int64) if rows is None else rows
    columns = [pa.array(to), pa.array(places.astype(np.int32)), pa.array(counted), blobs]
    return pa.RecordBatch.from_arrays(columns, names=["to", "place", "rows", "offsets"])


# ---- group tasks


def _take_places(layout: Layout, take: Take, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """The batches that `take` yields for the places of the task's groups, in order.

    Rows of one place follow one another, except for markers; where a group has several places, markers come first.
    """
    groups: set[int] = set()
    done: set[int] = set()
    place, rows = -1, 0
    waiting: list[Offsets] = []

    def taken(at: int, found: Surviving) -> Iterator[RecordBatch]:
        _once(done, at, "place")
        with closing(_generator(take(int(layout.numbers[at]), found))) as some:
            yield from some

    def empty_before(end: int) -> Iterator[RecordBatch]:
        for group in sorted(groups):
            for at in range(*layout.group_edges[group : group + 2].tolist()):
                if at < end and at not in done:
                    yield from taken(at, Surviving(np.zeros(0, dtype=np.int64), 0))

    for number, chunk, counted in _counted_runs(batches):
        if number < 0:
            groups.add(-1 - number)
            continue
        if number != place:
            if place >= 0:
                yield from taken(place, _joined(waiting, rows))
            yield from empty_before(number)
            place, rows, waiting = number, 0, []
        waiting.append(chunk.view(np.int64))
        rows += counted
    if place >= 0:
        yield from taken(place, _joined(waiting, rows))
    yield from empty_before(layout.places)


def _joined(chunks: list[Offsets], rows: int) -> Surviving:
    offsets = np.concatenate(chunks)
    chunks.clear()
    offsets.sort()
    return Surviving(offsets, rows)


# ---- batches of Arrow


def _markers(tasks: int, told: range, batch: Callable[..., RecordBatch]) -> RecordBatch:
    """A marker for each of the tasks that are `told`, of `tasks` in all."""
    numbers = np.arange(told.start, told.stop, told.step)
    nothing = _binary(np.zeros(0, dtype=np.uint8), np.zeros(len(numbers) + 1, dtype=np.int64))
    return batch(keys_of_tasks(tasks)[numbers], -1 - numbers, nothing)


def _binary(data: NDArray[np.uint8], edges: NDArray[np.int64]) -> Any:
    """A column of values that are cut from `data`, which is not copied."""
    if int(edges[-1]) > 2**31 - 1:
        raise BugError(f"{edges[-1]} bytes are too many for one column of Arrow")
    buffers = [None, pa.py_buffer(edges.astype(np.int32)), pa.py_buffer(data)]
    return pa.Array.from_buffers(pa.binary(), len(edges) - 1, buffers)


def _runs(batches: Iterator[RecordBatch], number: str, value: str) -> Iterator[tuple[int, NDArray[np.uint8]]]:
    """(number, values joined) of each run of rows with the same number. A run may go on in the next batch."""
    for batch in batches:
        for found, start, stop in _stretches(batch.column(number)):
            yield found, _bytes_of(batch.column(value), start, stop)


def _counted_runs(batches: Iterator[RecordBatch]) -> Iterator[tuple[int, NDArray[np.uint8], int]]:
    """(place, offsets, rows) of each run."""
    for batch in batches:
        rows: NDArray[np.int64] = batch.column("rows").to_numpy()
        for place, start, stop in _stretches(batch.column("place")):
            yield place, _bytes_of(batch.column("offsets"), start, stop), int(rows[start:stop].sum())


def _stretches(column: Any) -> Iterator[tuple[int, int, int]]:
    """(number, first row, end) of each run of the same number."""
    numbers: NDArray[np.int32] = column.to_numpy()
    if not len(numbers):
        return
    edges = [0, *(np.flatnonzero(np.diff(numbers)) + 1).tolist(), len(numbers)]
    for start, stop in pairwise(edges):
        yield int(numbers[start]), start, stop


def _bytes_of(column: Any, start: int, stop: int) -> NDArray[np.uint8]:
    """The values from `start` to `stop`, which lie one after the other, without a copy."""
    width = np.int64 if pa.types.is_large_binary(column.type) else np.int32  # a setting of Spark's chooses
    _, edges_buffer, data_buffer = column.buffers()
    edges = np.frombuffer(edges_buffer, dtype=width)[column.offset :]
    if data_buffer is None:
        return np.zeros(0, dtype=np.uint8)
    return np.frombuffer(data_buffer, dtype=np.uint8)[int(edges[start]) : int(edges[stop])]


def _once(done: set[int], number: int, what: str) -> None:
    """Spark keeps rows of one number together, by its order or by its tasks; a result would be wrong without that."""
    if number in done:
        raise BugError(f"{what} {number} came twice: its rows did not come one after the other")
    done.add(number)


def _generator(iterator: Iterator[Any]) -> Generator[Any]:
    """An iterator that can be closed: one that has resources gives them back when Spark stops reading early."""
    if hasattr(iterator, "close"):
        return cast("Generator[Any]", iterator)
    return (each for each in iterator)
