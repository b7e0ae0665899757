"""Spark sessions with our defaults: on this machine, and inside a program that `spark-submit` runs.

`local_session` tells Spark where Java, Python and Spark itself are (spark_jobs/environment.py), keeps it on loopback,
and leaves the environment of this process unchanged. Its session may stay open until the process ends, which ends the
JVM; `end_session` ends it earlier and waits until the JVM is gone.
"""

from __future__ import annotations

import os
import subprocess
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, cast

from py4j.protocol import Py4JJavaError  # pyright: ignore[reportMissingTypeStubs] -- it ships none
from pyspark import SparkConf, SparkContext
from pyspark.errors import PySparkRuntimeError
from pyspark.sql import SparkSession

from runtime.errors import BadInputError, UnavailableError
from spark_jobs.environment import LOOPBACK, SparkEnvironment, find_environment

ATTEMPTS = 4
"""The tries of a task. `local[N]` alone would give up at its first failure."""
WORKERS: Mapping[str, str] = {"spark.python.unix.domain.socket.enabled": "true"}
"""Spark 4.1 and later can talk to their Python workers through Unix sockets. Through TCP each task took 45 ms more.

Only on this machine: sockets lie in the temporary directory of each JVM, and that of a YARN container has a longer path
than a socket may have."""
LOCAL_CONF: Mapping[str, str] = {
    "spark.driver.host": LOOPBACK,
    "spark.driver.bindAddress": LOOPBACK,
    "spark.sql.session.timeZone": "UTC",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
}
QUIET_LOGGING = Path(__file__).with_name("log4j2.properties")
_JVM_END_S = 20


class SessionStartError(UnavailableError):
    """The JVM did not start, or died; its own last words are on stderr. Nothing was run."""


def local_session(
    app: str,
    cores: int | None = None,
    *,
    memory: str = "1g",
    attempts: int = ATTEMPTS,
    java_options: str = "",
    conf: Mapping[str, str] | None = None,
) -> SparkSession:
    """A new session in this process, on `cores` (None: all) of this machine. `conf` wins over our defaults.

    Takes 4 to 10 s. Raises SparkMissingError, JavaMissingError, SessionStartError, and BadInputError if this process
    has a session already: its memory and master can no longer be chosen.
    """
    if SparkSession.getActiveSession() is not None:
        raise BadInputError("this process has a Spark session already", remedy="use it, or stop it first")
    environment = find_environment(os.environ)
    cores = cores or len(os.sched_getaffinity(0))
    chosen = {
        "spark.master": f"local[{cores},{attempts}]",
        **WORKERS,
        **LOCAL_CONF,
        "spark.driver.memory": memory,
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={QUIET_LOGGING.as_uri()} {java_options}",
        "spark.sql.shuffle.partitions": str(cores),
        **(conf or {}),
    }
    with _environment_of(environment):
        return _started(app, chosen)


def session_for(app: str, *, conf: Mapping[str, str] | None = None) -> SparkSession:
    """The session of a program run by `spark-submit`, whose own options win over `conf`.

    Raises SessionStartError.
    """
    given = SparkConf()
    return _started(app, {name: value for name, value in (conf or {}).items() if not given.contains(name)})


def end_session(spark: SparkSession) -> None:
    """Stop the session and, if this process started the JVM, end that too and wait for it."""
    spark.stop()
    _end_jvm()


def _end_jvm() -> None:
    context = cast(Any, SparkContext)  # the gateway has no public name
    gateway = context._gateway
    process = cast("subprocess.Popen[bytes] | None", getattr(gateway, "proc", None))
    if gateway is None or process is None:
        return
    gateway.shutdown()
    if process.stdin is not None:
        process.stdin.close()  # the JVM ends when its stdin ends
    try:
        process.wait(_JVM_END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    context._gateway = context._jvm = None


def _started(app: str, conf: Mapping[str, str]) -> SparkSession:
    warnings.filterwarnings("ignore", message="PySpark does not yet fully support pandas", category=FutureWarning)
    builder = cast(Any, SparkSession.builder)  # its methods are typed as attributes of two classes at once
    for name, value in conf.items():
        builder = builder.config(name, value)
    try:
        return builder.appName(app).getOrCreate()
    except (PySparkRuntimeError, Py4JJavaError) as error:
        said = _first_line(error)  # before the JVM ends, because this asks it
        _end_jvm()  # a JVM may start and then refuse its options; another session may have others
        remedy = "`siltstone spark doctor` finds out why"
        raise SessionStartError(f"Spark did not start: {said}", remedy=remedy) from error


def _first_line(error: Exception) -> str:
    """The first line of the JVM's message, without Py4J's words about the call and the stack traces."""
    if isinstance(error, Py4JJavaError):
        return str(cast(Any, error).java_exception.getMessage()).partition("\n")[0]
    return str(error).partition("\n")[0]


@contextmanager
def _environment_of(environment: SparkEnvironment) -> Generator[None]:
    """Set the variables while PySpark starts the JVM, which passes them on to Python's workers; then restore them."""
    before = dict(os.environ)
    wanted = environment.for_child(before)
    for name in before.keys() - wanted.keys():
        del os.environ[name]
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name in os.environ.keys() - before.keys():
            del os.environ[name]
        os.environ.update(before)
