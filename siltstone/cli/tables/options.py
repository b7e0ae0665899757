"""The options of `siltstone tables`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import click

from siltstone.cli.options.completion import TOPIC

T = TypeVar("T")


def catalog_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add `--catalog`, `--warehouse` and `--catalog-property` (as `properties`)."""
    for option in (
        click.option(
            "--catalog-property",
            "properties",
            multiple=True,
            metavar="NAME=VALUE",
            help="Another property of the catalog, for pyiceberg. Repeatable.",
        ),
        click.option(
            "--warehouse",
            default="",
            metavar="URL",
            help="Place of new Iceberg tables. Default: DIR/tables of --data, or the catalog's own.",
        ),
        click.option(
            "--catalog",
            default="",
            metavar="URL",
            help="Iceberg catalog: http(s)://, glue://, ... Default: in the Postgres of the metadata.",
        ),
    ):
        command = option(command)
    return command


def table_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add the topic, and the options of a table that is filled."""
    for option in (
        _reading_options,
        _layout_options,
        _value_options,
        catalog_options,
        click.option(
            "--dead-letters",
            "dead_letters",
            default="",
            metavar="KIND:PLACE",
            help="A table, as in --to, for records whose value or key does not fit.",
        ),
        click.option(
            "--to",
            "destination",
            required=True,
            metavar="KIND:PLACE",
            help="The table: parquet:DIR, parquet:s3://BUCKET/PREFIX?endpoint=..., delta: with such a place, or"
            " iceberg:NAMESPACE.TABLE.",
        ),
        click.argument("topic", type=TOPIC),
    ):
        command = option(command)
    return command


def _value_options(command: Callable[..., T]) -> Callable[..., T]:
    for option in (
        click.option(
            "--on-error",
            type=click.Choice(["column", "fail"]),
            default=None,
            help="If a value or key does not fit: keep its bytes, with the reason in kafka_error, or fail."
            " Default: column.",
        ),
        click.option(
            "--framing",
            type=click.Choice(["none", "confluent"]),
            default="none",
            show_default=True,
            help="confluent: each Avro value begins with the header of a schema registry.",
        ),
        click.option(
            "--schema",
            "schema_file",
            type=click.Path(path_type=Path, exists=True, dir_okay=False),
            metavar="FILE",
            help="JSON Schema or Avro schema of the values; it defines the columns.",
        ),
        click.option(
            "--key",
            "keys",
            type=click.Choice(["raw", "text", "json"]),
            default="raw",
            show_default=True,
            help="The column kafka_key: the key's bytes, or a text (UTF-8); json also checks that it is JSON.",
        ),
        click.option(
            "--value",
            type=click.Choice(["raw", "json", "avro"]),
            default="raw",
            show_default=True,
            help="Format of the values; json and avro get a column for each field.",
        ),
    ):
        command = option(command)
    return command


def _layout_options(command: Callable[..., T]) -> Callable[..., T]:
    for option in (
        click.option(
            "--sort-by",
            multiple=True,
            metavar="COLUMN[ desc]",
            help="New Iceberg tables, --mode log: sort the rows of each file. Repeatable, or with commas.",
        ),
        click.option(
            "--partition-by",
            multiple=True,
            metavar="RULE",
            help="New Iceberg tables: COLUMN, year|month|day|hour(COLUMN), bucket(N, COLUMN) or"
            " truncate(WIDTH, COLUMN). Repeatable.",
        ),
    ):
        command = option(command)
    return command


def _reading_options(command: Callable[..., T]) -> Callable[..., T]:
    for option in (
        click.option("--skip-lost", is_flag=True, help="Leave out records that are gone or damaged, with a warning."),
        click.option("--recreated", is_flag=True, help="Continue with a topic that was deleted and created again."),
        click.option(
            "--engine",
            type=click.Choice(["auto", "process", "spark"]),
            default="auto",
            show_default=True,
            help="Read in this process or on Spark, as spark.submitter says; auto decides by size.",
        ),
        click.option(
            "--from",
            "begin",
            default="start",
            show_default=True,
            metavar="OFFSET",
            help="Where a new table begins: start, end, N or @TIME.",
        ),
        click.option(
            "--mode",
            type=click.Choice(["log", "latest"]),
            default="log",
            show_default=True,
            help="log: append every record. latest: one row for each key, its latest record.",
        ),
    ):
        command = option(command)
    return command
