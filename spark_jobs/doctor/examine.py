"""All checks, one after the other.

Every check looks, and the last ones try: a session in a process of its own runs two tasks in Python workers, which is
where a wrong Java, a wrong Python and too little memory show; and, if asked, a job is submitted to a cluster as a merge
would be. Nothing is left running.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping

from runtime.settings.spark import memory_mib
from runtime.settings.table import Settings
from spark_jobs.doctor.check import Check, failed, passed
from spark_jobs.doctor.installed import bash_here, java_here, package_here, spark_here
from spark_jobs.doctor.local_job import run_local_job
from spark_jobs.doctor.room import address, available_mib, cores_here, judge_memory, scratch
from spark_jobs.doctor.submitter import look_at_submitter
from spark_jobs.doctor.trial import try_cluster
from spark_jobs.environment import SparkEnvironment

FIRST_PUT_RIGHT = "put right what is not ok above"


def examine(
    settings: Settings, environ: Mapping[str, str], *, run: bool = True, cluster: bool = False
) -> Iterator[Check]:
    """Yield each check as soon as it is made. `run` False: start no Spark here. `cluster`: submit a job to the
    standalone, Kubernetes or YARN cluster of the settings, or else to one that is started here. Raises nothing of its
    own.
    """
    yield passed("python", f"{sys.version.split()[0]} at {sys.executable}")
    spark, check = spark_here()
    yield check
    for name in ("pyarrow", "pandas"):
        yield package_here(name)
    java, check = java_here(spark, environ)
    yield check
    yield bash_here(environ)
    cores = cores_here(settings)
    yield passed("cores", f"{cores} for tasks here, of {len(os.sched_getaffinity(0))}")
    yield judge_memory(available_mib(), memory_mib(settings.spark_driver_memory), cores, settings.spark_driver_memory)
    yield scratch(environ)
    yield address(environ)
    found = SparkEnvironment(spark=spark, java=java) if spark is not None and java is not None else None
    if run:
        local = run_local_job(found, environ, settings.spark_driver_memory) if found else None
        yield local or failed("job", "not tried", FIRST_PUT_RIGHT)
    good = True
    for check in look_at_submitter(settings, environ):
        good = good and check.ok
        yield check
    if cluster:
        if good and found:
            yield from try_cluster(found, settings, environ)
        else:
            yield failed("trial", "not tried", FIRST_PUT_RIGHT)
