"""The words of `siltstone tables export` and `follow`, checked before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from runtime.clock import SystemClock
from runtime.errors import BadInputError
from siltstone.cli.options.system_options import SystemOptions
from siltstone.cli.options.usage import WrongUsageError, as_usage
from siltstone.kafka.offset_spec import Anchor, parse_offsets

if TYPE_CHECKING:
    from spark_jobs.tables.contract import Ask, From

PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"
FORMS = "parquet:DIR, parquet:s3://BUCKET/PREFIX?endpoint=..., iceberg:NAMESPACE.TABLE, or delta: like parquet:"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRequest:
    topic: str
    given: SystemOptions
    destination: str
    catalog: str
    warehouse: str
    properties: tuple[str, ...]
    value: str
    keys: str
    schema_file: Path | None
    framing: str
    on_error: str | None
    dead_letters: str
    mode: str
    begin: str
    engine: str
    recreated: bool
    skip_lost: bool
    partition_by: tuple[str, ...]
    sort_by: tuple[str, ...]


def ask_of(request: TableRequest) -> Ask:
    from spark_jobs.tables.columns.convert import ValueFormat
    from spark_jobs.tables.contract import Ask

    with as_usage():
        values = ValueFormat(
            kind=request.value,
            schema_text=_schema_text(request.schema_file),
            framing="" if request.framing == "none" else request.framing,
            on_error=request.on_error or "column",
            keys=request.keys,
        )
        return Ask(
            topic=request.topic,
            mode=request.mode,
            values=values,
            begin=_begin(request.begin),
            recreated=request.recreated,
            skip_lost=request.skip_lost,
        )


def _schema_text(file: Path | None) -> str:
    """Raises WrongUsageError."""
    if file is None:
        return ""
    # A file that is no text is refused in the words of its format.
    text = file.read_text("utf-8-sig", "replace")
    if not text.strip():
        raise WrongUsageError(f"the schema {file} is empty", remedy="leave --schema out for columns as in the values")
    return text


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
    raise BadInputError(f"--from {text!r} is not a place to begin at", remedy="give start, end, N or @TIME")


def _check_begin(request: TableRequest) -> None:
    """Raises WrongUsageError."""
    from spark_jobs.scan.contract import Edge

    if request.mode == "latest" and _begin(request.begin) != Edge.EARLIEST:
        raise WrongUsageError(
            "--from is for --mode log: a table with one row for each key needs the whole topic",
            remedy="leave it out; kafka_offset and kafka_timestamp are columns to filter by",
        )


def _check_layout(request: TableRequest) -> None:
    """Raises WrongUsageError."""
    from spark_jobs.tables.layout.wanted import parse_layout

    with as_usage():
        layout = parse_layout(request.partition_by, request.sort_by)
    if layout.order and request.mode == "latest":
        raise WrongUsageError(
            "--sort-by is for --mode log: files of --mode latest keep the order of offsets",
            remedy="leave it out; --partition-by is for both",
        )
    if (request.partition_by or request.sort_by) and not request.destination.startswith(f"{ICEBERG}:"):
        raise WrongUsageError(
            "only Iceberg tables are partitioned and sorted",
            remedy="give --partition-by and --sort-by with --to iceberg:...",
        )


def check(request: TableRequest) -> None:
    """Raises WrongUsageError."""
    _check_begin(request)
    named = {"--to": request.destination, "--dead-letters": request.dead_letters}
    for option, destination in named.items():
        if destination or option == "--to":
            _check_destination(option, destination)
    _check_layout(request)
    if not any(each.startswith(f"{ICEBERG}:") for each in named.values()) and (
        request.catalog or request.warehouse or request.properties
    ):
        raise WrongUsageError(
            "only Iceberg tables have a catalog",
            remedy="give --catalog, --warehouse and --catalog-property with --to iceberg:...",
        )
    if request.dead_letters:
        _check_dead_letters(request)


def _check_destination(option: str, destination: str) -> None:
    from spark_jobs.tables.file_systems import parse_place

    kind, _, where = destination.partition(":")
    if kind not in (PARQUET, DELTA, ICEBERG) or not where:
        raise WrongUsageError(f"{option} {destination!r} names no table", remedy=f"write {FORMS}")
    if kind == ICEBERG:
        if not all(where.split(".")) or "." not in where:
            raise WrongUsageError(
                f"{option} {destination!r} names no table: it has no namespace, or an empty name",
                remedy=f"write iceberg:NAMESPACE.TABLE, for example iceberg:demo.{where.strip('.') or 'flights'}",
            )
        return
    with as_usage():
        place = parse_place(directory_url(where), f"{option} {kind}:")
    if place.scheme == "file" and place.directory.exists() and not place.directory.is_dir():
        raise WrongUsageError(f"{option} {kind}:{where} is a file", remedy="name a directory; a missing one is created")


def _check_dead_letters(request: TableRequest) -> None:
    from spark_jobs.tables.file_systems import check_apart, parse_place

    if request.on_error is not None:
        raise WrongUsageError(
            f"--dead-letters and --on-error {request.on_error} say two things of records that do not fit",
            remedy="leave one of them out",
        )
    if (request.value, request.keys) == ("raw", "raw"):
        raise WrongUsageError(
            "raw values and keys always fit, so there are no dead letters",
            remedy="leave --dead-letters out, or give --value or --key",
        )
    kinds, places = zip(*(each.split(":", 1) for each in (request.destination, request.dead_letters)), strict=True)
    if kinds == (ICEBERG, ICEBERG) and places[0] == places[1]:
        raise WrongUsageError("--dead-letters names the table of --to", remedy="name another one")
    if ICEBERG not in kinds:
        urls = [directory_url(each) for each in places]
        with as_usage():
            check_apart(parse_place(urls[0], "--to"), parse_place(urls[1], "--dead-letters"))


def directory_url(where: str) -> str:
    return where if "://" in where else Path(where).resolve().as_uri()
