"""Which records lie in files that merges fail to read: which file, which offsets, why, and until when it rests. Pure.

A file rests after a merge failed on it (`metadata/rules/jobs.py`), then the planner tries it again. An L0 file that was
tried in vain stays in trouble as long as it lives, for the next merge of it is what ends it. An L1 or L2 file may live
on for other reasons; it is in trouble while it rests.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from metadata.contract.compaction import CompactionView, FileView, PartitionView
from metadata.contract.service import L0File
from metadata.rules.jobs import rests
from metadata.rules.packed_index import iter_index
from runtime.text import age_text

NOT_IN_STORE = "is not in the object store"
"""How `compactor/merging/cursors.py` says that an object is gone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Troubled:
    """Records of one partition in one file that merges fail to read. Offsets inclusive."""

    file_id: int
    key: str
    level: int
    base_offset: int
    last_offset: int
    trouble: str
    """What the last merge of it said."""
    until_ms: int
    """It rests until then; in the past: it is tried again."""
    partitions: int
    """How many partitions the file holds records of; 0 = not known."""

    @property
    def is_lost(self) -> bool:
        return NOT_IN_STORE in self.trouble

    @property
    def offsets(self) -> str:
        if self.base_offset == self.last_offset:
            return f"offset {self.base_offset}"
        return f"offsets {self.base_offset} to {self.last_offset}"

    @property
    def what(self) -> str:
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
    """By partition id, in offset order; `l0_files` need hold no others than those in trouble."""
    files = files_in_trouble(view)
    found: dict[int, list[Troubled]] = defaultdict(list)
    starts = {each.partition_id: each.log_start_offset for each in partitions}
    for l0 in l0_files:
        file = files.get(l0.file_id)
        if file is None:
            continue
        rows = list(iter_index(l0.index))
        held = len({row.partition_id for row in rows})
        for row in rows:
            if row.last_offset >= starts.get(row.partition_id, row.last_offset + 1):
                one = _troubled(file, l0.key, row.base_offset, row.last_offset, held)
                found[row.partition_id].append(one)
    for partition in partitions:
        for extent in partition.extents:
            file = files.get(extent.file_id)
            if file is not None:
                one = _troubled(file, extent.key, extent.base_offset, extent.last_offset, 0)
                found[partition.partition_id].append(one)
    return {key: sorted(each, key=lambda one: one.base_offset) for key, each in found.items()}


def _troubled(file: FileView, key: str, base_offset: int, last_offset: int, partitions: int) -> Troubled:
    return Troubled(
        file_id=file.file_id,
        key=key,
        level=file.level,
        base_offset=base_offset,
        last_offset=last_offset,
        trouble=file.trouble,
        until_ms=file.trouble_until_ms,
        partitions=partitions,
    )


def trouble_text(troubled: Sequence[Troubled], *, deletes: bool) -> str:
    """In one line; empty where there is none. `deletes`: the topic's policy has retention to lose."""
    if not troubled:
        return ""
    first = troubled[0]
    more = f", and {len(troubled) - 1:,} more like it" if len(troubled) > 1 else ""
    stops = "; retention stops before it" if first.level == 0 and deletes else ""
    return f"{first.offsets} in {first.what}{more}{stops}"


def retry_text(troubled: Troubled, now_ms: int) -> str:
    """ "is tried again in 9m12s" """
    if rests(troubled.until_ms, now_ms):
        return f"is tried again in {age_text(troubled.until_ms - now_ms)}"
    return "is tried again now"
