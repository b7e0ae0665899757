"""Spark itself on this machine: a session in this process, and a cluster of two hosts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from runtime.errors import BadInputError
from spark_jobs.environment import find_environment
from spark_jobs.session import local_session
from tests.fixtures.spark import HOSTS, SparkCluster


def test_a_session_runs_python_with_our_packages_in_its_workers(spark: SparkSession) -> None:
    # given a session on this machine, when a task reports where it runs
    def where(_: int) -> tuple[str, str]:
        import siltstone

        return sys.executable, siltstone.__file__

    told = spark.sparkContext.parallelize(range(2), 2).map(where).collect()
    # then it is this interpreter with this Siltstone
    import siltstone

    assert set(told) == {(sys.executable, siltstone.__file__)}


def test_arrow_batches_pass_through_python(spark: SparkSession) -> None:
    def double(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            yield pa.record_batch({"id": pa.array([2 * each for each in batch["id"].to_pylist()], pa.int64())})

    assert [row.id for row in spark.range(0, 4, 1, 2).mapInArrow(double, "id long").collect()] == [0, 2, 4, 6]


def test_a_process_has_one_session(spark: SparkSession) -> None:
    with pytest.raises(BadInputError, match="has a Spark session already"):
        local_session("another")


def test_a_session_leaves_the_environment_as_it_was(spark: SparkSession) -> None:
    assert "PYSPARK_DRIVER_PYTHON" not in os.environ


@pytest.mark.timeout(600)
def test_a_submitted_program_runs_python_where_temporary_files_have_long_paths(tmp_path: Path) -> None:
    # given a JVM whose temporary directory is as YARN gives it to a container
    long = tmp_path / "appcache/application_1234567890123_0001/container_1234567890123_0001_01_000002/tmp"
    long.mkdir(parents=True)
    assert len(f"{long}/.00000000-0000-0000-0000-000000000000.sock") > 107, "the longest path of a socket"
    options = f"--master local[1] --conf spark.driver.extraJavaOptions=-Djava.io.tmpdir={long} pyspark-shell"
    program = (
        "from spark_jobs.session import end_session, session_for\n"
        "spark = session_for('long', conf={'spark.ui.enabled': 'false', 'spark.driver.host': '127.0.0.1'})\n"
        "print(spark.sparkContext.parallelize(range(3), 1).map(lambda each: each + 1).collect())\n"
        "end_session(spark)\n"
    )
    environ = {**find_environment(os.environ).for_child(os.environ), "PYSPARK_SUBMIT_ARGS": options}
    outcome = subprocess.run([sys.executable, "-c", program], env=environ, capture_output=True, text=True, timeout=500)
    # then its tasks run Python
    assert outcome.stdout.strip() == "[1, 2, 3]", outcome.stderr[-4000:]


@pytest.mark.soak
def test_the_cluster_has_two_hosts_and_runs_what_is_submitted(spark_cluster: SparkCluster, tmp_path: Path) -> None:
    # given a master and two workers, when a submitted program asks each task where it runs
    program = tmp_path / "where.py"
    program.write_text(
        "import socket, os\n"
        "from spark_jobs.session import session_for\n"
        "spark = session_for('where', conf={'spark.executor.memory': '512m', 'spark.driver.memory': '512m'})\n"
        "rdd = spark.sparkContext.parallelize(range(8), 8)\n"
        "print(sorted({each for each in rdd.map(lambda _: os.environ['SPARK_LOCAL_IP']).collect()}))\n"
    )
    submit = f"{spark_cluster.environ['SPARK_HOME']}/bin/spark-submit"
    options = ["--master", spark_cluster.master_url, "--conf", "spark.ui.enabled=false"]
    outcome = subprocess.run(
        [submit, *options, "--conf", "spark.executor.memory=512m", str(program)],
        env=spark_cluster.environ,
        capture_output=True,
        text=True,
        timeout=100,
    )
    # then both hosts ran some
    assert outcome.returncode == 0, outcome.stderr[-4000:] + spark_cluster.log()[-4000:]
    assert outcome.stdout.strip() == str(list(HOSTS))
    assert {each["host"] for each in spark_cluster.state()["workers"]} == set(HOSTS)
