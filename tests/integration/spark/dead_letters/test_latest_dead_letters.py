"""Dead letters of tables with one row per key, and those that Spark writes."""

from __future__ import annotations

import asyncio
import json
import random
from contextlib import suppress
from typing import TYPE_CHECKING, Any

import pytest

from spark_jobs.tables.cluster.engine import OnCluster
from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.contract import Engine
from spark_jobs.tables.on_spark import OnSpark
from spark_jobs.tables.progress import LATEST_MODE
from tests.fixtures.lake import Lake
from tests.fixtures.spark_topics import SparkTopics
from tests.integration.spark.dead_letters.test_dead_letters import (
    NARROW,
    PAIRS,
    WIDE,
    Deaths,
    Killed,
    Pair,
    random_value,
)
from tests.integration.spark.exports.test_latest_exports import Accounts, Sessions

if TYPE_CHECKING:
    from pathlib import Path

    from pyspark.sql import SparkSession

pytestmark = pytest.mark.timeout(300)
SEEDS = 12
COMPACTED = {"cleanup.policy": "compact"}


@pytest.mark.parametrize("kinds", [PAIRS[0], PAIRS[3]])
async def test_a_dead_letter_that_is_the_latest_of_its_key_takes_the_older_row_away(
    lake: Lake, kinds: tuple[str, str]
) -> None:
    # given rows of three keys
    pair = Pair(lake, kinds)
    values = ValueFormat(kind="json", schema_text=NARROW.schema_text, keys="text")
    await lake.client.create_topic("t", partitions=1, configs=COMPACTED)
    for key in (b"a", b"b", b"c"):
        await lake.send("t", 0, b'{"n": 1}', key=key)
    await pair.exported(values, mode=LATEST_MODE)
    # when one gets a value that does not fit, one is deleted, and a key that is no text comes and goes
    await lake.send("t", 0, b'{"x": 1}', b'{"x": 2}', key=b"a")
    await lake.send("t", 0, None, key=b"b")
    await lake.send("t", 0, b'{"n": 1}', None, key=b"\xff")
    report = await pair.exported(values, mode=LATEST_MODE)
    # then the first has no row, its latest record is a dead letter, and a deletion is none
    assert await pair.held() == ([(0, 2)], [(0, 4)])
    assert report.dead_letters == 1
    # and when the whole view is written again, everything stays as it was judged
    await lake.send("t", 0, b'{"n": 7}', key=b"b")
    wide = ValueFormat(kind="json", schema_text=WIDE.schema_text, keys="text")
    report = await pair.exported(wide, mode=LATEST_MODE)
    assert (await pair.held(), report.dead_letters) == (([(0, 2), (0, 8)], [(0, 4)]), 0)
    # until the key gets a record that fits
    await lake.send("t", 0, b'{"x": 3}', key=b"a")
    await pair.exported(wide, mode=LATEST_MODE)
    assert await pair.held() == ([(0, 2), (0, 8), (0, 9)], [(0, 4)])


@pytest.mark.parametrize("seeds", [range(2), pytest.param(range(2, 2 + SEEDS), marks=pytest.mark.soak)])
async def test_random_runs_that_are_killed_leave_the_latest_records_in_one_of_the_tables(
    lake: Lake, monkeypatch: pytest.MonkeyPatch, seeds: range
) -> None:
    deaths = Deaths(monkeypatch)
    for seed in seeds:
        print("seed", seed)
        chance = random.Random(seed)
        topic = f"t{seed}"
        pair = Pair(lake, PAIRS[2 if seed % 2 else 0], topic)
        await lake.client.create_topic(topic, partitions=1, configs=COMPACTED)
        latest: dict[bytes, tuple[int, bytes | None]] = {}
        end = 0
        for run in range(6):
            for _ in range(chance.randint(1, 8)):
                key, value = b"k%d" % chance.randrange(5), random_value(chance)
                await lake.send(topic, 0, value, key=key)
                latest[key] = end, value
                end += 1
            deaths.left = chance.randint(0, 12) if run < 5 else None
            tables = deaths.around(pair.table()), deaths.around(pair.letters())
            values = chance.choice([NARROW, WIDE])
            with suppress(Killed):
                await asyncio.to_thread(lake.run, topic, tables[0], values, None, tables[1], mode=LATEST_MODE)
            deaths.left = None
        rows, letters = await pair.held()
        wanted = {offset for offset, value in latest.values() if value is not None}
        found = [offset for _, offset in rows]
        dead = [offset for _, offset in letters]
        assert len(dead) == len(set(dead)) and not set(dead) & set(found), f"seed {seed}"
        assert sorted(found) == sorted(wanted - set(dead)), f"seed {seed}"
        broken = {offset for offset, value in latest.values() if value == b"{"}
        assert broken <= set(dead), f"seed {seed}"


@pytest.fixture
async def accounts(spark_topics: SparkTopics, tmp_path: Path) -> Accounts:
    return await Accounts(spark_topics, tmp_path, random.randrange(1 << 32)).make()


def given(*names: str) -> ValueFormat:
    text = json.dumps({"type": "object", "properties": {name: {} for name in names}})
    return ValueFormat(kind="json", schema_text=text)


@pytest.mark.parametrize("mode", ["log", "latest"])
@pytest.mark.parametrize("engine", ["session", pytest.param("plan", marks=pytest.mark.soak)])
async def test_spark_writes_the_dead_letters_that_this_process_writes_and_keeps_to_those_that_are_there(
    spark: SparkSession, accounts: Accounts, mode: str, engine: str
) -> None:
    def opened() -> Engine:
        return OnSpark(spark) if engine == "session" else OnCluster(Sessions(spark), poll_ms=10)

    # given what this process writes of values of which late ones do not fit
    narrow, wide = given("id", "text"), given("id", "text", "late")
    ask: dict[str, Any] = {"mode": mode, "slice_bytes": 700}
    plain = accounts.parquet("plain"), accounts.iceberg("plain_errors")
    report = await accounts.exported("accounts", plain[0], narrow, dead_letters=plain[1], **ask)
    letters = await accounts.rows(plain[1])
    assert report.dead_letters == len(letters) > 0 == report.errors
    # when Spark writes it, and dies between the two commits
    dying = accounts.parquet()

    def die(*_: Any, **__: Any) -> str:
        raise Killed

    dying.commit = die  # type: ignore[method-assign]
    with pytest.raises(Killed):
        await accounts.exported("accounts", dying, narrow, opened(), accounts.iceberg("errors"), **ask)
    assert await accounts.rows(accounts.iceberg("errors")) == letters
    # and then with a schema that late values fit
    again = accounts.parquet()
    report = await accounts.exported("accounts", again, wide, opened(), accounts.iceberg("errors"), **ask)
    # then the judgement stands
    assert report.dead_letters == 0 and await accounts.rows(accounts.iceberg("errors")) == letters
    rows = await accounts.rows(again)
    assert {row.pop("late") for row in rows} == {None}
    assert rows == await accounts.rows(plain[0])
