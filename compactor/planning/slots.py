"""How many more jobs of each kind one plan may start. Pure.

There are three sets of slots: for L0 jobs, for merges that compactors run themselves, and for merges that Spark runs.
Jobs on Spark may wait for a cluster for hours, so they never take a slot of the others, and a job that finds no slot
delays nothing but itself.

Whole-run merges (merge, daily, purge, erase) and forced passes share a set without starving each other: one slot is
kept for a forced pass while none is live, and forced passes leave one slot to whole-run merges.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass

from compactor.planning.notes import Blocker
from compactor.planning.spec import MergeKind, PlanOptions
from metadata.contract.compactors import CompactionView


@dataclass(slots=True)
class SlotSet:
    """The free slots of one engine (embedded or Spark), for every kind of job but L0."""

    blocker: Blocker
    """The reason that a note gives when no slot is free."""
    jobs_max: int
    total: int
    merges: int
    """For whole-run merges. A slot that is kept for a merge that waits is not counted as free."""
    forced_max: int
    """For forced passes; `total` bounds them too."""

    @staticmethod
    def free(
        live: Mapping[str, int], blocker: Blocker, jobs_max: int, forced_max: int, *, has_partitions: bool
    ) -> SlotSet:
        """`live`: the number of live jobs by kind. `has_partitions`: there is a compacted partition to pass over."""
        forced = live.get(MergeKind.FORCED, 0)
        total = jobs_max - sum(count for kind, count in live.items() if kind != MergeKind.LEVEL)
        # A single slot cannot be divided: the first job takes it.
        can_share = jobs_max > 1
        kept_for_forced = 1 if can_share and has_partitions and not forced else 0
        return SlotSet(
            blocker=blocker,
            jobs_max=jobs_max,
            total=max(0, total),
            merges=max(0, total - kept_for_forced),
            forced_max=max(0, min(forced_max, jobs_max - 1 if can_share else 1) - forced),
        )

    @property
    def engine_text(self) -> str:
        """Follows "all jobs" in notes."""
        return "" if self.blocker is Blocker.JOBS else " for Spark"

    @property
    def forced(self) -> int:
        return min(self.total, self.forced_max)

    def keep_merge(self) -> None:
        """Reserves a slot for a merge that cannot start yet, because other jobs hold its files."""
        self.merges -= 1

    def take_merge(self) -> None:
        self.merges -= 1
        self.total -= 1

    def take_forced(self) -> None:
        self.forced_max -= 1
        self.total -= 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Slots:
    """All free slots of one plan. Rules take them as they plan jobs."""

    options: PlanOptions
    l0: int
    embedded: SlotSet
    spark: SlotSet

    @staticmethod
    def free(view: CompactionView, options: PlanOptions) -> Slots:
        """The slots that live jobs leave."""
        live = view.live_jobs
        heavy = {kind: sum(options.is_heavy(size, kind) for size in sizes) for kind, sizes in live.items()}
        embedded = {kind: len(sizes) - heavy[kind] for kind, sizes in live.items()}
        free = functools.partial(SlotSet.free, forced_max=options.forced_jobs_max, has_partitions=bool(view.partitions))
        return Slots(
            options=options,
            l0=max(0, options.l0_jobs_max - len(live.get(MergeKind.LEVEL, ()))),
            embedded=free(embedded, Blocker.JOBS, options.jobs_max),
            spark=free(heavy, Blocker.HEAVY_JOBS, options.heavy_jobs_max if options.spark else 0),
        )

    def for_size(self, size_bytes: int, kind: str = MergeKind.MERGE) -> SlotSet:
        """The slots of the engine that runs a merge of this planned size and kind."""
        return self.spark if self.options.is_heavy(size_bytes, kind) else self.embedded

    @property
    def has_merges(self) -> bool:
        """Whether a slot for whole-run merges is free on any engine."""
        return self.embedded.merges > 0 or self.spark.merges > 0
