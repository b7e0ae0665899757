"""A driver by `spark-submit`: standalone, Kubernetes, YARN, or another cluster named in `spark.submit.args`.

If `spark.submit.path` is empty, the PySpark that is installed beside us is used. Executors need a Python that can
import `spark_jobs`: that of this process if it lies at the same path on every host, else the archive that `siltstone
spark archive` builds (`spark.archive.url`), which Spark unpacks beside each executor.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from pathlib import Path

import spark_jobs
from compactor.heavy.submitter import SubmitError
from runtime.settings.spark import is_local_master
from runtime.settings.table import Settings
from spark_jobs.environment import find_environment
from spark_jobs.submitters.child import ChildSubmission, driver_environ, start_child

ENTRY = Path(spark_jobs.__file__).with_name("heavy_merge.py")
UNPACKED = "environment"
"""The directory of the archive beside an executor."""


class SparkSubmitSubmitter:
    """A `compactor.heavy.submitter.Submitter`. Spark knows no tokens. A driver in client mode ends with this process.
    An old one in cluster mode runs beside the next, and the first manifest of each unit counts.
    """

    name = "spark-submit"

    def __init__(self, settings: Settings, *, environ: Mapping[str, str]) -> None:
        """Raises SparkMissingError, JavaMissingError, SubmitError."""
        kept = driver_environ(environ)
        if settings.spark_submit_path:
            program = Path(settings.spark_submit_path)
            if not program.is_file():
                raise SubmitError(
                    f"spark.submit.path is {settings.spark_submit_path!r}, and there is no such file",
                    remedy="name bin/spark-submit of a Spark, or leave it empty for the PySpark installed here",
                )
            self._environ: Mapping[str, str] = {"PYSPARK_PYTHON": sys.executable, **kept}
        else:
            found = find_environment(environ)
            program = found.spark.home / "bin" / "spark-submit"
            self._environ = found.for_child(kept, local_ip="")
        self._program = str(program)
        self._arguments = [
            *master_arguments(settings.spark_master),
            *("--conf", f"spark.driver.memory={settings.spark_driver_memory}"),
            *archive_arguments(settings.spark_archive_url),
            *shlex.split(settings.spark_submit_args),  # last, so that people's own arguments win
        ]

    async def submit(self, plan_url: str, *, job_id: int, token: str, limit_ms: int) -> ChildSubmission:
        """Raises SubmitError."""
        named = ["--name", f"siltstone merge {job_id}"]
        told = ["--plan", plan_url, "--limit-ms", str(limit_ms)]
        command = [self._program, *named, *self._arguments, str(ENTRY), *told]
        return await start_child(command, self._environ)


def master_arguments(master: str) -> list[str]:
    """The arguments for a master. A master on this machine is the setting's default and leaves the choice to Spark's
    own configuration.
    """
    return [] if is_local_master(master) else ["--master", master]


def archive_arguments(url: str) -> list[str]:
    """The arguments for an environment that executors unpack. The driver, in client mode, uses ours."""
    if not url:
        return []
    python = f"./{UNPACKED}/bin/python"
    confs = {
        "spark.archives": f"{url}#{UNPACKED}",
        "spark.pyspark.python": python,
        "spark.pyspark.driver.python": sys.executable,
    }
    return [argument for name, value in confs.items() for argument in ("--conf", f"{name}={value}")]
