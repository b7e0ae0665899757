"""`format("siltstone")` in a real Spark: found without registration, batch and stream, restarts, errors."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests.fixtures.spark_topics import START_MS, Row, SparkTopics, aside

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read(spark: SparkSession, options: Mapping[str, str]) -> DataFrame:
    return spark.read.format("siltstone").options(**options).load()


def rows_of(frame: DataFrame) -> list[Row]:
    found = [
        Row(one.partition, one.offset, round(one.timestamp.timestamp() * 1000), bytes(one.key), bytes(one.value))
        for one in frame.collect()
    ]
    return sorted(found)


async def test_a_batch_query_reads_what_was_written(spark: SparkSession, spark_topics: SparkTopics) -> None:
    # given
    await spark_topics.client.create_topic("flights", partitions=3)
    written = await spark_topics.fill("flights", partitions=3, batches=4, records=50)
    # when
    import time
    t=time.time()
    frame = await aside(lambda: read(spark, spark_topics.options("flights", minPartitions=6)))
    print("load", time.time()-t); t=time.time()
    frame.printSchema()
    found = await aside(lambda: rows_of(frame))
    print("collect", time.time()-t); t=time.time()
    assert found == written
    found = await aside(lambda: frame.selectExpr("cast(key as string) k").groupBy("k").count().orderBy("k").collect())
    print(found)
    print("agg", time.time()-t); t=time.time()
    assert 0
