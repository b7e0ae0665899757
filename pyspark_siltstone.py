"""The module by which Spark finds `spark.read.format("siltstone")`: Spark imports every `pyspark_*` on the Python path.

The source itself is in `spark_jobs/source/source.py`. This module must be quick and must not fail: Spark imports it
whenever it looks for any source, and an error here would hide all of them.
"""

from __future__ import annotations

from spark_jobs.source.source import DefaultSource

__all__ = ["DefaultSource"]
