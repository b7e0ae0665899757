"""Merge specs: the planner's decisions, stored with the job, as values and as JSON.

A spec holds a snapshot (log start, stable offset, first uncleanable offset, configs) of one instant, which is never
refreshed. A merge that runs for an hour judges every record by the snapshot, and the commit checks what has changed
since.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from compactor.cleaning.bounds import DEDUPE_KEYS_MAX
from runtime.errors import SiltstoneError

MIB = 1 << 20
GIB = 1 << 30
SPEC_VERSION = 1
SPARK_LIMIT_MS_MAX = 20 * 3_600_000
"""The longest time limit of a job on Spark, whatever its size. Its outputs must be committed within 24 h: after that
the janitor may delete them and the metadata refuses keys of that hour."""


SPARK_LIMIT_BASE_MS = 600_000
"""The share of a Spark job's time limit for its cluster to start."""


class SpecError(SiltstoneError):
    """A stored spec is of another version, or is not a spec. This release cannot run the job."""


class MergeKind(StrEnum):
    LEVEL = "level"
    """L0 -> L1: stamps offsets, splits by class, drops nothing."""
    MERGE = "merge"
    """L1 -> L2 or L2 -> L2, runs of one class; dedupes the compacted class."""
    DAILY = "daily"
    """Runs of the compacted class of unlike sizes, once a day."""
    FORCED = "forced"
    """One partition alone, from its log start on."""
    PURGE = "purge"
    """Files rewritten without their dead bytes: mostly dead ones, and those with a purge deadline to meet."""
    ERASE = "erase"
    """Files rewritten at their level without the records of erased keys and without their dead bytes."""


RUN_HERE = (MergeKind.LEVEL, MergeKind.ERASE)
"""Kinds of merges that Spark never runs, whatever their size. L0 jobs are small, and consumers wait for them; the marks
of erased keys never leave the compactor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Every number of the planner. Sizes in bytes, times in ms."""

    l0_files_min: int = 32
    l0_bytes_min: int = 512 * MIB
    l0_wait_ms: int = 10_000
    """With at least `l0_files_min` files but fewer than `l0_bytes_min`, the oldest waits this long."""
    l0_wait_ms_max: int = 60_000
    """With fewer files, the oldest waits this long."""
    l0_job_files_max: int = 1_024
    """Of files with an object, each of which costs a request."""
    l0_job_rows_max: int = 16_384
    """Of all files, those without an object included."""
    l0_job_bytes_max: int = 512 * MIB
    l0_now_ms: int = 0
    """When a user asked for compaction of any partition, all L0 files are leveled once the oldest waits this long."""
    l0_lag_wait_ms_min: int = 2_000
    """While a partition with a `max.compaction.lag.ms` has records in L0, the oldest waits for half the lag, and at
    least this long."""
    l1_runs_min: int = 32
    l2_runs_min: int = 10
    l2_similar_factor: float = 2.0
    """The largest of a merge is at most this many times its smallest."""
    l2_small_bytes: int = 16 * MIB
    """All runs below this count as similar: merging them costs almost nothing, and unlike ones would pile up."""
    l2_plain_bytes_max: int = 16 * GIB
    merge_bytes_max: int = 128 * GIB
    """Of records uncompressed, as far as known."""
    spark_bytes_max: int = 2 << 40
    """The same for a forced pass on Spark."""
    daily_interval_ms: int = 86_400_000
    forced_dirty_bytes_min: int = 64 * MIB
    forced_dirty_wait_ms: int = 3_600_000
    """A partition over its dirty ratio with fewer dirty bytes waits this long after its last pass."""
    forced_interval_ms: int = 900_000
    lag_interval_ms: int = 10_000
    """Between two passes over a partition that is past its `max.compaction.lag.ms`; half the lag if that is less."""
    lag_pause_factor: int = 4
    """Such passes come no closer than this many times the last one's duration."""
    horizon_interval_ms: int = 86_400_000
    """A partition is due for passed delete horizons alone at most this often."""
    requested_interval_ms: int = 1_000
    """Between two requested passes over a partition, when the first did not get far enough."""
    mostly_dead_fraction: float = 0.5
    mostly_dead_bytes_min: int = 64 * MIB
    """Dead bytes of a mostly dead file that make a rewrite worth while."""
    purge_deadline_ms: int = 604_800_000
    erase_pause_ms: int = 60_000
    """After the rest of a file whose merge failed, other merges may take it for so long before an erasing one."""
    expiry_margin_ms: int = 3_600_000
    """Plain data that retention deletes within this time is not merged any more."""
    retention_check_ms: int = 300_000
    """The time between rounds of retention, if the cluster sets none."""
    job_limit_base_ms: int = 60_000
    job_limit_ms_per_mib: int = 250
    spark_limit_base_ms: int = SPARK_LIMIT_BASE_MS
    """Added to the base for jobs on Spark, which wait for a cluster to start."""
    grace_ms: int = 900_000
    spark_bytes_min: int = 8 * GIB
    spark: bool = False
    """Whether Spark runs the jobs from `spark_bytes_min` up; else the embedded engine runs all jobs, up to the cap."""
    jobs_max: int = 8
    """Live jobs at once over all compactors, not counting L0 jobs and jobs on Spark."""
    heavy_jobs_max: int = 4
    """Live jobs at once on Spark. They have slots of their own, so that other jobs go on while Spark is unavailable."""
    forced_jobs_max: int = 4
    """Forced passes at once, on each engine. One slot is kept for them, and they leave one to other jobs."""
    l0_jobs_max: int = 4
    output_bytes: int = GIB
    """Output files are cut near this size, at the border of a partition or an extent."""
    dedupe_keys_max: int = DEDUPE_KEYS_MAX
    """Keys that the dedupe buffer holds at once: a merge of fewer records needs one pass."""

    def is_heavy(self, size_bytes: int, kind: str = MergeKind.MERGE) -> bool:
        """Whether Spark runs a merge of this planned size and kind."""
        return self.spark and size_bytes >= self.spark_bytes_min and kind not in RUN_HERE


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """The snapshot of a compacted partition. `first_uncleanable_offset` and `whole_through_offset` are exclusive."""

    partition_id: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    first_uncleanable_offset: int
    """min(last stable offset, base of the first extent younger than min.compaction.lag.ms)."""
    whole_through_offset: int
    """The inputs hold every live extent from the log start to here; equal to the log start when they begin later."""
    delete_horizon_ms: int
    """Stamped into batches: spec time + time limit + half the grace + delete.retention.ms."""
    passes: int = 1
    """Above 1 for a deep pass, which dedupes one range of key hashes at a time."""
    aborted: Sequence[tuple[int, int, int]] = ()
    """(producer id, first offset, offset of the abort marker) of the listed transactions that touch the inputs, by
    first offset."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSpec:
    kind: MergeKind
    now_ms: int
    """The store's time of the view from which the spec was planned."""
    limit_ms: int
    level: int
    """The level of the outputs: 1 or 2."""
    output_bytes: int
    dedupe: bool
    """Whether `partitions` are deduped; leveling and plain runs only copy."""
    l0_file_ids: tuple[int, ...] = ()
    file_ids: tuple[int, ...] = ()
    """L1+ files taken whole (their live extents)."""
    extent_ids: tuple[int, ...] = ()
    """Extents taken alone (forced)."""
    partitions: Mapping[int, PartitionSpec] = field(default_factory=dict[int, PartitionSpec])
    """The partitions to dedupe, by partition id. Other partitions of the inputs are copied."""
    input_bytes: int = 0
    reason: str = ""
    """For people: the rule that asked for the merge."""

    def to_json(self) -> dict[str, Any]:
        return {
            "version": SPEC_VERSION,
            "kind": self.kind.value,
            "now_ms": self.now_ms,
            "limit_ms": self.limit_ms,
            "level": self.level,
            "output_bytes": self.output_bytes,
            "dedupe": self.dedupe,
            "l0_file_ids": list(self.l0_file_ids),
            "file_ids": list(self.file_ids),
            "extent_ids": list(self.extent_ids),
            "input_bytes": self.input_bytes,
            "reason": self.reason,
            "partitions": [
                [
                    each.partition_id,
                    each.log_start_offset,
                    each.last_stable_offset,
                    each.high_watermark,
                    each.first_uncleanable_offset,
                    each.whole_through_offset,
                    each.delete_horizon_ms,
                    each.passes,
                    [list(one) for one in each.aborted],
                ]
                for each in self.partitions.values()
            ],
        }

    @staticmethod
    def from_json(stored: Mapping[str, Any]) -> MergeSpec:
        """Raises SpecError."""
        if stored.get("version") != SPEC_VERSION:
            raise SpecError(
                f"the stored merge spec has version {stored.get('version')!r}; this release reads {SPEC_VERSION}",
                remedy="run the compactor of the release that planned the job, or wait until the job is planned again",
            )
        try:
            partitions = [
                PartitionSpec(
                    partition_id=row[0],
                    log_start_offset=row[1],
                    last_stable_offset=row[2],
                    high_watermark=row[3],
                    first_uncleanable_offset=row[4],
                    whole_through_offset=row[5],
                    delete_horizon_ms=row[6],
                    passes=row[7],
                    aborted=tuple((one[0], one[1], one[2]) for one in row[8]),
                )
                for row in stored["partitions"]
            ]
            return MergeSpec(
                kind=MergeKind(stored["kind"]),
                now_ms=stored["now_ms"],
                limit_ms=stored["limit_ms"],
                level=stored["level"],
                output_bytes=stored["output_bytes"],
                dedupe=stored["dedupe"],
                l0_file_ids=tuple(stored["l0_file_ids"]),
                file_ids=tuple(stored["file_ids"]),
                extent_ids=tuple(stored["extent_ids"]),
                partitions={each.partition_id: each for each in partitions},
                input_bytes=stored["input_bytes"],
                reason=stored["reason"],
            )
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise SpecError(f"the stored merge spec cannot be read: {error!r}") from error
