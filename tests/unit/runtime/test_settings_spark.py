"""Impossible settings of Spark are refused before anything starts, with a remedy."""

from __future__ import annotations

import pytest

from runtime.settings.loading import load_settings
from runtime.settings.spark import is_local_master, memory_mib
from runtime.settings.table import Settings
from runtime.settings.values import SettingsError

EMR = {
    "spark.submitter": "emr-serverless",
    "spark.emr.application.id": "00f1abcd2efg3h09",
    "spark.emr.role.arn": "arn:aws:iam::123456789012:role/merge",
    "spark.emr.entry.url": "s3://code/heavy_merge.py",
}
STANDALONE = {"spark.submitter": "spark-submit", "spark.master": "spark://10.0.0.5:7077"}


def test_nothing_goes_to_spark_by_default() -> None:
    settings = Settings()
    assert (settings.spark_submitter, settings.spark_master) == ("none", "local[*]")
    assert (settings.spark_unit_bytes, settings.spark_keyed_unit_bytes) == (256 << 20, 1 << 30)


@pytest.mark.parametrize(
    "given",
    [
        EMR,
        EMR | {"object.store.url": "s3://b/p", "spark.archive.url": "s3://code/env.tar.gz"},
        STANDALONE,
        STANDALONE | {"spark.submit.args": "--conf 'a=b c' --name x"},
        {"spark.submitter": "spark-submit", "spark.master": "k8s://https://10.0.0.6:6443"},
        {"spark.submitter": "spark-submit", "spark.master": "yarn"},
        {"spark.submitter": "local", "spark.master": "local[2,4]", "spark.driver.memory": "512m"},
        {"object.store.url": "memory://", "metadata.url": "memory://"},
    ],
)
def test_what_can_be_is_taken(given: dict[str, str]) -> None:
    load_settings(None, {}, given)


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (EMR | {"spark.emr.application.id": ""}, "spark.emr.application.id is not set"),
        (EMR | {"spark.emr.role.arn": "merge"}, "spark.emr.role.arn is 'merge'"),
        (EMR | {"spark.emr.entry.url": ""}, "spark.emr.entry.url is not set"),
        (EMR | {"spark.emr.entry.url": "file:///x.py"}, "spark.emr.entry.url is 'file:///x.py'"),
        (EMR | {"spark.archive.url": "env.tar.gz"}, "spark.archive.url is 'env.tar.gz'"),
        (EMR | {"object.store.url": "file:///data"}, "object.store.url is a directory of this machine"),
        (STANDALONE | {"object.store.url": "memory://", "metadata.url": "memory://"}, "cannot see"),
        ({"spark.submitter": "local", "spark.master": "yarn"}, "spark.submitter is local, and spark.master is 'yarn'"),
        ({"spark.submitter": "yarn"}, "must be one of none, local, spark-submit, emr-serverless"),
        ({"spark.master": "10.0.0.5:7077"}, "not a master that Spark knows"),
        ({"spark.master": "local[0]"}, "not a master that Spark knows"),
        ({"spark.submit.args": "--name 'x"}, "No closing quotation"),
        ({"spark.driver.memory": "2048"}, "a number and a unit"),
        ({"spark.driver.memory": "400m"}, "at least 512m"),
        ({"spark.unit.bytes": "2000", "spark.keyed.unit.bytes": "1999"}, "may not exceed"),
    ],
)
def test_what_cannot_be_is_refused_with_a_remedy(given: dict[str, str], told: str) -> None:
    with pytest.raises(SettingsError) as refused:
        load_settings(None, {}, given)
    assert told in refused.value.message


def test_arguments_may_hold_secrets_and_are_not_shown() -> None:
    assert "hush" not in repr(Settings(spark_submit_args="--conf spark.secret=hush"))


def test_memory_is_read_as_spark_reads_it() -> None:
    assert [memory_mib(text) for text in ("512m", "1g", "2GB", "1t")] == [512, 1024, 2048, 1 << 20]


def test_a_local_master_is_told_from_a_cluster() -> None:
    assert all(map(is_local_master, ("local", "local[3]", "local[*]", "local[*,4]")))
    assert not any(map(is_local_master, ("local-cluster[2,1,512]", "spark://local", "yarn")))
