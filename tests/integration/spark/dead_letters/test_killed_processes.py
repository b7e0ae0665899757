"""`siltstone tables follow` with dead letters, killed again and again."""

from __future__ import annotations

import asyncio
import os
import random
import subprocess
import sys
from contextlib import suppress

import pytest

from spark_jobs.tables.errors import TableError
from spark_jobs.tables.parquet_table import ParquetTable
from tests.fixtures.lake import Lake
from tests.fixtures.waiting import until
from tests.integration.spark.dead_letters.test_dead_letters import NARROW, WIDE, random_value

KILLS = 20
LIFE_S = 6.0
"""The longest life of a process; it takes about two seconds to begin its first round."""


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_process_that_is_killed_at_any_moment_leaves_every_record_once(lake: Lake) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    table, letters = lake.parquet(), lake.parquet("errors")
    for name, values in (("narrow", NARROW), ("wide", WIDE)):
        (lake.place / name).write_text(values.schema_text, encoding="utf-8")
    await lake.client.create_topic("t", partitions=1)
    end = 0
    for life in range(KILLS + 1):
        process = follower(lake, chance.choice(["narrow", "wide"]), table, letters)
        try:
            for _ in range(int(chance.uniform(2, LIFE_S) * 10)):
                rows = [random_value(chance) for _ in range(chance.randint(1, 5))]
                await lake.send("t", 0, *rows)
                end += len(rows)
                await asyncio.sleep(0.1)
            if life == KILLS:
                await until(lambda wanted=end: held(table) >= wanted)
        finally:
            process.kill()
            process.wait()
    rows, dead = await lake.offsets(table), await lake.offsets(letters)
    assert sorted([*rows, *dead]) == [(0, number) for number in range(end)]
    assert len(dead) > end // 20


def held(table: ParquetTable) -> int:
    with suppress(TableError):
        progress = ParquetTable(table.url).load()
        return 0 if progress is None else progress.offsets.get(0, 0)
    return 0


def follower(lake: Lake, schema: str, table: ParquetTable, letters: ParquetTable) -> subprocess.Popen[bytes]:
    words = ["tables", "follow", "t", "--to", f"parquet:{table.url}", "--dead-letters", f"parquet:{letters.url}"]
    words += ["--value", "json", "--schema", str(lake.place / schema), "--every", "1s"]
    environ = {**os.environ, "SILTSTONE_METADATA_URL": lake.metadata_url}  # it holds a password
    with (lake.place / "said").open("ab") as said:
        return subprocess.Popen(
            [sys.executable, "-m", "siltstone", *words, "--object-store", lake.objects_url],
            env=environ,
            stdout=said,
            stderr=said,
        )
