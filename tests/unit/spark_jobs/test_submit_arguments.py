"""The arguments of `spark-submit` as Spark reads them, and the archives that a cluster can read."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from pathlib import Path

import pytest

from compactor.heavy.submitter import SubmitError
from runtime.settings.table import Settings
from spark_jobs.environment import find_spark
from spark_jobs.submitters.archive_url import SparkJars, jars_of, refused
from spark_jobs.submitters.arguments import parse_arguments, read_defaults, submit_arguments
from spark_jobs.submitters.spark_submit import archive_arguments, check

PYSPARK = SparkJars(frozenset({"hadoop-client-api-3.5.0.jar", "spark-core_2.13-4.3.0.jar"}))
WITH_S3A = SparkJars(PYSPARK.names | {"hadoop-aws-3.5.0.jar"})
MASTER = "--master spark://a:7077"


def why(url: str, arguments: str = MASTER, jars: SparkJars = PYSPARK) -> str:
    """The refusal as people read it; "" for none."""
    found = refused(url, parse_arguments(shlex.split(arguments)), jars)
    return f"{found.message} ({found.remedy})" if found else ""


# ---- arguments


@pytest.mark.parametrize(
    ("text", "master", "mode"),
    [
        ("", "", "client"),
        ("--master spark://a --master spark://b", "spark://b", "client"),
        ("--conf spark.master=spark://b --master=spark://a", "spark://a", "client"),
        ("--verbose --conf spark.master=spark://b", "spark://b", "client"),
        ("-c spark.master=yarn --deploy-mode cluster", "yarn", "cluster"),
        ("--deploy-mode=cluster --conf spark.submit.deployMode=client", "", "cluster"),
        ("--conf spark.submit.deployMode=cluster", "", "cluster"),
        ("--conf 'spark.app.name=--master x'", "", "client"),
    ],
)
def test_an_option_wins_over_the_configuration_and_the_last_of_each_wins(text: str, master: str, mode: str) -> None:
    found = parse_arguments(shlex.split(text))
    assert (found.master, found.deploy_mode) == (master, mode)


def test_the_setting_is_an_option_that_a_later_one_replaces() -> None:
    def master(master: str, text: str, defaults: Mapping[str, str] | None = None) -> str:
        return submit_arguments(Settings(spark_master=master, spark_submit_args=text), defaults).master

    assert master("yarn", "--conf spark.master=spark://b") == "yarn"
    assert master("yarn", "--master spark://b") == "spark://b"
    assert master("local[*]", "", {"spark.master": "spark://c"}) == "spark://c"
    assert master("local[*]", "") == ""


def test_the_defaults_of_spark_are_read_as_spark_reads_them(tmp_path: Path) -> None:
    assert read_defaults(tmp_path, {}) == {}
    (tmp_path / "conf").mkdir()
    text = "# spark.a  no\nspark.master   spark://a:7077\nspark.b=x y \n\nspark.c: 3\nother 4\n"
    (tmp_path / "conf" / "spark-defaults.conf").write_text(text)
    assert read_defaults(tmp_path, {}) == {"spark.master": "spark://a:7077", "spark.b": "x y", "spark.c": "3"}
    assert read_defaults(tmp_path, {"SPARK_CONF_DIR": str(tmp_path)}) == {}


def test_the_driver_has_our_python_only_beside_us() -> None:
    def confs(mode: str) -> set[str]:
        return {each.partition("=")[0] for each in archive_arguments("hdfs:///a.tgz", mode)[1::2]}

    both = {"spark.archives", "spark.pyspark.python"}
    assert confs("client") == both | {"spark.pyspark.driver.python"}
    assert confs("cluster") == both


# ---- archives


@pytest.mark.parametrize("url", ["http://h/a.tar.gz", "https://h/a.tgz", "hdfs:///a.tar.gz", ""])
def test_what_every_spark_reads_is_taken(url: str) -> None:
    assert why(url) == ""


def test_a_scheme_without_a_file_system_is_refused_with_what_to_write_instead() -> None:
    said = why("s3://code/a.tar.gz")
    assert "no file system here for s3://" in said and "a path on this host" in said
    assert "write s3a://" in said and "org.apache.hadoop:hadoop-aws:3.5.0" in said
    assert "hadoop-aws:3.5.0" in why("s3a://code/a.tar.gz")
    # Spark fetches the archive before the packages
    packages = "--packages org.apache.hadoop:hadoop-aws:3.5.0"
    assert "comes too late" in why("s3a://code/a.tar.gz", f"{MASTER} {packages}")
    assert "gcs-connector" in why("gs://code/a.tar.gz") and "jars for that scheme" in why("oss://code/a.tar.gz")


def test_a_scheme_whose_jars_are_on_the_class_path_is_taken() -> None:
    both = "--driver-class-path '/j/*' --conf 'spark.executor.extraClassPath=/j/*'"
    assert why("s3a://code/a.tar.gz", f"{MASTER} {both}") == ""
    assert why("s3a://code/a.tar.gz", f"{MASTER} --driver-class-path /j/x.jar") != ""
    assert why("s3a://code/a.tar.gz", jars=WITH_S3A) == ""
    assert why("s3://code/a.tar.gz", jars=WITH_S3A) != ""
    impl = "--conf spark.hadoop.fs.s3.impl=org.apache.hadoop.fs.s3a.S3AFileSystem"
    assert why("s3://code/a.tar.gz", f"{MASTER} {impl}", WITH_S3A) == ""
    assert why("s3://code/a.tar.gz", f"{MASTER} {impl}") != ""


def test_a_yarn_cluster_brings_its_own_file_systems_and_so_may_a_spark_that_is_not_found() -> None:
    assert why("s3://code/a.tar.gz", "--master yarn") == ""
    assert why("s3a://code/a.tar.gz", jars=SparkJars(frozenset())) == ""


def test_a_file_must_be_there_by_its_whole_path(tmp_path: Path) -> None:
    archive = tmp_path / "an archive.tgz"
    assert f"there is no file {archive}" in why(str(archive))
    archive.touch()
    assert why(str(archive)) == why(archive.as_uri()) == ""
    assert "not an absolute path" in why("a.tgz")
    assert "scheme local" in why(f"local:{archive}")
    assert "pod does not have it" in why(str(archive), "--master k8s://h --deploy-mode cluster")


def test_what_spark_does_not_unpack_is_refused() -> None:
    assert "no archive that Spark unpacks" in why("http://h/a.zip")
    assert "has a fragment" in why("http://h/a.tgz#environment")


def test_a_deploy_mode_that_the_cluster_does_not_have_is_refused() -> None:
    with pytest.raises(SubmitError, match="runs no Python driver"):
        check("", parse_arguments(["--master", "spark://a", "--deploy-mode", "cluster"]), PYSPARK)
    check("", parse_arguments(["--master", "yarn", "--deploy-mode", "cluster"]), PYSPARK)


def test_the_hadoop_of_the_installed_spark_is_known() -> None:
    jars = jars_of(find_spark().home)
    assert jars.hadoop[0].isdigit() and jars.has("hadoop-client-runtime") and not jars.has("hadoop-aws")
