"""Topics exported to Delta tables, read back by Delta's own library."""

from __future__ import annotations

import asyncio
import json
import random
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa
import pytest

from spark_jobs.tables.delta.table import DeltaTable
from spark_jobs.tables.errors import BadTableError, CommitUnknownError, StaleWriterError, WrongTableError
from spark_jobs.tables.parquet_table import ParquetTable
from spark_jobs.tables.progress import LATEST_MODE
from tests.fixtures.lake import Lake
from tests.fixtures.s3 import BucketUrl
from tests.integration.spark.dead_letters.test_dead_letters import NARROW, WIDE, Deaths, Killed, Pair, random_value
from tests.integration.spark.test_wider_columns import NARROW as NARROW_AVRO
from tests.integration.spark.test_wider_columns import WIDE as WIDE_AVRO
from tests.integration.spark.test_wider_columns import values_of

pytestmark = pytest.mark.timeout(300)


def opened(table: DeltaTable) -> Any:
    return deltalake.DeltaTable(table.url)


async def test_rows_are_the_records_and_a_second_run_adds_what_came_since(lake: Lake) -> None:
    # given records in two partitions
    await lake.client.create_topic("t", partitions=2)
    await lake.send_json("t", 0, {"id": 1, "at": {"x": 1.5}, "mixed": 1}, {"id": 2, "mixed": "two"})
    await lake.send_json("t", 1, {"id": 3})
    report = await lake.exported("t", lake.delta())
    assert (report.rows, report.files, report.errors) == (3, 2, 0)
    # when more come, with fields that are new, inside of others too
    await lake.send_json("t", 0, {"id": 4, "at": {"y": True}, "tags": ["a"]})
    report = await lake.exported("t", lake.delta())
    assert (report.rows, report.added_columns) == (1, ("tags",))
    # then they are as in a table of Parquet files
    rows = await lake.rows(lake.delta())
    await lake.exported("t", lake.parquet())
    plain = await lake.rows(lake.parquet())
    assert [{name: row[name] for name in plain[0]} for row in rows] == plain
    assert rows[2]["at"] == {"x": None, "y": True} and rows[1]["mixed"] == '"two"'
    # and a third finds nothing to do
    assert (await lake.exported("t", lake.delta())).commits == ()
    # and readers leave out files by the bounds of their offsets
    found = await asyncio.to_thread(opened(lake.delta()).get_add_actions, flatten=True)
    bounds = pa.table(found).select(["num_records", "min.kafka_offset", "max.kafka_offset"]).to_pylist()
    assert sorted(tuple(each.values()) for each in bounds) == [(1, 0, 0), (1, 2, 2), (2, 0, 1)]


async def test_the_latest_view_is_written_again_in_one_commit(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1, configs={"cleanup.policy": "compact"})
    for key, value in ((b"a", {"v": 1}), (b"b", {"v": 2}), (b"a", {"v": 3})):
        await lake.send("t", 0, json.dumps(value).encode(), key=key)
    await lake.exported("t", lake.delta(), mode=LATEST_MODE)
    await lake.send("t", 0, None, key=b"a")
    await lake.send("t", 0, b'{"v": 4, "w": 1}', key=b"b")
    await lake.exported("t", lake.delta(), mode=LATEST_MODE)
    assert [(row["v"], row["w"]) for row in await lake.rows(lake.delta())] == [(4, 1)]
    # then each version is a whole view: the first, the one with another column, the new one
    table = await asyncio.to_thread(opened, lake.delta())
    counts: list[int] = []
    for version in range(table.version() + 1):
        table.load_as_version(version)
        counts.append((await asyncio.to_thread(table.to_pyarrow_table)).num_rows)
    assert counts == [2, 2, 1]
    assert (await lake.exported("t", lake.delta(), mode=LATEST_MODE)).commits == ()


async def test_a_checkpoint_and_a_lost_log_leave_the_progress_or_a_refusal(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    await lake.exported("t", lake.delta())
    table = await asyncio.to_thread(opened, lake.delta())
    await asyncio.to_thread(table.create_checkpoint)
    await lake.send_json("t", 0, {"id": 2})
    assert (await lake.exported("t", lake.delta())).rows == 1
    # when somebody restores the first version, then its offsets are valid again
    await asyncio.to_thread(opened(lake.delta()).restore, 0)
    assert [row["id"] for row in await lake.rows(lake.delta())] == [1]
    assert (await lake.exported("t", lake.delta())).rows == 1
    assert [row["id"] for row in await lake.rows(lake.delta())] == [1, 2]
    # and when the log has only commits of others left, the export does not begin from the start
    table = await asyncio.to_thread(opened, lake.delta())
    await asyncio.to_thread(table.optimize.compact)
    table = await asyncio.to_thread(opened, lake.delta())
    await asyncio.to_thread(table.create_checkpoint)
    for entry in (lake.place / "delta" / "t" / "_delta_log").glob("*.json"):
        if int(entry.stem) < table.version():
            entry.unlink()
    with pytest.raises(WrongTableError, match="up to which offset") as refused:
        await lake.exported("t", lake.delta())
    assert "delta.logRetentionDuration" in refused.value.remedy


async def test_a_table_restored_to_a_time_has_the_offsets_of_that_time(lake: Lake) -> None:
    # given a table that somebody merged between two runs
    await lake.client.create_topic("t", partitions=1)
    for number in (1, 2):
        await lake.send_json("t", 0, {"id": number})
        await lake.exported("t", lake.delta())
    await asyncio.to_thread(opened(lake.delta()).optimize.compact)
    [merge] = opened(lake.delta()).history(1)
    await lake.send_json("t", 0, {"id": 3})
    await lake.exported("t", lake.delta())
    # when somebody restores it to the time of the merge, of which the log then tells no version
    at = datetime.fromtimestamp(merge["timestamp"] / 1000, UTC)
    await asyncio.to_thread(opened(lake.delta()).restore, at)
    assert [row["id"] for row in await lake.rows(lake.delta())] == [1, 2]
    # then the next run goes on from there
    assert (await lake.exported("t", lake.delta())).rows == 1
    assert [row["id"] for row in await lake.rows(lake.delta())] == [1, 2, 3]


async def test_tables_that_cannot_be_written_are_refused_in_words(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    # a table of somebody else
    theirs = lake.delta("theirs")
    await asyncio.to_thread(deltalake.write_deltalake, theirs.url.removeprefix("file://"), pa.table({"id": [1]}))
    with pytest.raises(WrongTableError, match="no commit that its log still has says"):
        await lake.exported("t", theirs)
    # a feature that asks more of writers
    await lake.exported("t", lake.delta())
    table = await asyncio.to_thread(opened, lake.delta())
    await asyncio.to_thread(table.alter.add_constraint, {"small": "kafka_offset < 100"})
    with pytest.raises(WrongTableError, match="does not write: "):
        await lake.exported("t", lake.delta())
    # partitions, which files of ours would not name, so that nobody could read the table any more
    await lake.exported("t", lake.delta("parted"))
    table = await asyncio.to_thread(opened, lake.delta("parted"))
    rows = await asyncio.to_thread(table.to_pyarrow_table)
    by = {"mode": "overwrite", "schema_mode": "overwrite", "partition_by": ["kafka_partition"]}
    await asyncio.to_thread(deltalake.write_deltalake, table, rows, **by)
    with pytest.raises(WrongTableError, match="was partitioned by kafka_partition"):
        await lake.exported("t", lake.delta("parted"))
    # or the columns by which rows to erase are found
    for lost in ("kafka_partition", "kafka_offset", "kafka_key"):
        await lake.exported("t", lake.delta(lost))
        table = await asyncio.to_thread(opened, lake.delta(lost))
        left = rows.drop_columns([lost])
        await asyncio.to_thread(deltalake.write_deltalake, table, left, mode="overwrite", schema_mode="overwrite")
        with pytest.raises(WrongTableError, match=f"has lost the column {lost}"):
            await lake.exported("t", lake.delta(lost))
    # types that Delta has not
    times = {
        "type": "record",
        "name": "R",
        "fields": [{"name": "t", "type": {"type": "int", "logicalType": "time-millis"}}],
    }
    with pytest.raises(BadTableError, match="a Delta table cannot have these columns") as bad:
        await lake.exported("t", lake.delta("times"), values_of(times))
    assert "iceberg:" in bad.value.remedy
    # and columns that grow
    await lake.exported("t", lake.delta("wide"), values_of(NARROW_AVRO))
    await lake.send_json("t", 0, {"id": 1})
    with pytest.raises(WrongTableError, match="has the column id as int32, and a Delta table cannot have it as int64"):
        await lake.exported("t", lake.delta("wide"), values_of(WIDE_AVRO))


async def test_a_directory_with_a_table_of_another_kind_is_refused(lake: Lake) -> None:
    # given a table of each kind
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    delta, files = lake.delta(), lake.parquet()
    for table in (delta, files):
        await lake.exported("t", table)
    # when the other kind is exported to its directory, then that is refused, and the table stays whole
    await lake.send_json("t", 0, {"id": 2})
    for other, says in ((ParquetTable(delta.url), "is a Delta table"), (DeltaTable(files.url), "of Parquet files")):
        with pytest.raises(WrongTableError, match=says):
            await lake.exported("t", other)
    for table in (lake.delta(), lake.parquet()):
        await lake.exported("t", table)
        assert await lake.offsets(table) == [(0, 0), (0, 1)]


async def test_places_of_any_name_have_a_table_or_are_refused(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    for name in ("a b", "ü😀", "a=b&c", "x'y\"z", "a+b", "%", "a:b"):
        for _ in range(2):
            await lake.exported("t", lake.delta(name))
        assert await lake.offsets(lake.delta(name)) == [(0, 0)], name
    for name in ("a%20b", "a#b", "a?b"):
        with pytest.raises(BadTableError, match="cannot be the place of a Delta table"):
            lake.delta(name)


# ---- exactly once --------------------------------------------------------------------------------------------------


async def test_random_runs_that_are_killed_have_every_record_once(lake: Lake, monkeypatch: pytest.MonkeyPatch) -> None:
    deaths = Deaths(monkeypatch)
    for seed in range(4):
        print("seed", seed)
        chance = random.Random(seed)
        pair = Pair(lake, ("delta", "delta"), f"t{seed}")
        await lake.client.create_topic(pair.topic, partitions=1)
        end = 0
        for run in range(6):
            rows = [random_value(chance) for _ in range(chance.randint(1, 6))]
            await lake.send(pair.topic, 0, *rows)
            end += len(rows)
            deaths.left = chance.randint(0, 9) if run < 5 else None
            tables = deaths.around(pair.table()), deaths.around(pair.letters())
            values = chance.choice([NARROW, WIDE])
            try:
                await asyncio.to_thread(lake.run, pair.topic, tables[0], values, None, tables[1])
            except Killed:
                assert run < 5
            deaths.left = None
        held, letters = await pair.held()
        assert sorted([*held, *letters]) == [(0, number) for number in range(end)], f"seed {seed}"


async def test_a_commit_whose_answer_is_lost_counts_and_one_that_did_not_happen_does_not(
    lake: Lake, monkeypatch: pytest.MonkeyPatch
) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    await lake.exported("t", lake.delta())
    real = deltalake.DeltaTable.create_write_transaction

    def happened(*arguments: Any, **options: Any) -> None:
        real(*arguments, **options)
        raise OSError("the connection broke")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", happened)
    await lake.send_json("t", 0, {"id": 2})
    assert (await lake.exported("t", lake.delta())).rows == 1

    def failed(*_: Any, **__: Any) -> None:
        raise OSError("the connection broke")

    monkeypatch.setattr(deltalake.DeltaTable, "create_write_transaction", failed)
    await lake.send_json("t", 0, {"id": 3})
    with pytest.raises(CommitUnknownError, match=r"whether the commit to .* happened: the connection broke"):
        await lake.exported("t", lake.delta())
    monkeypatch.undo()
    assert (await lake.exported("t", lake.delta())).rows == 1
    assert [row["id"] for row in await lake.rows(lake.delta())] == [1, 2, 3]


LOOP = """
import random, sys, time
import pyarrow as pa
from spark_jobs.tables.delta.table import DeltaTable
from spark_jobs.tables.errors import StaleWriterError
from spark_jobs.tables.file_writer import FileWriter
from spark_jobs.tables.progress import Progress

url, end = sys.argv[1], int(sys.argv[2])
begun = Progress(topic="t", topic_id="1", mode="log", values="raw", offsets={0: 0}, starts={0: 0})
won = fenced = 0
base = pa.schema([pa.field("kafka_partition", pa.int32(), False), pa.field("kafka_offset", pa.int64(), False)])
base = base.append(pa.field("kafka_key", pa.binary()))
while True:
    table = DeltaTable(url)
    held = table.load() or begun
    start = held.offsets[0]
    if start >= end:
        break
    names = ["kafka_partition", "kafka_offset", "kafka_key", f"f{start // 20}"]  # now and then a new column
    ours = base.append(pa.field(names[3], pa.int64()))
    have = table.columns or ours
    columns = pa.schema([*have, *(each for each in ours if each.name not in have.names)])
    rows = [dict(zip(names, (0, start + number, b"k", 1))) for number in range(random.randint(1, 5))]
    stop = start + len(rows)
    writer = FileWriter(place=table.place, key_indexes=None, schema=ours, partition=0, start=start, stem=table.stem)
    writer.write(pa.RecordBatch.from_pylist(rows, schema=ours), None, stop)
    writer.close(stop)
    try:
        table.commit(writer.written, columns, held.moved({0: stop}), replaces=False)
        won += 1
    except StaleWriterError:
        table.place.remove([each.name for each in writer.written])
        fenced += 1
print(won, fenced)
"""


@pytest.mark.parametrize(("where", "end"), [("here", 400), ("s3", 50)])
@pytest.mark.soak
def test_processes_that_race_commit_every_record_once(where: str, end: int, tmp_path: Path, s3_url: BucketUrl) -> None:
    url = s3_url(prefix="delta") if where == "s3" else tmp_path.as_uri()
    complained = tmp_path / "complained"
    with complained.open("w") as errors:
        racing = [
            subprocess.Popen(
                [sys.executable, "-c", LOOP, url, str(end)], stdout=subprocess.PIPE, stderr=errors, text=True
            )
            for _ in range(3)
        ]
    try:
        told = [list(map(int, each.communicate(timeout=240)[0].split())) for each in racing]
    finally:
        for each in racing:
            each.kill()
            each.communicate()
    assert all(told), complained.read_text()[-3000:]
    print("won and fenced:", told)
    table = DeltaTable(url)
    held = table.load()
    assert held is not None
    found = sorted(table.held_rows(0, 10 * end)["kafka_offset"].to_pylist())
    assert found == list(range(held.offsets[0])) and len(found) >= end
    assert sum(fenced for _, fenced in told) > 5


async def test_of_two_commits_on_s3_one_is_refused(lake: Lake, s3_url: BucketUrl) -> None:
    url = s3_url(prefix="delta")
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    await lake.exported("t", DeltaTable(url))
    await lake.send_json("t", 0, {"id": 2})
    slow = DeltaTable(url)
    commit, refused = slow.commit, list[BaseException]()

    def late(*arguments: Any, **options: Any) -> str:
        if not refused:
            lake.run("t", DeltaTable(url))
        try:
            return commit(*arguments, **options)
        except StaleWriterError as error:
            refused.append(error)
            raise

    slow.commit = late  # type: ignore[method-assign]
    report = await lake.exported("t", slow)
    assert len(refused) == 1 and (report.fenced, report.rows) == (1, 0)
    read = DeltaTable(url)
    await asyncio.to_thread(read.load)
    rows = await asyncio.to_thread(read.held_rows, 0, 99)
    assert sorted(rows["kafka_offset"].to_pylist()) == [0, 1]
