"""The engines that run an export's tasks: one after another in this process, or on Spark, loaded on demand."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Protocol

from runtime.settings.spark import is_local_master
from runtime.settings.table import Settings
from spark_jobs.environment import find_spark
from spark_jobs.submitters import open_submitter
from spark_jobs.tables.file_task import WriteResult, WriteTask, write_slice


class InProcess:
    name = "process"
    shuffles = False

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> Sequence[WriteResult]:
        results: list[WriteResult] = []
        for task in tasks:
            results.append(write_slice(task))
            done(len(results))
        return results


class SparkEngine(Protocol):
    """`spark_jobs.tables.on_spark.OnSpark` or `spark_jobs.tables.cluster.engine.OnCluster`, for callers that do not
    load PySpark."""

    name: str
    shuffles: bool

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> Sequence[WriteResult]: ...

    def close(self) -> None: ...


def spark_engine(settings: Settings) -> SparkEngine:
    """Spark as the settings name it; a session in this process if `spark.submitter` is none.

    Raises SparkMissingError, JavaMissingError, SubmitError.
    """
    submitter = open_submitter(settings)
    if submitter is None:
        find_spark()
        return importlib.import_module("spark_jobs.tables.on_spark").OnSpark()
    from spark_jobs.tables.cluster.engine import OnCluster

    return OnCluster(submitter)


def needs_pyspark(settings: Settings) -> bool:
    """Whether Spark, as the settings name it, is the PySpark that is installed beside us."""
    return settings.spark_submitter != "emr-serverless" and not (
        settings.spark_submitter == "spark-submit" and settings.spark_submit_path
    )


def where_text(settings: Settings) -> str:
    """Where Spark runs, for people."""
    match settings.spark_submitter:
        case "spark-submit":
            master = "" if is_local_master(settings.spark_master) else f" to {settings.spark_master}"
            return f"by spark-submit{master}"
        case "emr-serverless":
            return f"on EMR Serverless, application {settings.spark_emr_application_id}"
        case _:
            return "on this machine"
