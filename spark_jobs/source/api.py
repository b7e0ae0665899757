"""PySpark's data source API as it is in 4.0 to 4.3, in one place.

4.0 and 4.1 have no read limits and no `availableNow` for Python sources: `ADMISSION_CONTROL` is False there, and a
requested limit is refused rather than ignored. 3.5 has no Python data sources at all.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from pyspark.sql.pandas import types as _arrow_types
from pyspark.sql.types import StructType

from runtime.errors import BadInputError


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


def from_arrow_schema(schema: Any) -> StructType:
    """Spark's schema for an Arrow one."""
    return cast(Any, _arrow_types).from_arrow_schema(schema)


__all__ = [
    "ADMISSION_CONTROL",
    "DataSource",
    "DataSourceReader",
    "DataSourceStreamReader",
    "InputPartition",
    "PySparkTooOldError",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxRows",
    "StructType",
    "SupportsTriggerAvailableNow",
    "from_arrow_schema",
]
