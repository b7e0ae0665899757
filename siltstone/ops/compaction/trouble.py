"""The records in files that merges fail to read: file, offsets, error, and the time of the next attempt. Pure.

After a merge failed on a file, the file rests (`metadata/rules/jobs.py`), then the planner tries it again. An L0 file
stays in trouble until a merge of it succeeds, because only that ends its life. An L1 or L2 file may live on for other
reasons, so it is in trouble only while it rests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from metadata.contract.compactors import CompactionView, FileView, PartitionView
from metadata.contract.files import L0File
from metadata.rules.jobs import rests
from metadata.rules.packed_index import iter_index
from runtime.text import age_text

NOT_IN_STORE = "is not in the object store"
"""Part of the error with which `compactor/merging/cursors.py` reports a missing object."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubled:
    """Records of one partition in one file that merges fail to read."""

    file: FileView
    key: str
    base_offset: int
    last_offset: int
    """Inclusive."""
    partitions: int
    """Number of partitions with records in the file; 0 = not known."""

    @property
    def level(self) -> int:
        return self.file.level

    @property
    def file_id(self) -> int:
        return self.file.file_id

    @property
    def trouble(self) -> str:
        """The error of the last merge of the file."""
        return self.file.trouble

    @property
    def is_lost(self) -> bool:
        return NOT_IN_STORE in self.trouble

    @property
    def offsets(self) -> str:
        if self.base_offset == self.last_offset:
            return f"offset {self.base_offset}"
        return f"offsets {self.base_offset} to {self.last_offset}"

    @property
    def file_text(self) -> str:
        """ "L0 file 5, whose object is lost" """
        why = "whose object is lost" if self.is_lost else "which merges fail to read"
        return f"L{self.level} file {self.file_id}, {why}"


def files_in_trouble(view: CompactionView) -> Mapping[int, FileView]:
    """By file id."""
    return {
        file.file_id: file
        for file in view.files
        if rests(file.trouble_until_ms, view.now_ms) or (file.level == 0 and file.trouble_until_ms)
    }


def troubled_by_partition(
    view: CompactionView, partitions: Sequence[PartitionView], l0_files: Iterable[L0File]
) -> Mapping[int, Sequence[Troubled]]:
    """By partition id, in offset order. `l0_files` must hold the L0 files in trouble, and may hold others."""
    files = files_in_trouble(view)
    found: dict[int, list[Troubled]] = defaultdict(list)

    def add(partition_id: int, file: FileView, key: str, base_offset: int, last_offset: int, partitions: int) -> None:
        one = Troubled(file=file, key=key, base_offset=base_offset, last_offset=last_offset, partitions=partitions)
        found[partition_id].append(one)

    starts = {each.partition_id: each.log_start_offset for each in partitions}
    for l0 in l0_files:
        file = files.get(l0.file_id)
        if file is None:
            continue
        rows = list(iter_index(l0.index))
        held = len({row.partition_id for row in rows})
        for row in rows:
            # only the topic's own partitions, and nothing that is deleted already
            if row.last_offset >= starts.get(row.partition_id, row.last_offset + 1):
                add(row.partition_id, file, l0.key, row.base_offset, row.last_offset, held)
    for partition in partitions:
        for extent in partition.extents:
            file = files.get(extent.file_id)
            if file is not None:
                add(partition.partition_id, file, extent.key, extent.base_offset, extent.last_offset, 0)
    return {key: sorted(each, key=lambda one: one.base_offset) for key, each in found.items()}


def retry_text(troubled: Troubled, now_ms: int) -> str:
    """ "is tried again in 9m12s" """
    until_ms = troubled.file.trouble_until_ms
    return f"is tried again in {age_text(until_ms - now_ms)}" if rests(until_ms, now_ms) else "is tried again now"
