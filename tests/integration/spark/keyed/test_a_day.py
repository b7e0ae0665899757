"""A day of `siltstone tables follow` on a table with one row per key, on a clock that moves 30 s with each round."""

from __future__ import annotations

import asyncio
import os
import random
import statistics
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from metadata.urls import open_metadata
from runtime.clock import SystemClock
from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.iceberg.table import IcebergTable
from spark_jobs.tables.iceberg.upkeep.upkeep import Upkeep
from spark_jobs.tables.progress import LATEST_MODE
from storage.local import LocalStore
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.lake import Lake
from wire.records import NewRecord, build_batch

DAY_ROUNDS, ROUND_MS = 2_880, 30_000
KEYS = 2_000
VALUES = ValueFormat(kind="json", keys="text")


def metadata_bytes(table: IcebergTable) -> int:
    return len(table.loaded.io.new_input(table.loaded.metadata_location).open().read())


@pytest.mark.soak
@pytest.mark.timeout(7_200)
async def test_a_day_of_rounds_leaves_commits_and_files_as_they_were(
    lake: Lake, start_compactor: StartCompactor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`SILTSTONE_SOAK_ROUNDS` sets another number of rounds, 720 at least."""
    rounds = int(os.environ.get("SILTSTONE_SOAK_ROUNDS", DAY_ROUNDS))
    # given a topic whose merges keep every record, and a table that follows it on a clock of its own
    seed = 11
    print(f"seed {seed}")
    chance, now_ms = random.Random(seed), SystemClock().wall_ms()
    monkeypatch.setattr("pyiceberg.table.snapshots.time", SimpleNamespace(time=lambda: now_ms / 1000))
    metadata = open_metadata(lake.metadata_url)
    await metadata.open()
    compactor = await start_compactor(store=LocalStore(tmp_path / "objects"), metadata=metadata)
    await lake.client.create_topic("accounts", partitions=1, configs={"retention.ms": "-1"})
    table = lake.iceberg()
    upkeep = Upkeep(table)
    expected: dict[str, int] = {}
    number = 0
    sizes, files, snapshots, cpu_ms = list[int](), list[int](), list[int](), list[float]()
    # when each round changes some keys, and removes some
    for _ in range(rounds):
        now_ms += ROUND_MS
        records = list[NewRecord]()
        for key in (f"key {each}" for each in chance.sample(range(KEYS), 20)):
            number += 1
            removed = chance.random() < 0.1
            records.append(NewRecord(1_000, key.encode(), None if removed else b'{"n": %d}' % number))
            if removed:
                expected.pop(key, None)
            else:
                expected[key] = number
        await lake.client.produce("accounts", 0, build_batch(records))
        began = time.process_time()
        await lake.exported("accounts", table, VALUES, mode=LATEST_MODE)
        tended = await asyncio.to_thread(upkeep.tend, now_ms)
        cpu_ms.append((time.process_time() - began) * 1000)
        assert not tended.failed
        table.load()
        sizes.append(metadata_bytes(table))
        snapshots.append(len(table.loaded.metadata.snapshots))
        files.append(sum(path.is_file() for path in (lake.place / "warehouse").rglob("*")))
    # then the table is the topic's latest view
    rows = await lake.rows(table)
    assert {row["kafka_key"]: row["n"] for row in rows} == expected and len(rows) == len(expected)
    # and metadata, files and snapshots are in the last quarter as they were in the second
    quarter = rounds // 4
    for name, each in (("metadata, bytes", sizes), ("files", files), ("snapshots", snapshots), ("CPU, ms", cpu_ms)):
        early, late = statistics.median(each[quarter : 2 * quarter]), statistics.median(each[-quarter:])
        print(f"{name}: {early:,.0f} -> {late:,.0f}, at most {max(each):,.0f}")
        if each is not cpu_ms:
            assert late <= early * 1.1, name
    await compactor.compactor.stop()
    await metadata.close()
