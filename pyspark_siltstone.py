"""The module by which Spark finds `spark.read.format("siltstone")`: it looks into every module on the Python path
called `pyspark_*`. It is also the place from which programs import `read_latest`.

All of the source is in `spark_jobs/source/source.py`. Keep this module quick and quiet: Spark imports it to see which
sources exist, whichever is asked for, and an error here would hide all of them.
"""

from __future__ import annotations

from spark_jobs.latest.frame import end_offsets, read_latest
from spark_jobs.source.source import DefaultSource

__all__ = ["DefaultSource", "end_offsets", "read_latest"]
