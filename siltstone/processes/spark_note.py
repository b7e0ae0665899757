"""The engine that an operator chooses for a merge, and the note on a merge that Spark could run. Pure.

Spark is never required: a compactor runs merges of every size itself, up to `compaction.merge.bytes.max`.
"""

from __future__ import annotations

from enum import StrEnum

from compactor.planning.spec import RUN_HERE
from metadata.contract.jobs import MergeJob
from runtime.settings.table import Settings

HOW_TO_ADD_SPARK = (
    "in Siltstone's clone: pip install -c constraints.txt '.[spark]', and spark.submitter=local"
    " (or spark-submit, emr-serverless)"
)
"""The remedy that adds Spark to a compactor."""
ENGINE = "engine"
"""Key in the result of a job: the name of the submitter that ran it. Without this key the compactor itself ran it."""


class EngineChoice(StrEnum):
    """The engine that an operator chooses for a merge of any size."""

    EMBEDDED = "embedded"
    SPARK = "spark"


def wants_spark(job: MergeJob, settings: Settings) -> bool:
    """Whether a merge is large enough for Spark and of a kind that Spark runs."""
    return job.kind not in RUN_HERE and job.input_bytes >= settings.spark_merge_min_bytes


def spark_note(job: MergeJob, settings: Settings) -> str:
    """The note in `siltstone jobs show`; empty if Spark ran the merge, is set up, or would not run it."""
    if not wants_spark(job, settings) or settings.spark_submitter != "none" or ENGINE in job.result:
        return ""
    return f"large enough for Spark (spark.merge.min.bytes); to add Spark to the compactors: {HOW_TO_ADD_SPARK}"
