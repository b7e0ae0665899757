"""Predicates that Spark hands over leave the rows that Spark keeps without: random logs, times and predicates.

The logs have open, committed and aborted transactions, times in no order, before 1970 and beyond the year 9999.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest

from tests.fixtures.spark_topics import START_MS, SparkTopics, aside
from tests.fixtures.transactional_log import TransactionalWriter, Write
from wire.records import NewRecord

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.timeout(600)
GUIDE = Path(__file__).resolve().parents[4] / "docs" / "spark.md"
ALLOWED = "spark.sql.python.filterPushdown.enabled"
ZONE = "spark.sql.session.timeZone"
PARTITIONS = 3
FILES = 5
PREDICATES = 5
FAR_MS = (-1, -86_400_000, -(2**62), -62_135_596_800_001, 253_402_300_800_000, 400_000_000_000_000, 2**62)
"""No time, a day before 1970, before the year 1, after the year 9999, and more than a timestamp of Spark holds."""
FAR_TEXTS = (
    "1969-12-31 00:00:00",
    "0001-01-01 00:00:00",
    "-0044-03-15 12:00:00",
    "9999-12-31 23:59:59.999999",
    "+10000-01-01 00:00:00",
    "+294247-01-01 00:00:00",
)


@contextmanager
def session_of(spark: SparkSession, zone: str) -> Iterator[None]:
    before = spark.conf.get(ZONE)
    spark.conf.set(ALLOWED, "true")
    spark.conf.set(ZONE, zone)
    try:
        yield
    finally:
        spark.conf.set(ZONE, before)
        spark.conf.unset(ALLOWED)


async def write_any_log(topics: SparkTopics, r: random.Random) -> None:
    await topics.client.create_topic("t", partitions=PARTITIONS, configs={"retention.ms": "-1"})
    writer = await TransactionalWriter.start(topics.metadata, topics.store, await topics.topic("t"))
    producers = [await writer.producer(name) for name in "abc"]
    await writer.leave()
    are_open: set[str] = set()

    def time_ms() -> int:
        return r.choice(FAR_MS) if r.random() < 0.1 else START_MS + r.randrange(-50_000, 50_000)

    for _ in range(FILES):
        writes: list[Write] = []
        for partition in range(PARTITIONS):
            for producer in r.sample([*producers, None, None], k=r.randint(0, 3)):
                records = [NewRecord(time_ms(), b"k", b"v") for _ in range(r.randint(1, 4))]
                writes.append(Write(partition, records, producer))
        if writes:
            await writer.write(writes)
        are_open |= {write.producer.name for write in writes if write.producer is not None}
        ended = [(each, r.random() < 0.5) for each in producers if each.name in are_open and r.random() < 0.8]
        if ended:
            await writer.end(ended)
            are_open -= {producer.name for producer, _ in ended}
    await topics.agent.agent._follower.catch_up()


def some_predicate(r: random.Random) -> str:
    def literal(column: str) -> str:
        if column == "timestamp":
            at = datetime.fromtimestamp(START_MS // 1000 + r.randint(-60, 60), UTC)
            return f"timestamp '{r.choice(FAR_TEXTS) if r.random() < 0.3 else f'{at:%Y-%m-%d %H:%M:%S}'}'"
        return str(r.randint(-1, PARTITIONS if column == "partition" else 25))

    def one() -> str:
        column = r.choice(("partition", "offset", "timestamp", "timestamp"))
        some = ", ".join(literal(column) for _ in range(2))
        compared = r.choice((*(f"{sign} {literal(column)}" for sign in ("=", "<", "<=", ">", ">=")), f"IN ({some})"))
        return f"{'NOT ' if r.random() < 0.15 else ''}({column} {compared})"

    return f" {r.choice(('AND', 'AND', 'OR'))} ".join(one() for _ in range(r.randint(1, 3)))


def places_of(frames: Iterable[DataFrame], predicates: Sequence[str]) -> tuple[set[Any], int]:
    """(number of the predicate, partition, offset) of all of them in one job, and its tasks."""
    parts = [
        frame.where(each).selectExpr(f"{at} AS at", "partition", "offset")
        for at, (frame, each) in enumerate(zip(frames, predicates, strict=False))
    ]
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionAll(part)
    rows = [tuple(row) for row in whole.collect()]
    assert len(set(rows)) == len(rows)
    return set(rows), whole.rdd.getNumPartitions()


@pytest.mark.parametrize("zone", ["Asia/Kathmandu", pytest.param("America/St_Johns", marks=pytest.mark.soak)])
async def test_any_predicates_leave_what_spark_keeps_of_all_rows(
    spark: SparkSession, spark_topics: SparkTopics, zone: str
) -> None:
    seed = random.SystemRandom().randrange(2**32)
    print("seed", seed)
    r = random.Random(seed)
    await write_any_log(spark_topics, r)
    predicates = [
        f"timestamp >= timestamp '{text}'"
        for text in (r.choice(FAR_TEXTS), "+10000-01-01 00:00:00", "+10001-01-01 00:00:00")
    ]
    predicates += [some_predicate(r) for _ in range(PREDICATES)]

    def compare() -> None:
        given = spark_topics.options("t", sliceBytes="1", pushDownPredicate="true")
        with session_of(spark, zone):
            # each predicate has a frame of its own: Spark keeps one plan for all uses of a frame
            frames = [spark.read.format("siltstone").options(**given).load() for _ in range(len(predicates) + 1)]
            frame = frames.pop()
            everything = spark.createDataFrame(
                frame.selectExpr("partition", "offset", "unix_micros(timestamp) AS us").collect()
            ).selectExpr("partition", "offset", "timestamp_micros(us) AS timestamp")
            wanted, _ = places_of(repeat(everything), predicates)
            found, tasks = places_of(frames, predicates)
            for at, predicate in enumerate(predicates):
                left, kept = ({place[1:] for place in places if place[0] == at} for places in (found, wanted))
                assert left == kept, f"seed {seed}, {predicate}"
            assert tasks < frame.rdd.getNumPartitions() * len(predicates), f"seed {seed}: nothing was left out"

    await aside(compare)


async def test_a_time_without_a_zone_is_one_of_the_session(spark: SparkSession, spark_topics: SparkTopics) -> None:
    await spark_topics.client.create_topic("flights", partitions=1)
    await spark_topics.fill("flights", partitions=1, batches=4, records=10)
    zone = "Pacific/Kiritimati"  # 14 hours ahead
    at = datetime.fromtimestamp(START_MS / 1000, ZoneInfo(zone)) + timedelta(seconds=25)

    def query(predicate: str) -> tuple[list[int], int]:
        with session_of(spark, zone):
            options = spark_topics.options("flights", sliceBytes="1", pushDownPredicate="true")
            frame = spark.read.format("siltstone").options(**options).load().where(predicate)
            return sorted(row.offset for row in frame.collect()), frame.rdd.getNumPartitions()

    local = f"{at:%Y-%m-%d %H:%M:%S}"
    assert await aside(lambda: query(f"timestamp >= timestamp '{local}'")) == (list(range(25, 40)), 2)
    assert await aside(lambda: query(f"timestamp >= timestamp_ntz '{local}'")) == (list(range(25, 40)), 2)


async def test_the_example_of_the_guide_reads_one_partition_from_an_offset_on(
    spark: SparkSession, spark_topics: SparkTopics, capsys: pytest.CaptureFixture[str]
) -> None:
    await spark_topics.client.create_topic("flights", partitions=2)
    await spark_topics.fill("flights", partitions=2, batches=2, records=10)
    guide = GUIDE.read_text(encoding="utf-8").partition("\n### Predicates\n")[2]
    example = guide.partition("```python\n")[2].partition("```")[0].replace("1000", "15")
    names: dict[str, Any] = {"spark": spark, "where": spark_topics.options("flights")}

    def run() -> int:
        with session_of(spark, "UTC"):
            exec(example.replace(".load()", ".options(**where).load()"), names)
            return names["flights"].where("partition = 1 AND offset >= 15").rdd.getNumPartitions()

    assert await aside(run) == 1
    assert "5 flights later in partition 1\n" in capsys.readouterr().out


async def test_a_frame_that_is_used_twice_has_all_its_rows(spark: SparkSession, spark_topics: SparkTopics) -> None:
    """Spark keeps the plan of a frame's last query for its next one, so by itself the source takes no predicate."""
    await spark_topics.client.create_topic("flights", partitions=2)
    await spark_topics.fill("flights", partitions=2, batches=2, records=10)

    def counts() -> list[int]:
        with session_of(spark, "UTC"):
            frame = spark.read.format("siltstone").options(**spark_topics.options("flights")).load()
            first, early = frame.where("partition = 0"), frame.where("offset < 5")
            return [each.count() for each in (first, early, first.unionAll(early), frame)]

    assert await aside(counts) == [20, 10, 30, 40]
