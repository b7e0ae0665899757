"""`siltstone sql` over topics in a Postgres and a directory: queries, forms of output, refusals, Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from siltstone.cli import main
from siltstone.cli.sql import output
from tests.fixtures.scan_logs import ScanLog, records_of
from tests.fixtures.served_topics import pins, serve
from tests.fixtures.waiting import wait_until
from wire.codecs import Codec

T0 = 1_700_000_000_000
BOOKINGS = [
    (b"b1", b'{"price": 10.5, "city": "Z\xc3\xbcrich"}'),
    (b"b2", b'{"price": 20, "city": null}'),
    (b"b1", b'{"price": 12.25, "city": "Basel"}'),
    (b"b2", None),
]


@pytest.fixture
def words(postgres_url: str, tmp_path: Path) -> Sequence[str]:
    """The options that name a system with the topics `bookings`, of two partitions, and `eu.raw`."""

    async def bookings(log: ScanLog) -> None:
        await log.write((0, records_of(*BOOKINGS, at_ms=T0)), (1, records_of((b"b3", b'{"price": 1}'), at_ms=T0)))

    async def raw(log: ScanLog) -> None:
        await log.write((0, records_of((None, b"\xff\x00"), (b"", b"not json, but, text"), at_ms=T0)))

    places = serve(postgres_url, tmp_path / "objects", bookings, name="bookings")
    serve(postgres_url, tmp_path / "objects", raw, name="eu.raw", partitions=1)
    return ["--metadata", places["metadata"], "--object-store", places["object_store"]]


def sql(words: Sequence[str], query: str, *options: str, given: str = "") -> Result:
    return CliRunner().invoke(main, ["sql", query, *words, *options], input=given)


def rows(words: Sequence[str], query: str, *options: str) -> list[dict[str, object]]:
    ran = sql(words, query, "--json", *options)
    assert ran.exit_code == 0, ran.output
    return [json.loads(line) for line in ran.stdout.splitlines()]


# ---- queries ---------------------------------------------------------------------------------------------------------


def test_a_query_finds_the_fields_of_json_in_a_table_for_people(words: Sequence[str], postgres_url: str) -> None:
    ran = sql(words, "select key, value->>'price' as price, offset from bookings where partition = 0 order by offset")
    lines = [line.rstrip() for line in ran.stdout.splitlines()]
    assert (ran.exit_code, lines) == (
        0,
        [
            "key  price  offset",
            "──────────────────",
            "b1   10.5        0",
            "b2   20          1",
            "b1   12.25       2",
            "b2   ∅           3",
        ],
    )
    assert pins(postgres_url) == 0


def test_the_latest_view_the_log_and_a_name_of_with_stand_in_one_query(words: Sequence[str]) -> None:
    assert rows(words, "select key, value->>'price' as price from latest.bookings order by key") == [
        {"key": "b1", "price": "12.25"},
        {"key": "b3", "price": "1"},
    ]
    assert rows(words, 'select count(*) as n from latest."eu.raw"') == [{"n": 1}]
    # then a name that WITH gives hides the topic, but not in its own query
    counted = "with bookings as (select key from bookings where offset < 2) select count(*) as n from bookings"
    assert rows(words, f"{counted} join latest.bookings l using (key)") == [{"n": 2}]
    upto = "with recursive bookings as (select 1 as n union all select n + 1 from bookings where n < 3)"
    assert rows(words, f"{upto} select max(n) as most from bookings") == [{"most": 3}]


def test_the_column_offset_needs_no_quotes_and_the_clause_stays_one(words: Sequence[str]) -> None:
    query = "select OFFSET, 'offset' as \"a offset\" from bookings b where partition = 0 and b.offset > 0 and offset<3"
    assert rows(words, f"{query} order by offset desc limit 5 offset 1") == [{"offset": 1, "a offset": "offset"}]


def test_every_form_shows_nulls_bytes_times_and_unusual_values(words: Sequence[str]) -> None:
    everything = 'select * from "eu.raw"'
    first = {"topic": "eu.raw", "partition": 0, "offset": 0, "timestamp": "2023-11-14T22:13:20.000Z"}
    assert rows(words, everything) == [
        {**first, "key": None, "value": "\\xFF\\x00", "headers": []},
        {**first, "offset": 1, "timestamp": "2023-11-14T22:13:20.001Z", "key": "", "value": "not json, but, text"}
        | {"headers": []},
    ]
    assert [row["value"] for row in rows(words, everything, "--bytes")] == ["/wA=", "bm90IGpzb24sIGJ1dCwgdGV4dA=="]
    assert sql(words, 'select key, value, headers, timestamp from "eu.raw"', "--csv").stdout == (
        "key,value,headers,timestamp\n"
        ",\\xFF\\x00,[],2023-11-14T22:13:20.000Z\n"
        '"","not json, but, text",[],2023-11-14T22:13:20.001Z\n'
    )
    assert sql(words, 'select \'a "b"\nc\' as "x,y", 1.5::decimal(9, 2) as d', "--csv").stdout == (
        '"x,y",d\n"a ""b""\nc",1.5\n'
    )
    unusual = "'nan'::double as a, {'b': [1, null]} as s, 2::decimal(9, 1) as d, date '2024-02-29' as day, 1 as a"
    assert rows(
        words, f"select {unusual}, 'x\x9b'::varchar as steering, timestamp '2024-01-01 00:00:00.000001' as t"
    ) == [
        {"a": "nan", "s": {"b": [1, None]}, "d": 2, "day": "2024-02-29", "a_2": 1, "steering": "x\x9b"}
        | {"t": "2024-01-01T00:00:00.000001"}
    ]
    assert "\x9b" not in sql(words, "select 'x\x9b' as steering", "--json").stdout


def test_times_are_those_of_utc_wherever_the_reader_sits(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    shown = rows(
        words, "select max(timestamp)::varchar as t from bookings where timestamp >= '2023-11-14 22:13:20.003'"
    )
    assert shown == [{"t": "2023-11-14 22:13:20.003+00"}]


def test_a_table_cuts_long_values_and_ends_after_some_rows_and_says_so(
    words: Sequence[str], postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(output, "TABLE_ROWS_MAX", 3)
    ran = sql(words, "select repeat('x', 1000) as long, i from range(4) r(i)")
    lines = ran.stdout.splitlines()
    assert len(lines) == 5 and "xxx…" in lines[2] and len(lines[2]) < 210
    assert "the first 3 rows; --json and --csv print all" in ran.stderr
    assert len(sql(words, "select * from bookings").stdout.splitlines()) == 5
    assert pins(postgres_url) == 0
    assert len(sql(words, "select i from range(5000) r(i)", "--csv").stdout.splitlines()) == 5_001


def test_long_values_are_printed_in_bounded_memory(postgres_url: str, tmp_path: Path) -> None:
    # given 900 values of a MiB
    long = bytes(range(128)) * (1 << 13)

    async def fill(log: ScanLog) -> None:
        for _ in range(300):
            await log.write((0, records_of(*[(b"k", long)] * 3, at_ms=T0, codec=Codec.ZSTD)))

    places = serve(postgres_url, tmp_path / "objects", fill, name="long", partitions=1)
    given = {**os.environ, "SILTSTONE_METADATA_URL": places["metadata"]}
    given["SILTSTONE_OBJECT_STORE_URL"] = places["object_store"]
    script = (
        "import re, sys\n"
        "from pathlib import Path\n"
        "from siltstone.cli import main\n"
        "main(['sql', *sys.argv[1:]], standalone_mode=False)\n"
        "peak = re.search(r'VmHWM:\\s+(\\d+) kB', Path('/proc/self/status').read_text())\n"
        "print(int(peak[1]) >> 10, file=sys.stderr)\n"
    )
    for form in (["select value from long"], ["select value from long limit 300", "--csv"]):
        ran = subprocess.run([sys.executable, "-c", script, *form], env=given, capture_output=True, check=False)
        assert ran.returncode == 0, ran.stderr
        assert len(ran.stdout.splitlines()) > 300
        assert int(ran.stderr) < 900, (form, ran.stderr)


@pytest.mark.parametrize("name", ["select", "latest", "range", "pg_class", "Main.x-1", "information_schema.tables"])
def test_a_topic_may_have_any_name(postgres_url: str, tmp_path: Path, name: str) -> None:
    async def fill(log: ScanLog) -> None:
        await log.write((0, records_of((b"a", b"1"), (b"a", b"2"), at_ms=T0)))

    places = serve(postgres_url, tmp_path / "objects", fill, name=name, partitions=1)
    words = ["--metadata", places["metadata"], "--object-store", places["object_store"]]
    query = f'select l.topic, count(*) as n from "{name}" join latest."{name}" l using (key) group by all'
    assert rows(words, query) == [{"topic": name, "n": 2}]


def test_a_query_may_come_by_stdin_and_needs_no_topic(words: Sequence[str]) -> None:
    assert sql(words, "-", "--json", given="select 1 as one;\n").stdout == '{"one": 1}\n'


def test_describe_and_explain_show_columns_and_what_is_handed_down(words: Sequence[str]) -> None:
    described = rows(words, "describe bookings")
    assert [(row["column_name"], row["column_type"]) for row in described][4:6] == [
        ("key", "VARCHAR"),
        ("value", "VARCHAR"),
    ]
    plan = sql(words, "explain analyze select key from bookings where partition = 1 and offset >= 0").stdout
    assert '"partition" = 1' in plan and '"offset" >= 0' in plan and "Projections: key" in plan


def test_files_are_read_only_if_that_is_asked_for(words: Sequence[str], tmp_path: Path) -> None:
    prices = tmp_path / "names.csv"
    prices.write_text("key,name\nb1,first\n")
    query = f"select distinct name from bookings join read_csv('{prices}') using (key)"

    refused = sql(words, query)
    assert (refused.exit_code, "remedy: if the query may read files" in refused.stderr) == (1, True), refused.output
    assert rows(words, query, "--files") == [{"name": "first"}]
    written = tmp_path / "written.csv"
    for writing in (f"copy (select 1) to '{written}'", f"explain analyze copy (select 1) to '{written}'"):
        assert sql(words, writing, "--files").exit_code == 1
    assert not written.exists()


# ---- refusals --------------------------------------------------------------------------------------------------------


REFUSED: Sequence[tuple[str, Sequence[str]]] = [
    ("select * from booking", ("there is no topic 'booking'", "did you mean 'bookings'?")),
    ("select * from 'names.csv'", ("there is no topic 'names.csv'", "give --files and write read_csv('names.csv')")),
    ("select * from odd.topic-1", ('near "-"', 'goes in double quotes: select * from "my-topic"')),
    ("select * from eu.raw", ("eu.raw is no table", 'quote it: "eu.raw"')),
    ('select * from a.b."c"', ("a.b.c is no table", '"a.b.c"')),
    ("insert into bookings values (1)", ("INSERT is refused", "allowed are SELECT")),
    ("explain analyze create table t as select 1", ("EXPLAIN is refused", "allowed are SELECT")),
    ("attach 'x.db'", ("ATTACH is refused",)),
    ("set threads = 1", ("SET is refused",)),
    ("pragma version", ("PRAGMA is refused",)),
    ("install httpfs", ("LOAD is refused",)),
    ("select 1; drop table bookings", ("2 statements",)),
    ("  -- nothing\n", ("the query is empty", "select count(*)")),
    ("pivot bookings on partition using count(*)", ("PIVOT must name its values", "ON partition IN")),
    ("select * from query_table('query')", ("query does not exist",)),
    ("with a as (select * from read_csv('/etc/hostname')) select * from a", ("disabled by configuration", "--files")),
    ("select getenv('HOME')", ("getenv does not exist",)),
    ("show tables", ("SHOW tells", "`siltstone topics list`")),
    ("selec 1", ('syntax error at or near "selec"', "LINE 1: selec 1", "\n        ^^^^^")),
    ("select nope from bookings", ('column "nope" not found', "LINE 1: select nope")),
    ("select value->>'a' from \"eu.raw\"", ("Malformed JSON", "where json_valid(value)")),
    ("select * from 'https://127.0.0.1:9/x.csv'", ("there is no topic 'https:",)),
    ("select * from read_text('/etc/hostname')", ("disabled by configuration", "--files")),
    ("select * from bookings join BOOKINGS using (key)", ("one name in SQL", "one of them at a time")),
    ("select offset offset from bookings b where b.offset limit", ("Parser Error",)),
]
"""Queries, and what must be told of them."""


def test_what_cannot_be_answered_is_an_error_with_a_remedy_and_leaves_no_pin(
    words: Sequence[str], postgres_url: str
) -> None:
    for query, told in REFUSED:
        ran = sql(words, query)
        assert (ran.exit_code, ran.stdout) == (1, ""), query
        assert ran.stderr.startswith("error: ") and "Traceback" not in ran.stderr
        assert [each for each in told if each not in ran.stderr] == [], (query, ran.stderr)
    assert pins(postgres_url) == 0


def test_a_lost_file_is_told_in_our_words(words: Sequence[str], tmp_path: Path) -> None:
    for file in (tmp_path / "objects" / "l0").rglob("*.silt"):
        file.unlink()
    ran = sql(words, "select count(value) from bookings where partition = 1")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert ran.stderr.startswith("error: topic 'bookings', partition 1, offset 0, file 'l0/")
    assert "remedy: `siltstone fsck`" in ran.stderr and "Python exception" not in ran.stderr


def test_a_place_that_nobody_named_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("SILTSTONE_DATA", "SILTSTONE_METADATA_URL", "SILTSTONE_OBJECT_STORE_URL"):
        monkeypatch.delenv(name, raising=False)
    ran = sql([], "select * from bookings")
    assert ran.exit_code == 1 and "says where the metadata is" in ran.stderr and "--data DIR" in ran.stderr
    ran = sql(["--metadata", "postgresql://127.0.0.1:9/x"], "select * from bookings")
    assert ran.exit_code == 1 and "says where the object store is" in ran.stderr


def test_two_forms_at_once_are_wrong_usage(words: Sequence[str]) -> None:
    ran = sql(words, "select 1", "--json", "--csv")
    assert (ran.exit_code, "give one of them" in ran.stderr) == (2, True)


def test_without_duckdb_the_remedy_names_what_to_install(words: Sequence[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    ran = sql(words, "select 1")
    assert (ran.exit_code, ran.stdout) == (1, "")
    assert "DuckDB, which is not installed" in ran.stderr and "'.[sql]'" in ran.stderr


# ---- Ctrl-C ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "query",
    [
        "select sum(sqrt(i)) from bookings, range(1000000000000) r(i)",
        "select a.key from bookings a, range(1000000000000) r(i) where sqrt(i) < 0",
        "select i from range(1000000000000) r(i), bookings",
    ],
)
def test_ctrl_c_ends_a_query(words: Sequence[str], postgres_url: str, query: str) -> None:
    environ = {**os.environ, "SILTSTONE_METADATA_URL": words[1], "SILTSTONE_OBJECT_STORE_URL": words[3]}
    command = [sys.executable, "-m", "siltstone", "sql", query, "--csv"]
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    try:
        # given a query that has begun
        wait_until(lambda: pins(postgres_url) == 1)
        # when Ctrl-C is pressed
        process.send_signal(signal.SIGINT)
        # then
        _, told = process.communicate(timeout=30)
    finally:
        process.kill()
        process.wait()
    assert (process.returncode, told) == (130, b"stopped before the end\n")
    assert pins(postgres_url) == 0


def test_ctrl_c_while_duckdb_asks_us_for_columns_is_no_error_of_the_query(
    words: Sequence[str], postgres_url: str
) -> None:
    environ = {**os.environ, "SILTSTONE_METADATA_URL": words[1], "SILTSTONE_OBJECT_STORE_URL": words[3]}
    script = (
        "import os, signal\n"
        "from siltstone.cli import main\n"
        "from siltstone.reading import dataset\n"
        "def schema(_):\n"
        "    os.kill(os.getpid(), signal.SIGINT)\n"
        "    return dataset.SCHEMA\n"
        "dataset.TopicDataset.schema = property(schema)\n"
        "main(['sql', 'select count(*) from bookings'])\n"
    )
    ran = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, timeout=60, check=False)
    assert (ran.returncode, ran.stderr) == (130, b"stopped before the end\n")
    assert pins(postgres_url) == 0
