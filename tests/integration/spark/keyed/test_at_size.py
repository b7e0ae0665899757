"""A million changed keys over a table of ten million rows, by `siltstone tables export` in a process of its own."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compactor.planning.spec import MIB
from spark_jobs.tables.iceberg.catalog import CatalogPlace, open_catalog
from tests.fixtures.spark_topics import SparkTopics
from tests.integration.spark.latest.test_latest_at_size import write_accounts

ROWS, CHANGED = 10_000_000, 1_000_000
MEMORY_MAX = 1024 * MIB


def export(topics: SparkTopics, folder: Path) -> tuple[dict[str, Any], float, float, int]:
    """Run the command. Returns its report, wall and CPU seconds, and the peak of its memory in bytes."""
    command = [sys.executable, "-m", "siltstone", "tables", "export", "accounts", "--to", "iceberg:lake.accounts"]
    command += ["--mode", "latest", "--engine", "process", "--json", "--object-store", topics.folder.as_uri()]
    command += ["--catalog", f"sqlite:///{folder}/catalog.db", "--warehouse", folder.as_uri()]
    environ = {**os.environ, "SILTSTONE_METADATA_URL": topics.metadata_url}
    began = time.monotonic()
    with (folder / "export.out").open("wb") as said, (folder / "export.err").open("wb") as errors:
        process = subprocess.Popen(command, env=environ, stdout=said, stderr=errors)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0, (folder / "export.err").read_text()[-3_000:]
    cpu_s = usage.ru_utime + usage.ru_stime
    return json.loads((folder / "export.out").read_text()), time.monotonic() - began, cpu_s, usage.ru_maxrss * 1024


@pytest.mark.soak
@pytest.mark.timeout(3_600)
async def test_a_million_changed_keys_take_seconds_and_little_memory(spark_topics: SparkTopics, tmp_path: Path) -> None:
    # given a table of ten million rows
    seed = 7
    print(f"seed {seed}")
    chance = np.random.default_rng(seed)
    await spark_topics.client.create_topic("accounts", partitions=1, configs={"retention.ms": "-1"})
    await write_accounts(spark_topics, np.arange(ROWS, dtype=np.int64))
    base, wall_s, cpu_s, peak = await asyncio.to_thread(export, spark_topics, tmp_path)
    print(f"base: {base['rows']:,} rows, {wall_s:.1f} s wall, {cpu_s:.1f} s CPU, {peak / MIB:.0f} MiB")
    # when a million of them change
    changed = chance.permutation(ROWS)[:CHANGED].astype(np.int64)
    await write_accounts(spark_topics, changed)
    tail, wall_s, cpu_s, peak = await asyncio.to_thread(export, spark_topics, tmp_path)
    print(f"tail: {tail['rows']:,} rows, {wall_s:.1f} s wall, {cpu_s:.1f} s CPU, {peak / MIB:.0f} MiB")
    # then one commit took them, and each key has one row, the latest
    assert (tail["rows"], len(tail["commits"])) == (CHANGED, 1)
    assert peak <= MEMORY_MAX
    catalog = open_catalog(CatalogPlace(url=f"sqlite:///{tmp_path}/catalog.db", warehouse=tmp_path.as_uri()))
    scan = catalog.load_table("lake.accounts").scan(selected_fields=("kafka_offset",))
    held = np.sort(scan.to_arrow()["kafka_offset"].to_numpy())
    expected = np.ones(ROWS + CHANGED, dtype=np.bool_)
    expected[changed] = False
    assert np.array_equal(held, np.flatnonzero(expected))
