"""A stream that is killed and restarted again and again while a compactor swaps and deletes the files below it."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from metadata.contract.files import FileState
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.spark_topics import Row, SparkTopics, aside
from tests.fixtures.waiting import until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession
    from pyspark.sql.streaming import StreamingQuery

GRACE_MS = 1_000
PARTITIONS = 3
RUNS = 4
TOO_SLOW = "Python worker failed to connect back"
"""Spark gives a Python process ten seconds to begin; a busy machine takes longer. That costs one more restart."""
BATCHES = 30
"""The number of batches per partition and run, of 20 records each."""


def start(spark: SparkSession, options: dict[str, str], folder: Path) -> StreamingQuery:
    frame = spark.readStream.format("siltstone").options(**options).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", f"{folder}/checkpoint")
    return writer.trigger(processingTime="0 seconds").start(f"{folder}/rows")


def offsets_done(query: StreamingQuery) -> dict[str, int]:
    """The end of the last finished batch."""
    done = [each for each in query.recentProgress if each["sources"]]
    return dict(_offsets(done[-1]["sources"][0]["endOffset"])) if done else {}


def _offsets(document: Any) -> dict[str, int]:
    return (json.loads(document) if isinstance(document, str) else document)["offsets"]


def forget_last_batch(folder: Path) -> None:
    """Act as if the driver had died after it read its last batch and before the sink recorded it: the batch is
    replayed."""
    offsets, commits = (_numbers(folder / f"checkpoint/{log}") for log in ("offsets", "commits"))
    written = folder / f"rows/_spark_metadata/{commits[-1]}" if commits else folder
    if not commits or commits[-1] != offsets[-1] or not written.is_file():
        return  # a batch was under way and is replayed anyway, or the sink's log was compacted with it
    for path in (folder / f"checkpoint/commits/{commits[-1]}", written):
        path.unlink()
        path.with_name(f".{path.name}.crc").unlink(missing_ok=True)


def _numbers(folder: Path) -> list[int]:
    return sorted(int(path.name) for path in folder.iterdir() if path.name.isdigit())


def rows_of_sink(spark: SparkSession, folder: Path) -> list[Row]:
    """The rows by the sink's own log, so that files of stopped attempts do not count."""
    frame = spark.read.parquet(f"{folder}/rows").selectExpr(
        "partition", "offset", "unix_millis(timestamp) AS at_ms", "key", "value"
    )
    return sorted(Row(one[0], one[1], one[2], bytes(one[3]), bytes(one[4])) for one in frame.collect())


@pytest.mark.soak
@pytest.mark.timeout(900)
async def test_a_stream_over_restarts_loses_and_repeats_nothing_while_its_files_are_swapped(
    spark: SparkSession, spark_topics: SparkTopics, start_compactor: StartCompactor, tmp_path: Path
) -> None:
    # given a compactor that merges and deletes at once
    topics = spark_topics
    await topics.client.create_topic("flights", partitions=PARTITIONS, configs={"retention.ms": "-1"})
    running = await start_compactor(store=topics.store, metadata=topics.metadata, gc_grace_ms=GRACE_MS)
    options = topics.options(
        "flights", startingOffsets="earliest", maxOffsetsPerTrigger=900, pinTtl="3s", sliceBytes="4k"
    )
    written: list[Row] = []
    for run in range(RUNS):
        query = await aside(lambda: start(spark, options, tmp_path))
        try:
            # when records are written while a query reads
            written += await topics.fill("flights", partitions=PARTITIONS, batches=BATCHES, records=20)
            ends = {str(number): 20 * BATCHES * (run + 1) for number in range(PARTITIONS)}
            wanted = ends if run == RUNS - 1 else {"0": 20 * BATCHES * run + 1}
            async with asyncio.timeout(240):
                while any(offsets_done(query).get(number, 0) < end for number, end in wanted.items()):
                    if not query.isActive:
                        assert TOO_SLOW in str(query.exception())
                        query = await aside(lambda: start(spark, options, tmp_path))
                    await asyncio.sleep(0.2)
        finally:
            await aside(query.stop)
        if run < RUNS - 1:
            forget_last_batch(tmp_path)
    # then every offset is there once
    found = await aside(lambda: rows_of_sink(spark, tmp_path))
    assert [row[:2] for row in found] == [row[:2] for row in sorted(written)]
    assert found == sorted(written)
    # and the files that it began with have been swapped and deleted meanwhile
    gone = [file for file in await topics.metadata.operators.files(limit=100_000) if file.state is FileState.DELETED]
    assert len(gone) > 100
    assert running.metric("deleted_files_total") > 100
    assert running.merges("failed") == 0

    async def all_pins_ran_out() -> bool:
        return not await topics.metadata.operators.pins()

    await until(all_pins_ran_out)
