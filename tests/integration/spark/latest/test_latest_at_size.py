"""`read_latest` over more keys than a task may hold, in programs of their own: exact, and no task above its share."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow.dataset as ds
import pytest
from numpy.typing import NDArray

from bench.loads.keyed_topic import BATCH_RECORDS, FILE_RECORDS, write_keys
from bench.loads.merge_inputs import KEY_BYTES, numbered_keys
from compactor.planning.spec import MIB
from spark_jobs.environment import find_environment
from tests.fixtures.dedupe_process import peak_bytes
from tests.fixtures.spark import SMALL_JVM, SparkCluster, children, command
from tests.fixtures.spark_topics import SparkTopics

ROOT = Path(__file__).resolve().parents[4]
KEYS = 20_000_000
OVERWRITES = 5_000_000
WORKER_BYTES_MAX = 640 * MIB
"""What docs/spark.md says that a task takes in Python."""
PROGRAM = """
import json, sys
from pyspark_siltstone import end_offsets, read_latest
from spark_jobs.session import session_for

spark = session_for("latest at size")
frame = read_latest(spark, **json.loads(sys.argv[1]))
frame.write.parquet(sys.argv[2])
print("ends", json.dumps(end_offsets(frame)))
spark.stop()
"""


async def write_accounts(topics: SparkTopics, numbers: NDArray[np.int64]) -> None:
    """A record for each number."""
    [partition_id] = (await topics.topic("accounts")).partition_ids
    await write_keys(topics.metadata, topics.store, partition_id, numbers)


class Ran(NamedTuple):
    said: str
    wall_s: float
    cpu_s: float
    worker_peak_bytes: int


def run(arguments: Sequence[str], environ: Mapping[str, str], folder: Path, roots: Sequence[int]) -> Ran:
    """Run a program, and watch it, all below it, and all below `roots`."""
    output = folder / "program.out"
    cpu_s: dict[int, float] = {}
    peak = 0

    def look(pid: int) -> None:
        nonlocal peak
        try:
            if "pyspark" in command(pid) and "java" not in command(pid).split(" ")[0]:
                peak = max(peak, peak_bytes(pid))
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            cpu_s[pid] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError):
            return
        for child in children(pid):
            look(child)

    began = time.monotonic()
    with output.open("wb") as file:
        process = subprocess.Popen(arguments, env=environ, stdout=file, stderr=file, cwd=folder)
        while process.poll() is None:
            for pid in (process.pid, *roots):
                look(pid)
            time.sleep(0.25)
    said = output.read_text(errors="replace")
    assert process.returncode == 0, said[-4_000:]
    return Ran(said, time.monotonic() - began, sum(cpu_s.values()), peak)


def task_bytes(folder: Path) -> dict[int, list[tuple[int, int]]]:
    """The shuffle bytes of each task, as Spark tells them: (read, written) by stage."""
    found: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for path in folder.rglob("*"):
        if not path.is_file() or path.name.startswith((".", "appstatus")):
            continue
        for line in path.read_text().splitlines():
            event: dict[str, Any] = json.loads(line)
            if event["Event"] == "SparkListenerTaskEnd":
                metrics = event["Task Metrics"]
                read, written = metrics["Shuffle Read Metrics"], metrics["Shuffle Write Metrics"]
                both = read["Remote Bytes Read"] + read["Local Bytes Read"], written["Shuffle Bytes Written"]
                found[event["Stage ID"]].append(both)
    return found


@pytest.mark.soak
@pytest.mark.timeout(3_600)
@pytest.mark.parametrize("where", ["local", "cluster"])
async def test_twenty_million_keys_of_a_partition_are_exact_and_no_task_has_more_than_its_share(
    where: str, spark_topics: SparkTopics, spark_cluster: SparkCluster, tmp_path: Path
) -> None:
    """`SILTSTONE_SOAK_KEYS` sets another number."""
    keys = int(os.environ.get("SILTSTONE_SOAK_KEYS", KEYS)) // FILE_RECORDS * FILE_RECORDS
    chance = np.random.default_rng(21)
    numbers = np.concatenate((chance.permutation(keys), chance.integers(0, keys, OVERWRITES * keys // KEYS)))
    numbers = numbers[: len(numbers) // BATCH_RECORDS * BATCH_RECORDS]
    await spark_topics.client.create_topic("accounts", partitions=1, configs={"retention.ms": "-1"})
    await write_accounts(spark_topics, numbers)
    # when a program reads the latest record of each key
    events, table = tmp_path / "events", tmp_path / "table"
    events.mkdir()
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    conf = {
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.executor.memory": "640m",
        "spark.executorEnv.PYTHONPATH": str(ROOT),
        "spark.ui.enabled": "false",
        "spark.local.dir": str(tmp_path / "scratch"),
        "spark.eventLog.enabled": "true",
        "spark.eventLog.compress": "false",
        "spark.eventLog.dir": events.as_uri(),
    }
    environ = {**find_environment(os.environ).for_child(os.environ), "PYTHONPATH": str(ROOT)}
    master = "local[2]" if where == "local" else spark_cluster.master_url
    arguments = [f"{environ['SPARK_HOME']}/bin/spark-submit", "--master", master, "--driver-memory", "1g"]
    arguments += ["--driver-java-options", SMALL_JVM]
    arguments += [word for name, value in conf.items() for word in ("--conf", f"{name}={value}")]
    options = spark_topics.options("accounts", columns="offset,key", sliceBytes="32m")
    workers = [pid for name, pid in spark_cluster.pids.items() if name != "master"] if where == "cluster" else []
    ran = await asyncio.to_thread(
        run, [*arguments, str(program), json.dumps(options), table.as_uri()], environ, tmp_path, workers
    )
    # then its result is exact
    assert f'ends {{"0": {len(numbers)}}}' in ran.said
    last = np.full(keys, -1, dtype=np.int64)
    last[numbers] = np.arange(len(numbers))
    found = ds.dataset(table).to_table()
    offsets = found["offset"].combine_chunks().to_numpy()
    order = np.argsort(offsets)
    assert np.array_equal(offsets[order], np.sort(last))
    for first in range(0, keys, FILE_RECORDS):
        rows = order[first : first + FILE_RECORDS]
        expected = numbered_keys(numbers[offsets[rows]]).tobytes()
        assert b"".join(found["key"].take(rows).to_pylist()) == expected and len(expected) == KEY_BYTES * len(rows)
    # and each stage shares its bytes out over its tasks
    shares: list[str] = []
    for stage, tasks in sorted(task_bytes(events).items()):
        for name, each in (("read", [task[0] for task in tasks]), ("wrote", [task[1] for task in tasks])):
            mean, most = sum(each) / len(each), max(each)
            if mean > MIB // 4:
                shares.append(f"stage {stage}: {len(each)} tasks {name} {mean / MIB:.1f} MiB, at most {most / MIB:.1f}")
                assert most <= 1.5 * mean, shares[-1]
                assert keys < KEYS or len(each) >= 8, shares[-1]
    assert len(shares) >= 3
    assert 0 < ran.worker_peak_bytes < WORKER_BYTES_MAX
    print(
        f"{where}: {len(numbers):,} records of {keys:,} keys: {ran.wall_s:.0f} s, processor {ran.cpu_s:.0f} s,"
        f" a Python worker at most {ran.worker_peak_bytes / MIB:.0f} MiB; {'; '.join(shares)}"
    )
