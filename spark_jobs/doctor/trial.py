"""A job that is submitted as a merge would be: to the cluster of the settings, or to one that is started here."""

from __future__ import annotations

import json
import re
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

from compactor.heavy.plan.codec import PLAN_VERSION
from runtime.clock import Clock, SystemClock
from runtime.errors import SiltstoneError
from runtime.settings.spark import is_local_master
from runtime.settings.table import Settings
from runtime.text import plural
from spark_jobs.archive import about_here
from spark_jobs.doctor.check import Check, failed, passed
from spark_jobs.doctor.standalone import AUTH_SECRET, ClusterStartError, standalone
from spark_jobs.doctor.submitter import spark_home
from spark_jobs.environment import LOOPBACK, SparkEnvironment
from spark_jobs.faults import NO_RESOURCES, cause_of, remedy_of
from spark_jobs.submitters.arguments import read_defaults, submit_arguments
from spark_jobs.submitters.spark_submit import SparkSubmitSubmitter
from spark_jobs.submitters.supervise import GRACE_S

TIMEOUT_S = 300
ENTRY = Path(__file__).with_name("cluster_job.py")  # not imported: it needs PySpark
HOPELESS: Mapping[str, int] = {NO_RESOURCES: 2, "Unable to create executor": 4}
"""Words that Spark repeats for ever, and how often they must be read before a job is given up."""
RESERVED_MIB = 1024
"""The memory that a standalone worker leaves to its host, if nobody says otherwise."""
_POLL_S = 0.2


class Outcome(NamedTuple):
    code: int | None
    """None: it did not end by itself."""
    said: str
    took_ms: float


def try_cluster(found: SparkEnvironment, settings: Settings, environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield "cluster" if one is started here, then "trial"."""
    master = submit_arguments(settings, read_defaults(spark_home(settings, environ), environ)).master
    clock = SystemClock()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="siltstone-doctor-")))
        if master and not is_local_master(master):
            yield _trial(settings, environ, folder, master, [], clock)
            return
        began_ms = clock.monotonic_ms()
        secret = secrets.token_hex(16)
        daemons = found.for_child(environ)
        if settings.spark_archive_url:
            daemons.pop("PYTHONPATH", None)  # or tasks would find ours instead of the archive's
        try:
            cluster = stack.enter_context(
                standalone(daemons, folder, worker_memory_mib=_worker_memory_mib(), secret=secret, clock=clock)
            )
        except ClusterStartError as error:
            yield failed("cluster", cause_of(error.message), remedy_of(error.message))
            return
        took_s = (clock.monotonic_ms() - began_ms) / 1000
        yield passed("cluster", f"a master and {plural(2, 'worker')} here, started in {took_s:.1f} s")
        # Spark wants the setting to be there, and takes the secret of its variable, which no list of processes shows.
        authenticate = ["--conf", "spark.authenticate=true", "--conf", f"spark.authenticate.secret={AUTH_SECRET}"]
        more = ["--master", cluster.master_url, *authenticate]
        local = {**environ, "SPARK_LOCAL_IP": environ.get("SPARK_LOCAL_IP") or LOOPBACK, AUTH_SECRET: secret}
        yield _trial(settings, local, folder, cluster.master_url, more, clock)


def _worker_memory_mib() -> int:
    """The memory that a worker of this machine would offer by itself."""
    found = re.search(r"MemTotal:\s+(\d+) kB", Path("/proc/meminfo").read_text(encoding="ascii"))
    return max(int(found[1]) // 1024 - RESERVED_MIB if found else 0, RESERVED_MIB)


def _trial(
    settings: Settings, environ: Mapping[str, str], folder: Path, master: str, more: Sequence[str], clock: Clock
) -> Check:
    try:
        submitter = SparkSubmitSubmitter(settings, environ=environ)
    except SiltstoneError as error:
        return failed("trial", error.message, error.remedy)
    store = settings.object_store_url
    told = [store] if store.startswith(("s3:", "file:")) else []
    command = submitter.command("siltstone doctor", ENTRY, told, more=more)
    outcome = run(command, submitter.environ, folder, clock)
    return judge(outcome, master)


def run(
    command: Sequence[str], environ: Mapping[str, str], folder: Path, clock: Clock, *, timeout_s: float = TIMEOUT_S
) -> Outcome:
    """Run a driver until it ends, says something hopeless, or its time is over; then no process of it is left."""
    root = str(Path(__file__).parents[2])
    supervisor = [sys.executable, "-P", "-m", "spark_jobs.submitters.supervise", str(GRACE_S)]
    path = ":".join(filter(None, (root, environ.get("PYTHONPATH"))))
    log = folder / "driver.log"
    began_ms = clock.monotonic_ms()
    with log.open("wb") as output:
        process = subprocess.Popen(  # noqa: S603 - spark-submit, as the compactor would run it
            [*supervisor, *command],
            env={**environ, "PYTHONPATH": path},
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )
    assert process.stdin is not None
    try:
        while process.poll() is None:
            over = clock.monotonic_ms() - began_ms > timeout_s * 1000
            if over or _is_hopeless(log.read_text(encoding="utf-8", errors="replace")):
                break
            time.sleep(_POLL_S)
        code = process.poll()
    finally:
        process.stdin.close()  # the supervisor ends the driver, if it runs still
        process.wait()
    said = log.read_text(encoding="utf-8", errors="replace")
    return Outcome(code, said, clock.monotonic_ms() - began_ms)


def _is_hopeless(said: str) -> bool:
    return any(said.count(words) >= times for words, times in HOPELESS.items())


def judge(outcome: Outcome, master: str) -> Check:
    """The check that follows from the job's words."""
    took = f"{outcome.took_ms / 1000:.1f} s"
    said = outcome.said
    lines = [line for line in said.splitlines() if line.startswith('{"spark"')]
    if outcome.code != 0 or not lines:
        how = f"given up after {took}" if outcome.code is None else f"exit code {outcome.code} after {took}"
        return failed("trial", f"{master}: {how}: {cause_of(said)}", remedy_of(said))
    told = json.loads(lines[-1])
    problem = _problem(told)
    if problem is not None:
        return failed("trial", *problem)
    tasks: list[dict[str, Any]] = told["tasks"]
    hosts = ", ".join(sorted({each["host"] for each in tasks}))
    return passed(
        "trial",
        f"{plural(len(tasks), 'task')} ran at {master} on {hosts}: the session took {told['start_ms'] / 1000:.1f} s,"
        f" the tasks {told['job_ms'] / 1000:.1f} s, all of it {took}",
    )


def _problem(told: Mapping[str, Any]) -> tuple[str, str] | None:
    """(detail, remedy) of the first task that does not fit this process."""
    here = about_here().release
    for task in told["tasks"]:
        at = f"the task on {task['host']}"
        if task["spark"] != told["spark"]:
            return (
                f"{at} has PySpark {task['spark']}, and the driver {told['spark']}",
                "install the cluster's release of PySpark here, or name its spark-submit in spark.submit.path",
            )
        if (task["release"], task["plan"]) != (here, PLAN_VERSION):
            return (
                f"{at} has Siltstone {task['release']} (plans of version {task['plan']}) in {task['code']}, and the"
                f" compactor here is {here} ({PLAN_VERSION})",
                "run the same release on the compactor and in the archive: pack it again",
            )
        if task.get("store_error"):
            return (
                f"{at} cannot read the object store: {task['store_error']}",
                "give the hosts credentials and region of the object store (AWS_*, an instance's or a pod's role)",
            )
    return None
