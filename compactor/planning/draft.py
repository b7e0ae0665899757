"""A plan in the making: the specs so far, and the files, extents and slots that they take. Pure.

The rules (`l0`, `purge`, `runs`, `forced`) run in turn and read and fill one draft.

Two kinds of merges want the same files. A merge of whole runs needs every extent of its files to be free. A forced pass
takes the extents of one partition out of many files, and those files are *partly busy* until the pass ends. With enough
dirty partitions, some forced pass would always hold an extent of every file, and leveling would starve. So the files of
a group that is due and waits for forced passes are *reserved*: no new forced pass enters them, and the group's slot is
kept. Forced passes do not starve either: a stretch ends before a reserved file, a group that waits for a slot reserves
nothing, and slots are kept for both kinds (`compactor/planning/slots.py`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet

from compactor.planning.assembly import forced_spec, l0_spec, merge_spec
from compactor.planning.notes import Blocker, Note
from compactor.planning.slots import Slots
from compactor.planning.spec import MergeKind, MergeSpec, PlanOptions
from compactor.planning.view import FileStatus, PlanningView
from metadata.contract.compactors import CompactionView, FileView, PartitionView
from metadata.contract.leveled import LeveledExtent


class PlanDraft:
    def __init__(self, view: CompactionView, options: PlanOptions) -> None:
        self.view = PlanningView.read(view, options)
        self.slots = Slots.free(view, options)
        self.specs: list[MergeSpec] = []
        self.notes: list[Note] = []
        self.reserved_files: set[int] = set()
        self._taken_files: set[int] = set()
        self._taken_extents: set[int] = set()
        for partition, error in self.view.unreadable:
            text = f"{partition.topic_name}-{partition.partition} is never deduped: {error}"
            self.note(MergeKind.FORCED, text, Blocker.CONFIG, partition_id=partition.partition_id)

    @property
    def options(self) -> PlanOptions:
        return self.view.options

    @property
    def now_ms(self) -> int:
        return self.view.now_ms

    @property
    def unavailable_extents(self) -> AbstractSet[int]:
        """Extents that a live job or a spec of this plan holds alone, by id."""
        return self.view.busy_extents | self._taken_extents

    def status(self, file: FileView) -> FileStatus:
        return FileStatus.TAKEN if file.file_id in self._taken_files else self.view.status(file)

    def note(
        self,
        rule: MergeKind,
        text: str,
        blocker: Blocker,
        *,
        partition_id: int | None = None,
        files: Iterable[FileView] = (),
        held_from: int | None = None,
    ) -> None:
        file_ids = tuple(each.file_id for each in files)
        self.notes.append(
            Note(
                rule=rule,
                text=text,
                blocker=blocker,
                partition_id=partition_id,
                file_ids=file_ids,
                held_from=held_from,
            )
        )

    def reserve(self, files: Iterable[FileView]) -> None:
        """Keeps new forced passes out of these files."""
        self.reserved_files.update(each.file_id for each in files)

    def add_l0(self, files: Sequence[FileView], reason: str) -> None:
        self._add(l0_spec(self.view, files, reason))

    def add_merge(self, kind: MergeKind, files: Sequence[FileView], *, level: int, dedupe: bool, reason: str) -> None:
        """Whole files."""
        spec = merge_spec(self.view, kind, files, level=level, dedupe=dedupe, reason=reason)
        self.slots.for_size(spec.input_bytes, kind).take_merge()
        self._add(spec)

    def add_forced(self, partition: PartitionView, stretch: Sequence[LeveledExtent], reason: str) -> None:
        """One partition's extents."""
        spec = forced_spec(self.view, partition, stretch, reason)
        self.slots.for_size(spec.input_bytes).take_forced()
        self._add(spec)

    def _add(self, spec: MergeSpec) -> None:
        self.specs.append(spec)
        self._taken_files.update(spec.l0_file_ids, spec.file_ids)
        self._taken_extents.update(spec.extent_ids)
