"""Checks that a query may run, and finds the topics that it names. DuckDB parses the text; nothing is read here."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from runtime.errors import BadInputError

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

LATEST_SCHEMA = "latest"
OFFSET = "offset"

_EXPLAIN = re.compile(r"\s*explain(\s+analyze)?(\s*\([^)]*\))?\s", re.IGNORECASE)
_SHOW = re.compile(r"\s*show\b", re.IGNORECASE)
_COUNTED = re.compile(r"\s*(\d|\?|\$|\()")
_ALLOWED = "SELECT, WITH, FROM, VALUES, DESCRIBE, SUMMARIZE and EXPLAIN of these"


class BadQueryError(BadInputError):
    """A query that DuckDB or this command refuses."""


@dataclass(frozen=True, slots=True)
class TopicTable:
    """A table of the query: a topic, as its log or in its latest view."""

    topic: str
    is_latest: bool


@dataclass(frozen=True, slots=True)
class Query:
    text: str
    tables: tuple[TopicTable, ...]
    is_explain: bool


def parse_query(connection: DuckDBPyConnection, text: str) -> Query:
    """Raises BadQueryError, and DuckDB's errors for what it cannot parse."""
    text = with_quoted_offset(connection, text)
    explained = _check_reads(connection, text)
    # Not by `get_table_names`: it binds columns too, and fails where a topic is no table yet.
    found = connection.execute("SELECT json_serialize_sql(?::VARCHAR)", [text[explained:]]).fetchone()
    tree: Any = json.loads(found[0]) if found else None
    tables = dict.fromkeys(_tables(tree, frozenset()))
    return Query(text, tuple(tables), is_explain=explained > 0)


def with_quoted_offset(connection: DuckDBPyConnection, text: str) -> str:
    """The query, where DuckDB can parse it. Otherwise with quotes around the column `offset`, which is a word of SQL
    that begins a clause only before a number. Raises DuckDB's error if that does not help either."""
    import duckdb

    try:
        connection.extract_statements(text)
        return text
    except duckdb.ParserException:
        quoted = _quoted(text)
        if quoted == text:
            raise
    connection.extract_statements(quoted)
    return quoted


def _quoted(text: str) -> str:
    import duckdb

    raw = text.encode()  # positions count bytes
    for position, kind in reversed(duckdb.tokenize(text)):
        word, rest = raw[position : position + len(OFFSET)], raw[position + len(OFFSET) :]
        is_word = kind == duckdb.token_type.keyword and word.lower() == OFFSET.encode()
        if is_word and not _COUNTED.match(rest.decode(errors="replace")):
            raw = raw[:position] + b'"' + word + b'"' + rest
    return raw.decode()


def _check_reads(connection: DuckDBPyConnection, text: str) -> int:
    """The place where the text of a query begins: behind EXPLAIN, if there is one. Raises BadQueryError unless the text
    is one statement that only reads."""
    import duckdb

    statements = connection.extract_statements(text)
    if len(statements) != 1:
        raise BadQueryError(
            f"{len(statements)} statements are no query" if statements else "the query is empty",
            remedy='give one, such as "select count(*) from orders"',
        )
    if _SHOW.match(text):
        raise BadQueryError(
            "SHOW tells what DuckDB holds, which is not the topics",
            remedy='`siltstone topics list` shows the topics; "describe TOPIC" shows the columns',
        )
    kind = statements[0].type
    if kind == duckdb.StatementType.MULTI:
        raise BadQueryError("PIVOT must name its values here", remedy="such as ON partition IN (0, 1)")
    explain = _EXPLAIN.match(text) if kind == duckdb.StatementType.EXPLAIN else None
    begin = explain.end() if explain else 0
    inner = connection.extract_statements(text[begin:])
    if any(each.type != duckdb.StatementType.SELECT for each in inner):
        raise BadQueryError(f"{kind.name} is refused: topics can only be read here", remedy=f"allowed are {_ALLOWED}")
    return begin


def _tables(node: Any, hidden: frozenset[str]) -> Iterator[TopicTable]:
    """The tables below a node of DuckDB's tree. `hidden`: names that WITH gave to queries, in lower case."""
    if isinstance(node, list):
        for each in cast("list[Any]", node):
            yield from _tables(each, hidden)
    if not isinstance(node, dict):
        return
    fields = cast("dict[str, Any]", node)
    if fields.get("type") == "RECURSIVE_CTE_NODE":
        hidden |= {str(fields["cte_name"]).lower()}
    for named in fields.get("cte_map", {}).get("map", ()):
        # Within its own query the name still means the topic: WITH users AS (SELECT ... FROM users).
        yield from _tables(named["value"], hidden)
        hidden |= {str(named["key"]).lower()}
    if fields.get("type") == "BASE_TABLE":
        parts = [fields[each] for each in ("catalog_name", "schema_name", "table_name") if fields[each]]
        if len(parts) > 1 or parts[0].lower() not in hidden:
            yield _table_of(parts)
    for field, value in fields.items():
        if field != "cte_map":
            yield from _tables(value, hidden)


def _table_of(parts: Sequence[str]) -> TopicTable:
    if len(parts) == 1:
        return TopicTable(parts[0], is_latest=False)
    if len(parts) == 2 and parts[0].lower() == LATEST_SCHEMA:
        return TopicTable(parts[1], is_latest=True)
    dotted = ".".join(parts)
    raise BadQueryError(
        f"{dotted} is no table: there are topics, and {LATEST_SCHEMA}.TOPIC",
        remedy=f'if the name of a topic has dots, quote it: "{dotted}"',
    )
