"""Starts the driver of a heavy merge in the way that `spark.submitter` says. Nothing here imports PySpark."""

from __future__ import annotations

import os
from collections.abc import Mapping

from compactor.heavy.submitter import Submitter
from runtime.settings.table import Settings


def open_submitter(settings: Settings, *, environ: Mapping[str, str] | None = None) -> Submitter | None:
    """The submitter, or None for `none`. It starts nothing yet, but checks that everything it needs is there.

    Raises SparkMissingError and JavaMissingError (of `spark_jobs/environment.py`) if drivers should run on this machine
    and cannot, and SubmitError if `spark.submit.path` names no file.
    """
    found = os.environ if environ is None else environ
    match settings.spark_submitter:
        case "local":
            from spark_jobs.submitters.local import LocalSubmitter

            return LocalSubmitter(settings, environ=found)
        case "spark-submit":
            from spark_jobs.submitters.spark_submit import SparkSubmitSubmitter

            return SparkSubmitSubmitter(settings, environ=found)
        case "emr-serverless":
            from spark_jobs.submitters.emr_serverless import EmrServerlessSubmitter

            return EmrServerlessSubmitter(settings)
        case _:
            return None
