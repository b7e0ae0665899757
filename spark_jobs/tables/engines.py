"""The engines that run an export's tasks: one after another in this process, or on Spark, loaded on demand."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Protocol

from spark_jobs.environment import find_spark
from spark_jobs.tables.file_task import WriteResult, WriteTask, write_slice


class InProcess:
    name = "process"

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> Sequence[WriteResult]:
        results: list[WriteResult] = []
        for task in tasks:
            results.append(write_slice(task))
            done(len(results))
        return results


class SparkEngine(Protocol):
    """`spark_jobs.tables.on_spark.OnSpark`, for callers that do not load PySpark."""

    name: str

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> Sequence[WriteResult]: ...

    def close(self) -> None: ...


def spark_engine() -> SparkEngine:
    """Raises SparkMissingError."""
    find_spark()
    return importlib.import_module("spark_jobs.tables.on_spark").OnSpark()
