"""The engine of a compactor's merges: its own or, for large merges, Spark.

The settings decide (`spark.submitter`, `spark.merge.min.bytes`). An operator may choose the engine of a merge that is
started by hand (`EngineChoice`). A compactor without a submitter runs every merge itself, and logs for a large merge
how Spark could run it.
"""

from __future__ import annotations

from typing import Any

from compactor.compactor import embedded_engine
from compactor.heavy.engine import HeavyEngine, HeavyOptions, PlanStore
from compactor.heavy.submitter import Submitter
from compactor.planning.options import MergeMemory
from compactor.worker import Engine, Engines
from metadata.contract.jobs import ClaimedJob, CommitMerge
from metadata.contract.leases import WriterLease
from metadata.contract.store import MetadataStore
from runtime.errors import BadInputError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from siltstone.processes.places import place_of
from siltstone.processes.spark_note import HOW_TO_ADD_SPARK, EngineChoice, wants_spark
from storage.objects import ObjectStore
from storage.urls import parse_store_url

_log = get_logger(__name__)


class NoSubmitterError(BadInputError):
    """Spark was asked for, but no setting says where it is. Nothing was started."""


async def engines(
    settings: Settings,
    store: ObjectStore,
    metadata: MetadataStore,
    runtime: Runtime,
    *,
    choice: EngineChoice | None = None,
) -> Engines:
    """The engines by the settings. `choice` overrides the size of a merge. Merges of L0 files never use Spark.

    Raises NoSubmitterError and the errors of `open_submitter` (no PySpark, no Java), before anything runs.
    """
    submitter = None if choice is EngineChoice.EMBEDDED else _submitter(settings, required=choice is EngineChoice.SPARK)
    # Asked only with a submitter: plans name their cluster, and merges in this process have no plans.
    cluster_id = (await metadata.cluster_identity()).cluster_id if submitter is not None else ""

    def engine(lease: WriterLease) -> Engine:
        embedded = embedded_engine(settings, store, runtime, lease=lease)
        if submitter is None:
            return NotingEngine(embedded, settings)
        return HeavyEngine(
            embedded=embedded,
            submitter=submitter,
            plans=PlanStore(store, parse_store_url(place_of(settings)), cluster_id),
            clock=runtime.clock,
            lease=lease,
            options=HeavyOptions(
                bytes_min=settings.spark_merge_min_bytes,
                is_heavy=lambda _: None if choice is None else choice is EngineChoice.SPARK,
                unit_bytes=settings.spark_unit_bytes,
                keyed_unit_bytes=settings.spark_keyed_unit_bytes,
                memory=MergeMemory(keys_max=settings.dedupe_keys_max),
            ),
        )

    return Engines(make=engine, heavy_bytes_min=None if submitter is None else settings.spark_merge_min_bytes)


def _submitter(settings: Settings, *, required: bool) -> Submitter | None:
    from spark_jobs.submitters import open_submitter

    submitter = open_submitter(settings)
    if submitter is None and required:
        raise NoSubmitterError(
            "spark.submitter is none, so no setting says where Spark is; no merge was started",
            remedy=f"{HOW_TO_ADD_SPARK}; for this command: --set spark.submitter=local",
        )
    return submitter


class NotingEngine:
    """The embedded engine, when there is no other. It logs a warning for merges that are large enough for Spark."""

    def __init__(self, inner: Engine, settings: Settings) -> None:
        self._inner, self._settings = inner, settings

    async def run(self, claimed: ClaimedJob, **options: Any) -> CommitMerge:
        if wants_spark(claimed.job, self._settings):
            facts = {"job": claimed.job.job_id, "bytes": claimed.job.input_bytes}
            _log.warning("this merge is large enough for Spark, and runs here", **facts, remedy=HOW_TO_ADD_SPARK)
        return await self._inner.run(claimed, **options)
