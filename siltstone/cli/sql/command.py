"""`siltstone sql`."""

from __future__ import annotations

import sys

import click

from siltstone.cli.options.system_options import SystemOptions, check_named, resolved, system_options


@click.command()
@click.argument("query")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object for each row, one on a line.")
@click.option("--csv", "as_csv", is_flag=True, help="Print CSV, with a line of names.")
@click.option("--bytes", "as_bytes", is_flag=True, help="Keys, values and headers as bytes (BLOB), not as text.")
@click.option("--files", is_flag=True, help="Let the query read files, such as read_csv('prices.csv').")
@system_options
def sql(query: str, as_json: bool, as_csv: bool, as_bytes: bool, files: bool, given: SystemOptions) -> None:
    """Ask topics a QUERY in the SQL of DuckDB.

    The tables are the topics: `orders`, or in quotes "eu.orders". latest.orders has only the latest record of each key,
    without tombstones. The columns are topic, partition, offset, timestamp, key, value and headers. Keys and values are
    text, so value->>'price' reads a field of JSON. A condition on partition or offset, or for records from a time on,
    leaves the others unread. If QUERY is -, the text comes from stdin.

    Reads the metadata and the object store; needs no agent and changes nothing. All topics are read as they are when
    the query begins, committed records alone.

    \b
    Examples:
      siltstone sql "select key, value->>'price' from bookings limit 10"
      siltstone sql 'select partition, count(*), max(offset) from bookings
        where timestamp > now() - interval 1 hour group by all' --json
      siltstone sql 'select * from latest.users' --csv > users.csv
    """
    from siltstone.cli.sql.engine import answered
    from siltstone.cli.sql.output import print_plan, print_rows_as_csv, print_rows_as_json, print_rows_as_table

    if as_json and as_csv:
        raise click.UsageError("--json and --csv are two forms of one output: give one of them")
    text = sys.stdin.read() if query == "-" else query
    with resolved(given) as urls:
        check_named(urls)
        with answered(urls, text, as_bytes=as_bytes, reads_files=files) as answer:
            if as_json:
                print_rows_as_json(answer.names, answer.rows)
            elif as_csv:
                print_rows_as_csv(answer.names, answer.rows)
            elif answer.is_explain:
                print_plan(answer.rows)
            else:
                print_rows_as_table(answer.names, answer.rows)
