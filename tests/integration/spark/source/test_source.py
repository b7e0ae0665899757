"""`format("siltstone")` in a real Spark: found without registration, batch and stream, restarts, errors.

`test_readers.py` tests plans, reads and losses; this module tests the whole way through Spark.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from pyspark.errors import PySparkException

from spark_jobs.source.options import STREAM_PIN_TTL_MS
from tests.fixtures.spark_topics import Row, SparkTopics, aside

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(600)


def read_now(spark: SparkSession, options: Mapping[str, str], folder: Path) -> list[dict[str, Any]]:
    """Run a streaming query once, from its checkpoint to the present end. Returns the progress of its batches."""
    frame = spark.readStream.format("siltstone").options(**options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    query = writer.trigger(availableNow=True).start(f"{folder}/rows")
    try:
        assert query.awaitTermination(100)
        return [dict(each) for each in query.recentProgress]
    finally:
        query.stop()


def _ms(time: datetime) -> int:
    return round(time.timestamp() * 1000)


def rows_in(folder: Path) -> list[Row]:
    columns = ["partition", "offset", "timestamp", "key", "value"]
    files = list((folder / "rows").glob("*.parquet"))
    found = [one for path in files for one in pq.read_table(path, columns=columns).to_pylist()]
    return sorted(
        Row(one["partition"], one["offset"], _ms(one["timestamp"]), one["key"], one["value"]) for one in found
    )


async def test_a_batch_query_reads_what_was_written(spark: SparkSession, spark_topics: SparkTopics) -> None:
    await spark_topics.client.create_topic("flights", partitions=2)
    written = await spark_topics.fill("flights", partitions=2, batches=2, records=50)

    def query() -> list[Row]:
        frame = spark.read.format("siltstone").options(**spark_topics.options("flights")).load()
        frame.createOrReplaceTempView("flights")
        try:
            counted = spark.sql("SELECT cast(key AS string) AS key, count(*) AS records FROM flights GROUP BY 1")
            assert {row.key: row.records for row in counted.collect()}["k0"] == sum(row.key == b"k0" for row in written)
            return sorted(
                Row(
                    row.partition, row.offset, round(row.timestamp.timestamp() * 1000), bytes(row.key), bytes(row.value)
                )
                for row in frame.collect()
                if [(header.key, bytes(header.value)) for header in row.headers] == [("n", b"%d" % row.offset)]
            )
        finally:
            spark.catalog.dropTempView("flights")

    assert await aside(query) == written
    # and errors are raised through the JVM: at load(), and when the query is planned
    with pytest.raises(PySparkException, match="did you mean 'startingOffsets'"):
        await aside(lambda: spark.read.format("siltstone").option("startingOffset", "1").load())
    with pytest.raises(PySparkException, match="did you mean 'flights'"):
        await aside(lambda: spark.read.format("siltstone").options(**spark_topics.options("flihgts")).load().collect())


async def test_a_streaming_query_reads_every_offset_once_over_a_restart(
    spark: SparkSession, spark_topics: SparkTopics, tmp_path: Path
) -> None:
    # given
    await spark_topics.client.create_topic("flights", partitions=2)
    written = await spark_topics.fill("flights", partitions=2, batches=2, records=30)
    options = spark_topics.options("flights", startingOffsets="earliest", maxOffsetsPerTrigger=70)
    # when it runs, and runs again from its checkpoint after more records were written
    first = await aside(lambda: read_now(spark, options, tmp_path))
    assert rows_in(tmp_path) == written
    written += await spark_topics.write("flights", 1, [b"late"], [b"1"])
    await aside(lambda: read_now(spark, options, tmp_path))
    # then
    assert rows_in(tmp_path) == sorted(written)
    assert [batch["numInputRows"] for batch in first] == [70, 50]
    # and all pins are gone except those of the last batches, whose end Spark does not report
    left = await spark_topics.metadata.operators.pins()
    assert len(left) <= 2 and all(until_ms - made_ms <= STREAM_PIN_TTL_MS for _, _, made_ms, until_ms in left)


async def test_the_example_of_the_guide_runs_as_it_stands(spark: SparkSession, spark_topics: SparkTopics) -> None:
    # given the topic of the guide; there the environment has the URLs, but this session started without them
    await spark_topics.client.create_topic("flights", partitions=1)
    await spark_topics.fill("flights", partitions=1, batches=1, records=70)
    guide = (Path(__file__).resolve().parents[4] / "docs" / "spark.md").read_text(encoding="utf-8")
    example = guide.partition("## Topic as a source")[2].partition("```python\n")[2].partition("```")[0]
    assert example.count(".load()") == 1
    names: dict[str, Any] = {"where": spark_topics.options("flights")}

    # when the program runs where a session exists already, and uses that one
    def run() -> list[Any]:
        exec(example.replace(".load()", ".options(**where).load()"), names)
        return names["flights"].groupBy("key").count().collect()

    # then the frame that it makes is the topic
    assert {(bytes(row["key"]), row["count"]) for row in await aside(run)} == {(b"k%d" % at, 10) for at in range(7)}
    assert names["spark"] is not None
