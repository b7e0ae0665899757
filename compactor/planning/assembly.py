"""Merge specs put together: from the inputs that a rule chose to the values that the job stores. Pure."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from compactor.planning.dirtiness import config_int, stretch_end, unbroken_stretch
from compactor.planning.spec import MIB, RUN_HERE, SPARK_LIMIT_MS_MAX, MergeKind, MergeSpec, PartitionSpec, PlanOptions
from compactor.planning.view import PlanningView
from metadata.contract.compactors import FileView, PartitionView
from metadata.contract.leveled import LeveledExtent
from metadata.rules.retention import TIMESTAMP_MS_MAX


def l0_spec(view: PlanningView, files: Sequence[FileView], reason: str) -> MergeSpec:
    """L0 files, whole."""
    size = sum(each.size_bytes for each in files)
    return MergeSpec(
        kind=MergeKind.LEVEL,
        now_ms=view.now_ms,
        limit_ms=limit_ms(view.options, size, by_spark=False),
        level=1,
        output_bytes=view.options.output_bytes,
        dedupe=False,
        l0_file_ids=tuple(each.file_id for each in files),
        input_bytes=size,
        reason=reason,
    )


def merge_spec(
    view: PlanningView, kind: MergeKind, files: Sequence[FileView], *, level: int, dedupe: bool, reason: str
) -> MergeSpec:
    """Files of L1 and up, whole. `dedupe`: dedupe the compacted partitions in them; else all are copied."""
    size = sum(each.live_bytes for each in files)
    file_ids = {each.file_id for each in files}
    inputs: dict[int, list[LeveledExtent]] = defaultdict(list)
    # Sorted, so that the same plan always gives the same spec.
    for file_id in sorted(file_ids) if dedupe else ():
        for extent in view.known_extents.get(file_id, ()):
            inputs[extent.partition_id].append(extent)
    passes = {partition_id: _passes(view, partition_id, extents) for partition_id, extents in inputs.items()}
    again = sum((passes[key] - 1) * sum(each.length for each in extents) for key, extents in inputs.items())
    limit = limit_ms(view.options, size, again, by_spark=kind not in RUN_HERE)
    return MergeSpec(
        kind=kind,
        now_ms=view.now_ms,
        limit_ms=limit,
        level=level,
        output_bytes=view.options.output_bytes,
        dedupe=bool(inputs),
        file_ids=tuple(each.file_id for each in files),
        partitions={
            key: _partition_spec(view, key, extents, limit, passes[key]) for key, extents in sorted(inputs.items())
        },
        input_bytes=size,
        reason=reason,
    )


def forced_spec(
    view: PlanningView, partition: PartitionView, stretch: Sequence[LeveledExtent], reason: str
) -> MergeSpec:
    """Extents of one partition, from its log start on."""
    size = sum(each.length for each in stretch)
    limit = limit_ms(view.options, size, size * (partition.passes_needed - 1))
    key = partition.partition_id
    return MergeSpec(
        kind=MergeKind.FORCED,
        now_ms=view.now_ms,
        limit_ms=limit,
        level=2,
        output_bytes=view.options.output_bytes,
        dedupe=True,
        extent_ids=tuple(each.extent_id for each in stretch),
        partitions={key: _partition_spec(view, key, stretch, limit, partition.passes_needed)},
        input_bytes=size,
        reason=reason,
    )


def limit_ms(options: PlanOptions, size_bytes: int, again_bytes: int = 0, *, by_spark: bool = True) -> int:
    """The time limit of a job, from its claim to its commit.

    `again_bytes` are the bytes that a deep pass reads after the first time; without them the limit would end every
    deep pass early. A job on Spark also waits for its cluster to start, but reads its bytes once: Spark splits a
    partition that is too large for one task over many.
    """
    is_heavy = by_spark and options.is_heavy(size_bytes)
    work_bytes = size_bytes if is_heavy else size_bytes + again_bytes
    limit = options.job_limit_base_ms + options.job_limit_ms_per_mib * -(-work_bytes // MIB)
    return min(limit + options.spark_limit_base_ms, SPARK_LIMIT_MS_MAX) if is_heavy else limit


def rewrite_after_ms(options: PlanOptions) -> int:
    """How long bytes are dead before their file is rewritten, so that they leave the bucket within the purge deadline:
    the rewrite may take its limit, and the replaced file stays for the grace."""
    return max(0, options.purge_deadline_ms - limit_ms(options, options.output_bytes) - options.grace_ms)


def _passes(view: PlanningView, partition_id: int, inputs: Sequence[LeveledExtent]) -> int:
    """Above 1 only when the inputs of this merge can overflow the dedupe buffer at all."""
    # No more keys than records: with so few, one pass is enough whatever an earlier dedupe of more inputs needed.
    fits = sum(each.record_count for each in inputs) <= view.options.dedupe_keys_max
    return 1 if fits else view.partitions[partition_id].passes_needed


def _partition_spec(
    view: PlanningView, partition_id: int, inputs: Collection[LeveledExtent], limit: int, passes: int
) -> PartitionSpec:
    partition, options = view.partitions[partition_id], view.options
    input_ids = {each.extent_id for each in inputs}
    others = {each.extent_id for each in partition.extents} - input_ids
    return PartitionSpec(
        partition_id=partition_id,
        log_start_offset=partition.log_start_offset,
        last_stable_offset=partition.last_stable_offset,
        high_watermark=partition.high_watermark,
        first_uncleanable_offset=view.dirtiness[partition_id].first_uncleanable_offset,
        whole_through_offset=stretch_end(partition, unbroken_stretch(partition, blocked=others)),
        # Readers see old values until the commit, which comes before the limit or not at all. Half the grace is for
        # readers that planned their reads before the commit.
        delete_horizon_ms=min(
            view.now_ms + limit + options.grace_ms // 2 + config_int(partition, "delete.retention.ms"),
            TIMESTAMP_MS_MAX,
        ),
        passes=passes,
        aborted=_aborted(partition, inputs),
    )


def _aborted(partition: PartitionView, inputs: Collection[LeveledExtent]) -> Sequence[tuple[int, int, int]]:
    """The listed aborted transactions that touch the inputs.

    Also those whose marker lies above the last stable offset: their records below it must hide nothing.
    """
    if not partition.aborted or not inputs:
        return ()
    lowest, highest = min(each.base_offset for each in inputs), max(each.last_offset for each in inputs)
    return tuple(
        sorted((one for one in partition.aborted if one[2] >= lowest and one[1] <= highest), key=lambda one: one[1])
    )
