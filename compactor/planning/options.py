"""The planner's numbers from the settings, and the shares of one compactor's memory. Pure.

Two merges run in a compactor at once: an L0 job, whose inputs lie in memory whole, and a job of another kind, whose
cursors and dedupe buffer have bounds of their own. (A job on Spark takes no memory here.) Leveling must never wait for
a long merge, so both must fit: the planner makes L0 jobs no larger than the memory that `compactor.memory.bytes` leaves
beside the other job.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from compactor.cleaning.bounds import DEDUPE_ENTRY_BYTES, DEDUPE_KEYS_MAX
from compactor.planning.assembly import rewrite_after_ms
from compactor.planning.spec import MIB, MergeKind, PlanOptions
from runtime.settings.table import Settings

CURSOR_BYTES = 256 * MIB
"""Shared by the cursors of a merge that is not an L0 job, and the records that it decompressed."""
KEPT_BYTES = 64 * MIB
"""A partition below this size stays in memory between the passes of a dedupe."""
DECOMPRESSED_KEPT_RATIO = 4
"""The most bytes of decompressed records that are kept for each byte of the inputs, so that a small merge takes little
memory."""
OUTPUT_BYTES = 48 * MIB
"""Parts of outputs on their way to the store, for both classes together."""
L0_WINDOWS_BYTES = 24 * MIB
"""The windows of an L0 job, copies of 8 MiB: the one that is worked on, and for each class one of which a part still
holds a piece. Measured, parts and windows together: up to 67 MiB."""
L0_JOB_BYTES_LEAST = 16 * MIB
"""The least limit of an L0 job, even if the dedupe buffer leaves almost no memory; the job then waits for memory."""

L0_WAIT_LEAST_MS = 10_000
"""The longest wait of L0 files is not shortened further, however short the purge deadline: they would be merged one by
one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MergeMemory:
    """The bounds of one merge's memory, in this process or in a task on a cluster."""

    keys_max: int = DEDUPE_KEYS_MAX
    """Size of the dedupe buffer."""
    cursor_bytes: int = CURSOR_BYTES
    """Budget of the cursors and of decompressed records."""
    kept_bytes_max: int = KEPT_BYTES
    """A deduped partition below this size stays in memory between its passes."""

    def shares(self, input_bytes: int, *, dedupes: bool, reads_twice: bool) -> CursorShares:
        """`input_bytes`: of all inputs. `reads_twice`: a deduped partition is too large to stay in memory."""
        whole, kept_most = self.cursor_bytes, input_bytes * DECOMPRESSED_KEPT_RATIO
        if reads_twice:
            return CursorShares(whole * 3 // 8, whole // 8, min(whole // 8, kept_most))
        # What stays in memory is read once, so no further scan needs cursors.
        return CursorShares(whole // 2, 0, min(whole // 2, kept_most)) if dedupes else CursorShares(whole, 0, 0)


@dataclass(frozen=True, slots=True)
class CursorShares:
    """The parts of `MergeMemory.cursor_bytes`."""

    pass_bytes: int
    """For the cursors of the first scan; as much again for those of the rewrite, if partitions are read twice."""
    extra_bytes: int
    """For the cursors of each further scan."""
    decompressed_bytes: int
    """For decompressed records that a partition keeps between its passes."""


def merge_memory_bytes(keys_max: int) -> int:
    """The most memory of a merge that is not an L0 job, whatever the size of its inputs."""
    return CURSOR_BYTES + KEPT_BYTES + OUTPUT_BYTES + keys_max * DEDUPE_ENTRY_BYTES


def job_memory_bytes(kind: str, input_bytes: int, keys_max: int) -> int:
    """The memory of one job; small inputs need little. An erase job holds its marks in the share of the keys."""
    output_bytes = min(input_bytes, OUTPUT_BYTES)
    if kind == MergeKind.LEVEL:
        return input_bytes + output_bytes + min(input_bytes, L0_WINDOWS_BYTES)
    cursors = min(input_bytes * (1 + DECOMPRESSED_KEPT_RATIO), CURSOR_BYTES) + min(input_bytes, KEPT_BYTES)
    return cursors + output_bytes + keys_max * DEDUPE_ENTRY_BYTES


def l0_job_bytes_max(settings: Settings, wanted_bytes: int = PlanOptions().l0_job_bytes_max) -> int:
    beside_a_merge = settings.compactor_memory_bytes - merge_memory_bytes(settings.dedupe_keys_max)
    beside_a_merge -= OUTPUT_BYTES + L0_WINDOWS_BYTES
    return max(min(wanted_bytes, beside_a_merge), L0_JOB_BYTES_LEAST)


def plan_options(settings: Settings, base: PlanOptions = PlanOptions()) -> PlanOptions:  # noqa: B008 - a frozen value
    """`base` gives the numbers that are no settings. Where a setting is below one of them, the setting is the bound."""
    l0_bytes_max = l0_job_bytes_max(settings, base.l0_job_bytes_max)
    options = replace(
        base,
        # A job never grows beyond its limit, so a backlog of that size must count as large enough.
        l0_bytes_min=min(base.l0_bytes_min, l0_bytes_max),
        l0_job_bytes_max=l0_bytes_max,
        l2_plain_bytes_max=min(base.l2_plain_bytes_max, settings.compaction_merge_bytes_max),
        merge_bytes_max=settings.compaction_merge_bytes_max,
        forced_dirty_bytes_min=settings.forced_dirty_bytes_min,
        forced_dirty_wait_ms=settings.forced_dirty_wait_ms,
        forced_interval_ms=settings.forced_interval_ms,
        purge_deadline_ms=settings.purge_deadline_ms,
        retention_check_ms=settings.retention_check_interval_ms,
        job_limit_base_ms=settings.job_limit_base_ms,
        job_limit_ms_per_mib=settings.job_limit_ms_per_mib,
        grace_ms=settings.gc_grace_ms,
        spark_bytes_max=settings.spark_merge_max_bytes,
        spark_bytes_min=settings.spark_merge_min_bytes,
        spark=settings.spark_submitter != "none",
        jobs_max=settings.compactor_jobs_max,
        heavy_jobs_max=settings.compactor_heavy_jobs_max,
        l0_jobs_max=settings.compactor_l0_jobs_max,
        output_bytes=min(base.output_bytes, settings.compaction_merge_bytes_max),
        dedupe_keys_max=settings.dedupe_keys_max,
    )
    # An L0 file keeps the bytes of deleted topics until it is leveled, however few files there are.
    l0_wait_ms_max = min(settings.compaction_l0_wait_max_ms, max(rewrite_after_ms(options), L0_WAIT_LEAST_MS))
    return replace(options, l0_wait_ms=min(base.l0_wait_ms, l0_wait_ms_max), l0_wait_ms_max=l0_wait_ms_max)
