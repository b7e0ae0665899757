"""What really happened to the transactions of a history: whose records were aborted, and what was listed when."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from random import Random

from metadata.contract.jobs import CommitMerge, MergeCommitted
from metadata.memory.compactors import MemoryCompactors
from metadata.memory.tables import MemoryDatabase
from runtime.clock import Clock

Listed = tuple[int, int, int]
"""(producer id, first offset, offset of the marker)"""


@dataclass(slots=True)
class PartitionTransactions:
    open: dict[int, int] = field(default_factory=dict[int, int])
    """Producer id -> first offset."""
    pending: defaultdict[int, list[int]] = field(default_factory=lambda: defaultdict[int, list[int]](list))
    """Producer id -> offsets of the records of its open transaction."""
    aborted: set[int] = field(default_factory=set[int])
    """Offsets of records of aborted transactions."""
    markers: set[int] = field(default_factory=set[int])
    history: list[tuple[int, frozenset[Listed]]] = field(default_factory=list[tuple[int, frozenset[Listed]]])
    """(time, the list from then on)"""

    def stable_offset(self, high_watermark: int) -> int:
        return min([high_watermark, *self.open.values()])

    def data(self, producer_id: int, offsets: range) -> None:
        self.open.setdefault(producer_id, offsets[0])
        self.pending[producer_id] += offsets

    def end(self, producer_id: int, marker: int, *, aborts: bool) -> int:
        """Returns the first offset."""
        self.markers.add(marker)
        offsets = self.pending.pop(producer_id)
        if aborts:
            self.aborted.update(offsets)
        return self.open.pop(producer_id)

    def lists(self, listed: Iterable[Listed], now_ms: int) -> None:
        self.history.append((now_ms, frozenset(listed)))

    def listed_since(self, since_ms: int) -> set[Listed]:
        """Everything that was listed at some time since then."""
        at = max((number for number, (from_ms, _) in enumerate(self.history) if from_ms <= since_ms), default=0)
        return {one for _, listed in self.history[at:] for one in listed}


class ForgetfulJobs(MemoryCompactors):
    """The compactor's calls of the memory store. Some reports of gone transactions are lost, as a store that was
    restored lists them again. So a transaction may be listed long after its records went."""

    def __init__(self, database: MemoryDatabase, clock: Clock, chance: Random) -> None:
        super().__init__(database, clock)
        self._chance = chance
        self.lost = 0.0
        """The share of reports."""

    async def commit_merge(self, commit: CommitMerge) -> MergeCommitted:
        if self._chance.random() < self.lost:
            commit = replace(commit, cleaned=[replace(each, aborted_gone=()) for each in commit.cleaned])
        return await super().commit_merge(commit)
