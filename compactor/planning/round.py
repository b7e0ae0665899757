"""One round of planning: the view made ready to be asked, what the round has taken so far, and how a spec is put
together. Pure; the rules are in the modules beside this one.

Two kinds of merges want the same files. A merge of whole runs needs every extent of its files to be free; a forced pass
takes one partition's extents out of many files, which are *partly busy* until it ends. With enough dirty partitions
some forced pass would always hold some extent of every file, and leveling would starve. So the files of a group that
is due and waits for forced passes are *reserved*: no new forced pass goes into them, and its place among the jobs is
kept. Forced passes do not starve either: a stretch just ends before what is reserved, a group that waits for a place
reserves nothing, and places for jobs are kept for both kinds.

Merges that go to Spark have places of their own: they may wait for a cluster for hours, and what compactors do
themselves must not wait with them. One that finds no place holds up nothing but itself.
"""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property

from compactor.planning.dirtiness import Dirtiness, config_int, in_offset_order, measure, stretch_end, unbroken_stretch
from compactor.planning.spec import MIB, SPARK_LIMIT_MS_MAX, MergeKind, MergeSpec, PartitionSpec, PlanOptions
from metadata.configs.topic import InvalidConfigError
from metadata.contract.compaction import CompactionView, FileClass, FileView, LeveledExtent, PartitionView
from metadata.rules.jobs import rests
from metadata.rules.retention import TIMESTAMP_MS_MAX


def count_text(count: int, what: str) -> str:
    """For reasons and notes: 2, "L0 file" -> "2 L0 files"."""
    return f"{count} {what}{'' if count == 1 else 's'}"


class Hold(Enum):
    """What stands in the way of something that a rule asks for."""

    JOBS = "as many jobs are live as may be"
    HEAVY_JOBS = "as many jobs are live that go to Spark as may be"
    L0_JOBS = "as many jobs of L0 files are live as may be"
    FORCED_PASSES = "forced passes hold extents of its files"
    MERGE = "a merge, running or of this round, holds its records"
    RESERVED = "its files are kept free for a merge of whole runs"
    TROUBLE = "a merge of its files failed"
    SIZE = "it is larger than a merge may be"
    CONFIG = "a config of its topic cannot be read"


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """Why something is not planned although a rule asks for it. For people."""

    rule: MergeKind
    text: str
    hold: Hold
    partition_id: int | None = None
    file_ids: tuple[int, ...] = ()
    held_from: int | None = None
    """The first offset of the partition that something else holds, where that is what stands in the way."""


class FileStatus(Enum):
    FREE = "free"
    PARTLY_BUSY = "partly busy"
    """A forced pass holds some of its extents; the rest will be free again."""
    TAKEN = "taken"
    """All of it is input of a live job, or of a spec of this round."""
    IN_TROUBLE = "in trouble"
    EXPIRING = "about to expire"


@dataclass(slots=True)
class Places:
    """How many more jobs this round may plan, of those that are run here or of those that Spark runs."""

    hold: Hold
    """What stands in the way where there is none."""
    jobs_max: int
    all: int
    merges: int
    """Whole runs and files: merge, daily, purge. Those that are kept for one that waits are taken."""
    forced_max: int

    @staticmethod
    def left(live: Mapping[str, int], hold: Hold, jobs_max: int, forced_max: int, *, has_partitions: bool) -> Places:
        """`live`: jobs, by kind."""
        forced = live.get(MergeKind.FORCED, 0)
        all_left = jobs_max - sum(count for kind, count in live.items() if kind != MergeKind.LEVEL)
        spared = jobs_max > 1
        kept = 1 if spared and has_partitions and not forced else 0
        return Places(
            hold=hold,
            jobs_max=jobs_max,
            all=max(0, all_left),
            merges=max(0, all_left - kept),
            forced_max=max(0, min(forced_max, jobs_max - 1 if spared else 1) - forced),
        )

    @property
    def of(self) -> str:
        """Whose, in words."""
        return "" if self.hold is Hold.JOBS else " for Spark"

    @property
    def forced(self) -> int:
        return min(self.all, self.forced_max)

    def keep_merge(self) -> None:
        """For one that waits for what holds its files."""
        self.merges -= 1

    def took_merge(self) -> None:
        self.merges -= 1
        self.all -= 1

    def took_forced(self) -> None:
        self.forced_max -= 1
        self.all -= 1


@dataclass
class Round:
    """What the rules read and what they leave behind."""

    view: CompactionView
    options: PlanOptions
    specs: list[MergeSpec] = field(default_factory=list[MergeSpec])
    notes: list[Note] = field(default_factory=list[Note])
    taken_files: set[int] = field(default_factory=set[int])
    taken_extents: set[int] = field(default_factory=set[int])
    reserved_files: set[int] = field(default_factory=set[int])

    def __post_init__(self) -> None:
        live, options = self.view.live_jobs, self.options
        self.l0_places = max(0, options.l0_jobs_max - len(live.get(MergeKind.LEVEL, ())))
        heavy = {kind: sum(map(options.is_heavy, sizes)) for kind, sizes in live.items()}
        here = {kind: len(sizes) - heavy[kind] for kind, sizes in live.items()}
        has_partitions = bool(self.view.partitions)
        left = functools.partial(Places.left, forced_max=options.forced_jobs_max, has_partitions=has_partitions)
        self._places_here = left(here, Hold.JOBS, options.jobs_max)
        self._places_heavy = left(heavy, Hold.HEAVY_JOBS, options.heavy_jobs_max if options.spark else 0)
        self.partitions: dict[int, PartitionView] = {}
        """By id, in order of id. Of compacted topics."""
        self.dirtiness: dict[int, Dirtiness] = {}
        for partition in sorted(self.view.partitions, key=lambda each: each.partition_id):
            try:
                config_int(partition, "delete.retention.ms")
                self.dirtiness[partition.partition_id] = measure(partition, now_ms=self.now_ms)
            except InvalidConfigError as error:  # others must not wait for it; merges copy it
                name = f"{partition.topic_name}-{partition.partition}"
                text = f"{name} is never deduped: {error}"
                self.note(MergeKind.FORCED, text, Hold.CONFIG, partition_id=partition.partition_id)
            else:
                self.partitions[partition.partition_id] = partition

    @property
    def now_ms(self) -> int:
        return self.view.now_ms

    @property
    def has_places(self) -> bool:
        """For merges of whole runs, of some size."""
        return self._places_here.merges > 0 or self._places_heavy.merges > 0

    def places(self, size_bytes: int) -> Places:
        """Those for a merge that is planned with so many bytes."""
        return self._places_heavy if self.options.is_heavy(size_bytes) else self._places_here

    # ---- the view, in one order whatever the order of its rows

    @cached_property
    def files(self) -> Sequence[FileView]:
        """By range, then id."""
        return sorted(self.view.files, key=lambda each: (each.lo, each.hi, each.file_id))

    @cached_property
    def known_extents(self) -> Mapping[int, Sequence[LeveledExtent]]:
        """Extents of compacted partitions by file id; those of plain partitions are not in the view."""
        by_file: dict[int, list[LeveledExtent]] = defaultdict(list)
        for partition in self.partitions.values():
            for extent in in_offset_order(partition):
                by_file[extent.file_id].append(extent)
        return by_file

    def status(self, file: FileView) -> FileStatus:
        if file.file_id in self.taken_files:
            return FileStatus.TAKEN
        if rests(file.trouble_until_ms, self.now_ms):
            return FileStatus.IN_TROUBLE
        if file.file_id in self.view.busy_files:
            known = self.known_extents.get(file.file_id, ())
            partly = any(each.extent_id not in self.view.busy_extents for each in known)
            return FileStatus.PARTLY_BUSY if partly else FileStatus.TAKEN
        if self.is_expiring(file):
            return FileStatus.EXPIRING
        return FileStatus.FREE

    def is_expiring(self, file: FileView) -> bool:
        """Retention takes all of it so soon that nobody should copy it any more.

        Nothing of the compacted class: where retention is shorter than the margin all of it always is, and what lies
        at the log start, where each pass begins, is the first to expire. It would never be deduped. And nothing that
        should be gone and is not: retention goes from the log start to the first extent that stays, so old records
        behind a young head are there for as long as the head.
        """
        if file.file_class is FileClass.COMPACTED or file.expires_ms is None:
            return False
        soon_ms, late_ms = self.now_ms + self.options.expiry_margin_ms, self.now_ms - self.options.retention_late_ms
        # a file whose records were past their time when it was written has not been looked at for so long
        is_left = file.expires_ms <= late_ms and not late_ms < file.created_ms <= self.now_ms
        return file.expires_ms <= soon_ms and not is_left

    # ---- what a rule leaves behind

    def note(
        self,
        rule: MergeKind,
        text: str,
        hold: Hold,
        *,
        partition_id: int | None = None,
        files: Iterable[FileView] = (),
        held_from: int | None = None,
    ) -> None:
        file_ids = tuple(each.file_id for each in files)
        self.notes.append(
            Note(rule=rule, text=text, hold=hold, partition_id=partition_id, file_ids=file_ids, held_from=held_from)
        )

    def reserve(self, files: Iterable[FileView]) -> None:
        self.reserved_files.update(each.file_id for each in files)

    def add_l0(self, files: Sequence[FileView], reason: str) -> None:
        size = sum(each.size_bytes for each in files)
        self._add(
            MergeSpec(
                kind=MergeKind.LEVEL,
                now_ms=self.now_ms,
                limit_ms=self._limit_ms(size, by_spark=False),
                level=1,
                output_bytes=self.options.output_bytes,
                dedupe=False,
                l0_file_ids=tuple(each.file_id for each in files),
                input_bytes=size,
                reason=reason,
            )
        )

    def add_merge(self, kind: MergeKind, files: Sequence[FileView], *, level: int, dedupe: bool, reason: str) -> None:
        """Whole files."""
        size = sum(each.live_bytes for each in files)
        self.places(size).took_merge()
        file_ids = {each.file_id for each in files}
        inputs: dict[int, list[LeveledExtent]] = defaultdict(list)
        for file_id in sorted(file_ids) if dedupe else ():
            for extent in self.known_extents.get(file_id, ()):
                inputs[extent.partition_id].append(extent)
        passes = {partition_id: self._passes(partition_id, extents) for partition_id, extents in inputs.items()}
        again = sum((passes[key] - 1) * sum(each.length for each in extents) for key, extents in inputs.items())
        limit_ms = self._limit_ms(size, again)
        self._add(
            MergeSpec(
                kind=kind,
                now_ms=self.now_ms,
                limit_ms=limit_ms,
                level=level,
                output_bytes=self.options.output_bytes,
                dedupe=bool(inputs),
                file_ids=tuple(each.file_id for each in files),
                partitions={
                    key: self._partition_spec(key, extents, limit_ms, passes[key])
                    for key, extents in sorted(inputs.items())
                },
                input_bytes=size,
                reason=reason,
            )
        )

    def add_forced(self, partition: PartitionView, stretch: Sequence[LeveledExtent], reason: str) -> None:
        """One partition's extents."""
        size = sum(each.length for each in stretch)
        self.places(size).took_forced()
        limit_ms = self._limit_ms(size, size * (partition.passes_needed - 1))
        key = partition.partition_id
        self._add(
            MergeSpec(
                kind=MergeKind.FORCED,
                now_ms=self.now_ms,
                limit_ms=limit_ms,
                level=2,
                output_bytes=self.options.output_bytes,
                dedupe=True,
                extent_ids=tuple(each.extent_id for each in stretch),
                partitions={key: self._partition_spec(key, stretch, limit_ms, partition.passes_needed)},
                input_bytes=size,
                reason=reason,
            )
        )

    def _add(self, spec: MergeSpec) -> None:
        self.specs.append(spec)
        self.taken_files.update(spec.l0_file_ids, spec.file_ids)
        self.taken_extents.update(spec.extent_ids)

    def _limit_ms(self, size: int, again: int = 0, *, by_spark: bool = True) -> int:
        """From claim to commit. A deep pass reads its bytes several times, and must not be cut off every time.

        Spark waits for its cluster, but is deep at no partition that does not fit one of many tasks."""
        options = self.options
        is_heavy = by_spark and options.is_heavy(size)
        work_bytes = size if is_heavy else size + again
        limit_ms = options.job_limit_base_ms + options.job_limit_ms_per_mib * -(-work_bytes // MIB)
        return min(limit_ms + options.spark_limit_base_ms, SPARK_LIMIT_MS_MAX) if is_heavy else limit_ms

    def _passes(self, partition_id: int, inputs: Sequence[LeveledExtent]) -> int:
        """Deep only when this merge can overflow the buffer at all."""
        fits = sum(each.record_count for each in inputs) <= self.options.dedupe_keys_max
        return 1 if fits else self.partitions[partition_id].passes_needed

    def _partition_spec(
        self, partition_id: int, inputs: Collection[LeveledExtent], limit_ms: int, passes: int
    ) -> PartitionSpec:
        partition, options = self.partitions[partition_id], self.options
        input_ids = {each.extent_id for each in inputs}
        others = {each.extent_id for each in partition.extents} - input_ids
        return PartitionSpec(
            partition_id=partition_id,
            log_start_offset=partition.log_start_offset,
            last_stable_offset=partition.last_stable_offset,
            high_watermark=partition.high_watermark,
            first_uncleanable_offset=self.dirtiness[partition_id].first_uncleanable_offset,
            whole_through_offset=stretch_end(partition, unbroken_stretch(partition, blocked=others)),
            # old values vanish at the commit at the earliest, which comes before the limit or not at all; half the
            # grace is for readers that planned before it
            delete_horizon_ms=min(
                self.now_ms + limit_ms + options.grace_ms // 2 + config_int(partition, "delete.retention.ms"),
                TIMESTAMP_MS_MAX,
            ),
            passes=passes,
        )
