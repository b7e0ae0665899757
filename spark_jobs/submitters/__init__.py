"""Who starts the driver of a heavy merge, chosen by the setting `spark.submitter`. Nothing here imports PySpark."""

from __future__ import annotations

import os
from collections.abc import Mapping

from compactor.heavy.submitter import Submitter
from runtime.settings.table import Settings


def open_submitter(settings: Settings, *, environ: Mapping[str, str] | None = None) -> Submitter | None:
    """None for `none`. Opens and starts nothing yet, but looks whether what it needs is there.

    Raises SparkMissingError and JavaMissingError (of `spark_jobs/environment.py`) where drivers are to run on this
    machine and cannot, SubmitError where `spark.submit.path` leads nowhere.
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
