"""`spark.read.format("siltstone")` and `spark.readStream.format("siltstone")`: topics, straight from the object store;
and `df.write.format("siltstone")`, whose work is in `spark_jobs/sink`.

Spark finds the source by the module `pyspark_siltstone` on the Python path; nothing is registered. Options are in
`spark_jobs/source/options.py`, pins in `spark_jobs/source/pins.py`, streams in `spark_jobs/source/stream.py`, and the
work of a task in `spark_jobs/source/reading.py`. This module holds only PySpark's own interface. PySpark starts a new
Python process for each step (list the sources, schema, tasks, read), so each method imports only what it needs.

Spark refuses a source that has `pushFilters` in sessions that did not allow it, and a source cannot see whether its
session does. `FilterTaker` is for both.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

from runtime.clock import SystemClock
from spark_jobs.scan.contract import schema_of
from spark_jobs.source.api import (
    ADMISSION_CONTROL,
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    FilterTaker,
    InputPartition,
    ReadAllAvailable,
    ReadLimit,
    ReadMaxRows,
    StructType,
    SupportsTriggerAvailableNow,
    from_arrow_schema,
    leave_unreadable_filters,
    predicate_of,
)
from spark_jobs.source.filters import EVERYTHING
from spark_jobs.source.options import SourceOptionError, SourceOptions, parse_options

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamWriter, DataSourceWriter

    from spark_jobs.source.offsets import Document
    from spark_jobs.source.scan import SliceTask
    from spark_jobs.source.stream import TopicStream


class DefaultSource(DataSource):
    """Spark gives the name: it looks for it in every module called `pyspark_*`."""

    @classmethod
    def name(cls) -> str:
        return "siltstone"

    def schema(self) -> StructType:
        """The schema of the chosen columns. This call, at `load()`, is the first to check the options. Raises
        SourceOptionError.
        """
        return _schema(parse_options(self.options, os.environ, streaming=None))

    def reader(self, schema: StructType) -> DataSourceReader:
        options = parse_options(self.options, os.environ, streaming=False)
        leave_unreadable_filters()
        return TopicReader(_checked(options, schema))

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        options = parse_options(self.options, os.environ, streaming=True)
        if options.max_offsets_per_trigger is not None and not ADMISSION_CONTROL:
            raise SourceOptionError(
                "maxOffsetsPerTrigger needs PySpark 4.2 or later",
                remedy="upgrade, or leave it out: every batch then reads everything",
            )
        return TopicStreamReader(_checked(options, schema))

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceWriter:
        from spark_jobs.sink.sink import TopicWriter, checked_sink

        return TopicWriter(checked_sink(dict(self.options), schema, overwrite=overwrite))

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamWriter:
        from spark_jobs.sink.sink import TopicStreamWriter, checked_sink

        return TopicStreamWriter(checked_sink(dict(self.options), schema, overwrite=overwrite))


class TopicReader(DataSourceReader):
    """Spark makes it on the driver, which plans; a copy of it reads in each task."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._wanted = EVERYTHING

    @property
    def pushFilters(self) -> FilterTaker:  # pyright: ignore[reportIncompatibleMethodOverride, reportIncompatibleVariableOverride]
        """Spark calls it in sessions with `spark.sql.python.filterPushdown.enabled`."""
        return FilterTaker(self._take)

    def _take(self, filters: Sequence[Any]) -> Iterator[Any]:
        """The filters that Spark must evaluate itself."""
        for each in filters:
            predicate = predicate_of(each) if self._options.takes_predicates else None
            is_exact = False
            if predicate is not None:
                self._wanted, is_exact = self._wanted.and_also(predicate, self._options.scan.view)
            if not is_exact:
                yield each

    def partitions(self) -> list[InputPartition]:
        from spark_jobs.source.metadata import MetadataThread
        from spark_jobs.source.scan import plan_batch

        clock = SystemClock()
        with MetadataThread(self._options.metadata_url, clock=clock) as metadata:
            tasks = plan_batch(self._options, metadata, clock, self._wanted)
        return [InputPartition(task) for task in tasks]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition, self._options)


class TopicStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Spark keeps one on the driver for a query's life; a fresh copy of it reads in each task."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._opened: TopicStream | None = None

    @property
    def _stream(self) -> TopicStream:
        if self._opened is None:
            from spark_jobs.source.metadata import MetadataThread
            from spark_jobs.source.scan import ScanPlanner
            from spark_jobs.source.stream import TopicStream

            clock = SystemClock()
            metadata = MetadataThread(self._options.metadata_url, clock=clock)
            self._opened = TopicStream(self._options, metadata, ScanPlanner(self._options), clock)
        return self._opened

    def initialOffset(self) -> Document:
        return self._stream.initial()

    def latestOffset(self, start: Document | None = None, limit: ReadLimit | None = None) -> Document:
        """The end of the next batch. 4.0 and 4.1 call it without arguments."""
        if not ADMISSION_CONTROL or not isinstance(limit, ReadMaxRows):
            return self._stream.latest(start, None)
        return self._stream.latest(start, limit.max_rows)

    def getDefaultReadLimit(self) -> ReadLimit:
        offsets_max = self._options.max_offsets_per_trigger
        return ReadAllAvailable() if offsets_max is None else ReadMaxRows(offsets_max)

    def reportLatestOffset(self) -> Document | None:
        return self._stream.last_seen()

    def prepareForTriggerAvailableNow(self) -> None:
        self._stream.until_now()

    def partitions(self, start: Document, end: Document) -> list[InputPartition]:
        return [InputPartition(task) for task in self._stream.plan(start, end)]

    def read(self, partition: InputPartition) -> Iterator[Any]:
        return _read(partition, self._options)

    def commit(self, end: Document) -> None:
        self._stream.commit(end)

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.stop()


def _schema(options: SourceOptions) -> StructType:
    """Made from the Arrow schema of the scan: Spark takes a task's batches only if the two agree in every detail."""
    return from_arrow_schema(schema_of(options.scan.columns))


def _checked(options: SourceOptions, schema: StructType) -> SourceOptions:
    """Refuse a schema from `spark.read.schema(...)` that differs: it cannot change a topic's columns. Raises
    SourceOptionError.
    """
    if [(each.name, each.dataType) for each in schema] != [(each.name, each.dataType) for each in _schema(options)]:
        raise SourceOptionError(
            f"the schema of a topic is its own, not {schema.simpleString()}",
            remedy="leave out schema(...); choose columns by option('columns', 'key,value') and cast in the query",
        )
    return options


def _read(partition: InputPartition, options: SourceOptions) -> Iterator[Any]:
    task = cast("SliceTask | None", partition.value)
    if task is None:
        return iter(())  # Spark's own partition when nothing was planned
    from spark_jobs.source.reading import read_task

    return read_task(task, options)
