"""What a merge should do, decided once by the planner and stored with the job: values and their JSON form.

The snapshot in it (log start, stable offset, first uncleanable offset, configs) is taken at one instant and never
refreshed: a merge that runs for an hour judges every record by it, and the commit checks what moved meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from compactor.cleaning.cleaning import DEDUPE_KEYS_MAX
from runtime.errors import SiltstoneError

MIB = 1 << 20
GIB = 1 << 30
SPEC_VERSION = 1
SPARK_LIMIT_MS_MAX = 20 * 3_600_000
"""Of a job that Spark runs, whatever its size. What it writes must be committed within the 24 h in which the janitor
spares it and the metadata know its key's hour."""


SPARK_LIMIT_BASE_MS = 600_000
"""Of the limit of such a job, for a cluster to start."""


class SpecError(SiltstoneError):
    """A stored spec of another version, or not a spec. The job cannot be run by this release."""


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
    """A file mostly dead, or with bytes dead for longer than the purge deadline, rewritten without them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOptions:
    """Every number of the planner. Sizes in bytes, times in ms."""

    l0_files_min: int = 32
    l0_bytes_min: int = 512 * MIB
    l0_wait_ms: int = 10_000
    """With `l0_files_min` files and neither the bytes, the oldest waits this long."""
    l0_wait_ms_max: int = 60_000
    """However few, the oldest waits this long."""
    l0_job_files_max: int = 1_024
    l0_job_bytes_max: int = 512 * MIB
    l0_now_ms: int = 0
    """When compaction was asked for somewhere: all L0 files are leveled as soon as the oldest waits this long."""
    l1_runs_min: int = 32
    l2_runs_min: int = 10
    l2_similar_factor: float = 2.0
    """The largest of a merge is at most this many times its smallest."""
    l2_small_bytes: int = 16 * MIB
    """Runs below this count as of one size: unlike ones cost nothing to merge, and would pile up."""
    l2_plain_bytes_max: int = 16 * GIB
    merge_bytes_max: int = 128 * GIB
    daily_interval_ms: int = 86_400_000
    forced_dirty_bytes_min: int = 64 * MIB
    forced_dirty_wait_ms: int = 3_600_000
    """A partition over its dirty ratio with fewer dirty bytes waits this long after its last pass."""
    forced_interval_ms: int = 900_000
    requested_interval_ms: int = 1_000
    """Between two passes over a partition that somebody asked for, when the first did not get far enough."""
    mostly_dead_fraction: float = 0.5
    mostly_dead_bytes_min: int = 64 * MIB
    """Dead bytes of a mostly dead file that make a rewrite worth while."""
    purge_deadline_ms: int = 604_800_000
    expiry_margin_ms: int = 3_600_000
    """Data that retention takes within this is not merged any more, but for the compacted class."""
    retention_late_ms: int = 900_000
    """Data that retention has not taken so long after its time it does not take soon: it stands behind younger data."""
    job_limit_base_ms: int = 60_000
    job_limit_ms_per_mib: int = 250
    spark_limit_base_ms: int = SPARK_LIMIT_BASE_MS
    """Beside the base, for jobs that wait for a cluster to start."""
    grace_ms: int = 900_000
    spark_bytes_min: int = 8 * GIB
    spark: bool = False
    """Whether something runs the jobs from `spark_bytes_min` on; else the embedded engine runs all, up to the cap."""
    jobs_max: int = 8
    """Live jobs at once, over all compactors; neither L0 jobs are counted nor those that Spark runs."""
    heavy_jobs_max: int = 4
    """Live jobs at once that Spark runs: while its cluster is away, what is run here goes on."""
    forced_jobs_max: int = 4
    """Of either, passes over one partition. One place is kept for them, and they leave one to the others."""
    l0_jobs_max: int = 4
    output_bytes: int = GIB
    """A file is cut near this, at a partition or an extent."""
    dedupe_keys_max: int = DEDUPE_KEYS_MAX
    """Keys that one filling of the dedupe buffer holds: a merge of fewer records needs one pass."""

    def is_heavy(self, size_bytes: int) -> bool:
        """Whether Spark runs a merge that is planned with so many bytes."""
        return self.spark and size_bytes >= self.spark_bytes_min


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionSpec:
    """A compacted partition's snapshot. Offsets; `first_uncleanable_offset`, `whole_through_offset` are exclusive."""

    partition_id: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int
    first_uncleanable_offset: int
    """min(last stable offset, base of the first extent younger than min.compaction.lag.ms)."""
    whole_through_offset: int
    """The inputs hold every live extent from the log start to here; equal to the log start when they begin later."""
    delete_horizon_ms: int
    """What is stamped: spec time + time limit + half the grace + delete.retention.ms."""
    passes: int = 1
    """Above 1: deep, by hash range."""
    aborted: Sequence[tuple[int, int, int]] = ()
    """(producer id, first offset, offset of the abort marker)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeSpec:
    kind: MergeKind
    now_ms: int
    """The store's time of the view it was planned from."""
    limit_ms: int
    level: int
    """Of the outputs: 1 or 2."""
    output_bytes: int
    dedupe: bool
    """Whether `partitions` are deduped; leveling and plain runs only copy."""
    l0_file_ids: tuple[int, ...] = ()
    file_ids: tuple[int, ...] = ()
    """L1+ files taken whole (their live extents)."""
    extent_ids: tuple[int, ...] = ()
    """Extents taken alone (forced)."""
    partitions: Mapping[int, PartitionSpec] = field(default_factory=dict[int, PartitionSpec])
    """By partition id: those to dedupe. Others of the inputs are copied."""
    input_bytes: int = 0
    reason: str = ""
    """For people: which rule asked for it."""

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
                f"a merge spec of version {stored.get('version')!r}, this release knows {SPEC_VERSION}",
                remedy="run the compactor of the release that planned it, or wait until the job is planned anew",
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
            raise SpecError(f"a merge spec that cannot be read: {error!r}") from error
