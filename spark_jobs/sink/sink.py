"""PySpark's interface to the sink: writers that Spark makes on the driver, and whose copies write in tasks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pyspark.sql import datasource as _datasource
from pyspark.sql.datasource import DataSourceArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from spark_jobs.sink.options import SinkOptionError, SinkOptions, parse_sink

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
elif not hasattr(_datasource, "DataSourceStreamArrowWriter"):

    class DataSourceStreamArrowWriter:
        """Missing before 4.1."""

        def __init__(self) -> None:
            raise SinkOptionError("writing a stream needs PySpark 4.1 or later", remedy="upgrade, or use foreachBatch")
else:
    DataSourceStreamArrowWriter = _datasource.DataSourceStreamArrowWriter


@dataclass(frozen=True, slots=True)
class Written(WriterCommitMessage):
    records: int


class TopicWriter(DataSourceArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        return _written(self._options, iterator)


class TopicStreamWriter(DataSourceStreamArrowWriter):
    def __init__(self, options: SinkOptions) -> None:
        super().__init__()
        self._options = options

    def write(self, iterator: Iterator[Any]) -> Written:
        return _written(self._options, iterator)


def checked_sink(given: dict[str, str], schema: StructType, *, overwrite: bool) -> SinkOptions:
    """The options of a write whose topic exists. Raises SinkOptionError, WriteError."""
    columns = {each.name: each.dataType.simpleString() for each in schema}
    options = parse_sink(given, columns, overwrite=overwrite)
    from spark_jobs.sink.producing import check_topic  # loads the client

    check_topic(options)
    return options


def _written(options: SinkOptions, batches: Iterator[Any]) -> Written:
    from spark_jobs.sink.producing import produce_all

    return Written(produce_all(options, batches))
