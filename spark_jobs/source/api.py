"""PySpark's data source API as it is in 4.0 to 4.3, in one place.

4.0 and 4.1 have no read limits and no `availableNow` for Python sources: `ADMISSION_CONTROL` is False there, and a
requested limit is refused rather than ignored. 3.5 has no Python data sources at all.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.pandas import types as _arrow_types
from pyspark.sql.types import StructType

from runtime.errors import BadInputError
from spark_jobs.source.filters import Comparison, Predicate


class PySparkTooOldError(BadInputError, ImportError):
    """This PySpark has no data sources in Python."""


try:
    from pyspark.sql import datasource as _datasource
except ModuleNotFoundError as error:
    if error.name != "pyspark.sql.datasource":
        raise
    raise PySparkTooOldError(
        "spark.read.format('siltstone') needs PySpark 4.0 or later: earlier versions have no data sources in Python",
        remedy="upgrade, or read by siltstone.read_topic(), which needs no Spark",
    ) from None

try:
    from pyspark.sql.streaming import datasource as _limits

except ImportError:
    _limits = None
ADMISSION_CONTROL = _limits is not None

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
    from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadLimit, ReadMaxRows, SupportsTriggerAvailableNow
else:
    DataSource = _datasource.DataSource
    DataSourceReader = _datasource.DataSourceReader
    DataSourceStreamReader = _datasource.DataSourceStreamReader
    InputPartition = _datasource.InputPartition
    if ADMISSION_CONTROL:
        ReadAllAvailable, ReadLimit, ReadMaxRows = _limits.ReadAllAvailable, _limits.ReadLimit, _limits.ReadMaxRows
        SupportsTriggerAvailableNow = _limits.SupportsTriggerAvailableNow
    else:
        ReadAllAvailable = ReadLimit = ReadMaxRows = Any

        class SupportsTriggerAvailableNow:
            """Missing before 4.2: `availableNow` then reads everything in one batch."""


class FilterTaker:
    """A reader's `pushFilters`, for sessions with and without `spark.sql.python.filterPushdown.enabled`.

    Without it Spark refuses a reader whose method is not the one that it inherited, and judges that by `__func__`. So
    this has the inherited one there, and is called in the other sessions.
    """

    def __init__(self, take: Callable[[Sequence[Any]], Iterator[Any]]) -> None:
        self._take = take
        self.__func__ = getattr(_datasource.DataSourceReader, "pushFilters", None)

    def __call__(self, filters: Sequence[Any]) -> Iterator[Any]:
        return self._take(filters)


_FILTER_WORKER = "pyspark.sql.worker.data_source_pushdown_filters"
"""Spark's process that reads a query's filters, makes the reader, and asks it to take them. It does nothing else."""


class _Unreadable:
    """A filter with a value that Python cannot hold: a time beyond the year 9999, or before the year 1."""


def leave_unreadable_filters() -> None:
    """Leave filters to Spark whose values Python cannot hold. By itself PySpark's worker ends the query at such a value
    with an OverflowError, after it has made the reader and before it asks the reader.
    """
    worker: Any = sys.modules.get(_FILTER_WORKER)
    read = getattr(worker, "deserializeFilter", None)
    if read is None or hasattr(read, "__wrapped__"):
        return

    @wraps(read)
    def read_or_leave(document: Any) -> Any:
        try:
            return read(document)
        except OverflowError:
            return _Unreadable()

    worker.deserializeFilter = read_or_leave


_COMPARISONS: dict[str, Comparison] = {
    "EqualTo": "=",
    "EqualNullSafe": "=",
    "LessThan": "<",
    "LessThanOrEqual": "<=",
    "GreaterThan": ">",
    "GreaterThanOrEqual": ">=",
    "In": "in",
}
"""By the names of Spark's filters, which PySpark has from 4.1 on."""


def predicate_of(pushed: Any) -> Predicate | None:
    """The predicate of a filter of Spark's; None for one that compares no column with values."""
    is_negated = type(pushed).__name__ == "Not"
    inner = pushed.child if is_negated else pushed
    comparison = _COMPARISONS.get(type(inner).__name__)
    if comparison is None or len(inner.attribute) != 1:
        return None
    value = tuple(inner.value) if comparison == "in" else inner.value
    return Predicate(inner.attribute[0], comparison, value, is_negated)


def from_arrow_schema(schema: Any) -> StructType:
    """Spark's schema for an Arrow one."""
    return cast(Any, _arrow_types).from_arrow_schema(schema)


__all__ = [
    "ADMISSION_CONTROL",
    "DataSource",
    "DataSourceReader",
    "DataSourceStreamReader",
    "FilterTaker",
    "InputPartition",
    "PySparkTooOldError",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "StructType",
    "SupportsTriggerAvailableNow",
    "from_arrow_schema",
    "leave_unreadable_filters",
    "predicate_of",
]
