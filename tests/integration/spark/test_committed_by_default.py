"""Everything that reads topics for people reads committed records unless it is told otherwise, and says so: commands,
tables, Spark's source and the reader without agents, over a Postgres, a directory and an agent."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import siltstone
from spark_jobs.tables.parquet_table import open_dataset
from tests.fixtures.spark_topics import START_MS, SparkTopics, aside
from tests.fixtures.transactional_log import TransactionalWriter, Write
from wire.records import NewRecord

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

COMMITTED = ["plain a", "good b", "plain c"]
EVERYTHING = ["plain a", "bad a", "good b", "plain c", "late c", "plain d"]


def record(value: str) -> list[NewRecord]:
    return [NewRecord(START_MS, value[-1:].encode(), value.encode())]


@pytest.fixture
async def topics(spark_topics: SparkTopics) -> AsyncIterator[SparkTopics]:
    """A record of nobody, an aborted one, a committed one, and an open one between two of nobody."""
    await spark_topics.client.create_topic("t", partitions=1, configs={"retention.ms": "-1"})
    writer = await TransactionalWriter.start(spark_topics.metadata, spark_topics.store, await spark_topics.topic("t"))
    bad, good, late = [await writer.producer(name) for name in ("bad", "good", "late")]
    await writer.leave()
    await writer.write([Write(0, record("plain a")), Write(0, record("bad a"), bad), Write(0, record("good b"), good)])
    await writer.end([(bad, False), (good, True)])
    await writer.write([Write(0, record("plain c")), Write(0, record("late c"), late), Write(0, record("plain d"))])
    await spark_topics.agent.agent._follower.catch_up()
    yield spark_topics


async def run(*words: str) -> str:
    """In a process of its own: `consume` heeds signals, which only a main thread may."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "siltstone", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    stdout, stderr = await process.communicate()
    assert process.returncode == 0, stderr.decode()
    return stdout.decode()


async def test_consume_prints_committed_records(topics: SparkTopics) -> None:
    words = ("consume", "t", "-o", "start", "--until-end", "-f", "%v\\n", "--bootstrap", topics.agent.address)
    assert (await run(*words)).splitlines() == COMMITTED
    assert (await run(*words, "--isolation-level", "read_uncommitted")).splitlines() == EVERYTHING
    said = " ".join((await run("consume", "--help")).split())
    assert "Records of aborted transactions are left out" in said and "[default: read_committed]" in said


async def test_get_takes_the_newest_committed_record_of_a_key(topics: SparkTopics) -> None:
    # given keys whose newest record is of an aborted transaction, and of an open one
    for key, value in (("a", "plain a"), ("b", "good b"), ("c", "plain c")):
        assert await run("get", "t", key, "--bootstrap", topics.agent.address) == f"{value}\n"
    assert "Only records of committed transactions count" in " ".join((await run("get", "--help")).split())


async def test_a_table_gets_committed_records(topics: SparkTopics, tmp_path: Path) -> None:
    table = tmp_path / "table"
    words = ("tables", "export", "t", "--to", f"parquet:{table}", "--metadata", topics.metadata_url)
    await run(*words, "--object-store", topics.folder.as_uri())
    columns = ["kafka_offset", "kafka_value"]
    found = await aside(lambda: open_dataset(table.as_uri()).to_table(columns=columns))
    rows = sorted(zip(found["kafka_offset"].to_pylist(), found["kafka_value"].to_pylist(), strict=True))
    assert [value.decode() for _, value in rows] == COMMITTED
    assert "Only committed records are written" in " ".join((await run("tables", "export", "--help")).split())


async def test_the_reader_without_agents_gives_committed_records(topics: SparkTopics) -> None:
    def read(**options: str) -> list[str]:
        places = {"metadata": topics.metadata_url, "object_store": topics.folder.as_uri()}
        found = siltstone.read_topic("t", **places, **options).read_all()  # type: ignore[arg-type]
        return [value.decode() for value in found.column("value").to_pylist()]

    assert await aside(read) == COMMITTED
    assert await aside(lambda: read(isolation="read_uncommitted")) == EVERYTHING
    assert sorted(await aside(lambda: read(view="latest"))) == sorted(COMMITTED)
    assert "By default records of open and aborted transactions are left out" in " ".join(
        (siltstone.read_topic.__doc__ or "").split()
    )


@pytest.mark.timeout(600)
async def test_sparks_source_gives_committed_records(topics: SparkTopics, spark: SparkSession, tmp_path: Path) -> None:
    def batch(**more: str) -> list[str]:
        frame = spark.read.format("siltstone").options(**topics.options("t", **more)).load()
        return [bytes(row.value).decode() for row in sorted(frame.collect(), key=lambda row: row.offset)]

    def stream() -> list[str]:
        options = topics.options("t", startingOffsets="earliest")
        frame = spark.readStream.format("siltstone").options(**options).load()
        writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{tmp_path}/checkpoint")
        query = writer.trigger(availableNow=True).start(f"{tmp_path}/rows")
        try:
            assert query.awaitTermination(300)
        finally:
            query.stop()
        rows = spark.read.parquet(f"{tmp_path}/rows").collect()
        return [bytes(row.value).decode() for row in sorted(rows, key=lambda row: row.offset)]

    assert await aside(batch) == COMMITTED
    assert await aside(lambda: batch(isolation="read_uncommitted")) == EVERYTHING
    assert sorted(await aside(lambda: batch(view="latest"))) == sorted(COMMITTED)
    assert await aside(stream) == COMMITTED
