"""`siltstone tables export` as a user types it: on S3, on Spark, over several runs, and its answers to bad input."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.compute as compute
import pytest
from click.testing import CliRunner, Result

from metadata.urls import open_metadata
from siltstone.cli import main
from spark_jobs.tables.engines import InProcess
from spark_jobs.tables.iceberg.catalog import CatalogPlace, open_catalog
from spark_jobs.tables.iceberg.table import IcebergTable
from spark_jobs.tables.parquet_table import ParquetTable, live_files, open_dataset
from storage.urls import open_store
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.lake import JSON, Lake
from tests.fixtures.s3 import BucketUrl

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

DEADLINE_S = 60


def words(lake: Lake, *more: str) -> list[str]:
    return ["tables", "export", "t", *more, "--metadata", lake.metadata_url, "--object-store", lake.objects_url]


async def typed(lake: Lake, *more: str) -> Result:
    return await asyncio.to_thread(CliRunner().invoke, main, words(lake, *more))


async def test_the_command_writes_and_says_what_it_wrote(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=2)
    await lake.send_json("t", 1, {"id": 1}, {"id": 2})
    place = f"parquet:{lake.place / 'out'}"
    ran = await typed(lake, "--to", place, "--value", "json")
    assert ran.exit_code == 0, ran.output
    assert "2 rows in 1 file" in ran.stdout and "new columns" in ran.stdout
    told = json.loads((await typed(lake, "--to", place, "--value", "json", "--json")).stdout)
    assert (told["rows"], told["commits"]) == (0, [])
    warehouse = ["--warehouse", (lake.place / "warehouse").as_uri()]
    ran = await typed(lake, "--to", "iceberg:lake.t", *warehouse, "--value", "json", "--json")
    assert json.loads(ran.stdout)["partitions"] == {"1": {"from": 0, "to": 2}}
    assert [row["id"] for row in await lake.rows(lake.iceberg())] == [1, 2]


async def test_the_command_says_how_many_dead_letters_it_wrote(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b'{"id": 1}', b"{", b"[]", b"x")
    places = ["--to", f"parquet:{lake.place / 'out'}", "--dead-letters", "iceberg:lake.t_errors"]
    places += ["--warehouse", (lake.place / "warehouse").as_uri()]
    ran = await typed(lake, *places, "--value", "json")
    assert ran.exit_code == 0, ran.output
    assert "1 row in 1 file" in ran.stdout and ", 3 dead letters" in ran.stdout
    letters = await lake.rows(lake.iceberg("t_errors"))
    assert [row["kafka_value"] for row in letters] == [b"{", b"[]", b"x"]
    told = json.loads((await typed(lake, *places, "--value", "json", "--json")).stdout)
    assert (told["rows"], told["dead_letters"]) == (0, 0)


async def test_an_empty_schema_is_no_schema(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    schema = lake.place / "empty.json"
    schema.write_text("\n")
    ran = await typed(lake, "--to", f"parquet:{lake.place / 'out'}", "--value", "json", "--schema", str(schema))
    assert ran.exit_code == 2 and f"the schema {schema} is empty" in ran.stderr


async def test_partitions_and_an_order_are_for_the_main_table_alone(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b'{"id": 1}', b"{")
    options = ["--to", "iceberg:lake.t", "--dead-letters", "iceberg:lake.t_errors", "--value", "json"]
    options += ["--partition-by", "id", "--sort-by", "id", "--warehouse", (lake.place / "warehouse").as_uri()]
    ran = await typed(lake, *options)
    assert ran.exit_code == 0, ran.output
    assert [row["kafka_value"] for row in await lake.rows(lake.iceberg("t_errors"))] == [b"{"]
    assert (await typed(lake, *options)).stdout == "lake.t is up to date\n"


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--to", "parquet"], "remedy: write parquet:DIR"),
        (["--to", "iceberg:demo"], "remedy: write iceberg:NAMESPACE.TABLE, for example iceberg:demo.demo"),
        (["--to", "iceberg:demo.", "--warehouse", "/x"], "--to 'iceberg:demo.' names no table"),
        (["--to", "parquet:gs://lake/t"], "--to parquet: has the scheme 'gs'"),
        (["--to", "parquet:s3://lake/t?endpoint=host"], "--to parquet: has the endpoint 'host'"),
        (["--to", "parquet:memory://"], "--to parquet: is memory://"),
        (["--to", f"parquet:{__file__}"], "test_tables_cli.py is a file"),
        (["--to", "iceberg:a.b", "--warehouse", "gs://x"], "--warehouse has the scheme 'gs'"),
        (["--to", "iceberg:a.b", "--warehouse", "/x", "--catalog", "ftp://x"], "--catalog has the scheme 'ftp'"),
        (
            ["--to", "iceberg:a.b", "--warehouse", "/x"],
            "remedy: start that Postgres, or correct the host and port in --catalog",
        ),
        (["--to", "iceberg:lake.t"], "remedy: give --warehouse"),
        (["--to", "parquet:x", "--value", "avro"], "remedy: give --schema FILE.avsc"),
        (["--to", "parquet:x", "--from", "1:2"], "remedy: give start, end, N or @TIME"),
        (["--to", "parquet:x", "--from", "end", "--mode", "latest"], "--from is for --mode log"),
        (["--to", "parquet:x", "--catalog", "sqlite:///x"], "remedy: give --catalog, --warehouse"),
        (["--to", "parquet:x", "--dead-letters", "y", "--value", "json"], "--dead-letters 'y' names no table"),
        (
            ["--to", "parquet:x", "--dead-letters", "parquet:y", "--value", "json", "--on-error", "fail"],
            "--dead-letters and --on-error fail say two things",
        ),
        (["--to", "parquet:x", "--dead-letters", "parquet:y"], "raw values and keys always fit"),
        (
            ["--to", "iceberg:a.b", "--dead-letters", "iceberg:a.b", "--value", "json"],
            "--dead-letters names the table of --to",
        ),
        (
            ["--to", "parquet:x", "--dead-letters", "parquet:./x/errors", "--value", "json"],
            "lie inside of each other",
        ),
        (["--to", "iceberg:t", "--warehouse", "/x", "--catalog", "sqlite://"], "remedy: write iceberg:NAMESPACE.TABLE"),
    ],
)
def test_what_cannot_be_is_said_with_a_remedy(options: list[str], says: str, tmp_path: Path) -> None:
    places = ["--metadata", "postgresql://nobody@127.0.0.1:1/x", "--object-store", tmp_path.as_uri()]
    ran = CliRunner().invoke(main, ["tables", "export", "t", *options, *places])
    assert ran.exit_code != 0
    assert says in ran.stderr and "Traceback" not in ran.output
    assert "object.store.url" not in ran.stderr and "remedy: " in ran.stderr


def test_an_interval_that_is_none_is_refused_with_a_remedy() -> None:
    ran = CliRunner().invoke(main, ["tables", "follow", "t", "--to", "parquet:x", "--every", "soon"])
    assert ran.exit_code != 0
    assert "remedy: give, for example, 10s" in ran.stderr


async def test_a_schema_may_begin_with_a_byte_order_mark_and_one_that_is_no_text_is_refused(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1})
    schema, place = lake.place / "schema.json", f"parquet:{lake.place / 'out'}"
    schema.write_bytes(b"\xff\xfe\x00")
    ran = await typed(lake, "--to", place, "--value", "json", "--schema", str(schema))
    assert ran.exit_code == 1 and "error: the schema is not JSON" in ran.stderr and "bug" not in ran.stderr
    schema.write_bytes(b"\xef\xbb\xbf" + b'{"properties": {"id": {"type": "integer"}}}')
    ran = await typed(lake, "--to", place, "--value", "json", "--schema", str(schema))
    assert ran.exit_code == 0 and "1 row in 1 file" in ran.stdout, ran.output


async def test_a_place_that_cannot_be_written_is_called_the_tables(lake: Lake) -> None:
    # given a directory below a path that is now a file
    await lake.client.create_topic("t", partitions=1)
    (lake.place / "file").touch()
    ran = await typed(lake, "--to", f"parquet:{lake.place}/file/t")
    assert ran.exit_code == 1 and "file/t cannot hold a table" in ran.stderr and "--to parquet:" in ran.stderr
    assert "object" not in ran.stderr


async def test_the_printed_catalog_opens_the_table(lake: Lake) -> None:
    # given a table in the default catalog
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1}, {"id": 2})
    warehouse = ["--warehouse", (lake.place / "warehouse").as_uri()]
    assert (await typed(lake, "--to", "iceberg:lake.t", *warehouse, "--value", "json")).exit_code == 0
    # when its catalog's properties are printed into a directory
    asked = ["tables", "catalog", *warehouse, "--metadata", lake.metadata_url]
    printed = await asyncio.to_thread(CliRunner().invoke, main, asked)
    (lake.place / ".pyiceberg.yaml").write_text(printed.stdout, encoding="utf-8")
    # then a program there finds it by name, and has the table's rows
    code = (
        "from pyiceberg.catalog import load_catalog\n"
        "print(load_catalog('siltstone').load_table('lake.t').scan().to_arrow()['id'].to_pylist())"
    )
    ran = await asyncio.to_thread(_python, code, lake.place)
    assert (ran.returncode, ran.stdout) == (0, "[1, 2]\n"), ran.stderr
    # and the properties are the same ones
    properties = json.loads((await asyncio.to_thread(CliRunner().invoke, main, [*asked, "--json"])).stdout)
    assert properties["uri"].startswith("postgresql+psycopg2://") and properties["uri"] in printed.stdout


def _python(code: str, place: Path) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "PYICEBERG_HOME": str(place)}
    return subprocess.run(
        [sys.executable, "-c", code], cwd=place, env=environ, capture_output=True, text=True, timeout=60
    )


def test_the_catalog_of_a_stack_that_does_not_run_is_not_printed(tmp_path: Path) -> None:
    ran = CliRunner().invoke(main, ["tables", "catalog", "--data", str(tmp_path)])
    assert ran.exit_code == 1 and "no `siltstone dev` runs on" in ran.stderr


def test_a_table_among_the_records_is_refused(tmp_path: Path) -> None:
    places = ["--metadata", "postgresql://nobody@127.0.0.1:1/x", "--object-store", tmp_path.as_uri()]
    ran = CliRunner().invoke(main, ["tables", "export", "t", "--to", f"parquet:{tmp_path}/l1/mine", *places])
    assert "lies in the object store of the records" in ran.stderr


def test_a_table_in_the_second_store_is_refused_too(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    places = ["--metadata", "postgresql://nobody@127.0.0.1:1/x", "--object-store", first.as_uri()]
    places += ["--set", f"produce.store.url={second.as_uri()}"]
    ran = CliRunner().invoke(main, ["tables", "export", "t", "--to", f"parquet:{second}/mine", *places])
    assert f"lies in the object store of the records ({second.as_uri()})" in ran.stderr


def test_without_the_extra_it_says_what_to_install(tmp_path: Path) -> None:
    # given a Python that finds neither pyarrow nor pyiceberg
    code = (
        "import sys\n"
        "class Nothing:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.split('.')[0] in ('pyarrow', 'pyiceberg'):\n"
        "            raise ModuleNotFoundError(f'No module named {name!r}', name=name)\n"
        "import importlib.util, siltstone.cli\n"
        "real = importlib.util.find_spec\n"
        "importlib.util.find_spec = lambda name, *a: None if name in ('pyarrow', 'pyiceberg') else real(name, *a)\n"
        "sys.meta_path.insert(0, Nothing())\n"
        "siltstone.cli.main(['tables', 'export', 't', '--to', 'parquet:x'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, timeout=60)
    assert ran.returncode == 1
    assert "pip install -c constraints.txt '.[tables]'" in ran.stderr and "Traceback" not in ran.stderr


async def test_follow_adds_what_comes_between_its_ticks_and_ends_quietly(lake: Lake) -> None:
    # given an export that follows
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 0})
    table = ParquetTable((lake.place / "followed").as_uri())
    said, complained = lake.place / "said", lake.place / "complained"
    with _following(lake, "--to", f"parquet:{table.url}", said=said, complained=complained) as process:
        # when records come, tick by tick, each after the last one was seen in the table
        for number in range(1, 4):
            await _until(lambda rows=number: _count(table) == rows)
            await lake.send_json("t", 0, {"id": number})
        await _until(
            lambda: _count(table) == 4 and "offsets 0:4" in said.read_text()
        )  # the message appears only after the commit
        # then each is there once, by a commit of its own tick; and when asked to end it ends without a warning
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, timeout=DEADLINE_S)
    output, errors = said.read_text(), complained.read_text()
    # messages that a busy machine may cause: that the export waits for the metadata, and how far a slow tick is
    trouble = [line for line in errors.splitlines() if not re.search(r"is asked again|: \d+ of \d+ slices?$", line)]
    assert (process.returncode, trouble) == (0, [])
    first, *rounds, last = output.splitlines()
    assert first == f"following t -> {table.url} every 1s, from the start; Ctrl-C stops"
    assert [line.split(" ", 1)[1].split(",")[0] for line in rounds if "nothing new" not in line] == 4 * [
        "1 row in 1 file"
    ]
    assert rounds[-1].endswith("at offsets 0:4")
    assert last.startswith("stopped after ") and "4 rows in 4 files" in last
    assert last.endswith("; the table ends at offsets 0:4")
    assert [row["id"] for row in await lake.rows(table)] == [0, 1, 2, 3]


async def test_follow_tends_its_iceberg_table_and_says_so(lake: Lake) -> None:
    # given a table that keeps no old snapshots, and an export that follows
    await lake.client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 0})
    await lake.exported("t", lake.iceberg())
    raw = lake.catalog().load_table("lake.t")
    raw.transaction().set_properties({"history.expire.max-snapshot-age-ms": "1"}).commit_transaction()
    said = lake.place / "said"
    place = ["--to", "iceberg:lake.t", "--warehouse", (lake.place / "warehouse").as_uri()]
    with _following(lake, *place, said=said, complained=lake.place / "complained") as process:
        # when records come between the rounds
        for number in (1, 2):
            await lake.send_json("t", 0, {"id": number})
            await _until(lambda end=number + 1: f"offsets 0:{end};" in said.read_text())
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, timeout=DEADLINE_S)
    # then each round that made a snapshot expired the one before it, and says so
    told = [line.split("; ", 1)[1] for line in said.read_text().splitlines() if "; expired" in line]
    assert told == ["expired 1 snapshot, removed 1 old file"] * 2, said.read_text()
    assert len(lake.catalog().load_table("lake.t").metadata.snapshots) == 1
    assert [row["id"] for row in await lake.rows(lake.iceberg())] == [0, 1, 2]


async def test_follow_tends_the_table_of_dead_letters_too(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b"{")
    await lake.exported("t", lake.parquet(), dead_letters=lake.iceberg("errors"))
    raw = lake.catalog().load_table("lake.errors")
    raw.transaction().set_properties({"history.expire.max-snapshot-age-ms": "1"}).commit_transaction()
    said = lake.place / "said"
    place = ["--to", f"parquet:{lake.place / 'parquet' / 't'}", "--dead-letters", "iceberg:lake.errors"]
    place += ["--warehouse", (lake.place / "warehouse").as_uri()]
    with _following(lake, *place, said=said, complained=lake.place / "complained") as process:
        await lake.send("t", 0, b"x")
        await _until(lambda: "offsets 0:2;" in said.read_text())
        process.send_signal(signal.SIGTERM)
        await asyncio.to_thread(process.wait, timeout=DEADLINE_S)
    assert "1 dead letter, at offsets 0:2; dead letters: expired 1 snapshot" in said.read_text(), said.read_text()
    assert len(lake.catalog().load_table("lake.errors").metadata.snapshots) == 1


@contextmanager
def _following(lake: Lake, *more: str, said: Path, complained: Path) -> Generator[subprocess.Popen[bytes]]:
    """An export that follows, once a second, in a process of its own."""
    command = [sys.executable, "-m", "siltstone", *words(lake, *more, "--value", "json")]
    command = [word for word in command if word not in ("--metadata", lake.metadata_url)]
    command[command.index("export")] = "follow"
    environ = {**os.environ, "SILTSTONE_METADATA_URL": lake.metadata_url}  # it holds a password
    with said.open("w") as out, complained.open("w") as err:
        process = subprocess.Popen([*command, "--every", "1s"], stdout=out, stderr=err, env=environ)
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def _count(table: ParquetTable) -> int:
    return open_dataset(table.url).count_rows() if os.path.isdir(table.url.removeprefix("file://")) else 0


async def _until(holds: Callable[[], bool]) -> None:
    from spark_jobs.tables.errors import TableError

    deadline = time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline:
        try:
            if await asyncio.to_thread(holds):
                return
        except TableError:
            pass  # no commit yet
        await asyncio.sleep(0.05)
    raise AssertionError("it did not come")


async def test_records_and_tables_on_s3(
    postgres_url: str, start_agent: StartAgent, dial: Dial, s3_url: BucketUrl, tmp_path: Path
) -> None:
    # given records in a bucket
    objects, tables = s3_url(), s3_url(prefix="tables")
    metadata, store = open_metadata(postgres_url), open_store(objects)
    await metadata.open()
    await store.open()  # type: ignore[attr-defined]
    running = await start_agent(store=store, metadata=metadata)
    client = await dial.kafka(running.address)
    lake = Lake(client, postgres_url, objects, tmp_path)
    await client.create_topic("t", partitions=1)
    await lake.send_json("t", 0, {"id": 1}, {"id": 2})
    # when they are exported to another bucket, both ways
    parquet = ParquetTable(tables)
    catalog = await asyncio.to_thread(open_catalog, CatalogPlace(url=postgres_url, warehouse=tables))
    iceberg = IcebergTable(catalog, "lake.t")
    await lake.exported("t", parquet)
    await lake.exported("t", iceberg)
    await lake.send_json("t", 0, {"id": 3})
    await lake.exported("t", ParquetTable(tables))
    await lake.exported("t", iceberg)
    # then both are read back from there
    read = await asyncio.to_thread(lambda: open_dataset(tables).to_table())
    assert sorted(compute.unique(read["id"]).to_pylist()) == [1, 2, 3] and read.num_rows == 3
    read = await asyncio.to_thread(lambda: catalog.load_table("lake.t").scan().to_arrow())
    assert sorted(read["id"].to_pylist()) == [1, 2, 3]
    assert len(live_files(tables)) == 2
    await running.agent.stop()
    await store.close()
    await metadata.close()


async def test_on_spark_the_tasks_write_and_the_driver_commits_once(lake: Lake, spark: SparkSession) -> None:
    from spark_jobs.tables.on_spark import OnSpark

    await lake.client.create_topic("t", partitions=2)
    await lake.send_json("t", 0, {"id": 0, "early": True})
    await lake.send_json("t", 1, {"id": 1})
    table = lake.iceberg("s")
    report = await lake.exported("t", table, JSON, OnSpark(spark))
    assert (report.rows, report.files, len(report.commits), report.errors) == (2, 2, 1, 0)
    assert [row["id"] for row in await lake.rows(table)] == [0, 1]


async def test_both_engines_and_both_kinds_of_tables_have_the_same_columns_types_and_rows(
    lake: Lake, spark: SparkSession
) -> None:
    from spark_jobs.tables.on_spark import OnSpark

    await lake.client.create_topic("t", partitions=2)
    await lake.send_json("t", 0, {"id": 1, "at": {"x": 1.5}}, {"id": "two"})
    await lake.send("t", 1, b"no json", None, key=b"\xff")
    values = replace(JSON, keys="text")
    # when each engine writes each kind of table
    found: list[tuple[object, object]] = []
    for number, engine in enumerate((InProcess(), OnSpark(spark))):
        for table in (lake.parquet(f"t{number}"), lake.iceberg(f"t{number}")):
            report = await lake.exported("t", table, values, engine)
            # Iceberg names the inside of a list in its own way, and reads strings and bytes as large ones of Arrow.
            names = [
                (field.name, str(field.type).replace("large_", "").replace("<element:", "<item:"))
                for field in table.columns
            ]
            found.append((names, (report.rows, report.errors, await lake.rows(table))))
    # then nobody can tell which
    for each in found[1:]:
        assert each == found[0]


async def test_a_delta_table_and_its_dead_letters(lake: Lake) -> None:
    await lake.client.create_topic("t", partitions=1)
    await lake.send("t", 0, b'{"id": 1}', b"{")
    places = ["--to", f"delta:{lake.place / 'delta' / 't'}", "--dead-letters", f"delta:{lake.place / 'delta' / 'e'}"]
    ran = await typed(lake, *places, "--value", "json")
    assert ran.exit_code == 0 and "1 row in 1 file" in ran.stdout and "1 dead letter" in ran.stdout, ran.output
    assert [row["id"] for row in await lake.rows(lake.delta())] == [1]
    assert [row["kafka_value"] for row in await lake.rows(lake.delta("e"))] == [b"{"]
