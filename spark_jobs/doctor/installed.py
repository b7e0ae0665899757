"""Checks of installed programs: PySpark, its packages, Java, bash."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib import metadata

from spark_jobs.doctor.check import Check, failed, passed
from spark_jobs.environment import (
    INSTALL_EXTRA,
    Java,
    JavaMissingError,
    Spark,
    SparkMissingError,
    find_java,
    find_spark,
)

_ASSUMED_SPARK = "4.2"
"""The Spark version for which to judge Java if no Spark is installed."""


def spark_here() -> tuple[Spark | None, Check]:
    try:
        spark = find_spark()
    except SparkMissingError as error:
        return None, failed("pyspark", error.message, error.remedy)
    return spark, passed("pyspark", f"{spark.version} at {spark.home}")


def java_here(spark: Spark | None, environ: Mapping[str, str]) -> tuple[Java | None, Check]:
    try:
        java = find_java(environ, spark_version=spark.version if spark else _ASSUMED_SPARK)
    except JavaMissingError as error:
        return None, failed("java", error.message, error.remedy)
    how = f"with our shim, {java.home}" if java.shimmed else "as it is"
    over = f"; passed over: {'; '.join(java.passed_over)}" if java.passed_over else ""
    return java, passed("java", f"{java.version} from {java.origin}, {how}: {java.runtime}{over}")


def package_here(name: str) -> Check:
    try:
        return passed(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return failed(name, "not installed", INSTALL_EXTRA)


def bash_here(environ: Mapping[str, str]) -> Check:
    found = shutil.which("bash", path=environ.get("PATH", ""))
    if found is None:
        return failed("bash", "not on the PATH; Spark is started by scripts for it", "install bash")
    return passed("bash", found)
