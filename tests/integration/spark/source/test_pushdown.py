"""Predicates of a query that reach the plan: fewer slices and bytes, the same rows, and what `explain` says of them.

The proof that nothing is missed is in `tests/property/test_scan.py` and in the random predicates here, whose plans and
reads are made without a Spark. One test asks Spark.
"""

from __future__ import annotations

import contextlib
import io
import operator
import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
)

from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import ScanOptions, Slice
from spark_jobs.scan.plan import plan_slices
from spark_jobs.scan.timestamps import since
from spark_jobs.source.source import TopicReader
from tests.fixtures.scan_logs import ScanLog, records_of
from tests.fixtures.spark_readers import batch_reader
from tests.fixtures.spark_topics import START_MS, Row, SparkTopics, aside, rows_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)
ALLOWED = "spark.sql.python.filterPushdown.enabled"
MIB = 1 << 20
_HOLDS = {
    EqualTo: operator.eq,
    LessThan: operator.lt,
    LessThanOrEqual: operator.le,
    GreaterThan: operator.gt,
    GreaterThanOrEqual: operator.ge,
}


def time_of(offset: float) -> datetime:
    return datetime.fromtimestamp(START_MS / 1000, UTC) + timedelta(seconds=offset)


def planned(options: dict[str, str], *filters: Filter) -> tuple[list[Filter], TopicReader, list[Slice]]:
    """The filters that are left to Spark, the reader, and the slices."""
    reader = batch_reader({"pushDownPredicate": "true", **options})
    left = list(reader.pushFilters(list(filters)))
    tasks = reader.partitions()
    return left, reader, [Slice.from_json(task.value.slice) for task in tasks]


async def test_fewer_slices_are_planned_for_partitions_offsets_and_a_time(spark_topics: SparkTopics) -> None:
    # given three partitions with three files of 20 records each, a second apart
    await spark_topics.client.create_topic("flights", partitions=3)
    await spark_topics.fill("flights", partitions=3, batches=3, records=20)
    options = spark_topics.options("flights", sliceBytes="1")

    async def spans(*filters: Filter, **more: str) -> tuple[list[Filter], list[tuple[int, int, int]], int]:
        left, _, slices = await aside(lambda: planned({**options, **more}, *filters))
        return left, [(one.partition, one.start, one.end) for one in slices], sum(one.bytes for one in slices)

    left, everything, all_bytes = await spans()
    assert (left, len(everything)) == ([], 9)
    # then a partition is exact
    partition = EqualTo(("partition",), 1)
    left, found, found_bytes = await spans(partition)
    assert (left, found) == ([], [(1, 0, 20), (1, 20, 40), (1, 40, 60)])
    assert found_bytes == all_bytes // 3
    assert await spans(Not(In(("partition",), (0, 2)))) == (left, found, found_bytes)
    # and so are offsets, also where they lie outside of the topic
    below, above = LessThan(("offset",), 30), GreaterThanOrEqual(("offset",), 25)
    assert (await spans(partition, below, above))[:2] == ([], [(1, 25, 30)])
    assert (await spans(GreaterThan(("offset",), 1000)))[:2] == ([], [])
    # and lists of them are a bound
    some = In(("offset",), (22, 58))
    assert (await spans(partition, some))[:2] == ([some], [(1, 22, 40), (1, 40, 59)])
    # and a time leaves out older files, and is Spark's to judge
    late = GreaterThanOrEqual(("timestamp",), time_of(40))
    assert (await spans(partition, late))[:2] == ([late], [(1, 40, 60)])
    # and so does a time of the options, in the partitions that are left
    begun = str(START_MS + 30_000)
    assert (await spans(partition, startingTimestamp=begun))[:2] == ([], [(1, 30, 40), (1, 40, 60)])
    early = LessThan(("timestamp",), time_of(20))
    assert (await spans(early))[:2] == ([early], everything)
    # and another topic has no records here, and other predicates are Spark's
    assert (await spans(EqualTo(("topic",), "delays")))[:2] == ([], [])
    other = StringContains(("topic",), "flig")
    assert (await spans(other))[:2] == ([other], everything)
    # and a view by key takes partitions alone: the last record of a key may lie outside
    left, found, _ = await spans(partition, below, late, view="latest")
    assert (left, found) == ([below, late], [(1, 0, 60)])


@pytest.mark.parametrize("seed", range(3))
async def test_any_predicates_leave_the_rows_that_spark_would_keep(spark_topics: SparkTopics, seed: int) -> None:
    r = random.Random(seed)
    await spark_topics.client.create_topic("flights", partitions=3)
    written = await spark_topics.fill("flights", partitions=3, batches=4, records=10)
    options = spark_topics.options("flights", sliceBytes=str(r.choice((1, 1000, MIB))))

    def values(row: Row) -> dict[str, Any]:
        return {"partition": row.partition, "offset": row.offset, "timestamp": time_of(row.offset)}

    def some_filter() -> Filter:
        column = r.choice(("partition", "offset", "timestamp"))
        low, high = (-1, 3) if column == "partition" else (-2, 42)
        at = [time_of(n) if column == "timestamp" else n for n in (r.randint(low, high) for _ in range(3))]
        kind = r.choice([*_HOLDS, In])
        found = In((column,), tuple(at)) if kind is In else kind((column,), at[0])
        return Not(found) if r.random() < 0.2 else found

    def holds(one: Filter, row: Row) -> bool:
        if isinstance(one, Not):
            return not holds(one.child, row)
        if isinstance(one, In):
            return values(row)[one.attribute[0]] in one.value
        return _HOLDS[type(one)](values(row)[one.attribute[0]], one.value)  # type: ignore[attr-defined]

    def check(filters: Sequence[Filter]) -> None:
        left, reader, _ = planned(options, *filters)
        found = rows_of([batch for task in reader.partitions() for batch in reader.read(task)])
        wanted = [row for row in written if all(holds(one, row) for one in filters)]
        assert [row for row in found if all(holds(one, row) for one in left)] == wanted, filters

    for _ in range(25):
        await aside(lambda: check([some_filter() for _ in range(r.randint(1, 3))]))


async def test_a_time_inside_a_large_file_is_found_by_its_blocks() -> None:
    # given a merged file with a batch of a MiB for each hour, and a later file
    hour_ms = 3_600_000
    log = await ScanLog.make()
    for hour in range(12):
        value = random.Random(hour).randbytes(MIB)
        await log.write((0, records_of((b"k", value), at_ms=START_MS + hour * hour_ms)))
    await log.merge()
    await log.write((0, records_of((b"k", b"last"), at_ms=START_MS + 12 * hour_ms)))
    since_ms = START_MS + 10 * hour_ms
    asked = ScanOptions(topic="flights", since_ms=since_ms)

    def read() -> tuple[list[int], int]:
        with BlockingStore(log.store) as store:
            slices = list(since(store, plan_slices(snapshot, asked, slice_bytes=5 * MIB), since_ms))
            return [one.start for one in slices], sum(one.records for one in slices)

    snapshot = await log.snapshot()
    starts, records = await aside(read)

    # then the slices begin at the block of that hour
    assert len(plan_slices(snapshot, asked, slice_bytes=5 * MIB)) == 3
    assert (starts, records) == ([10], 3)


async def test_spark_hands_its_predicates_over_where_the_session_allows_it(
    spark: SparkSession, spark_topics: SparkTopics
) -> None:
    await spark_topics.client.create_topic("flights", partitions=3)
    written = await spark_topics.fill("flights", partitions=3, batches=2, records=20)
    wanted = [(row.partition, row.offset) for row in written if row.partition == 1 and row.offset >= 25]

    def query(allowed: bool) -> tuple[list[tuple[int, int]], int, str]:
        spark.conf.set(ALLOWED, str(allowed).lower())
        try:
            options = spark_topics.options("flights", pushDownPredicate="true")
            frame = spark.read.format("siltstone").options(**options).load()
            frame = frame.where(f"partition = 1 AND offset > 24 AND timestamp >= timestamp '{time_of(22).isoformat()}'")
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                frame.explain(mode="formatted")
            found = sorted((row.partition, row.offset) for row in frame.collect())
            return found, frame.rdd.getNumPartitions(), said.getvalue()
        finally:
            spark.conf.unset(ALLOWED)

    # without, the query reads everything, and is none the worse
    found, tasks, said = await aside(lambda: query(False))
    assert (found, tasks, "EqualTo(partition,1)" in said) == (wanted, 3, False)
    # with it, one task reads, and `explain` shows what is done with
    found, tasks, said = await aside(lambda: query(True))
    assert (found, tasks) == (wanted, 1)
    pushed = said.partition("PushedFilters: [")[2].partition("]")[0]
    assert {"EqualTo(partition,1)", "GreaterThan(offset,24)"} <= set(pushed.replace(", ", ";").split(";")), said
    assert "timestamp" not in pushed
