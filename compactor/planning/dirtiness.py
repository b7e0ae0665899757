"""Dirtiness of a compacted partition, the reach of a pass from its log start, and why a pass is due. Pure.

These offsets divide a compacted partition (each named offset is exclusive; the rules are those of Kafka's
LogCleanerManager):

    log start ... cleaned-through ... first uncleanable ... high watermark
    |---- clean ----||----- dirty ------||------- head -------|

Bytes between cleaned-through and the first uncleanable offset are *dirty*, in L1 and up. Records in L0 have no offsets
yet and are not counted. An extent that lies across a border counts on both sides by its share of offsets.

The planner (`compactor/planning/forced.py`) and every command that explains compaction use these functions, so the
commands show exactly the rules that the planner follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, replace
from operator import itemgetter
from typing import NamedTuple

from compactor.planning.spec import MIB, PlanOptions
from metadata.configs.topic import TOPIC_CONFIGS, as_float, as_int
from metadata.contract.compactors import PartitionView
from metadata.contract.leveled import LeveledExtent

NO_LIMIT_MS = 2**62
"""Lags above this mean "never"."""
NOTHING_BUSY: frozenset[int] = frozenset()
_BASE_OFFSET = itemgetter(LeveledExtent._fields.index("base_offset"))


class TopicRules(NamedTuple):
    """The topic's own numbers for forced passes (`siltstone.forced.*`); None = those of the compactors."""

    dirty_bytes_min: int | None
    dirty_wait_ms: int | None
    interval_ms: int | None

    def over(self, options: PlanOptions) -> PlanOptions:
        """The planner's numbers with those of the topic in their place."""
        if self == _NO_RULES:
            return options
        return replace(
            options,
            forced_dirty_bytes_min=_either(self.dirty_bytes_min, options.forced_dirty_bytes_min),
            forced_dirty_wait_ms=_either(self.dirty_wait_ms, options.forced_dirty_wait_ms),
            forced_interval_ms=_either(self.interval_ms, options.forced_interval_ms),
        )


_NO_RULES = TopicRules(None, None, None)


def _either(own: int | None, otherwise: int) -> int:
    return otherwise if own is None else own


class Horizon(NamedTuple):
    """A delete horizon, and the first offset of the extent that has it."""

    at_ms: int
    base_offset: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Dirtiness:
    """One compacted partition at one instant. Offsets are exclusive ends; sizes are bytes of L1 and L2 extents."""

    cleaned_through_offset: int
    """Never below the log start."""
    first_uncleanable_offset: int
    """Records from here on may not be deduped yet; never below `cleaned_through_offset`."""
    held_by_lag: bool
    """`min.compaction.lag.ms` sets the first uncleanable offset, not the last stable offset."""
    leveled_through_offset: int
    """End of the unbroken stretch of L1 and L2 extents from the log start; L0 begins here."""
    clean_bytes: int
    dirty_bytes: int
    head_bytes: int
    """In L1 and L2, at or above the first uncleanable offset."""
    earliest_dirty_ms: int | None
    """When the first record of the extents above cleaned-through was committed; None = they hold no record. Of extents
    that an older program wrote, the smallest record timestamp."""
    horizon: Horizon | None
    """The earliest delete horizon whose tombstones a pass from the log start may drop; None = no such tombstone."""
    ratio_min: float
    """The topic's `min.cleanable.dirty.ratio`."""
    lag_ms_max: int
    """The topic's `max.compaction.lag.ms`."""
    rules: TopicRules

    @property
    def ratio(self) -> float:
        """Dirty bytes over clean and dirty bytes; 0.0 for an empty log."""
        whole = self.clean_bytes + self.dirty_bytes
        return self.dirty_bytes / whole if whole else 0.0

    @property
    def is_over_ratio(self) -> bool:
        """Strictly above, as in Kafka: with a minimum of 0, any dirty byte asks for a pass."""
        return self.ratio > self.ratio_min

    @property
    def has_lag(self) -> bool:
        """Whether the topic limits the lag at all: Kafka's default is the largest long."""
        return self.lag_ms_max < NO_LIMIT_MS

    def is_over_lag(self, now_ms: int) -> bool:
        """Whether dirty records were committed more than `max.compaction.lag.ms` ago; their time in L0 counts."""
        return (
            self.dirty_bytes > 0
            and self.earliest_dirty_ms is not None
            and now_ms - self.earliest_dirty_ms > self.lag_ms_max
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """A forced pass over one partition is due."""

    requested: bool
    """A user asked for it."""
    is_late: bool = False
    """The partition is past its `max.compaction.lag.ms`."""
    because: str
    """For people; follows "is due: "."""


def config_int(partition: PartitionView, name: str) -> int:
    """A config in force for the partition's topic. Raises InvalidConfigError when the stored text is no integer."""
    return as_int({name: partition.configs.get(name, TOPIC_CONFIGS[name].default)}, name)


def config_float(partition: PartitionView, name: str) -> float:
    """A config in force for the partition's topic. Raises InvalidConfigError when the stored text is no number."""
    return as_float({name: partition.configs.get(name, TOPIC_CONFIGS[name].default)}, name)


def in_offset_order(partition: PartitionView) -> Sequence[LeveledExtent]:
    """The extents that reach above the log start."""
    start = partition.log_start_offset
    live = [each for each in partition.extents if each.last_offset >= start]
    live.sort(key=_BASE_OFFSET)  # usually in order already; the planner does not rely on that
    return live


def unbroken_stretch(
    partition: PartitionView,
    *,
    blocked: AbstractSet[int] = NOTHING_BUSY,
    blocked_files: AbstractSet[int] = NOTHING_BUSY,
) -> Sequence[LeveledExtent]:
    """The extents from the log start on that touch each other, up to the first gap or blocked extent.

    `blocked` are extent ids, `blocked_files` file ids. Live extents cover every offset from the log start to the high
    watermark, so a gap between L1 and L2 extents means that those records are still in L0.
    """
    stretch: list[LeveledExtent] = []
    reached = partition.log_start_offset
    for extent in in_offset_order(partition):
        if extent.base_offset > reached or extent.extent_id in blocked or extent.file_id in blocked_files:
            break
        stretch.append(extent)
        reached = extent.last_offset + 1
    return stretch


def stretch_end(partition: PartitionView, stretch: Sequence[LeveledExtent]) -> int:
    """The exclusive end; the log start when the stretch is empty."""
    return stretch[-1].last_offset + 1 if stretch else partition.log_start_offset


def measure(partition: PartitionView, *, now_ms: int) -> Dirtiness:
    """Raises InvalidConfigError when a stored topic config cannot be read."""
    extents = in_offset_order(partition)
    cleaned_through = max(partition.cleaned_through_offset, partition.log_start_offset)
    uncleanable, held_by_lag = _first_uncleanable(partition, extents, cleaned_through, now_ms)
    clean, cleanable, whole = 0, 0, 0
    for each in extents:
        whole += each.length
        if each.last_offset < cleaned_through:
            clean += each.length
            cleanable += each.length
        else:
            clean += _bytes_below(each, cleaned_through)
            cleanable += _bytes_below(each, uncleanable)
    return Dirtiness(
        cleaned_through_offset=cleaned_through,
        first_uncleanable_offset=uncleanable,
        held_by_lag=held_by_lag,
        leveled_through_offset=stretch_end(partition, unbroken_stretch(partition)),
        clean_bytes=clean,
        dirty_bytes=cleanable - clean,
        head_bytes=whole - cleanable,
        earliest_dirty_ms=_earliest_ms(each for each in extents if each.last_offset >= cleaned_through),
        horizon=_horizon(partition, extents, cleaned_through),
        ratio_min=config_float(partition, "min.cleanable.dirty.ratio"),
        lag_ms_max=config_int(partition, "max.compaction.lag.ms"),
        rules=TopicRules(
            _own(partition, "siltstone.forced.dirty.bytes.min"),
            _own(partition, "siltstone.forced.dirty.wait.ms"),
            _own(partition, "siltstone.forced.interval.ms"),
        ),
    )


def _own(partition: PartitionView, name: str) -> int | None:
    """A config of which -1 means the compactors' setting."""
    value = config_int(partition, name) if name in partition.configs else -1
    return None if value < 0 else value


def _first_uncleanable(
    partition: PartitionView, extents: Sequence[LeveledExtent], cleaned_through: int, now_ms: int
) -> tuple[int, bool]:
    """The offset, and whether `min.compaction.lag.ms` sets it."""
    # An aborted or open transaction may still change the meaning of records above the last stable offset.
    bound = min(partition.last_stable_offset, partition.high_watermark)
    lag_ms = config_int(partition, "min.compaction.lag.ms")
    if lag_ms > 0:
        for extent in extents:
            if extent.last_offset >= cleaned_through and extent.max_timestamp_ms > now_ms - lag_ms:
                if extent.base_offset < bound:
                    return max(cleaned_through, extent.base_offset), True
                break
    return max(cleaned_through, bound), False


def _bytes_below(extent: LeveledExtent, offset: int) -> int:
    if offset > extent.last_offset:
        return extent.length
    if offset <= extent.base_offset:
        return 0
    return extent.length * (offset - extent.base_offset) // (extent.last_offset + 1 - extent.base_offset)


def _earliest_ms(extents: Iterable[LeveledExtent]) -> int | None:
    """The earliest commit. Extents of older programs tell only record timestamps, if they have any."""
    known = [
        each.committed_ms
        if each.committed_ms is not None
        else each.min_timestamp_ms
        if each.min_timestamp_ms > 0
        else each.max_timestamp_ms
        for each in extents
        if each.record_count and (each.committed_ms is not None or each.max_timestamp_ms > 0)
    ]
    return min(known, default=None)


def _horizon(partition: PartitionView, extents: Iterable[LeveledExtent], cleaned_through: int) -> Horizon | None:
    """The earliest one. From a flagged extent on tombstones stay: it may hold an older value of any key."""
    earliest: Horizon | None = None
    for each in extents:
        if each.flagged_reason is not None or each.base_offset >= cleaned_through:
            break
        at_ms = each.earliest_horizon_ms
        if at_ms is None and each.uncompressed_bytes is None and partition.last_cleaned_ms is not None:
            # An older program wrote the row and stamped the horizon, at the latest, in the last pass.
            at_ms = partition.last_cleaned_ms + config_int(partition, "delete.retention.ms")
        if each.has_tombstones and at_ms is not None and (earliest is None or at_ms < earliest.at_ms):
            earliest = Horizon(at_ms, each.base_offset)
    return earliest


def due(
    partition: PartitionView, dirtiness: Dirtiness, options: PlanOptions, *, now_ms: int, reached_offset: int
) -> Due | None:
    """Whether a forced pass is due that reads from the log start to `reached_offset` (exclusive).

    A requested pass waits for neither dirtiness nor the forced interval, and one past `max.compaction.lag.ms` only for
    the end of its pause. A pass that could clean nothing is never due.
    """
    options = dirtiness.rules.over(options)
    asked = _due_as_asked(partition, dirtiness, options, now_ms, reached_offset)
    if asked is not None:
        return asked
    if min(reached_offset, dirtiness.first_uncleanable_offset) > dirtiness.cleaned_through_offset:
        pause_ms = lag_pause_ms(partition, dirtiness, options)
        if dirtiness.is_over_lag(now_ms) and is_over(partition.last_forced_ms, pause_ms, now_ms):
            return Due(requested=False, because="past max.compaction.lag.ms", is_late=True)
        if is_over(partition.last_forced_ms, options.forced_interval_ms, now_ms):
            because = _dirty_because(partition, dirtiness, options, now_ms, reached_offset)
            if because:
                return Due(requested=False, because=because)
    return _due_for_horizon(partition, dirtiness, options, now_ms, reached_offset)


def lag_pause_ms(partition: PartitionView, dirtiness: Dirtiness, options: PlanOptions) -> int:
    """The least time between two passes over a partition that is past its lag. A short lag over much data must not make
    one pass follow the other."""
    took_ms = options.lag_pause_factor * (partition.last_pass_took_ms or 0)
    return max(took_ms, min(options.lag_interval_ms, dirtiness.lag_ms_max // 2), options.requested_interval_ms)


def horizon_due_ms(partition: PartitionView, dirtiness: Dirtiness, options: PlanOptions) -> int | None:
    """When the partition is due for its tombstones alone; None = it has none that a pass may drop."""
    if dirtiness.horizon is None:
        return None
    known = [each for each in (partition.last_cleaned_ms, partition.last_forced_ms) if each is not None]
    return max(dirtiness.horizon.at_ms, max(known) + options.horizon_interval_ms if known else 0)


def _due_for_horizon(
    partition: PartitionView, dirtiness: Dirtiness, options: PlanOptions, now_ms: int, reached_offset: int
) -> Due | None:
    """An idle partition is never dirty, and its tombstones must go all the same."""
    at_ms, horizon = horizon_due_ms(partition, dirtiness, options), dirtiness.horizon
    if at_ms is None or horizon is None or now_ms < at_ms or reached_offset <= horizon.base_offset:
        return None
    return Due(requested=False, because="the time of its tombstones (delete.retention.ms) has passed")


def due_reason(
    partition: PartitionView,
    dirtiness: Dirtiness,
    options: PlanOptions,
    *,
    now_ms: int,
    busy: AbstractSet[int] = NOTHING_BUSY,
) -> str:
    """As `due`, for people; empty when no pass is due. `busy` are the ids of extents that a live job holds."""
    reached = stretch_end(partition, unbroken_stretch(partition, blocked=busy))
    found = due(partition, dirtiness, options, now_ms=now_ms, reached_offset=reached)
    return found.because if found is not None else ""


def _due_as_asked(
    partition: PartitionView, dirtiness: Dirtiness, options: PlanOptions, now_ms: int, reached_offset: int
) -> Due | None:
    requested = partition.requested_through_offset
    if requested is None or requested <= partition.log_start_offset:
        return None  # the requested records were deleted since
    if not is_over(partition.last_forced_ms, options.requested_interval_ms, now_ms):
        return None
    cleaned_through = dirtiness.cleaned_through_offset
    target = min(requested, dirtiness.first_uncleanable_offset)
    if cleaned_through >= target and cleaned_through < requested:
        return None  # nothing more may be cleaned yet: a transaction is open, or the records are too young
    if reached_offset >= target:
        return Due(requested=True, because="compaction was asked for")
    # The pass does not reach its target. If L0 is in the way, wait: a request makes the planner level L0 at once, and
    # a pass now would have to be repeated. Other blockers may take hours, so go as far as possible, but not repeatedly.
    if (
        dirtiness.leveled_through_offset >= target
        and reached_offset > cleaned_through
        and is_over(partition.last_forced_ms, options.forced_interval_ms, now_ms)
    ):
        return Due(requested=True, because=f"compaction was asked for; for now up to offset {reached_offset}")
    return None


def _dirty_because(
    partition: PartitionView, dirtiness: Dirtiness, options: PlanOptions, now_ms: int, reached_offset: int
) -> str:
    """Why a pass that is possible and allowed is due; empty when the partition is not dirty enough."""
    if partition.passes_needed > 1 and dirtiness.dirty_bytes:
        return f"its keys overflowed the dedupe buffer, {partition.passes_needed} passes are needed"
    if not dirtiness.is_over_ratio:
        return ""
    over = f"dirty ratio {dirtiness.ratio:.2f} over {dirtiness.ratio_min:.2f}"
    through = min(reached_offset, dirtiness.first_uncleanable_offset)
    in_reach = sum(_bytes_below(each, through) for each in in_offset_order(partition)) - dirtiness.clean_bytes
    if in_reach >= options.forced_dirty_bytes_min:  # bytes behind a gap do not count: this pass cannot reach them
        return f"{over}, {in_reach // MIB} MiB dirty"
    known = [each for each in (partition.last_cleaned_ms, dirtiness.earliest_dirty_ms) if each is not None]
    if is_over(max(known, default=None), options.forced_dirty_wait_ms, now_ms):
        return f"{over} for {options.forced_dirty_wait_ms // 1000} s"
    return ""


def is_over(since_ms: int | None, wait_ms: int, now_ms: int) -> bool:
    """Whether `wait_ms` have passed since `since_ms`. A time in the future means that the store's clock went back; the
    real age is unknown then, and the wait counts as over."""
    return since_ms is None or since_ms > now_ms or now_ms - since_ms >= wait_ms
