"""A topic read into Spark: by our source from the object store, and by Spark's own Kafka source from an agent.

One stack, one merged topic, one session with two cores. Each query sums the lengths of all values and counts the
records, first cold and then warm. CPU is that of all processes, the agent's among them. Spark's Kafka source is left
out where `SPARK_KAFKA_JARS` does not name a folder with its jars: see README.md.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

from bench.cases.replay import HISTORY
from bench.cases.spark.spent import now, since
from bench.loads.clients import ROOT, create_topic, run_produce
from bench.loads.jobs import ProduceJob
from bench.loads.load import progress
from bench.registry import Size
from bench.servers.s3_server import client_environment
from bench.servers.stack import Stack, Store
from bench.table import Cell, Column, Table
from compactor.planning.spec import MIB

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

RECORD_BYTES = 1024
DATA_BYTES = {Size.SMALL: 128 * MIB, Size.FULL: 640 * MIB}
PARTITIONS = 4
CORES = 2
WARM_RUNS = 3
MERGE_LIMIT_S = 600
JARS_FOLDER = "SPARK_KAFKA_JARS"
JARS = ("spark-sql-kafka", "spark-token-provider-kafka", "kafka-clients", "commons-pool2")
"""Those that PySpark does not have itself."""
LENGTHS = ("sum(length(value))", "count(*)")


def run(size: Size) -> Iterator[Table]:
    from spark_jobs.session import end_session, local_session

    jars = _jars()
    records = DATA_BYTES[size] // RECORD_BYTES
    with Stack(Store.LOCAL) as stack:
        _write(stack, records)
        conf = {"spark.jars": ",".join(jars)} if jars else {}
        spark = local_session("siltstone-bench", CORES, memory="1g", conf=conf)
        try:
            yield _table(
                [row for source in _sources(stack, bool(jars)) for row in _rows(spark, stack, source, records)]
            )
        finally:
            end_session(spark)


def _jars() -> Sequence[str]:
    folder = os.environ.get(JARS_FOLDER, "")
    found = [str(path) for path in Path(folder).glob("*.jar") if path.name.startswith(JARS)] if folder else []
    if len(found) < len(JARS):
        progress(f"left out: Spark's Kafka source, whose jars {JARS_FOLDER} does not name")
        return ()
    return found


def _write(stack: Stack, records: int) -> None:
    """Write the topic and merge it, in a process of its own."""
    progress(f"writing and merging {records:,} records in {PARTITIONS} partitions ...")
    create_topic(stack.bootstrap, HISTORY, PARTITIONS)
    run_produce(
        ProduceJob(
            bootstrap=stack.bootstrap,
            topic=HISTORY,
            partitions=PARTITIONS,
            record_bytes=RECORD_BYTES,
            seconds=0,
            records=records,
        )
    )
    command = [sys.executable, "-P", "-m", "bench.cases.replay", "level", stack.metadata_url, stack.store_url]
    environment = {**client_environment(), "PYTHONPATH": str(ROOT)}
    subprocess.run(command, env=environment, check=True, timeout=MERGE_LIMIT_S)


def _sources(stack: Stack, has_kafka: bool) -> Sequence[tuple[str, str, Mapping[str, str]]]:
    """Name, format and options of each source."""
    ours = {"topic": HISTORY, "metadataUrl": stack.metadata_url, "objectStoreUrl": stack.store_url}
    kafka = {"subscribe": HISTORY, "kafka.bootstrap.servers": stack.bootstrap, "startingOffsets": "earliest"}
    sources = [
        ("siltstone", "siltstone", ours),
        ("siltstone, columns=value", "siltstone", {**ours, "columns": "value"}),
    ]
    return [*sources, ("Spark's Kafka source", "kafka", kafka)] if has_kafka else sources


def _rows(
    spark: SparkSession, stack: Stack, source: tuple[str, str, Mapping[str, str]], records: int
) -> Iterator[Sequence[Cell]]:
    name, kind, options = source

    def query() -> None:
        frame = spark.read.format(kind).options(**options).load().selectExpr(*LENGTHS)
        [(length, count)] = frame.collect()
        if (length, count) != (records * RECORD_BYTES, records):
            raise ValueError(f"{name} has read {count} records with {length} bytes")

    megabytes = records * RECORD_BYTES / 1e6
    for turn, times in (("cold", 1), ("warm", WARM_RUNS)):
        measured = [_measured(stack, query) for _ in range(times)]
        wall_s, cpu_s, agents_s = (median(column) for column in zip(*measured, strict=True))
        yield [name, turn, megabytes, wall_s, cpu_s, agents_s, megabytes / cpu_s]


def _measured(stack: Stack, work: Callable[[], None]) -> tuple[float, float, float]:
    """Wall time, CPU, and the agent's part of it. The CPU of a Python worker that ends meanwhile is lost, so a single
    reading may be too low."""
    before, began = stack.read(), now()
    work()
    spent = since(began)
    return spent.wall_s, spent.cpu_s, (stack.read() - before).agents.cpu_s


def _table(rows: Sequence[Sequence[Cell]]) -> Table:
    return Table(
        "Topics read into Spark",
        f"Values of {RECORD_BYTES} B in {PARTITIONS} partitions of merged files in a directory; local[{CORES}]."
        f" Warm: the median of {WARM_RUNS}.",
        (
            Column("source"),
            Column("turn"),
            Column("read", "MB", 0),
            Column("wall", "s", 2),
            Column("CPU", "s", 2),
            Column("of it the agent", "s", 2),
            Column("MB a CPU second", "", 0),
        ),
        rows,
    )
