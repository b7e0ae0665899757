"""`siltstone spark doctor --cluster`: each mistake that docs/spark.md can lead to, really made on a real cluster."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from compactor.heavy.plan.codec import PLAN_VERSION
from runtime.settings.table import Settings
from spark_jobs.archive import about_here
from spark_jobs.doctor.check import Check
from spark_jobs.doctor.examine import examine
from spark_jobs.doctor.standalone import standalone
from spark_jobs.doctor.submitter import look_at_archive
from spark_jobs.doctor.trial import Outcome, judge, try_cluster
from spark_jobs.environment import SHORT_LIVED, find_environment
from spark_jobs.submitters import open_submitter
from tests.fixtures.spark import SparkCluster, children
from tests.fixtures.spark_archives import HERE, served, small_archive
from tests.fixtures.spark_merges import SparkSystem

ARGUMENTS = "--executor-memory 512m --conf spark.ui.enabled=false"
SOAK = pytest.mark.soak
AS_IF_3_8 = """
import collections, sys
sys.version_info = collections.namedtuple("version_info", "major minor micro releaselevel serial")(3, 8, 0, "final", 0)
"""


@pytest.fixture(scope="module")
def web(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder, and the URL at which it is served."""
    folder = tmp_path_factory.mktemp("web")
    with served(folder) as url:
        yield folder, url


Trial = Callable[..., Check]


@pytest.fixture
def trial(spark_cluster: SparkCluster) -> Trial:
    def run(archive: Path | str = "", arguments: str = "", path: str = "", **environ: str | None) -> Check:
        settings = Settings(
            spark_submitter="spark-submit",
            spark_master=spark_cluster.master_url,
            spark_driver_memory="512m",
            spark_archive_url=str(archive),
            spark_submit_path=path,
            spark_submit_args=f"{ARGUMENTS} {arguments}",
        )
        given = {**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "SPARK_SUBMIT_OPTS": SHORT_LIVED, **environ}
        known = {name: value for name, value in given.items() if value is not None}
        (check,) = try_cluster(find_environment(os.environ), settings, known)
        return check

    return run


# ---- as it should be


@pytest.mark.timeout(300)
async def test_a_merge_runs_with_an_archive_that_is_served_by_http(
    tmp_path: Path, spark_cluster: SparkCluster, web: tuple[Path, str]
) -> None:
    # given the settings of the guide, with an archive behind an HTTP server
    folder, url = web
    small_archive(folder / "siltstone-spark.tar.gz")
    settings = Settings(
        spark_submitter="spark-submit",
        spark_master=spark_cluster.master_url,
        spark_driver_memory="512m",
        spark_archive_url=f"{url}/siltstone-spark.tar.gz",
        spark_submit_args=ARGUMENTS,
    )
    submitter = open_submitter(settings, environ={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1"})
    assert submitter is not None
    system = SparkSystem((tmp_path / "objects").as_uri())
    await system.begin()
    topic = await system.topic("plain", partitions=2)
    await system.write_mib(topic, 2)
    await system.merge_all(topic)
    # when a merge is submitted
    await system.merge(submitter, unit_bytes=1 << 20)
    # then nothing is lost, and the tasks ran with what was unpacked
    for partition_id in topic.partition_ids:
        assert await system.records(partition_id) == system.written[partition_id]
    assert spark_cluster.log().count("siltstone-spark.tar.gz") > 0


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_job_tells_where_it_ran_and_what_each_step_took(
    trial: Trial, tmp_path: Path, web: tuple[Path, str]
) -> None:
    folder, url = web
    small_archive(folder / "good.tar.gz")
    good = trial(f"{url}/good.tar.gz")
    assert good.ok, good
    assert "4 tasks ran at spark://127.0.0.1:" in good.detail and "127.0.0." in good.detail
    assert "the session took" in good.detail and "the tasks" in good.detail


@pytest.mark.timeout(300)
def test_a_cluster_of_its_own_is_started_used_and_ended(tmp_path: Path) -> None:
    # given settings that name no cluster, when the doctor tries one with an archive
    settings = Settings(
        spark_driver_memory="512m",
        spark_archive_url=str(small_archive(tmp_path / "siltstone-spark.tgz")),
        spark_submit_args=ARGUMENTS,
    )
    environ = {**os.environ, "SPARK_SUBMIT_OPTS": SHORT_LIVED}
    before = set(children(os.getpid()))
    trying = try_cluster(find_environment(environ), settings, environ)
    cluster = next(trying)
    assert cluster.ok and "a master and 2 workers" in cluster.detail
    daemons = set(children(os.getpid())) - before
    (tried,) = trying
    # then it ran there, and no process is left
    assert tried.ok and "127.0.0.2" in tried.detail, tried
    assert len(daemons) == 3 and not daemons & set(children(os.getpid()))


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_the_doctors_own_cluster_takes_jobs_from_nobody_without_its_secret(trial: Trial, tmp_path: Path) -> None:
    daemons = find_environment(os.environ).for_child(os.environ)
    with standalone(daemons, tmp_path, worker_memory_mib=1024, secret="a" * 32) as cluster:
        check = trial(arguments=f"--master {cluster.master_url}")
        assert not check.ok, check
        state = cluster.state()
        assert state["activeapps"] == state["completedapps"] == []


# ---- mistakes


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("packages", "python", "said", "remedy"),
    [
        pytest.param({}, "", "No module named", "workers lack a package", marks=SOAK, id="lacks-packages"),
        pytest.param(
            HERE, "/nowhere/bin/python3", "Cannot run program", "with --python PATH", marks=SOAK, id="elsewhere"
        ),
        pytest.param(
            {**HERE, "sitecustomize.py": AS_IF_3_8},
            "",
            "PYTHON_VERSION_MISMATCH",
            "workers run another Python",
            marks=SOAK,
            id="another-python",
        ),
        pytest.param(
            {**HERE, "siltstone-9.9.dist-info/METADATA": "Metadata-Version: 2.1\nName: siltstone\nVersion: 9.9\n"},
            "",
            "has Siltstone 9.9",
            "the same release",
            id="another-release",
        ),
    ],
)
def test_an_archive_that_does_not_fit_is_found(
    trial: Trial, tmp_path: Path, packages: dict[str, str], python: str, said: str, remedy: str
) -> None:
    archive = tmp_path / "env.tar.gz"
    small_archive(archive, packages=packages, **({"python": python} if python else {}))
    check = trial(archive)
    assert not check.ok and said in check.detail and remedy in check.remedy, check


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_executors_that_ask_for_more_than_a_worker_has_are_found(trial: Trial) -> None:
    check = trial(arguments="--executor-memory 64g")
    assert not check.ok and "has not accepted any resources" in check.detail
    assert "lower --executor-memory" in check.remedy


@pytest.mark.timeout(300)
def test_an_address_of_another_host_is_found(trial: Trial) -> None:
    check = trial(SPARK_LOCAL_IP="198.51.100.7")
    assert not check.ok and "Cannot assign requested address" in check.detail
    assert check.remedy == "SPARK_LOCAL_IP or spark.driver.host is no address of this host"


def test_a_spark_that_finds_no_java_is_found(trial: Trial, tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("bash", "dirname", "env", "sh", "basename", "python3"):
        found = next(Path(each, name) for each in os.environ["PATH"].split(":") if Path(each, name).is_file())
        (programs / name).symlink_to(found)
    home = find_environment(os.environ).spark.home
    check = trial(path=str(home / "bin" / "spark-submit"), PATH=str(programs), JAVA_HOME=None, SPARK_HOME=str(home))
    assert not check.ok and "JAVA_HOME is not set" in check.detail
    assert "install a JDK" in check.remedy


def test_an_archive_of_a_scheme_that_the_cluster_lacks_is_found_before_anything_is_submitted(trial: Trial) -> None:
    check = trial("s3://code/env.tar.gz")
    assert not check.ok and "no file system here for s3://" in check.detail and "s3a://" in check.remedy


@pytest.mark.timeout(300)
def test_an_archive_that_is_gone_is_found_by_the_job_too(trial: Trial, web: tuple[Path, str]) -> None:
    check = trial(f"{web[1]}/none.tar.gz")
    assert not check.ok and "FileNotFoundException" in check.detail
    assert check.remedy == "there is no archive at spark.archive.url: put it there, or correct the setting"


@pytest.mark.soak
@pytest.mark.timeout(300)
def test_a_master_that_answers_and_understands_nothing_is_found(trial: Trial) -> None:
    # Such is a master of another release of Spark: it cannot read the driver's registration, and says so in its own log
    with socket.create_server(("127.0.0.1", 0)) as mute:
        check = trial(arguments=f"--master spark://127.0.0.1:{mute.getsockname()[1]}")
    assert not check.ok and "All masters are unresponsive" in check.detail
    assert "spark.submit.path" in check.remedy


def test_a_task_with_another_pyspark_is_found() -> None:
    told = '{"spark": "4.3.0", "tasks": [{"host": "h", "spark": "4.1.1"}], "start_ms": 1, "job_ms": 1}'
    check = judge(Outcome(0, told, 5.0), "spark://h:7077")
    assert not check.ok and "PySpark 4.1.1, and the driver 4.3.0" in check.detail


def test_hosts_that_cannot_read_the_object_store_are_found() -> None:
    task = f'"spark": "4", "release": "{about_here().release}", "plan": {PLAN_VERSION}, "code": "", "store_error": "E"'
    check = judge(Outcome(0, f'{{"spark": "4", "tasks": [{{"host": "h", {task}}}]}}', 5.0), "m")
    assert not check.ok and "cannot read the object store: E" in check.detail and "credentials" in check.remedy


# ---- what is seen of an archive without a job


def test_an_archive_is_looked_into_where_it_can_be_read(tmp_path: Path, web: tuple[Path, str]) -> None:
    folder, url = web

    def look(place: str) -> Check:
        settings = Settings(
            spark_submitter="spark-submit", spark_master="spark://127.0.0.1:7077", spark_archive_url=place
        )
        return look_at_archive(settings, os.environ)

    for name, told in (
        ("fits", {}),
        ("python", {"python": "3.8.1"}),
        ("processor", {"processor": "riscv64"}),
        ("release", {"release": "9.9"}),
    ):
        small_archive(folder / f"{name}.tgz", told=told)
    assert look(f"{url}/fits.tgz").ok and look(str(folder / "fits.tgz")).ok
    assert "is for Python 3.8" in look(f"{url}/python.tgz").detail
    assert "is for riscv64" in look(f"{url}/processor.tgz").detail
    assert "holds Siltstone 9.9" in look((folder / "release.tgz").as_uri()).detail
    assert "404" in look(f"{url}/none.tgz").detail
    (folder / "page.tgz").write_text("<html>")
    assert "no archive of `siltstone spark archive`" in look(f"{url}/page.tgz").detail
    assert "not looked into" in look("hdfs:///apps/a.tgz").detail
    with socket.socket() as deaf:
        deaf.bind(("127.0.0.1", 0))
        assert not look(f"http://127.0.0.1:{deaf.getsockname()[1]}/a.tgz").ok


def test_nothing_is_submitted_while_something_else_is_not_ok() -> None:
    settings = Settings(
        spark_submitter="spark-submit", spark_master="spark://127.0.0.1:9", spark_archive_url="s3://code/a.tgz"
    )
    found = {check.name: check for check in examine(settings, os.environ, run=False, cluster=True)}
    assert not found["submitter"].ok and not found["archive"].ok
    assert found["trial"].detail == "not tried"
