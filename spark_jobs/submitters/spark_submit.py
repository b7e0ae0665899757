"""A driver by `spark-submit`: standalone, Kubernetes, YARN, or another cluster named in `spark.submit.args`.

If `spark.submit.path` is empty, the PySpark that is installed beside us is used. Executors need a Python that can
import `spark_jobs`: that of this process if it lies at the same path on every host, else the archive that `siltstone
spark archive` builds (`spark.archive.url`), which Spark unpacks beside each executor.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import spark_jobs
from compactor.heavy.submitter import SubmitError
from runtime.settings.table import Settings
from spark_jobs.environment import find_environment
from spark_jobs.submitters.archive_url import SparkJars, jars_of, refused
from spark_jobs.submitters.arguments import (
    CLIENT,
    CLUSTER,
    SubmitArguments,
    master_arguments,
    read_defaults,
    submit_arguments,
)
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
        """Raises SparkMissingError, JavaMissingError, and SubmitError for a `spark.submit.path` that is not there, an
        archive that the cluster cannot read, and a deploy mode that it does not have.
        """
        kept = driver_environ(environ)
        if settings.spark_submit_path:
            program = Path(settings.spark_submit_path)
            if not program.is_file():
                raise SubmitError(
                    f"spark.submit.path is {settings.spark_submit_path!r}, and there is no such file",
                    remedy="name bin/spark-submit of a Spark, or leave it empty for the PySpark installed here",
                )
            self.environ: Mapping[str, str] = {"PYSPARK_PYTHON": sys.executable, **kept}
        else:
            found = find_environment(environ)
            program = found.spark.home / "bin" / "spark-submit"
            self.environ = found.for_child(kept, local_ip="")
        self._program = str(program)
        home = home_of(program, self.environ)
        arguments = submit_arguments(settings, read_defaults(home, self.environ))
        check(settings.spark_archive_url, arguments, jars_of(home))
        self._arguments = [
            *master_arguments(settings.spark_master),
            *("--conf", f"spark.driver.memory={settings.spark_driver_memory}"),
            *archive_arguments(settings.spark_archive_url, arguments.deploy_mode),
            *shlex.split(settings.spark_submit_args),  # last, so that people's own arguments win
        ]

    def command(self, name: str, entry: Path, told: Sequence[str], *, more: Sequence[str] = ()) -> list[str]:
        """The words that start a program on the cluster. `more`: arguments of `spark-submit` that win over all."""
        return [self._program, "--name", name, *self._arguments, *more, str(entry), *told]

    async def submit(self, plan_url: str, *, job_id: int, token: str, limit_ms: int) -> ChildSubmission:
        """Raises SubmitError."""
        told = ["--plan", plan_url, "--limit-ms", str(limit_ms)]
        return await start_child(self.command(f"siltstone merge {job_id}", ENTRY, told), self.environ)


def home_of(program: Path, environ: Mapping[str, str]) -> Path | None:
    """The Spark that a `spark-submit` starts: what SPARK_HOME names, else the one it lies in. None if neither has jars,
    as for a wrapper.
    """
    places = [Path(environ["SPARK_HOME"])] if environ.get("SPARK_HOME") else []
    places.append(program.resolve().parents[1])
    return next((each for each in places if (each / "jars").is_dir()), None)


def check(archive_url: str, arguments: SubmitArguments, jars: SparkJars) -> None:
    """Raises SubmitError for what can only fail on the cluster, after minutes and with words of its own."""
    if arguments.deploy_mode == CLUSTER and arguments.master.startswith("spark://"):
        raise SubmitError(
            "a standalone cluster runs no Python driver (--deploy-mode cluster)",
            remedy="leave --deploy-mode out of spark.submit.args",
        )
    problem = refused(archive_url, arguments, jars)
    if problem is not None:
        raise SubmitError(problem.message, remedy=problem.remedy)


def archive_arguments(url: str, deploy_mode: str = CLIENT) -> list[str]:
    """The arguments for an environment that executors unpack. A driver beside us uses ours; one on the cluster has
    only what it unpacks.
    """
    if not url:
        return []
    confs = {"spark.archives": f"{url}#{UNPACKED}", "spark.pyspark.python": f"./{UNPACKED}/bin/python"}
    if deploy_mode != CLUSTER:
        confs["spark.pyspark.driver.python"] = sys.executable
    return [argument for name, value in confs.items() for argument in ("--conf", f"{name}={value}")]
