"""A job on this machine, really run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from spark_jobs.doctor.check import Check, failed, passed
from spark_jobs.environment import SparkEnvironment
from spark_jobs.faults import cause_of, remedy_of

SMOKE_TIMEOUT_S = 120


def run_local_job(found: SparkEnvironment, environ: Mapping[str, str], memory: str) -> Check:
    """Start a session in a process of its own, with two tasks in Python workers."""
    command = [sys.executable, "-P", "-m", "spark_jobs.smoke", memory]
    root = str(Path(__file__).parents[2])
    environ = found.for_child(environ) | {
        "PYTHONPATH": os.pathsep.join(filter(None, (root, environ.get("PYTHONPATH"))))
    }
    try:
        outcome = subprocess.run(  # noqa: S603 - this interpreter
            command, env=environ, capture_output=True, text=True, timeout=SMOKE_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired as error:
        said = error.stderr.decode(errors="replace") if error.stderr else ""
        return failed("job", f"not done after {SMOKE_TIMEOUT_S} s: {cause_of(said)}", remedy_of(said))
    if outcome.returncode != 0:
        said = outcome.stdout + outcome.stderr  # a JVM that does not start explains it on stdout
        return failed("job", f"exit code {outcome.returncode}: {cause_of(said)}", remedy_of(said))
    told = json.loads(outcome.stdout.splitlines()[-1])
    return passed(
        "job",
        f"ran: the session took {told['start_ms'] / 1000:.1f} s, {told['workers']} tasks {told['job_ms'] / 1000:.1f} s",
    )
