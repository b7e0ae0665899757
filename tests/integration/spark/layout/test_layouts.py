"""Tables with partitions and a sort order: made by the command, or found as another program made them."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Sequence
from datetime import UTC, datetime
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from pyiceberg.transforms import BucketTransform, DayTransform, IdentityTransform, TruncateTransform

from siltstone.cli import main
from spark_jobs.tables.cluster.engine import OnCluster
from spark_jobs.tables.contract import Engine
from spark_jobs.tables.engines import InProcess
from spark_jobs.tables.errors import BadTableError, WrongTableError
from spark_jobs.tables.iceberg.live_files import live_files
from spark_jobs.tables.layout.wanted import WantedLayout, parse_layout
from spark_jobs.tables.progress import LATEST_MODE, LOG_MODE
from tests.fixtures.lake import JSON, Lake
from tests.integration.spark.exports.test_stored_exports import Killing
from tests.unit.spark_jobs.tables.iceberg.delta_table import check, parquet
from wire.records import NewRecord, build_batch

DAY_MS = 86_400_000
WANTED = parse_layout(["day(kafka_timestamp)", "bucket(4, user)"], ["user,price desc"])


async def send(lake: Lake, partition: int, rows: Sequence[Any], day: int = 20_000) -> None:
    records = [NewRecord(day * DAY_MS + at, b"k", json.dumps(row).encode()) for at, row in enumerate(rows)]
    await lake.client.produce("t", partition, build_batch(records))


def loaded(lake: Lake, name: str = "t") -> Any:
    return lake.catalog().load_table(f"lake.{name}")


def contents(live: Any) -> list[dict[str, Any]]:
    return parquet.read_table(Path(live.path.removeprefix("file://"))).to_pylist()


def bucket(user: str | None) -> int | None:
    found: Any = BucketTransform(4).transform(loaded_type("string"))
    return found(user)


def loaded_type(name: str) -> Any:
    from spark_jobs.tables.layout.sections import primitive

    return primitive(name)


STORED = OnCluster(Killing(0), poll_ms=10)


@pytest.mark.parametrize("engine", [InProcess(), STORED], ids=["in process", "stored plan"])
async def test_files_are_cut_by_the_spec_and_sorted(lake: Lake, engine: Engine) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    await lake.client.create_topic("t", partitions=2)
    sent = 0
    for day in (20_000, 20_001, 20_000):
        for partition in range(2):
            rows = [
                {"user": chance.choice([None, "ann", "bob", "cid", "dan"]), "price": chance.randrange(90)}
                for _ in range(30)
            ]
            await send(lake, partition, rows, day)
            sent += len(rows)
    await lake.exported("t", lake.iceberg(wanted=WANTED), JSON, engine, slice_bytes=1)
    table = await asyncio.to_thread(loaded, lake)
    check(table)
    assert [field.name for field in table.spec().fields] == ["kafka_timestamp_day", "user_bucket_4"]
    order_id = table.sort_order().order_id
    found = 0
    for live in live_files(table):
        rows = contents(live)
        assert live.file.sort_order_id == order_id == 1
        [place] = {(row["kafka_timestamp"].toordinal() - 719_163, bucket(row["user"])) for row in rows}
        assert place == (live.file.partition[0], live.file.partition[1])
        assert len({row["kafka_partition"] for row in rows}) == 1
        keys = [(row["user"] is not None, row["user"] or "", -row["price"]) for row in rows]
        assert all(one <= other for one, other in pairwise(keys))
        found += len(rows)
    assert found == sent
    # readers that look only where the rows can be find all of them
    whole = table.scan().to_arrow().to_pylist()
    for condition, kept in (
        ("user = 'bob'", lambda row: row["user"] == "bob"),
        ("user is null", lambda row: row["user"] is None),
        (
            "kafka_timestamp >= '2024-10-05T00:00:00+00:00'",
            lambda row: row["kafka_timestamp"] >= datetime(2024, 10, 5, tzinfo=UTC),
        ),
    ):
        rows = table.scan(row_filter=condition).to_arrow().to_pylist()
        wanted = [row for row in whole if kept(row)]
        assert len(rows) == len(wanted) > 0 and all(map(kept, rows))
        planned = list(table.scan(row_filter=condition).plan_files())
        assert len(planned) < len(live_files(table))


@pytest.mark.parametrize("mode", [LOG_MODE, LATEST_MODE])
async def test_records_of_any_time_are_in_a_table(lake: Lake, mode: str) -> None:
    # given a topic that takes records of any time, as of producers that count in microseconds
    await lake.client.create_topic("t", partitions=1, configs={"message.timestamp.after.max.ms": str(2**63 - 1)})
    times_ms = (1_700_000_000_000, 1_700_000_000_000_000, 253_402_300_800_000, 9_000_000_000_000_000, 2**63 - 1, -1)
    layouts = ("", "year", "month", "day", "hour", "bucket(3, {})", "{}")
    rules = [rule.format("kafka_timestamp") if "{" in rule else f"{rule}(kafka_timestamp)" for rule in layouts[1:]]
    for each in range(2):
        for number, at_ms in enumerate(times_ms):
            batch = build_batch([NewRecord(at_ms, b"%d" % (number + each), b'{"a": 1}')])
            await lake.client.produce("t", 0, batch)
        # when tables are cut by it, and one is not
        for number, wanted in enumerate(([], *([rule] for rule in rules))):
            table = lake.iceberg(f"t{number}", parse_layout(wanted, []))
            await lake.exported("t", table, JSON, mode=mode)
            # then each has the records
            rows = await asyncio.to_thread(loaded(lake, f"t{number}").scan().to_arrow)
            kept = range(6 * each + 6) if mode == LOG_MODE else [0, *range(6, 12)] if each else range(6)
            assert sorted(rows.column("kafka_offset").to_pylist()) == list(kept), wanted


async def test_a_table_keeps_the_layout_that_another_program_gave_it(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    row = {"user": "ann", "at": {"city": "Ulm", "zip": 89_073}, "n": 1}
    await send(lake, 0, [row])
    await lake.exported("t", lake.iceberg(), JSON)
    # given a spec by a field within a struct, a field that is taken out again, and a sort order
    table = await asyncio.to_thread(loaded, lake)
    with table.update_spec() as update:
        update.add_field("at.city", IdentityTransform(), "city")
        update.add_field("n", TruncateTransform(10), "tens")
    with table.update_sort_order() as update:
        update.desc("n", IdentityTransform())
    await send(lake, 0, [{**row, "n": n, "at": at} for n, at in ((3, None), (14, row["at"]), (15, row["at"]))])
    await lake.exported("t", lake.iceberg(), JSON)
    table = await asyncio.to_thread(loaded, lake)
    with table.update_spec() as update:
        update.remove_field("city")
        update.add_field("kafka_timestamp", DayTransform(), "on_day")
    with table.update_sort_order() as update:
        update.asc("n", TruncateTransform(10))  # this order is not followed
    await send(lake, 0, [{**row, "n": 25}, {**row, "n": 21}])
    await lake.exported("t", lake.iceberg(), JSON)
    # then each file has the layout of its time
    table = await asyncio.to_thread(loaded, lake)
    check(table)
    held = {
        tuple(row["n"] for row in contents(live)): (
            {field.name: live.file.partition[at] for at, field in enumerate(table.specs()[live.file.spec_id].fields)},
            live.file.sort_order_id,
        )
        for live in live_files(table)
    }
    assert held == {
        (1,): ({}, None),
        (3,): ({"city": None, "tens": 0}, 1),
        (15, 14): ({"city": "Ulm", "tens": 10}, 1),
        (25, 21): ({"tens": 20, "on_day": 20_000}, None),
    }
    assert sorted(table.scan(row_filter="n >= 14").to_arrow()["n"].to_pylist()) == [14, 15, 21, 25]
    # and an option that says something else is refused
    for wanted, says in (
        (parse_layout(["day(kafka_timestamp)"], []), r"partitioned by truncate\(10, n\), day\(kafka_timestamp\)"),
        (parse_layout([], ["n"]), r"sorted by truncate\[10\]\(n\), not by n"),
    ):
        with pytest.raises(WrongTableError, match=says) as refused:
            await lake.exported("t", lake.iceberg(wanted=wanted), JSON)
        assert "leave out --" in refused.value.remedy
    same = parse_layout(["truncate(10, n)", "day(kafka_timestamp)"], [])
    assert (await lake.exported("t", lake.iceberg(wanted=same), JSON)).commits == ()


async def test_a_column_that_would_have_the_name_of_a_partition_field_gets_none(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    by_day = parse_layout(["day(kafka_timestamp)"], [])
    # given a sample with that name, the field has another
    await send(lake, 0, [{"n": 1, "KAFKA_timestamp_day": 7}])
    await lake.exported("t", lake.iceberg("early", by_day), JSON)
    table = await asyncio.to_thread(loaded, lake, "early")
    assert [field.name for field in table.spec().fields] == ["kafka_timestamp_day_"]
    assert table.scan().to_arrow()["KAFKA_timestamp_day"].to_pylist() == [7]
    # and one that comes later stays in kafka_value
    await lake.client.create_topic("u", partitions=1)
    await lake.send_json("u", 0, {"n": 1})
    await lake.exported("u", lake.iceberg("late", by_day), JSON)
    await lake.send_json("u", 0, {"n": 2, "kafka_timestamp_day": 7, "more": 1})
    await lake.exported("u", lake.iceberg("late"), JSON)
    rows = await lake.rows(lake.iceberg("late"))
    assert [(row["n"], row["more"]) for row in rows] == [(1, None), (2, 1)]
    assert json.loads(rows[1]["kafka_value"])["kafka_timestamp_day"] == 7
    assert "kafka_timestamp_day" in rows[1]["kafka_error"]


@pytest.mark.parametrize(
    ("wanted", "says"),
    [
        (parse_layout(["users"], []), "no column 'users'; there are kafka_partition, .*, n, user "),
        (parse_layout([], ["place"]), "no column 'place'"),
        (parse_layout(["day(user)"], []), "type string, to which that does not apply"),
        (parse_layout(["bucket(2, at)"], []), "type struct<.*, to which that does not apply"),
        (parse_layout([], ["at"]), "has no order"),
    ],
)
async def test_a_layout_that_the_columns_do_not_allow_is_refused(lake: Lake, wanted: WantedLayout, says: str) -> None:
    await lake.client.create_topic("t", partitions=1)
    row = {"user": "ann", "n": 1}
    await send(lake, 0, [row if "users" in says else {**row, "at": {"x": 1}}])
    with pytest.raises(BadTableError, match=says) as refused:
        await lake.exported("t", lake.iceberg(wanted=wanted), JSON)
    assert refused.value.remedy
    # and nothing was made
    assert lake.iceberg().load() is None and not await asyncio.to_thread(lake.catalog().table_exists, "lake.t")


async def test_partitions_of_the_older_format_are_refused(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await send(lake, 0, [{"n": 1}])
    await lake.exported("t", lake.iceberg(), JSON)
    columns = loaded(lake).schema()
    catalog: Any = lake.catalog()
    old = catalog.create_table("lake.old", columns, properties={"format-version": "1"})
    with old.update_spec() as update:
        update.add_field("n", IdentityTransform(), "n")
    with pytest.raises(WrongTableError, match="format version 1"):
        await lake.exported("t", lake.iceberg("old"), JSON)


async def typed(lake: Lake, *more: str) -> Result:
    words = ["tables", "export", "t", "--metadata", lake.metadata_url, "--object-store", lake.objects_url]
    return await asyncio.to_thread(CliRunner().invoke, main, [*words, *more])


async def test_the_command_makes_a_table_with_a_layout(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await send(lake, 0, [{"user": "bob"}, {"user": "ann"}])
    warehouse = ["--to", "iceberg:lake.t", "--warehouse", (lake.place / "warehouse").as_uri(), "--value", "json"]
    layout = ["--partition-by", "hour(kafka_timestamp)", "--sort-by", "user"]
    ran = await typed(lake, *warehouse, *layout)
    assert ran.exit_code == 0, ran.output
    [live] = live_files(await asyncio.to_thread(loaded, lake))
    assert [row["user"] for row in contents(live)] == ["ann", "bob"]
    assert live.file.partition[0] == 20_000 * 24
    assert (await typed(lake, *warehouse, *layout)).exit_code == 0
    ran = await typed(lake, *warehouse, "--partition-by", "user")
    assert ran.exit_code == 1 and "is partitioned by hour(kafka_timestamp), not by user" in ran.stderr
    for options, says in (
        (["--to", "parquet:x", "--partition-by", "user"], "only Iceberg tables are partitioned and sorted"),
        ([*warehouse, "--mode", "latest", "--sort-by", "user"], "--sort-by is for --mode log"),
        ([*warehouse, "--partition-by", "weeks(user)"], "remedy: write COLUMN, year|month|day|hour(COLUMN)"),
    ):
        ran = await typed(lake, *options)
        assert ran.exit_code == 2 and says in ran.stderr, ran.output
