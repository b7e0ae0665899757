"""Which engine a person chooses, and what is said of a merge that Spark would run if the compactors had it. Pure.

Nothing depends on Spark: a compactor runs merges of every size itself, up to `compaction.merge.bytes.max`.
"""

from __future__ import annotations

from enum import StrEnum

from metadata.contract.compaction import MergeJob
from runtime.settings.table import Settings

HOW_TO_ADD_SPARK = (
    "in Siltstone's clone: pip install -c constraints.txt '.[spark]', and spark.submitter=local"
    " (or spark-submit, emr-serverless)"
)
"""The rest of a sentence about the compactors."""
ENGINE = "engine"
"""In a job's result: who ran it, by the name of its submitter; without it the compactor itself."""


class EngineChoice(StrEnum):
    """What a person wants for a merge, whatever its size."""

    EMBEDDED = "embedded"
    SPARK = "spark"


def wants_spark(job: MergeJob, settings: Settings) -> bool:
    """Whether it is large enough, and of a kind that Spark runs (L0 files are never)."""
    return job.kind != "level" and job.input_bytes >= settings.spark_merge_min_bytes


def spark_note(job: MergeJob, settings: Settings) -> str:
    """For `jobs show`; empty where there is nothing to say."""
    if not wants_spark(job, settings) or settings.spark_submitter != "none" or ENGINE in job.result:
        return ""
    return f"large enough for Spark (spark.merge.min.bytes), which the compactors can be given: {HOW_TO_ADD_SPARK}"
