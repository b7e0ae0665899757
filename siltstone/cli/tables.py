"""`siltstone tables export`: a topic as Parquet files or as an Iceberg table."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from siltstone.cli.live import quiet_interrupts
from siltstone.cli.output import console, json_option, plural, print_json, print_pairs, print_table, size_text
from siltstone.cli.places import Places, Urls, place_options, resolved
from siltstone.cli.usage import WrongUsageError, as_usage
from siltstone.clock import SystemClock
from siltstone.errors import BadInputError, SiltstoneError
from siltstone.offset_spec import Anchor, parse_offsets

if TYPE_CHECKING:
    from spark_jobs.tables.engines import SparkEngine
    from spark_jobs.tables.export import Ask, Engine, From, Report, Table

PARQUET, ICEBERG = "parquet", "iceberg"
WAREHOUSE = "tables"
"""Below a `--data` directory: where tables lie unless a place is given."""
INSTALL = "pip install 'siltstone[tables]'"
_EVERY = re.compile(r"(\d{1,6})(s|m|h)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, None: 1}


@click.group()
def tables() -> None:
    """Topics as tables for other engines.

    \b
    Examples:
      siltstone tables export flights --to parquet:./flights --data ./data
      siltstone tables export flights --to iceberg:demo.flights --follow
    """


@tables.command()
@click.argument("topic")
@click.option(
    "--to",
    "destination",
    required=True,
    metavar="KIND:PLACE",
    help="parquet:DIR, parquet:s3://BUCKET/PREFIX?endpoint=..., or iceberg:NAMESPACE.TABLE.",
)
@click.option("--catalog", default="", metavar="URL", help="Iceberg catalog (default: the metadata's Postgres).")
@click.option("--warehouse", default="", metavar="URL", help="Where new Iceberg tables go (default: DATA/tables).")
@click.option(
    "--catalog-property", "properties", multiple=True, metavar="NAME=VALUE", help="More for pyiceberg; repeatable."
)
@click.option("--value", type=click.Choice(["raw", "json", "avro"]), default="raw", show_default=True)
@click.option(
    "--schema",
    "schema_file",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    metavar="FILE",
    help="Columns of the value: a JSON Schema, or an Avro schema.",
)
@click.option("--framing", type=click.Choice(["none", "confluent"]), default="none", help="Before each Avro value.")
@click.option(
    "--on-error",
    type=click.Choice(["column", "fail"]),
    default="column",
    show_default=True,
    help="A value that does not fit: keep it in kafka_value with kafka_error, or end.",
)
@click.option(
    "--mode",
    type=click.Choice(["log", "latest"]),
    default="log",
    show_default=True,
    help="Every record, added; or the latest of each key, written anew.",
)
@click.option("--from", "begin", default="start", show_default=True, metavar="OFFSET", help="start, end, N or @TIME.")
@click.option("--engine", type=click.Choice(["auto", "process", "spark"]), default="auto", show_default=True)
@click.option("--follow", is_flag=True, help="Go on, every --every, until Ctrl-C.")
@click.option("--every", default="60s", show_default=True, metavar="TIME", help="With --follow, for example 10s, 5m.")
@click.option("--recreated", is_flag=True, help="Go on with a topic that was deleted and created anew.")
@click.option("--skip-lost", is_flag=True, help="Leave out records that are gone or damaged, with a warning.")
@place_options
@json_option
def export(topic: str, every: str, follow: bool, places: Places, as_json: bool, **options: Any) -> None:
    """Write TOPIC to a table, from where the table ends.

    A table remembers the offsets it holds, in the same commit as its rows: run it again, or after a crash, and each
    record is there once. Columns are kafka_partition, kafka_offset, kafka_timestamp, kafka_key, kafka_value,
    kafka_headers; with --value json or avro also a column for each field, and kafka_tombstone, kafka_error. A new field
    becomes a new column.

    \b
    Examples:
      siltstone tables export flights --to parquet:./flights --value json \\
          --data ./siltstone-data
      siltstone tables export flights --to iceberg:demo.flights --value json \\
          --follow --every 30s
      siltstone tables export users --to iceberg:demo.users --mode latest \\
          --catalog https://catalog.example/api --warehouse s3://lake/tables
      siltstone tables export orders --to parquet:s3://lake/orders --value avro \\
          --schema order.avsc
    """
    seconds = _seconds(every)
    wanted = _Wanted(topic=topic, places=places, **options)
    _require_extra()
    with resolved(places) as urls, quiet_interrupts() if follow else _plainly():
        running = _Running(wanted, urls)
        try:
            if follow:
                running.follow(seconds, as_json=as_json)
            else:
                _print(running.once(), running.table.name, as_json=as_json)
        finally:
            running.close()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Wanted:
    topic: str
    places: Places
    destination: str
    catalog: str
    warehouse: str
    properties: tuple[str, ...]
    value: str
    schema_file: Path | None
    framing: str
    on_error: str
    mode: str
    begin: str
    engine: str
    recreated: bool
    skip_lost: bool


class _Running:
    """The parts of an export; those of Spark begin when they are first needed."""

    def __init__(self, wanted: _Wanted, urls: Urls) -> None:
        from spark_jobs.tables.engines import InProcess
        from spark_jobs.tables.source import ScanSource

        self._wanted = wanted
        self._ask = _ask(wanted)
        self.table = _table(wanted, urls)
        self._source = ScanSource(
            metadata_url=_required(urls.metadata, "--metadata"),
            object_store_url=_required(urls.object_store, "--object-store"),
            topic=wanted.topic,
        )
        self._in_process: Engine = InProcess()
        self._on_spark: SparkEngine | None = None

    def once(self) -> Report:
        from spark_jobs.tables.export import export as run

        with _bar(f"{self._wanted.topic} -> {self.table.name}") as show:
            return run(self._source, self.table, self._engine, self._ask, show)

    def follow(self, seconds: int, *, as_json: bool) -> None:
        """Ends by KeyboardInterrupt. What may go away is told, and tried again at the next time."""
        from spark_jobs.scan.contract import PinLostError

        stopped = threading.Event()
        while True:
            try:
                report = self.once()
            except SiltstoneError as error:
                if not error.retriable and not isinstance(error, PinLostError):
                    raise
                click.echo(f"not this time: {error}", err=True)
            else:
                if as_json:
                    click.echo(json.dumps(_as_json(report, self.table.name)))
                elif report.commits:
                    click.echo(_line(report))
            stopped.wait(seconds)

    def close(self) -> None:
        if self._on_spark is not None:
            self._on_spark.close()

    def _engine(self, size_bytes: int) -> Engine:
        chosen = self._wanted.engine
        large = size_bytes >= self._wanted.places.settings.spark_merge_min_bytes
        if chosen == "auto" and large and find_spec("pyspark") is None:
            click.echo(
                f"{size_text(size_bytes)} are read in this process; Spark would take them to all cores: "
                "pip install 'siltstone[spark]'",
                err=True,
            )
        elif chosen == "spark" or (chosen == "auto" and large):
            if self._on_spark is None:
                from spark_jobs.tables.engines import spark_engine

                self._on_spark = spark_engine()
            return self._on_spark
        return self._in_process


# ---- from words to parts ------------------------------------------------------------------------------------------


def _require_extra() -> None:
    """Before anything is opened. Raises BadInputError."""
    for module in ("pyarrow", "pyiceberg"):
        if find_spec(module) is None:
            raise BadInputError(f"tables need {module}, which is not installed", remedy=INSTALL)


def _seconds(text: str) -> int:
    found = _EVERY.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise WrongUsageError(f"--every {text!r} is no time", remedy="for example 10s, 5m, 1h")
    return int(found[1]) * _SECONDS[found[2]]


def _ask(wanted: _Wanted) -> Ask:
    from spark_jobs.tables.convert import ValueFormat
    from spark_jobs.tables.export import Ask

    with as_usage():
        values = ValueFormat(
            kind=wanted.value,
            schema_text="" if wanted.schema_file is None else wanted.schema_file.read_text(encoding="utf-8"),
            framing="" if wanted.framing == "none" else wanted.framing,
            on_error=wanted.on_error,
        )
        return Ask(
            topic=wanted.topic,
            mode=wanted.mode,
            values=values,
            begin=_begin(wanted.begin),
            recreated=wanted.recreated,
            skip_lost=wanted.skip_lost,
        )


def _begin(text: str) -> From:
    from spark_jobs.scan.contract import AtTimestamp, Edge

    span = parse_offsets(text, SystemClock().wall_ms())
    first = span.first
    if span.until is None:
        if first.anchor is Anchor.TIME:
            return AtTimestamp(first.number)
        if first.anchor is Anchor.OFFSET:
            return first.number
        if not first.number:
            return Edge.EARLIEST if first.anchor is Anchor.START else Edge.LATEST
    raise BadInputError(f"--from {text!r} is no place to begin at", remedy="start, end, N or @TIME")


def _table(wanted: _Wanted, urls: Urls) -> Table:
    from spark_jobs.tables.file_systems import check_outside
    from storage.urls import parse_store_url

    kind, _, where = wanted.destination.partition(":")
    if kind not in (PARQUET, ICEBERG) or not where:
        raise WrongUsageError(
            f"--to {wanted.destination!r} names no table", remedy="parquet:DIR, parquet:URL or iceberg:NAMESPACE.TABLE"
        )
    if kind == PARQUET:
        if wanted.catalog or wanted.warehouse or wanted.properties:
            raise WrongUsageError("Parquet files are in no catalog", remedy="give --catalog with --to iceberg:...")
        from spark_jobs.tables.parquet_table import ParquetTable

        url = where if "://" in where else Path(where).resolve().as_uri()
        check_outside(parse_store_url(url), urls.object_store)
        return ParquetTable(url)
    from spark_jobs.tables.catalog import CatalogPlace, open_catalog
    from spark_jobs.tables.iceberg_table import IcebergTable

    warehouse = _warehouse(wanted)
    if "://" in warehouse:
        check_outside(parse_store_url(warehouse), urls.object_store)
    place = CatalogPlace(
        url=wanted.catalog or _required(urls.metadata, "--catalog"),
        warehouse=warehouse,
        properties=_properties(wanted.properties),
    )
    return IcebergTable(open_catalog(place), where)


def _warehouse(wanted: _Wanted) -> str:
    if wanted.warehouse:
        named = wanted.warehouse
        return Path(named).resolve().as_uri() if named.startswith((".", "/")) else named
    if wanted.places.data is not None:
        return (wanted.places.data.resolve() / WAREHOUSE).as_uri()
    if wanted.catalog and not wanted.catalog.startswith(("postgres", "sqlite")):
        return ""  # such a catalog knows its own
    raise WrongUsageError(
        "nothing says where the table's files go", remedy="give --warehouse URL, for example s3://lake/tables"
    )


def _properties(assignments: tuple[str, ...]) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for assignment in assignments:
        name, equals, value = assignment.partition("=")
        if not equals:
            raise WrongUsageError(f"--catalog-property {assignment!r} has no '='", remedy="write NAME=VALUE")
        found[name.strip()] = value.strip()
    return found


def _required(url: str, option: str) -> str:
    if not url:
        raise BadInputError(
            "nothing says where the system is", remedy=f"give --data DIR of `siltstone dev`, or {option} URL"
        )
    return url


@contextmanager
def _plainly() -> Generator[None]:
    yield


# ---- what is shown ------------------------------------------------------------------------------------------------


@contextmanager
def _bar(text: str) -> Generator[Callable[[int, int], None]]:
    target = console(stderr=True)
    columns = [SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn()]
    with Progress(
        *columns, TimeElapsedColumn(), console=target, transient=True, disable=not target.is_terminal
    ) as progress:
        bar = progress.add_task(text, total=None)
        yield lambda done, total: progress.update(bar, completed=done, total=total)


def _as_json(report: Report, table: str) -> Mapping[str, Any]:
    return {
        "table": table,
        "commits": list(report.commits),
        "rows": report.rows,
        "errors": report.errors,
        "files": report.files,
        "bytes": report.size_bytes,
        "fenced": report.fenced,
        "added_columns": list(report.added_columns),
        "partitions": {
            str(partition): {"from": start, "to": end} for partition, (start, end) in (report.offsets or {}).items()
        },
    }


def _line(report: Report) -> str:
    wrong = f", {plural(report.errors, 'error')}" if report.errors else ""
    return f"{plural(report.rows, 'row')} in {plural(report.files, 'file')}, {size_text(report.size_bytes)}{wrong}"


def _print(report: Report, table: str, *, as_json: bool) -> None:
    if as_json:
        print_json(_as_json(report, table))
        return
    if not report.commits:
        click.echo(f"{table} is up to date")
        return
    pairs = {"written": _line(report), "commits": ", ".join(report.commits)}
    if report.added_columns:
        pairs["new columns"] = ", ".join(report.added_columns)
    print_pairs(pairs, title=table)
    rows = [
        [str(partition), f"{start:,}", f"{end:,}"] for partition, (start, end) in sorted((report.offsets or {}).items())
    ]
    if rows:
        print_table(["partition", "from offset", "up to"], rows, right=["partition", "from offset", "up to"])
