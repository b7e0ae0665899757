"""The transactions of a history: what a coordinator and the metadata know of them, in the simplest form.

The memory store takes transactional batches as those of no producer. The ledger knows whose they are, and `ListedJobs`
puts its facts into the answers of the store: where stable offsets are, what is listed as aborted, which files no object
holds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from metadata.contract.compactors import CompactionView, PartitionView
from metadata.contract.jobs import ClaimedJob, CommitMerge, MergeCommitted
from metadata.memory.compactors import MemoryCompactors
from metadata.memory.tables import MemoryDatabase
from runtime.clock import Clock

Listed = tuple[int, int, int]
"""(producer id, first offset, offset of the marker)"""


@dataclass(slots=True)
class PartitionTransactions:
    open: dict[int, int] = field(default_factory=dict[int, int])
    """Producer id -> first offset."""
    listed: list[Listed] = field(default_factory=list[Listed])
    """Aborted transactions that the metadata still list."""
    pending: dict[int, list[int]] = field(default_factory=lambda: defaultdict[int, list[int]](list))
    """Producer id -> offsets of the records of its open transaction."""
    aborted: set[int] = field(default_factory=set[int])
    """Offsets of records of aborted transactions."""
    markers: set[int] = field(default_factory=set[int])
    history: list[tuple[int, tuple[Listed, ...]]] = field(default_factory=list[tuple[int, tuple[Listed, ...]]])
    """(time, the list from then on)"""

    def stable_offset(self, high_watermark: int) -> int:
        return min([high_watermark, *self.open.values()])

    def lists(self, now_ms: int) -> None:
        self.history.append((now_ms, tuple(self.listed)))

    def listed_since(self, since_ms: int) -> set[Listed]:
        """Everything that was listed at some time since then."""
        at = max((number for number, (from_ms, _) in enumerate(self.history) if from_ms <= since_ms), default=0)
        return {one for _, listed in self.history[at:] for one in listed}


@dataclass
class Ledger:
    partitions: dict[int, PartitionTransactions] = field(
        default_factory=lambda: defaultdict[int, PartitionTransactions](PartitionTransactions)
    )
    inline: dict[str, bytes] = field(default_factory=dict[str, bytes])
    """Key -> bytes of each file that no object holds."""
    chance: Random = field(default_factory=lambda: Random(0))
    forgetful: float = 0.0
    """The share of reports of gone transactions that are lost, as a store that was restored lists them again. So a
    transaction may be listed long after its records went."""

    def data(self, partition_id: int, producer_id: int, offsets: range) -> None:
        partition = self.partitions[partition_id]
        partition.open.setdefault(producer_id, offsets[0])
        partition.pending[producer_id] += offsets

    def end(self, partition_id: int, producer_id: int, marker: int, *, aborts: bool, now_ms: int) -> None:
        partition = self.partitions[partition_id]
        first = partition.open.pop(producer_id)
        offsets = partition.pending.pop(producer_id)
        partition.markers.add(marker)
        if aborts:
            partition.aborted.update(offsets)
            partition.listed.append((producer_id, first, marker))
            partition.lists(now_ms)

    def places_of(self, producer_id: int) -> list[int]:
        """The partitions in which a transaction of this producer is open."""
        return sorted(id_ for id_, each in self.partitions.items() if producer_id in each.open)

    @property
    def open_producers(self) -> list[int]:
        return sorted({producer_id for each in self.partitions.values() for producer_id in each.open})

    # ---- into the answers of the store

    def view(self, partition: PartitionView) -> PartitionView:
        mine = self.partitions[partition.partition_id]
        stable = max(mine.stable_offset(partition.high_watermark), partition.log_start_offset)
        listed = sorted(
            (one for one in mine.listed if one[1] < stable and one[2] >= partition.log_start_offset),
            key=lambda one: one[1],
        )
        return replace(partition, last_stable_offset=stable, aborted=listed)

    def forget(self, partition_id: int, markers: Sequence[int], now_ms: int) -> None:
        partition = self.partitions[partition_id]
        if self.chance.random() >= self.forgetful:
            partition.listed = [one for one in partition.listed if one[2] not in markers]
            partition.lists(now_ms)


class ListedJobs(MemoryCompactors):
    """The compactor's calls of the memory store, with the facts of a ledger."""

    def __init__(self, database: MemoryDatabase, clock: Clock, ledger: Ledger) -> None:
        super().__init__(database, clock)
        self._ledger = ledger
        self._now_ms = clock.wall_ms

    async def compaction_view(self) -> CompactionView:
        view = await super().compaction_view()
        keys = {file_id: file.info.key for file_id, file in self.database.files.items()}
        return replace(
            view,
            files=[replace(each, is_inline=keys[each.file_id] in self._ledger.inline) for each in view.files],
            partitions=[self._ledger.view(each) for each in view.partitions],
        )

    async def claim_job(self, *arguments: Any, **options: Any) -> ClaimedJob | None:
        claimed = await super().claim_job(*arguments, **options)
        if claimed is None:
            return None
        inline = self._ledger.inline
        return replace(claimed, l0_files=[replace(each, inline=inline.get(each.key, b"")) for each in claimed.l0_files])

    async def commit_merge(self, commit: CommitMerge) -> MergeCommitted:
        committed = await super().commit_merge(commit)
        for each in commit.cleaned:
            self._ledger.forget(each.partition_id, each.aborted_gone, self._now_ms())
        return committed
