"""Finds the one record to keep for each key, however many keys there are: groups the keys of sliced partitions on
Spark.

KEYS units read their slices (`compactor/heavy/key_scan.py`) and give the SHA-512/256 of each key, and its offset. The
shuffle (`spark_jobs/keys/shuffle.py`) finds the largest offset of each key and brings these to a task for each slice,
which writes its survivors as one object (`compactor/heavy/survivors.py`). Only hashes and offsets pass through the JVM,
40 bytes a record and then 8 a key. The caller runs the REWRITE units, which drop the records that do not survive.

Order, for each partition: the manifest of each KEYS unit, after its last row -> the survivors of each slice ->
`PartitionKeys`, when everything is there and adds up; no REWRITE unit begins without it. Each is written once, and a
later try must write the same or fails. So tasks, stages and the whole may be tried any number of times, also at once,
and a partition that has its `PartitionKeys` is not read again.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple

from compactor.heavy.failures import failure_told
from compactor.heavy.key_scan import KeyBlock, keys_result, read_keys
from compactor.heavy.manifest import ManifestMismatchError, check_result
from compactor.heavy.plan.units import HeavyPlan, Unit
from compactor.heavy.rewrite_slice import partition_keys_key, read_keys_of, survivors_key
from compactor.heavy.slices import KeysFound, PartitionKeys, join_slices, slice_range, slice_units
from compactor.heavy.stored import read_result, settle
from compactor.heavy.survivors import SliceId, SurvivorsWriter, put_survivors
from runtime.clock import SystemClock
from runtime.errors import BugError
from runtime.logging import get_logger
from spark_jobs import worker_process
from spark_jobs.keys.shuffle import KeyPlace, Surviving, own_session, surviving
from spark_jobs.scan.arrow import pa
from spark_jobs.stored_plan import OpenPlan
from storage.objects import ObjectExistsError, ObjectNotFoundError, ObjectStore
from wire.crc import crc32c

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_log = get_logger(__name__)

RecordBatch = Any
"""The type of pyarrow, which has no type hints."""
WRITTEN_TYPE = "unit int, offsets long, records long"
_WRITTEN_SCHEMA = pa.schema([("unit", pa.int32()), ("offsets", pa.int64()), ("records", pa.int64())])
MANIFESTS_AT_ONCE = 64


class Written(NamedTuple):
    """The survivors of a slice, in the store."""

    unit: int
    """The REWRITE unit."""
    offsets: int
    records: int
    """The number of records with keys in the slice."""


def run(spark: SparkSession, plan: HeavyPlan, plan_url: str) -> None:
    """Write everything that the plan's REWRITE units need, for all its sliced partitions.

    Raises PlanError, ManifestMismatchError and SurvivorsError for parts that do not fit together, the store's errors,
    and Spark's error for a task that failed too often.
    """
    opened = OpenPlan.at(plan_url)
    left = [id_ for id_ in plan.sliced if not opened.call(lambda store, id_=id_: _are_grouped(store, plan, id_))]
    if not left:
        return
    units = [units for id_ in left for units in slice_units(plan, id_)]
    written = {each.unit: each for each in _group(spark, plan, plan_url, units)}
    for partition_id in left:
        keys = opened.call(lambda store, id_=partition_id: _complete(store, plan, id_, written))
        _log.info("keys were grouped", job=plan.job_id, partition_id=partition_id, keys=keys.keys)


def _group(
    spark: SparkSession, plan: HeavyPlan, plan_url: str, units: Sequence[tuple[Unit, Unit]]
) -> Sequence[Written]:
    reading, writing = (tuple(unit.number for unit in each) for each in zip(*units, strict=True))
    places = [_place(number, unit) for number, (unit, _) in enumerate(units)]
    try:
        written = surviving(
            own_session(spark),
            places,
            functools.partial(read_slice, plan_url, reading),
            functools.partial(write_slice, plan_url, writing),
            WRITTEN_TYPE,
            description=f"siltstone: reading the keys of {len(units)} slices of merge {plan.job_id}",
        ).collect()
    finally:
        spark.sparkContext.setJobDescription(None)  # pyright: ignore[reportArgumentType] -- None ends it
    return [Written(*row) for row in written]


def _place(number: int, unit: Unit) -> KeyPlace:
    return KeyPlace(number, _partition_of(unit), *slice_range(unit), unit.records)


def _partition_of(unit: Unit) -> int:
    if unit.partition_id is None:
        raise BugError(f"unit {unit.number} does not belong to a slice")
    return unit.partition_id


# ---- in a task: keys


def read_slice(plan_url: str, units: Sequence[int], place: int) -> Iterator[KeyBlock]:
    """The rows of the KEYS unit at `place`."""
    worker_process.prepare()
    opened = OpenPlan.at(plan_url)
    plan = opened.with_unit(units[place])
    yield from opened.iterate(lambda store: _key_blocks(store, plan, units[place]))
    worker_process.settle()


async def _key_blocks(store: ObjectStore, plan: HeavyPlan, number: int) -> AsyncGenerator[KeyBlock]:
    """Yield the rows, and store the unit's manifest after the last of them, unless it exists."""
    clock = SystemClock()
    unit = plan.unit(number)
    async with failure_told(store, plan, number):
        known = await _known(store, plan, unit)
        began_ms = clock.monotonic_ms()
        scan = read_keys(store, plan, unit, known)
        async with aclosing(scan.blocks()) as blocks:
            async for block in blocks:
                yield block
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


def write_slice(plan_url: str, units: Sequence[int], place: int, found: Surviving) -> Iterator[RecordBatch]:
    """Write the survivors of the slice at `place`, also when there are none, and yield `Written`."""
    worker_process.prepare()
    opened = OpenPlan.at(plan_url)
    plan = opened.head
    unit = plan.unit(units[place])
    writer = SurvivorsWriter(_slice_id(plan, unit))
    writer.add(found.offsets, found.rows)
    put = opened.call(
        lambda store: put_survivors(store, survivors_key(plan, unit), writer.finish(), _slice_id(plan, unit))
    )
    written = Written(unit.number, put.count, put.records)
    yield pa.RecordBatch.from_pylist([written._asdict()], schema=_WRITTEN_SCHEMA)
    worker_process.settle()


def _slice_id(plan: HeavyPlan, unit: Unit) -> SliceId:
    return SliceId(plan.fingerprint, _partition_of(unit), *slice_range(unit))


# ---- the end of a partition


async def _complete(
    store: ObjectStore, plan: HeavyPlan, partition_id: int, written: Mapping[int, Written]
) -> PartitionKeys:
    """Write the `PartitionKeys`, when all slices were read and written."""
    units = slice_units(plan, partition_id)
    found = await _found_in(store, plan, [reading for reading, _ in units])
    survivors = [_survivors_of(plan, writing, written) for _, writing in units]
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


async def _found_in(store: ObjectStore, plan: HeavyPlan, units: Sequence[Unit]) -> Sequence[KeysFound]:
    """The contents of the manifests of KEYS units, some read at once."""
    turns = asyncio.Semaphore(MANIFESTS_AT_ONCE)

    async def found_by(unit: Unit) -> KeysFound:
        async with turns:
            known = await _known(store, plan, unit)
        if known is None:
            raise ManifestMismatchError(f"unit {unit.number} of job {plan.job_id} ended and left no manifest")
        return known

    return await asyncio.gather(*(found_by(unit) for unit in units))


def _survivors_of(plan: HeavyPlan, unit: Unit, written: Mapping[int, Written]) -> tuple[int, int]:
    """(offsets, records) of a REWRITE unit's slice."""
    each = written.get(unit.number)
    if each is None:
        raise ManifestMismatchError(f"no task wrote the survivors of unit {unit.number} of job {plan.job_id}")
    return each.offsets, each.records


async def _are_grouped(store: ObjectStore, plan: HeavyPlan, partition_id: int) -> bool:
    """Whether an earlier driver grouped the keys. Raises ManifestMismatchError for keys of another plan."""
    try:
        await read_keys_of(store, plan, partition_id, slices=())
    except ObjectNotFoundError:
        return False
    return True
