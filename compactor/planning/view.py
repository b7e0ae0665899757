"""The facts that the planner's rules read: the metadata view, sorted and measured. Pure and read-only.

Nothing here depends on the order of the metadata view's rows, so the same files always give the same plan.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from functools import cached_property

from compactor.planning.dirtiness import Dirtiness, config_int, in_offset_order, measure
from compactor.planning.spec import PlanOptions
from metadata.configs.topic import InvalidConfigError
from metadata.contract.compactors import CompactionView, FileView, PartitionView
from metadata.contract.leveled import FileClass, LeveledExtent
from metadata.rules.jobs import rests

RETENTION_ROUNDS = 3
"""Data that retention has not deleted after this many rounds will stay for now, because it stands behind younger data.
One round may just have ended when the data expired, and one may be lost when retention moves to another compactor."""


class FileStatus(Enum):
    FREE = "free"
    PARTLY_BUSY = "partly busy"
    """A forced pass holds some of its extents; the file is free again when the pass ends."""
    TAKEN = "taken"
    """The whole file is input of a live job, or of a spec of this plan."""
    IN_TROUBLE = "in trouble"
    """A merge of it failed, and the file rests for some time."""
    EXPIRING = "about to expire"


@dataclass(frozen=True, kw_only=True)
class PlanningView:
    """The metadata at one instant, as the rules read it."""

    options: PlanOptions
    now_ms: int
    """The store's time of the view."""
    files: Sequence[FileView]
    """By range of L0 files, then id."""
    partitions: Mapping[int, PartitionView]
    """Partitions of compacted topics by id, in order of id."""
    dirtiness: Mapping[int, Dirtiness]
    """By partition id."""
    unreadable: Sequence[tuple[PartitionView, InvalidConfigError]]
    """Compacted partitions with a config that cannot be read. Merges copy them; no rule dedupes them."""
    busy_files: AbstractSet[int]
    busy_extents: AbstractSet[int]
    erasing_files: Mapping[int, int]
    """Files with records of erased keys -> when their rewrite may begin."""
    retention_check_ms: int
    """The time between rounds of retention."""
    last_daily_ms: int | None
    """When the last daily merge was planned; None = never."""

    @staticmethod
    def read(view: CompactionView, options: PlanOptions) -> PlanningView:
        partitions: dict[int, PartitionView] = {}
        dirtiness: dict[int, Dirtiness] = {}
        unreadable: list[tuple[PartitionView, InvalidConfigError]] = []
        for partition in sorted(view.partitions, key=lambda each: each.partition_id):
            try:
                # `measure` does not read this config, but `compactor/planning/assembly.py` must be able to.
                config_int(partition, "delete.retention.ms")
                dirtiness[partition.partition_id] = measure(partition, now_ms=view.now_ms)
            except InvalidConfigError as error:  # the other partitions must not wait for this one
                unreadable.append((partition, error))
            else:
                partitions[partition.partition_id] = partition
        check_ms = options.retention_check_ms if view.retention_check_ms is None else view.retention_check_ms
        return PlanningView(
            options=options,
            now_ms=view.now_ms,
            files=sorted(view.files, key=lambda each: (each.lo, each.hi, each.file_id)),
            partitions=partitions,
            dirtiness=dirtiness,
            unreadable=unreadable,
            busy_files=view.busy_files,
            busy_extents=view.busy_extents,
            erasing_files=view.erasing_files,
            retention_check_ms=check_ms,
            last_daily_ms=view.last_daily_ms,
        )

    @cached_property
    def known_extents(self) -> Mapping[int, Sequence[LeveledExtent]]:
        """Extents of compacted partitions by file id. The metadata view does not list those of plain partitions."""
        by_file: dict[int, list[LeveledExtent]] = defaultdict(list)
        for partition in self.partitions.values():
            for extent in in_offset_order(partition):
                by_file[extent.file_id].append(extent)
        return by_file

    def status(self, file: FileView) -> FileStatus:
        """By live jobs alone; `PlanDraft.status` also counts the specs planned so far."""
        if rests(file.trouble_until_ms, self.now_ms):
            return FileStatus.IN_TROUBLE
        if file.file_id in self.busy_files:
            known = self.known_extents.get(file.file_id, ())
            # A busy file is partly busy if an extent of it is free; plain files have no known extents and are always
            # taken whole.
            partly = any(each.extent_id not in self.busy_extents for each in known)
            return FileStatus.PARTLY_BUSY if partly else FileStatus.TAKEN
        if self.is_expiring(file):
            return FileStatus.EXPIRING
        return FileStatus.FREE

    def is_expiring(self, file: FileView) -> bool:
        """Whether retention takes the whole file so soon that copying it is a waste.

        Two kinds of files never count as expiring:

        - Files of the compacted class. Where retention is shorter than the margin, all of them would always be
          expiring. The records at the log start, where each pass begins, expire first, so they would never be deduped.
        - Files that should be gone and are not. Retention deletes from the log start to the first extent that stays,
          so old records behind a young head stay for as long as the head does.
        """
        if file.file_class is FileClass.COMPACTED or file.expires_ms is None:
            return False
        soon_ms = self.now_ms + self.options.expiry_margin_ms
        late_ms = self.now_ms - RETENTION_ROUNDS * self.retention_check_ms
        # A file whose records had expired when it was written counts as late only when it is itself old enough for
        # retention to have looked at it.
        is_left = file.expires_ms <= late_ms and not late_ms < file.created_ms <= self.now_ms
        return file.expires_ms <= soon_ms and not is_left
