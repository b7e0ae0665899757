"""The planner's numbers of a history, and merges that no planner would make."""

from __future__ import annotations

from collections.abc import Sequence

from compactor.deletion.janitor import JanitorLimits
from compactor.planning.spec import MergeKind, MergeSpec, PartitionSpec, PlanOptions
from metadata.contract.compactors import CompactionView
from metadata.contract.leases import JOB_LEASE_MS
from metadata.contract.leveled import LeveledExtent

LIMIT_MS = 4_000
GRACE_MS = 1_000
PURGE_MS = 30_000
OPTIONS = PlanOptions(
    l0_files_min=3,
    l0_bytes_min=1,
    l0_wait_ms=50,
    l0_wait_ms_max=1_000,
    l1_runs_min=3,
    l2_runs_min=2,
    l2_similar_factor=3.0,
    daily_interval_ms=20_000,
    forced_dirty_bytes_min=1,
    forced_dirty_wait_ms=500,
    forced_interval_ms=200,
    mostly_dead_bytes_min=1,
    purge_deadline_ms=PURGE_MS,
    expiry_margin_ms=0,
    erase_pause_ms=3_000,
    retention_check_ms=1_000,
    job_limit_base_ms=LIMIT_MS,
    job_limit_ms_per_mib=0,
    grace_ms=GRACE_MS,
    jobs_max=6,
)
JANITOR_LIMITS = JanitorLimits(
    grace_ms=GRACE_MS,
    orphan_age_ms=GRACE_MS,
    orphan_refuse_files=1_000,
    orphan_bound_ms=JOB_LEASE_MS + LIMIT_MS,
)


def _touches(aborted: tuple[int, int, int], extents: Sequence[LeveledExtent], ids: set[int]) -> bool:
    _, first, marker = aborted
    chosen = [each for each in extents if each.extent_id in ids]
    return any(each.last_offset >= first for each in chosen) and any(each.base_offset <= marker for each in chosen)


def arbitrary_spec(
    view: CompactionView, chosen: Sequence[LeveledExtent], *, limit_ms: int = LIMIT_MS, grace_ms: int = GRACE_MS
) -> MergeSpec:
    """Bounds by the rules of docs/design.md, computed here and not by the planner."""
    ids = {extent.extent_id for extent in chosen}
    partitions: dict[int, PartitionSpec] = {}
    for partition in view.partitions:
        if not any(extent.extent_id in ids for extent in partition.extents):
            continue
        lag_ms = int(partition.configs.get("min.compaction.lag.ms", "0"))
        first_uncleanable = partition.last_stable_offset
        young = [each.base_offset for each in partition.extents if each.max_timestamp_ms > view.now_ms - lag_ms]
        if lag_ms > 0:
            first_uncleanable = min([first_uncleanable, *young])
            if partition.extents and partition.extents[-1].last_offset + 1 < first_uncleanable:
                first_uncleanable = partition.extents[-1].last_offset + 1
        whole = partition.log_start_offset
        for extent in sorted(partition.extents, key=lambda each: each.base_offset):
            if extent.base_offset > whole or extent.extent_id not in ids:
                break
            whole = extent.last_offset + 1
        partitions[partition.partition_id] = PartitionSpec(
            partition_id=partition.partition_id,
            log_start_offset=partition.log_start_offset,
            last_stable_offset=partition.last_stable_offset,
            high_watermark=partition.high_watermark,
            first_uncleanable_offset=first_uncleanable,
            whole_through_offset=whole,
            delete_horizon_ms=view.now_ms
            + limit_ms
            + grace_ms // 2
            + int(partition.configs.get("delete.retention.ms", "86400000")),
            passes=2 if partition.passes_needed > 1 else 1,
            aborted=[one for one in partition.aborted if _touches(one, partition.extents, ids)],
        )
    return MergeSpec(
        kind=MergeKind.MERGE,
        now_ms=view.now_ms,
        limit_ms=limit_ms,
        level=2,
        output_bytes=OPTIONS.output_bytes,
        dedupe=True,
        extent_ids=tuple(sorted(ids)),
        partitions=partitions,
        reason="chance",
    )
