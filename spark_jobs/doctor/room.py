"""Checks of this machine's room: cores, memory, scratch, and an address to listen at."""

from __future__ import annotations

import os
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping
from pathlib import Path

from runtime.settings.table import Settings
from spark_jobs.doctor.check import Check, failed, passed
from spark_jobs.environment import LOOPBACK

PYTHON_WORKER_MIB = 640
"""The most memory of one task: interpreter and kernels 200, the buffer of a dedupe 130, the rest for its extents as
they pass."""
JVM_OVERHEAD_MIB = 300
SCRATCH_MIN_MIB = 1024
HEAP_ENOUGH_MIB = 1024
"""Enough heap, because only numbers and manifests pass through a driver."""


def cores_here(settings: Settings) -> int:
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
            return failed("memory", detail, f"fewer tasks at once (spark.master=local[{tasks}]), or free memory")
        if heap > HEAP_ENOUGH_MIB:
            return failed("memory", detail, "lower spark.driver.memory (1g is enough), or free memory")
        return failed("memory", detail, "free memory, or take a machine with more")
    return passed("memory", detail)


def scratch(environ: Mapping[str, str]) -> Check:
    """Whether there is room for the shuffles of a full dedupe."""
    places = [Path(each) for each in environ.get("SPARK_LOCAL_DIRS", tempfile.gettempdir()).split(",")]
    for place in places:
        try:
            free = shutil.disk_usage(place).free >> 20
        except OSError as error:
            return failed("scratch", f"{place}: {error.strerror}", "set SPARK_LOCAL_DIRS to a directory that is there")
        if free < SCRATCH_MIN_MIB or not os.access(place, os.W_OK | os.X_OK):
            detail = f"{free} MiB free in {place}" if free < SCRATCH_MIN_MIB else f"{place} cannot be written"
            return failed("scratch", detail, "set SPARK_LOCAL_DIRS to a directory with room for shuffles")
    return passed("scratch", f"{', '.join(map(str, places))} has room")


def address(environ: Mapping[str, str]) -> Check:
    given = environ.get("SPARK_LOCAL_IP", "")
    try:
        found = socket.gethostbyname(given or LOOPBACK)
        with socket.socket() as probe:
            probe.bind((found, 0))
    except OSError as error:
        return failed(
            "address",
            f"SPARK_LOCAL_IP is {given}, and nothing can listen there: {error.strerror}",
            "set it to an address of this host, or not at all",
        )
    if given:
        return passed("address", f"SPARK_LOCAL_IP is {given}; a local Spark keeps to {LOOPBACK} all the same")
    return passed("address", f"SPARK_LOCAL_IP is not set: {LOOPBACK} for a local Spark, its own choice for a cluster")
