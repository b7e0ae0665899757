"""`siltstone tables`: export a topic to a table of Parquet files, Iceberg or Delta; print how to open the catalog."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from runtime.clock import SystemClock
from runtime.errors import BadInputError, SiltstoneError
from runtime.text import size_text
from siltstone.cli.options.system_options import SystemOptions, Urls, resolved, system_options
from siltstone.cli.options.usage import WrongUsageError, as_usage
from siltstone.cli.tables.options import catalog_options, table_options
from siltstone.cli.tables.report import Rounds, print_report, report_json, shown_progress
from siltstone.cli.tables.request import DELTA, ICEBERG, TableRequest, ask_of, check, directory_url
from siltstone.embedded.run_file import read_run_file
from siltstone.terminal.live import quiet_interrupts
from siltstone.terminal.output import json_option, print_json
from siltstone.terminal.plain import say
from spark_jobs.environment import INSTALL_EXTRA, INSTALL_TABLES

if TYPE_CHECKING:
    from spark_jobs.tables.contract import Engine, Report, Table
    from spark_jobs.tables.engines import SparkEngine
    from spark_jobs.tables.iceberg.catalog import CatalogPlace
    from spark_jobs.tables.iceberg.table import IcebergTable
    from spark_jobs.tables.iceberg.upkeep.upkeep import Upkeep
    from spark_jobs.tables.layout.wanted import WantedLayout

WAREHOUSE = "tables"
"""Subdirectory of `--data` that holds the tables if no place is given."""
_EVERY = re.compile(r"(\d{1,6})(s|m|h)?")
_SECONDS = {"s": 1, "m": 60, "h": 3600, None: 1}


@click.group()
def tables() -> None:
    """Export topics as tables for other engines.

    \b
    Examples:
      siltstone tables export flights --to parquet:./flights --data ./data
      siltstone tables follow users --to iceberg:demo.users --mode latest
      siltstone tables catalog --data ./data > .pyiceberg.yaml
    """


@tables.command()
@table_options
@system_options
@json_option
def export(topic: str, given: SystemOptions, as_json: bool, **options: Any) -> None:
    """Write TOPIC to a table, continuing where the table ends.

    Each commit stores its offsets together with its rows, so every record is in the table exactly once, even if the
    command is run again after a crash. The columns are kafka_partition, kafka_offset, kafka_timestamp, kafka_key,
    kafka_value and kafka_headers; with --value json or avro also kafka_tombstone, kafka_error and a column for each
    field. A new field adds a new column. All engines and all kinds of tables have the same columns. Only committed
    records are written: the export waits at the first open transaction, and leaves out aborted ones.

    \b
    Examples:
      siltstone tables export flights --to parquet:./flights --value json \\
          --data ./siltstone-data
      siltstone tables export users --to iceberg:demo.users --mode latest \\
          --key text --catalog https://catalog.example/api \\
          --warehouse s3://lake/tables
      siltstone tables export orders --to parquet:s3://lake/orders --value avro \\
          --schema order.avsc
      siltstone tables export clicks --to iceberg:web.clicks --value json \\
          --partition-by 'day(kafka_timestamp)' --sort-by 'user, page desc'
    """
    with _running(topic, given, options) as running:
        print_report(running.once(), running.table.name, as_json=as_json)


@tables.command()
@table_options
@click.option("--every", default="60s", show_default=True, metavar="TIME", help="The interval, for example 10s or 5m.")
@system_options
@json_option
def follow(topic: str, every: str, given: SystemOptions, as_json: bool, **options: Any) -> None:
    """Keep a table up to date: an export of TOPIC every --every, until Ctrl-C.

    Each round does what `siltstone tables export` does. An Iceberg table is tended too: old snapshots expire, and files
    that nothing needs are removed. If a place is away, the next round tries again.

    \b
    Examples:
      siltstone tables follow flights --to iceberg:demo.flights --value json \\
          --every 30s
      siltstone tables follow users --to iceberg:demo.users --mode latest \\
          --key text --value json
    """
    seconds = _seconds(every)
    with quiet_interrupts(), _running(topic, given, options) as running:
        running.follow(seconds, every, as_json=as_json)


@contextmanager
def _running(topic: str, given: SystemOptions, options: Mapping[str, Any]) -> Generator[_Running]:
    request = TableRequest(topic=topic, given=given, **options)
    check(request)
    _require_extra()
    with resolved(given) as urls:
        running = _Running(request, urls)
        try:
            yield running
        finally:
            running.close()


@tables.command("catalog")
@catalog_options
@system_options
@json_option
def show_catalog(
    catalog: str, warehouse: str, properties: tuple[str, ...], given: SystemOptions, as_json: bool
) -> None:
    """Print how other programs open the Iceberg catalog: a .pyiceberg.yaml, or with --json its properties.

    The output contains the password of the Postgres. For your own catalog give the same --catalog as to the export.

    \b
    Examples:
      siltstone tables catalog --data ./siltstone-data > .pyiceberg.yaml
      siltstone tables catalog --json --warehouse s3://lake/tables \\
          --metadata postgresql://siltstone@db/siltstone
    """
    if given.data is not None and not catalog and read_run_file(given.data) is None:
        raise BadInputError(
            f"no `siltstone dev` runs on {given.data}, so its Postgres, which holds the catalog, does not run either",
            remedy=f"start it with `siltstone dev --data {given.data}`",
        )
    from spark_jobs.tables.iceberg.catalog import as_yaml, properties_of

    with as_usage(), resolved(given) as urls:
        found = properties_of(_catalog_place(given, urls, catalog, warehouse, properties))
    if as_json:
        print_json(dict(found))
    else:
        say(as_yaml(found), nl=False)


class _Running:
    """The parts of an export. Spark is started only when it is first needed."""

    def __init__(self, request: TableRequest, urls: Urls) -> None:
        from spark_jobs.tables.engines import InProcess
        from spark_jobs.tables.layout.wanted import parse_layout
        from spark_jobs.tables.source import ScanSource

        self._request = request
        self._ask = ask_of(request)
        layout = parse_layout(request.partition_by, request.sort_by)
        self.table = _table(request, urls, request.destination, layout)
        self._dead_letters = _table(request, urls, request.dead_letters) if request.dead_letters else None
        self._source = ScanSource(
            metadata_url=_required(urls.metadata, "--metadata"),
            object_store_url=_required(urls.object_store, "--object-store"),
            topic=request.topic,
        )
        self._in_process: Engine = InProcess()
        self._on_spark: SparkEngine | None = None
        self._upkeeps: Mapping[str, Upkeep] | None = None

    def once(self) -> Report:
        from spark_jobs.tables.export import export as run

        with shown_progress(f"{self._request.topic} -> {self.table.name}", SystemClock()) as show:
            return run(self._source, self.table, self._engine, self._ask, show, self._dead_letters)

    def follow(self, seconds: int, every: str, *, as_json: bool) -> None:
        """Export in rounds until KeyboardInterrupt. An error that may pass is printed; the next round tries again."""
        from spark_jobs.scan.contract import PinLostError

        never = threading.Event()
        rounds = Rounds(self._request.topic, self.table.name, every, SystemClock(), as_json=as_json)
        try:
            while True:
                try:
                    if not rounds.begun:
                        held = self.table.load()
                        rounds.began(None if held is None else held.offsets, self._request.begin)
                    report = self.once()
                except SiltstoneError as error:
                    # After a lost pin (this process was stopped for a while) the next round takes a new one.
                    if not error.retriable and not isinstance(error, PinLostError):
                        raise
                    rounds.failed(error)
                else:
                    rounds.ended(report, self._tended())
                    if as_json:
                        say(json.dumps(report_json(report, self.table.name)))
                never.wait(seconds)
        except KeyboardInterrupt:
            rounds.stopped()
            raise

    def _tended(self) -> str:
        """The upkeep of the Iceberg tables after a round, as a text; empty if there was nothing to do."""
        request = self._request
        if self._upkeeps is None:
            found = {
                "": (request.destination, self.table),
                "dead letters: ": (request.dead_letters, self._dead_letters),
            }
            ours = {what: table for what, (named, table) in found.items() if named.startswith(f"{ICEBERG}:")}
            self._upkeeps = _upkeeps(cast("Mapping[str, IcebergTable]", ours)) if ours else {}
        now_ms = SystemClock().wall_ms()
        told = {what: upkeep.tend(now_ms).text for what, upkeep in self._upkeeps.items()}
        return "; ".join(f"{what}{text}" for what, text in told.items() if text)

    def close(self) -> None:
        if self._on_spark is not None:
            self._on_spark.close()

    def _engine(self, size_bytes: int) -> Engine:
        from spark_jobs.tables.engines import needs_pyspark, spark_engine, where_text

        chosen, settings = self._request.engine, self._request.given.settings
        large = size_bytes >= settings.spark_merge_min_bytes
        if chosen == "auto" and large and needs_pyspark(settings) and find_spec("pyspark") is None:
            say(
                f"reading {size_text(size_bytes)} in this process; with Spark installed, all cores would read:"
                f" {INSTALL_EXTRA}",
                err=True,
            )
        elif chosen == "spark" or (chosen == "auto" and large):
            if self._on_spark is None:
                self._on_spark = spark_engine(settings)
                say(f"starting Spark {where_text(settings)}, for {size_text(size_bytes)}", err=True)
            return self._on_spark
        return self._in_process


def _upkeeps(tables: Mapping[str, IcebergTable]) -> Mapping[str, Upkeep]:
    from spark_jobs.tables.iceberg.upkeep.upkeep import Upkeep

    return {what: Upkeep(table) for what, table in tables.items()}


# ---- from options to parts ----------------------------------------------------------------------------------------


def _require_extra() -> None:
    """Check for the `tables` extra before anything is opened. Raises BadInputError."""
    for module in ("pyarrow", "pyiceberg"):
        if find_spec(module) is None:
            raise BadInputError(
                f"tables need {module}, which is not installed; nothing was written", remedy=INSTALL_TABLES
            )


def _seconds(text: str) -> int:
    found = _EVERY.fullmatch(text)
    if found is None or int(found[1]) == 0:
        raise WrongUsageError(f"--every {text!r} is not an interval", remedy="give, for example, 10s, 5m or 1h")
    return int(found[1]) * _SECONDS[found[2]]


def _table(request: TableRequest, urls: Urls, destination: str, layout: WantedLayout | None = None) -> Table:
    from spark_jobs.tables.file_systems import check_outside, parse_place

    kind, _, where = destination.partition(":")
    if kind != ICEBERG:
        url = directory_url(where)
        check_outside(parse_place(url, f"--to {kind}:"), urls.object_store)
        return _table_of_files(kind, url)
    from spark_jobs.tables.iceberg.catalog import open_catalog
    from spark_jobs.tables.iceberg.table import IcebergTable

    place = _catalog_place(request.given, urls, request.catalog, request.warehouse, request.properties)
    if "://" in place.warehouse:
        check_outside(parse_place(place.warehouse, "--warehouse"), urls.object_store)
    return IcebergTable(open_catalog(place), where, layout)


def _table_of_files(kind: str, url: str) -> Table:
    if kind == DELTA:
        from spark_jobs.tables.delta.table import DeltaTable

        return DeltaTable(url)
    from spark_jobs.tables.parquet_table import ParquetTable

    return ParquetTable(url)


def _catalog_place(
    given: SystemOptions, urls: Urls, catalog: str, warehouse: str, properties: tuple[str, ...]
) -> CatalogPlace:
    from spark_jobs.tables.file_systems import parse_place
    from spark_jobs.tables.iceberg.catalog import CatalogPlace

    where = _warehouse(given, catalog, warehouse)
    if "://" in where:
        with as_usage():
            parse_place(where, "--warehouse")
    return CatalogPlace(
        url=catalog or _required(urls.metadata, "--catalog"), warehouse=where, properties=_properties(properties)
    )


def _warehouse(given: SystemOptions, catalog: str, named: str) -> str:
    if named:
        return Path(named).resolve().as_uri() if named.startswith((".", "/")) else named
    if catalog and not ("://" in catalog and catalog.startswith(("postgres", "sqlite"))):
        return ""  # a REST catalog, Glue or pyiceberg's configuration says where tables go
    if given.data is not None:
        return (given.data.resolve() / WAREHOUSE).as_uri()
    raise WrongUsageError(
        "no option says where the files of the table go", remedy="give --warehouse URL, for example s3://lake/tables"
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
            "no option or setting says where the system is; nothing was written",
            remedy=f"give --data DIR of `siltstone dev`, or {option} URL",
        )
    return url
