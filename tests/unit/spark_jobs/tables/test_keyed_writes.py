"""Tasks by key: their survivors, packed and back, and the part of a stored plan that a second driver reads."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from compactor.heavy.plan.frames import fingerprint_of
from compactor.heavy.survivors import SurvivorsError
from runtime.errors import BugError
from spark_jobs.keys.layout import KeyPlace
from spark_jobs.keys.shuffle import Surviving
from spark_jobs.scan.contract import ScanOptions, Slice
from spark_jobs.tables.cluster.keyed import places_left
from spark_jobs.tables.cluster.plan import PlanUnit, encode_plan, head_of
from spark_jobs.tables.cluster.unit import OpenExport
from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.file_task import WriteTask
from spark_jobs.tables.keyed.writes import pack, unpack, write_task
from spark_jobs.tables.objects import Objects
from spark_jobs.tables.parquet_table import ParquetPlace
from spark_jobs.tables.source import UrlReader
from storage.keys import PLAN_NAME, job_key, unit_key
from storage.local import LocalStore
from storage.urls import object_url, parse_store_url
from tests.fixtures.chance import examples
from wire.crc import crc32c

START, END = 1_000, 200_000


def a_slice(partition: int, start: int, end: int) -> Slice:
    return Slice(partition=partition, partition_id=10 + partition, start=start, end=end, pieces=())


def a_task(part: Slice, **facts: Any) -> WriteTask:
    schema: Any = pa.schema([])
    task = WriteTask(
        part=part,
        options=ScanOptions(topic="t"),
        reader=UrlReader(url="memory:"),
        place=ParquetPlace(objects=Objects("file:///lake/t")),
        values=ValueFormat(),
        fixed=schema,
        columns=schema,
        file_schema=schema,
        stem="1",
        by_key=True,
    )
    return replace(task, **facts)


@settings(max_examples=examples(40))
@given(offsets=some.sets(some.integers(START, END - 1), max_size=300), more=some.integers(0, 2**40))
def test_survivors_come_back_as_they_were_packed(offsets: set[int], more: int) -> None:
    part = a_slice(0, START, END)
    packed = pack(part, Surviving(np.array(sorted(offsets), dtype=np.int64), len(offsets) + more))
    found = unpack(part, packed)
    assert (found.offsets.tolist(), found.rows) == (sorted(offsets), len(offsets) + more)
    assert len(packed) > 0, "none are not the same as unknown"
    with pytest.raises(SurvivorsError):
        unpack(replace(part, start=START + 1), packed)


def test_survivors_of_a_slice_take_about_a_byte_each() -> None:
    offsets = np.flatnonzero(np.random.default_rng(5).random(400_000) < 0.3) + START
    assert len(pack(a_slice(0, START, START + 400_000), Surviving(offsets, 400_000))) < len(offsets)


def test_a_task_without_its_survivors_is_not_run_alone() -> None:
    with pytest.raises(BugError, match="before the keys of all slices were read"):
        write_task(a_task(a_slice(0, 0, 9)))


def test_a_plan_has_either_places_or_survivors() -> None:
    tasks = [a_task(a_slice(0, 0, 9)), a_task(a_slice(0, 9, 20))]
    head = head_of(tasks, job_id=1, ends_ms=1)
    assert head.places == (KeyPlace(0, 10, 0, 8, 1), KeyPlace(1, 10, 9, 19, 1))
    known = [replace(each, survivors=b"packed") for each in tasks]
    head = head_of(known, job_id=1, ends_ms=1)
    assert head.places == ()
    unit = PlanUnit(known[0].part, known[0].survivors)
    assert head.task(unit, known[0].place) == known[0]
    with pytest.raises(BugError, match="more than their slices"):
        head_of([tasks[0], known[1]], job_id=1, ends_ms=1)


def test_a_driver_reads_the_keys_of_partitions_that_are_not_finished(tmp_path: Path) -> None:
    # given a plan of three partitions with two slices each
    parts = [a_slice(partition, start, start + 10) for partition in range(3) for start in (0, 10)]
    head = head_of([a_task(each) for each in parts], job_id=7, ends_ms=1)
    body = encode_plan(head, [PlanUnit(each) for each in parts])
    fingerprint = fingerprint_of(body)
    store, url = LocalStore(tmp_path), parse_store_url(tmp_path.as_uri())

    def put(key: str, stored: bytes) -> None:
        asyncio.run(store.put_if_absent(key, stored, crc32c=crc32c(stored)))

    key = job_key(7, fingerprint, PLAN_NAME)
    put(key, body)
    export = OpenExport.at(object_url(url, key))
    assert tuple(places_left(export)) == head.places
    # when the first is finished, and half of the second
    for unit in (0, 1, 2):
        put(unit_key(7, fingerprint, unit), b"{}")
    # then the second is read whole
    assert [place.number for place in places_left(export)] == [2, 3, 4, 5]
