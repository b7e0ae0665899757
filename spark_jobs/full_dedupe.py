"""Finds the one record to keep for each key, however many keys there are: groups the keys of sliced partitions on
Spark.

KEYS units read their slices (`compactor/heavy/key_scan.py`) and give (partition, SHA-512/256 of the key, offset). Spark
keeps the largest offset of each key and sorts these into the slices. The task that gets a slice writes its survivors as
one object (`compactor/heavy/survivors.py`). Only hashes and offsets pass through the JVM, 48 bytes per record. The
caller runs the REWRITE units, which drop the records that do not survive.

Order, for each partition: the manifest of each KEYS unit, after its last row -> the survivors of each slice ->
`PartitionKeys`, when everything is there and adds up; no REWRITE unit begins without it. Each is written once, and a
later try must write the same or fails. So tasks, stages and the whole may be tried any number of times, also at once,
and a partition that has its `PartitionKeys` is not read again.
"""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import aclosing
from itertools import pairwise
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from compactor.heavy.failures import failure_told
from compactor.heavy.key_scan import KeyBlock, keys_result, read_keys
from compactor.heavy.manifest import ManifestMismatchError, check_result
from compactor.heavy.plan.units import HeavyPlan, Unit
from compactor.heavy.rewrite_slice import partition_keys_key, read_keys_of, survivors_key
from compactor.heavy.slices import KeysFound, PartitionKeys, join_slices, slice_range, slice_units
from compactor.heavy.stored import read_result, settle
from compactor.heavy.survivors import SliceId, Survivors, SurvivorsWriter, put_survivors
from runtime.clock import SystemClock
from runtime.errors import BugError
from runtime.logging import get_logger
from spark_jobs.scan.arrow import pa
from spark_jobs.stored_plan import OpenPlan
from storage.objects import ObjectExistsError, ObjectNotFoundError, ObjectStore
from wire.crc import crc32c

if TYPE_CHECKING:
    from pyspark.sql import Column, SparkSession

_log = get_logger(__name__)

RecordBatch = Any
"""The type of pyarrow, which has no type hints."""
KEY_COLUMNS = ("partition_id", "h0", "h1", "h2", "h3")
KEYS_TYPE = "partition_id int, h0 long, h1 long, h2 long, h3 long, offset long"
WRITTEN_TYPE = "unit int, offsets long, records long"
_KEYS_SCHEMA = pa.schema(
    [("partition_id", pa.int32()), *((name, pa.int64()) for name in ("h0", "h1", "h2", "h3", "offset"))]
)
_WRITTEN_SCHEMA = pa.schema([("unit", pa.int32()), ("offsets", pa.int64()), ("records", pa.int64())])
ROWS_PER_PARTITION = 2_000_000
"""The rows of one partition of the grouping: about 150 MB to be held or spilled."""
ARROW_ROWS = 1 << 16


class Written(NamedTuple):
    """The survivors of a slice, in the store."""

    unit: int
    """The REWRITE unit."""
    offsets: int
    records: int
    """The number of records from which they were chosen."""


class _Border(NamedTuple):
    partition_id: int
    base_offset: int
    unit: int
    """The REWRITE unit of the slice that begins here."""


def run(spark: SparkSession, plan: HeavyPlan, plan_url: str) -> None:
    """Write everything that the plan's REWRITE units need, for all its sliced partitions.

    Raises PlanError, ManifestMismatchError and SurvivorsError for parts that do not fit together, the store's errors,
    and Spark's error for a task that failed too often.
    """
    left = [id_ for id_ in plan.sliced if _partition_keys(plan_url, plan, id_) is None]
    if not left:
        return
    units = [units for id_ in left for units in slice_units(plan, id_)]
    written = {each.unit: each for each in _group(spark, plan, plan_url, units)}
    for partition_id in left:
        keys = _complete(plan_url, plan, partition_id, written)
        _log.info("keys were grouped", job=plan.job_id, partition_id=partition_id, keys=keys.keys)


def _group(
    spark: SparkSession, plan: HeavyPlan, plan_url: str, units: Sequence[tuple[Unit, Unit]]
) -> Sequence[Written]:
    from pyspark.sql import functions as F

    reading = tuple(unit.number for unit, _ in units)
    rows = sum(unit.records for unit, _ in units)
    session: Any = spark.newSession()  # a session of its own, for its own settings
    # Sized by rows, because Spark knows nothing about the output of a Python function.
    partitions = max(spark.sparkContext.defaultParallelism, -(-rows // ROWS_PER_PARTITION))
    session.conf.set("spark.sql.shuffle.partitions", str(partitions))
    session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(ARROW_ROWS))
    keys = session.range(0, len(reading), 1, len(reading)).mapInArrow(
        functools.partial(key_batches, plan_url, reading), KEYS_TYPE
    )
    # The count goes along, so that `join_slices` can prove that no row was lost on the way.
    latest = keys.groupBy(*KEY_COLUMNS).agg(F.max("offset").alias("offset"), F.count(F.lit(1)).alias("records"))
    borders = [_Border(unit.partition_id or 0, slice_range(unit)[0], unit.number) for _, unit in units]
    sorted_in_slices = (
        latest.select(_slice_of(sorted(borders)).alias("unit"), "offset", "records")
        # All rows of a slice in one task, which writes its one object; several slices may share a task.
        .repartition(len(borders), "unit")
        .sortWithinPartitions("unit", "offset")
    )
    written = sorted_in_slices.mapInArrow(functools.partial(written_batches, plan_url), WRITTEN_TYPE).collect()
    return [Written(*row) for row in written]


def _slice_of(borders: Sequence[_Border]) -> Column:
    """The REWRITE unit of a row, as a tree of comparisons."""
    from pyspark.sql import functions as F

    if len(borders) == 1:
        return F.lit(borders[0].unit)
    # A balanced tree: a row takes log2(slices) comparisons, and no expression is nested deeper than that.
    middle = len(borders) // 2
    partition_id, base_offset, _ = borders[middle]
    of_partition = F.col("partition_id") == partition_id
    is_before = (F.col("partition_id") < partition_id) | (of_partition & (F.col("offset") < base_offset))
    return F.when(is_before, _slice_of(borders[:middle])).otherwise(_slice_of(borders[middle:]))


# ---- in a task: keys


def key_batches(plan_url: str, numbers: Sequence[int], batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """The rows of the KEYS units; each batch holds places in `numbers`."""
    for batch in batches:
        places: list[int] = batch.column(0).to_pylist()
        for place in places:
            yield from _keys_of_unit(plan_url, numbers[place])


def _keys_of_unit(plan_url: str, number: int) -> Iterator[RecordBatch]:
    """The rows of one unit."""
    opened = OpenPlan.at(plan_url)
    plan = opened.with_unit(number)
    for found in opened.iterate(lambda store: _key_blocks(store, plan, number)):
        yield _arrow(*found)


def _arrow(partition_id: int, block: KeyBlock) -> RecordBatch:
    # Spark has no unsigned type. Only equality counts, so the sign does no harm.
    hashes = np.ascontiguousarray(block.hashes.T).view(np.int64)
    columns = [np.full(len(block.offsets), partition_id, dtype=np.int32), *hashes, block.offsets]
    return pa.RecordBatch.from_arrays([pa.array(column) for column in columns], schema=_KEYS_SCHEMA)


async def _key_blocks(store: ObjectStore, plan: HeavyPlan, number: int) -> AsyncGenerator[tuple[int, KeyBlock]]:
    """Yield (partition id, rows), and store the unit's manifest after the last of them, unless it exists."""
    clock = SystemClock()
    unit = plan.unit(number)
    async with failure_told(store, plan, number):
        known = await _known(store, plan, unit)
        began_ms = clock.monotonic_ms()
        scan = read_keys(store, plan, unit, known)
        assert unit.partition_id is not None
        async with aclosing(scan.blocks()) as blocks:
            async for block in blocks:
                yield unit.partition_id, block
        if known is None:
            seconds = round((clock.monotonic_ms() - began_ms) / 1000, 3)
            counted = await settle(store, plan, keys_result(plan, unit, scan, seconds))
            check_result(plan, unit, counted)
            if KeysFound.from_json(counted.details) != scan.found:
                raise ManifestMismatchError(f"two tries at unit {number} of job {plan.job_id} read different keys")


async def _known(store: ObjectStore, plan: HeavyPlan, unit: Unit) -> KeysFound | None:
    """The content of a KEYS unit's manifest, if it exists."""
    result = await read_result(store, plan, unit.number)
    if result is None:
        return None
    check_result(plan, unit, result)
    return KeysFound.from_json(result.details)


# ---- in a task: survivors


def written_batches(plan_url: str, batches: Iterator[RecordBatch]) -> Iterator[RecordBatch]:
    """`Written` for every slice in rows (unit, offset, records) that are sorted by unit and offset."""
    done: list[Written] = []
    open_number: int | None = None
    writer: SurvivorsWriter | None = None
    plan = OpenPlan.at(plan_url).head

    def end() -> None:
        if open_number is not None and writer is not None:
            done.append(_put(plan_url, plan, open_number, writer))

    for batch in batches:
        units, offsets, records = (_int64(column) for column in batch.columns)
        edges: list[int] = [0, *(np.flatnonzero(np.diff(units)) + 1).tolist(), len(units)]
        for start, stop in pairwise(edges):
            if start == stop:
                continue
            number = int(units[start])
            if writer is None or number != open_number:
                end()
                open_number, writer = number, _writer(plan, plan.unit(number))
            writer.add(offsets[start:stop], int(records[start:stop].sum()))
    end()
    yield pa.RecordBatch.from_pylist([each._asdict() for each in done], schema=_WRITTEN_SCHEMA)


def _int64(column: Any) -> NDArray[np.int64]:
    return column.to_numpy().astype(np.int64, copy=False)


def _slice_id(plan: HeavyPlan, unit: Unit) -> SliceId:
    if unit.partition_id is None:
        raise BugError(f"unit {unit.number} does not belong to a slice")
    return SliceId(plan.fingerprint, unit.partition_id, *slice_range(unit))


def _writer(plan: HeavyPlan, unit: Unit) -> SurvivorsWriter:
    return SurvivorsWriter(_slice_id(plan, unit))


def _put(plan_url: str, plan: HeavyPlan, number: int, writer: SurvivorsWriter) -> Written:
    put = OpenPlan.at(plan_url).call(lambda store: _put_in(store, plan, plan.unit(number), writer))
    return Written(number, put.count, put.records)


async def _put_in(store: ObjectStore, plan: HeavyPlan, unit: Unit, writer: SurvivorsWriter) -> Survivors:
    return await put_survivors(store, survivors_key(plan, unit), writer.finish(), _slice_id(plan, unit))


# ---- the end of a partition


def _complete(plan_url: str, plan: HeavyPlan, partition_id: int, written: dict[int, Written]) -> PartitionKeys:
    """Write the survivors of slices without any, then the `PartitionKeys`."""
    return OpenPlan.at(plan_url).call(lambda store: _complete_in(store, plan, partition_id, written))


async def _complete_in(
    store: ObjectStore, plan: HeavyPlan, partition_id: int, written: dict[int, Written]
) -> PartitionKeys:
    found: list[KeysFound] = []
    survivors: list[tuple[int, int]] = []
    for reading, writing in slice_units(plan, partition_id):
        known = await _known(store, plan, reading)
        if known is None:
            raise ManifestMismatchError(f"unit {reading.number} of job {plan.job_id} ended and left no manifest")
        found.append(known)
        each = written.get(writing.number)
        # No row fell into this slice, so no task wrote it; an empty object says that nothing survives in it.
        if each is None:
            put = await _put_in(store, plan, writing, _writer(plan, writing))
            each = Written(writing.number, put.count, put.records)
        survivors.append((each.offsets, each.records))
    keys = join_slices(plan, partition_id, found, survivors)
    stored = keys.encode()
    try:
        await store.put_if_absent(partition_keys_key(plan, partition_id), stored, crc32c=crc32c(stored))
    except ObjectExistsError:
        theirs = await read_keys_of(store, plan, partition_id)
        if theirs != keys:
            raise ManifestMismatchError(
                f"two drivers grouped the keys of partition {partition_id} differently"
            ) from None
    return keys


def _partition_keys(plan_url: str, plan: HeavyPlan, partition_id: int) -> PartitionKeys | None:
    try:
        return OpenPlan.at(plan_url).call(lambda store: read_keys_of(store, plan, partition_id))
    except ObjectNotFoundError:
        return None
