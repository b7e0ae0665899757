"""A driver with its executors in one process tree on this machine: `python -m spark_jobs.heavy_merge` as a child."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from runtime.settings.table import Settings
from spark_jobs.environment import SHORT_LIVED, find_environment
from spark_jobs.submitters.child import ChildSubmission, driver_environ, start_child

_JAVA_OPTIONS = ("SPARK_SUBMIT_OPTS", "JAVA_TOOL_OPTIONS", "JDK_JAVA_OPTIONS", "_JAVA_OPTIONS")


class LocalSubmitter:
    """A `compactor.heavy.submitter.Submitter`. `token` is not needed: the driver ends with this process."""

    name = "local"

    def __init__(self, settings: Settings, *, environ: Mapping[str, str]) -> None:
        """Raises SparkMissingError, JavaMissingError."""
        self._options = ["--master", settings.spark_master, "--memory", settings.spark_driver_memory]
        self.environ = find_environment(environ).for_child(driver_environ(environ))
        if not any(environ.get(name) for name in _JAVA_OPTIONS):  # a JVM refuses two collectors
            self.environ["SPARK_SUBMIT_OPTS"] = SHORT_LIVED

    async def submit(self, plan_url: str, *, job_id: int, token: str, limit_ms: int) -> ChildSubmission:
        """Raises SubmitError."""
        told = ["--plan", plan_url, "--limit-ms", str(limit_ms)]
        command = [sys.executable, "-P", "-m", "spark_jobs.heavy_merge", *told, *self._options]
        return await start_child(command, self.environ)
