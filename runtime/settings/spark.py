"""Checks of the settings of the section "Spark", one by one and together."""

from __future__ import annotations

import re
import shlex
from typing import Protocol

from runtime.settings.values import SettingsError

SUBMITTERS = ("none", "local", "spark-submit", "emr-serverless")
DRIVER_MEMORY_MIN_MIB = 512
"""Spark itself refuses a heap below 450 MiB."""
_MEMORY = re.compile(r"([1-9][0-9]{0,9})([mgt])b?", re.IGNORECASE)
_MIB_OF = {"m": 1, "g": 1 << 10, "t": 1 << 20}
_LOCAL_MASTER = re.compile(r"local(\[(\*|[1-9][0-9]*)(,[1-9][0-9]*)?\])?")
_CLUSTER_MASTER = re.compile(r"(spark|k8s)://\S+|yarn|local-cluster\[\S+\]")
_APPLICATION_ID = re.compile(r"[0-9a-z]{1,64}")
_ENTRY_URL = re.compile(r"s3://\S+\.py")
_ROLE_ARN = re.compile(r"arn:[a-z-]+:iam::[0-9]{12}:role/\S+")


class SparkSettings(Protocol):
    """The settings that these checks read. `Settings` has them; naming it here would make its module import itself."""

    @property
    def object_store_url(self) -> str: ...

    @property
    def produce_store_url(self) -> str: ...

    @property
    def spark_archive_url(self) -> str: ...

    @property
    def spark_driver_memory(self) -> str: ...

    @property
    def spark_emr_application_id(self) -> str: ...

    @property
    def spark_emr_entry_url(self) -> str: ...

    @property
    def spark_emr_role_arn(self) -> str: ...

    @property
    def spark_master(self) -> str: ...

    @property
    def spark_submit_args(self) -> str: ...

    @property
    def spark_submitter(self) -> str: ...


def check_spark(settings: SparkSettings) -> None:
    """Raises SettingsError. Settings of a submitter that is not chosen need not be there, but must be well formed."""
    _check_values(settings)
    submitter = settings.spark_submitter
    # The other settings must be well formed, but nothing uses them.
    if submitter == "none":
        return
    scheme = settings.object_store_url.partition(":")[0].lower()
    if scheme == "memory":
        raise SettingsError(
            f"spark.submitter is {submitter}, and object.store.url is memory://, which Spark's processes cannot see",
            remedy="keep the records in file:// or s3://, or set spark.submitter to none",
        )
    if submitter == "local" and not is_local_master(settings.spark_master):
        raise SettingsError(
            f"spark.submitter is local, and spark.master is {settings.spark_master!r}",
            remedy="write spark.master as local[*] or local[CORES], or set spark.submitter to spark-submit",
        )
    if submitter == "emr-serverless":
        _check_emr(settings)
        if settings.produce_store_url.lower().startswith("file:"):
            raise SettingsError(
                "spark.submitter is emr-serverless, and produce.store.url is a directory of this machine",
                remedy="keep the L0 files in s3://, or use another spark.submitter",
            )
        if scheme == "file":
            raise SettingsError(
                "spark.submitter is emr-serverless, and object.store.url is a directory of this machine",
                remedy="keep the records in s3://, or use another spark.submitter",
            )


def is_local_master(master: str) -> bool:
    """Whether tasks run in the driver's own process tree."""
    return _LOCAL_MASTER.fullmatch(master) is not None


def memory_mib(text: str) -> int:
    """ "2g" -> 2048. Raises SettingsError."""
    found = _MEMORY.fullmatch(text)
    if found is None:
        raise SettingsError(
            f"spark.driver.memory must be a number and a unit, not {text!r}", remedy="write it as 1g or 1536m"
        )
    return int(found[1]) * _MIB_OF[found[2].lower()]


def _check_values(settings: SparkSettings) -> None:
    master, driver_memory = settings.spark_master, settings.spark_driver_memory
    if not is_local_master(master) and not _CLUSTER_MASTER.fullmatch(master):
        raise SettingsError(
            f"spark.master is not a master that Spark knows: {master!r}",
            remedy="write local[*], spark://HOST:PORT, k8s://https://HOST:PORT or yarn",
        )
    try:
        shlex.split(settings.spark_submit_args)
    except ValueError as error:
        raise SettingsError(
            f"spark.submit.args cannot be split as a shell does: {error}", remedy="close every quotation mark"
        ) from error
    if memory_mib(driver_memory) < DRIVER_MEMORY_MIN_MIB:
        raise SettingsError(
            f"spark.driver.memory must be at least {DRIVER_MEMORY_MIN_MIB}m, not {driver_memory}: Spark does not start",
            remedy="1g is enough: records do not pass through the driver",
        )


def _check_emr(settings: SparkSettings) -> None:
    application_id, role_arn = settings.spark_emr_application_id, settings.spark_emr_role_arn
    wanted = (
        ("spark.emr.application.id", application_id, _APPLICATION_ID, "the application's id, like 00f1abcd2efg3h09"),
        ("spark.emr.role.arn", role_arn, _ROLE_ARN, "the ARN of the role of the jobs, arn:aws:iam::ACCOUNT:role/NAME"),
        (
            "spark.emr.entry.url",
            settings.spark_emr_entry_url,
            _ENTRY_URL,
            "the s3:// URL of a copy of spark_jobs/heavy_merge.py",
        ),
    )
    for name, value, form, meaning in wanted:
        if not form.fullmatch(value):
            lacking = "is not set" if not value else f"is {value!r}"
            raise SettingsError(
                f"spark.submitter is emr-serverless, and {name} {lacking}", remedy=f"set it to {meaning}"
            )
    archive_url = settings.spark_archive_url
    if archive_url and not archive_url.startswith("s3://"):
        raise SettingsError(
            f"spark.submitter is emr-serverless, and spark.archive.url is {archive_url!r}",
            remedy="put what `siltstone spark archive` wrote into S3 and name it by its s3:// URL",
        )
