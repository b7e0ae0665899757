"""The doctor's judgement of its findings, and of Spark's output when it does not start."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

import pytest

from runtime.settings.table import Settings
from spark_jobs.doctor.check import Check
from spark_jobs.doctor.examine import examine
from spark_jobs.doctor.room import judge_memory
from spark_jobs.doctor.submitter import addresses_of, is_loopback
from spark_jobs.faults import FAULTS, cause_of, remedy_of

real_connection = socket.create_connection

SAID = """\
WARNING: Using incubator modules: jdk.incubator.vector
Error occurred during initialization of VM
Could not reserve enough space for 94371840000KB object heap
Traceback (most recent call last):
pyspark.errors.exceptions.base.PySparkRuntimeError: [JAVA_GATEWAY_EXITED] Java gateway process exited
"""


def checks(settings: Settings | None = None, **environ: str) -> dict[str, Check]:
    found = {**os.environ, **environ}
    return {check.name: check for check in examine(settings or Settings(), found, run=False)}


def test_on_this_machine_all_is_found() -> None:
    found = checks()
    assert [name for name, check in found.items() if not check.ok] == []
    assert set(found) == {
        *("python", "pyspark", "pyarrow", "pandas", "java", "bash", "cores", "memory", "scratch", "address"),
        "submitter",
    }


def test_without_the_extra_the_rest_is_looked_at_all_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    found = {check.name: check for check in examine(Settings(), os.environ)}
    assert not found["pyspark"].ok and "pip install -c constraints.txt '.[spark]'" in found["pyspark"].remedy
    assert found["java"].ok and (found["job"].ok, found["job"].detail) == (False, "not tried")


def test_the_cause_is_told_and_not_that_the_gateway_exited() -> None:
    assert cause_of(SAID) == "Could not reserve enough space for 94371840000KB object heap"
    assert "spark.driver.memory" in remedy_of(SAID)
    assert cause_of("one\njava.lang.IllegalStateException: odd\ntwo") == "java.lang.IllegalStateException: odd"
    assert cause_of("") == "it ended without a word"
    assert "docs/spark.md" in remedy_of("odd")


def test_every_fault_that_is_recognised_stands_in_the_guide() -> None:
    guide = (Path(__file__).resolve().parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    assert [remedy for _, remedy in FAULTS if remedy not in guide] == []


def test_too_little_memory_is_said_with_its_sum() -> None:
    assert judge_memory(3000, 1024, 2, "1g").ok
    short = judge_memory(2000, 1024, 2, "1g")
    assert not short.ok and "2000 MiB free; a Spark here takes 2604 MiB" in short.detail
    assert "spark.master=local[1]" in short.remedy


def test_a_heap_that_leaves_no_room_is_to_be_lowered_and_not_the_tasks() -> None:
    short = judge_memory(16_000, 64 * 1024, 2, "64g")
    assert not short.ok and "lower spark.driver.memory" in short.remedy and "local[" not in short.remedy
    nothing = judge_memory(500, 512, 1, "512m")
    assert not nothing.ok and "spark." not in nothing.remedy


def test_a_local_address_that_is_none_of_ours_is_found() -> None:
    address = checks(SPARK_LOCAL_IP="192.0.2.1")["address"]
    assert not address.ok and "192.0.2.1" in address.detail


def test_a_scratch_directory_that_is_not_there_is_found(tmp_path: Path) -> None:
    scratch = checks(SPARK_LOCAL_DIRS=f"{tmp_path},{tmp_path}/none")["scratch"]
    assert not scratch.ok and "No such file" in scratch.detail


@pytest.mark.parametrize(
    ("master", "addresses"),
    [
        ("spark://a:7078,b", [("a", 7078), ("b", 7077)]),
        ("k8s://https://c", [("c", 443)]),
        ("k8s://d:6443", [("d", 6443)]),
        ("k8s://http://e", [("e", 80)]),
        ("yarn", []),
    ],
)
def test_the_addresses_of_a_master_are_those_that_spark_would_call(
    master: str, addresses: list[tuple[str, int]]
) -> None:
    assert list(addresses_of(master)) == addresses


def test_a_driver_that_names_its_own_loopback_to_a_cluster_elsewhere_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a master that answers and is not on this host, as far as its name tells
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        known = {"master.example": "192.0.2.9", "127.0.0.1": "127.0.0.1"}
        monkeypatch.setattr(socket, "gethostbyname", lambda name: known[name])
        here = (("127.0.0.1", port),)
        monkeypatch.setattr(socket, "create_connection", lambda *_: real_connection(*here))
        settings = Settings(spark_submitter="spark-submit", spark_master="spark://master.example:7077")
        # then SPARK_LOCAL_IP is told to be wrong, and nothing without it
        submitter = checks(settings, SPARK_LOCAL_IP="127.0.0.1")["submitter"]
        assert not submitter.ok and "their own host" in submitter.detail
        assert checks(settings, SPARK_LOCAL_IP="")["submitter"].ok


def test_loopback_is_told_from_other_addresses_and_from_nothing() -> None:
    assert [is_loopback(each) for each in ("127.0.0.3", "192.0.2.1", "", "no such name")] == [True, False, False, False]


def test_a_master_that_does_not_answer_is_found() -> None:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        port = listening.getsockname()[1]
        settings = Settings(spark_submitter="spark-submit", spark_master=f"spark://127.0.0.1:{port}")
        assert not checks(settings)["submitter"].ok
        listening.listen()
        assert checks(settings)["submitter"].ok


def test_yarn_wants_its_configuration(tmp_path: Path) -> None:
    settings = Settings(spark_submitter="spark-submit", spark_master="yarn")
    assert "HADOOP_CONF_DIR" in checks(settings, HADOOP_CONF_DIR="")["submitter"].remedy
    (tmp_path / "yarn-site.xml").touch()
    assert checks(settings, HADOOP_CONF_DIR=str(tmp_path))["submitter"].ok
