"""The shuffle of keys on a real Spark, against a dict."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest

from compactor.heavy.key_scan import HASH_WORDS, KeyBlock
from runtime.errors import BugError
from spark_jobs.keys import layout, shuffle
from spark_jobs.keys.shuffle import KeyPlace, Surviving, surviving
from spark_jobs.keys.spread import keys_of_tasks

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TAKEN = "place int, rows long, offsets binary"
SEED = 17


class Log:
    """Records of several partitions, in places with gaps between them and some without a record."""

    def __init__(self, *, partitions: int, places: int, rows_max: int, keys: int) -> None:
        chance = np.random.default_rng(SEED)
        self.names = chance.integers(0, 2**64, (keys, HASH_WORDS), dtype=np.uint64)
        self.keys: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}
        self.offsets: dict[int, np.ndarray[Any, np.dtype[np.int64]]] = {}
        self.places: list[KeyPlace] = []
        for partition in range(partitions):
            end = int(chance.integers(0, 1000))
            for _ in range(places):
                number = len(self.places)
                rows = int(chance.integers(0, rows_max + 1)) * int(chance.integers(0, 4) > 0)
                base = end + int(chance.integers(0, 5))
                end = base + 3 * rows + 1
                self.keys[number] = chance.integers(0, keys, rows)
                self.offsets[number] = np.sort(chance.choice(3 * rows + 1, rows, replace=False)) + base
                # the estimate of the rows is wrong, as it may be
                self.places.append(KeyPlace(number, partition, base, end - 1, int(rows * chance.uniform(0.5, 1.5))))

    def read(self, number: int) -> Iterator[KeyBlock]:
        for start in range(0, len(self.keys[number]), 1000):
            some = slice(start, start + 1000)
            yield KeyBlock(self.names[self.keys[number][some]], self.offsets[number][some])

    def last(self) -> dict[int, list[int]]:
        """The surviving offsets of each place."""
        last: dict[tuple[int, int], int] = {}
        for place in self.places:
            for key, offset in zip(self.keys[place.number].tolist(), self.offsets[place.number].tolist(), strict=True):
                last[place.partition_id, key] = offset
        left = {(partition, offset) for (partition, _), offset in last.items()}
        return {
            place.number: [
                offset for offset in self.offsets[place.number].tolist() if (place.partition_id, offset) in left
            ]
            for place in self.places
        }


def taken(number: int, found: Surviving) -> Iterator[pa.RecordBatch]:
    yield pa.record_batch(
        {
            "place": pa.array([number], pa.int32()),
            "rows": pa.array([found.rows], pa.int64()),
            "offsets": pa.array([found.offsets.tobytes()], pa.binary()),
        }
    )


def check(log: Log, found_rows: Iterable[Any]) -> None:
    rows = list(found_rows)
    assert sorted(row.place for row in rows) == [place.number for place in log.places], "once each"
    assert {row.place: row.rows for row in rows} == {number: len(keys) for number, keys in log.keys.items()}
    found = {row.place: np.frombuffer(row.offsets, dtype=np.int64).tolist() for row in rows}
    assert found == log.last()


def test_the_last_of_each_key_in_each_partition_comes_to_its_place(spark: SparkSession) -> None:
    log = Log(partitions=3, places=7, rows_max=4000, keys=9000)
    frame = surviving(spark, log.places, log.read, taken, TAKEN)
    check(log, frame.collect())


@pytest.mark.timeout(300)
def test_few_tasks_take_many_places_buckets_and_groups_in_turn(spark: SparkSession) -> None:
    # given five tasks of each kind for 60 places and more buckets, and a partition without a record
    log = Log(partitions=6, places=10, rows_max=1500, keys=3000)
    for number in range(20, 30):
        log.keys[number], log.offsets[number] = log.keys[number][:0], log.offsets[number][:0]
    with (
        patch.object(layout, "TASKS_MAX", 5),
        patch.object(layout, "BUCKET_ROWS", 700),
    ):
        plan = layout.sizes(log.places)
        assert (plan.map_tasks, plan.reduce_tasks, plan.groups) == (5, 5, 5)
        assert plan.buckets > 20
        frame = surviving(spark, log.places, log.read, taken, TAKEN)
    check(log, frame.collect())


@pytest.mark.timeout(300)
def test_tasks_that_die_change_nothing(spark: SparkSession, tmp_path: Path) -> None:
    log = Log(partitions=2, places=4, rows_max=3000, keys=4000)

    def dies_once(where: str) -> None:
        try:
            os.close(os.open(tmp_path / where, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return
        raise RuntimeError(f"died {where}")

    def read(number: int) -> Iterator[KeyBlock]:
        for block in log.read(number):
            yield block
            if number in (1, 6):
                dies_once(f"reading {number}")

    def take(number: int, found: Surviving) -> Iterator[pa.RecordBatch]:
        yield from taken(number, found)
        if number in (2, 7):
            dies_once(f"taking {number}")

    check(log, surviving(spark, log.places, read, take, TAKEN).collect())
    died = {path.name for path in tmp_path.iterdir()}
    assert died == {"taking 2", "taking 7", *(f"reading {at}" for at in (1, 6) if len(log.keys[at]))}
    assert len(died) > 2


@pytest.mark.timeout(300)
def test_two_thousand_five_hundred_places_of_a_few_records(spark: SparkSession) -> None:
    """So many borders as an expression of Spark's would take a minute to plan, or break its code generator."""
    log = Log(partitions=1, places=2500, rows_max=6, keys=2000)
    with patch.object(layout, "TASKS_MAX", 40):  # a task for each place takes a minute on two cores
        frame = surviving(spark, log.places, log.read, taken, TAKEN)
    check(log, frame.collect())


def test_a_frame_is_lazy_and_may_be_used_like_any_other(spark: SparkSession) -> None:
    log = Log(partitions=1, places=3, rows_max=100, keys=50)

    def read(number: int) -> Iterator[KeyBlock]:
        raise AssertionError("read before the frame was used")

    assert surviving(spark, log.places, read, taken, TAKEN).columns == ["place", "rows", "offsets"]
    frame = surviving(spark, log.places, log.read, taken, TAKEN)
    assert frame.selectExpr("sum(rows)").first() == (sum(map(len, log.keys.values())),)
    assert surviving(spark, [], log.read, taken, TAKEN).collect() == []


def test_each_task_of_all_three_kinds_enters_what_it_is_given_and_leaves_it(
    spark: SparkSession, tmp_path: Path
) -> None:
    """The renewal of a pin, say: reduce tasks may take longer than a pin lives."""
    log = Log(partitions=2, places=3, rows_max=300, keys=100)
    plan = layout.sizes(log.places)

    @contextmanager
    def during() -> Generator[None]:
        from pyspark import TaskContext

        context = TaskContext.get()
        assert context is not None
        task = tmp_path / f"{context.stageId()}-{context.partitionId()}"
        task.mkdir()
        yield
        task.rename(task.with_name(f"{task.name}-left"))

    check(log, surviving(spark, log.places, log.read, taken, TAKEN, during=during).collect())
    entered = [path.name.split("-") for path in tmp_path.iterdir()]
    assert all(words[2:] == ["left"] for words in entered)
    stages = Counter(words[0] for words in entered)
    assert sorted(stages.values()) == sorted([plan.map_tasks, plan.reduce_tasks, plan.groups])


def test_an_offset_outside_its_place_ends_the_job(spark: SparkSession) -> None:
    log = Log(partitions=1, places=3, rows_max=100, keys=50)
    number = next(number for number, offsets in log.offsets.items() if len(offsets))
    log.offsets[number][-1] = 10**9
    with pytest.raises(Exception, match=rf"place {number} from \d+ to \d+ gave offsets from"):
        surviving(spark, log.places, log.read, taken, TAKEN).collect()


def test_spark_sends_the_key_of_each_task_there(spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    for tasks in (1, 7, 200):
        numbers = [(int(key), task) for task, key in enumerate(keys_of_tasks(tasks))]
        frame = spark.createDataFrame(numbers, "key int, task int").repartition(tasks, "key")
        landed = frame.select("task", F.spark_partition_id().alias("at")).collect()
        assert [(row.task, row.at) for row in sorted(landed)] == [(task, task) for task in range(tasks)]


def test_rows_that_do_not_come_together_are_an_error_and_no_wrong_result() -> None:
    """Another order of Spark's rows, or another hash, would divide the rows of a bucket or place."""
    log = Log(partitions=1, places=12, rows_max=300, keys=100)
    with patch.object(layout, "BUCKET_ROWS", 500):
        plan = layout.sizes(log.places)
    ids = pa.record_batch({"id": pa.array(range(plan.map_tasks), pa.int64())})
    mapped = list(shuffle._split_keys(plan, log.read, iter([ids])))
    assert plan.buckets > 2
    with pytest.raises(BugError, match=r"bucket \d+ came twice"):
        list(shuffle._find_survivors(plan, iter(mapped)))
    ordered = pa.Table.from_batches(mapped).sort_by("bucket").to_batches()
    found = list(shuffle._find_survivors(plan, iter(ordered)))
    with pytest.raises(BugError, match=r"place \d+ came twice"):
        list(shuffle._take_places(plan, taken, iter(found)))
    together = pa.Table.from_batches(found).sort_by("place").to_batches(max_chunksize=3)
    check(log, pa.Table.from_batches(list(shuffle._take_places(plan, taken, iter(together)))).to_pandas().itertuples())
