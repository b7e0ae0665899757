"""DuckDB with topics for tables.

A table is made when the query names it: a view over a dataset of the topic (`siltstone/reading/dataset.py`), to which
DuckDB hands the columns and the filters. In the view keys and values are text, since most are; bytes that are no UTF-8
have DuckDB's escapes.

DuckDB reads nothing but that. It loads no extension, and no file unless that was allowed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import PurePath
from typing import TYPE_CHECKING, Any, TypeVar

from metadata.contract.topics import UnknownTopicError
from runtime.errors import BadInputError, SiltstoneError
from siltstone.cli.options.system_options import Urls
from siltstone.cli.sql.query import LATEST_SCHEMA, BadQueryError, Query, TopicTable, parse_query
from siltstone.reading.dataset import TopicDataset
from siltstone.reading.open_topic import OpenTopic
from spark_jobs.scan.contract import LATEST_VIEW, LOG, ScanOptions

if TYPE_CHECKING:
    from duckdb import DuckDBPyConnection

ROWS_AT_ONCE = 64
"""Few, because a row may have megabytes."""
MEMORY = "50%"
"""DuckDB's share of the memory. Above it, sorts and groups go to disk; the rest is for reading."""
INSTALL_SQL = "in Siltstone's clone: pip install -c constraints.txt '.[sql]'"
LOOK_S = 0.1
_SETTINGS = "SET TimeZone = 'UTC'; SET enable_progress_bar = false; SET lock_configuration = true"
_READ_BY = {".csv": "read_csv", ".json": "read_json", ".parquet": "read_parquet"}
_AS_TEXT = "coalesce(try(decode({0})), {0}::VARCHAR)"
T = TypeVar("T")


class TopicReadError(SiltstoneError):
    """A topic could not be read to its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    names: Sequence[str]
    """The columns' names; no two are the same."""
    rows: Iterator[tuple[Any, ...]]
    """Rows come while DuckDB works, in bounded memory."""
    is_explain: bool


@contextmanager
def answered(urls: Urls, text: str, *, as_bytes: bool, reads_files: bool) -> Generator[Answer]:
    """The answer to a query, inside the block. `as_bytes`: keys and values stay bytes. Raises BadQueryError,
    TopicReadError, and the errors of opening a topic."""
    with ExitStack() as stack:
        spill = stack.enter_context(tempfile.TemporaryDirectory(prefix="siltstone-sql-"))
        topics: list[OpenTopic] = []
        # Entered before DuckDB: it is closed first, and then nothing reads the topics any more.
        stack.callback(lambda: [topic.close() for topic in topics])
        connection = stack.enter_context(_connected(spill, reads_files=reads_files))
        asking = _Asking(connection, topics, stack.enter_context(ThreadPoolExecutor(1, "siltstone-sql")))
        asking.run(lambda: connection.execute(_SETTINGS))
        query = asking.run(lambda: parse_query(connection, text))
        _make_views(asking, query, urls, as_bytes=as_bytes)
        asking.run(lambda: connection.execute(query.text))
        names = _distinct([str(column[0]) for column in connection.description or ()])
        yield Answer(names=names, rows=asking.rows(), is_explain=query.is_explain)


@dataclass(frozen=True, slots=True)
class _Asking:
    """A query at work, in a thread of its own: DuckDB notices Ctrl-C in the calling thread only now and then, and then
    tells it as an error among others."""

    connection: DuckDBPyConnection
    topics: list[OpenTopic]
    thread: ThreadPoolExecutor

    def rows(self) -> Iterator[tuple[Any, ...]]:
        while found := self.run(lambda: self.connection.fetchmany(ROWS_AT_ONCE)):
            yield from found

    def run(self, work: Callable[[], T]) -> T:
        """Raises BadQueryError, TopicReadError, KeyboardInterrupt."""
        with self.translated():
            try:
                running = self.thread.submit(work)
                # In short waits: Python overlooks a signal that comes just before a wait, until the wait ends.
                while not wait([running], LOOK_S).done:
                    pass
                return running.result()
            except KeyboardInterrupt:
                self._end()
                raise

    def _end(self) -> None:
        self.connection.interrupt()
        for topic in self.topics:  # a read may wait for a store that does not answer
            topic.close()
        ended = self.thread.submit(lambda: None)
        while wait([ended], LOOK_S).not_done:
            self.connection.interrupt()  # again: DuckDB forgets one that came before its query

    @contextmanager
    def translated(self) -> Generator[None]:
        """DuckDB's errors as ours. It wraps those of a topic in text of its own."""
        import duckdb

        try:
            yield
        except duckdb.Error as error:
            for topic in self.topics:
                message, remedy = topic.failure
                if message:
                    raise TopicReadError(message, remedy=remedy) from error
            raise BadQueryError(str(error), remedy=_remedy_of(str(error))) from error


@contextmanager
def _connected(spill: str, *, reads_files: bool) -> Generator[DuckDBPyConnection]:
    try:
        import duckdb
    except ModuleNotFoundError as error:
        raise BadInputError("SQL needs DuckDB, which is not installed", remedy=INSTALL_SQL) from error
    connection = duckdb.connect(
        ":memory:",
        config={
            "autoinstall_known_extensions": "false",
            "autoload_known_extensions": "false",
            "enable_external_access": "true" if reads_files else "false",
            "memory_limit": MEMORY,
            "python_enable_replacements": "false",
            "temp_directory": spill,
        },
    )
    try:
        yield connection
    finally:
        connection.close()


def _make_views(asking: _Asking, query: Query, urls: Urls, *, as_bytes: bool) -> None:
    asking.run(lambda: asking.connection.execute(f"CREATE SCHEMA {LATEST_SCHEMA}"))
    for number, table in enumerate(query.tables):
        _check_case(table, query.tables[:number])
        dataset = _opened(table, urls, asking.topics)
        source = f"topic {number}"  # with a space, as no topic's name has
        name = '"' + table.topic.replace('"', '""') + '"'
        schema = LATEST_SCHEMA if table.is_latest else "main"
        columns = _columns(as_bytes=as_bytes)
        view = f'CREATE VIEW {schema}.{name} AS SELECT {columns} FROM "{source}"'  # noqa: S608 -- quoted
        asking.run(partial(_register, asking.connection, source, dataset, view))


def _register(connection: DuckDBPyConnection, source: str, dataset: TopicDataset, view: str) -> None:
    connection.register(source, dataset)
    connection.execute(view)


def _columns(*, as_bytes: bool) -> str:
    if as_bytes:
        return "*"
    key, value, in_header = (_AS_TEXT.format(each) for each in ("key", "value", "h.value"))
    headers = f"list_transform(headers, lambda h: {{key: h.key, value: {in_header}}})"
    return f"* REPLACE ({key} AS key, {value} AS value, {headers} AS headers)"


def _check_case(table: TopicTable, others: Sequence[TopicTable]) -> None:
    for other in others:
        if other.is_latest == table.is_latest and other.topic.lower() == table.topic.lower():
            raise BadQueryError(
                f"the query names both {other.topic!r} and {table.topic!r}, which are one name in SQL",
                remedy="ask for one of them at a time",
            )


def _opened(table: TopicTable, urls: Urls, topics: list[OpenTopic]) -> TopicDataset:
    """Raises UnknownTopicError and the errors of opening the system."""
    topic = OpenTopic(ScanOptions(topic=table.topic, view=LATEST_VIEW if table.is_latest else LOG))
    topics.append(topic)
    try:
        topic.open_at(urls.metadata, urls.object_store)
    except UnknownTopicError as error:
        read = _READ_BY.get(PurePath(table.topic).suffix.lower())
        if read is None:
            raise
        remedy = f"give --files and write {read}('{table.topic}') for a file"
        raise BadQueryError(f"there is no topic {table.topic!r}", remedy=remedy) from error
    return TopicDataset(topic)


def _remedy_of(text: str) -> str:
    if "Malformed JSON" in text:
        return "not every value is JSON: add `where json_valid(value)`, or write try(value->>'field')"
    if 'error at or near "-"' in text:
        return 'a name with "-" in it goes in double quotes: select * from "my-topic"'
    if "disabled by configuration" in text:
        return "if the query may read files of this machine, give --files"
    return ""


def _distinct(names: Sequence[str]) -> Sequence[str]:
    """The names, with a number where one comes again."""
    found: dict[str, None] = {}
    for name in names:
        number, own = 1, name
        while own in found:
            number += 1
            own = f"{name}_{number}"
        found[own] = None
    return tuple(found)
