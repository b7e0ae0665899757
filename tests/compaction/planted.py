"""Rules removed on purpose, each of which seems unnecessary. Histories that never notice a removal prove nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any
from unittest.mock import patch

from compactor.cleaning.bounds import CleanBounds
from compactor.cleaning.partition_cleaner import PartitionCleaner
from compactor.erasing.marks_table import MarksTable
from compactor.erasing.partition_eraser import ErasedWindow, PartitionEraser
from compactor.merging.execute import MergeEngine
from compactor.merging.extent_facts import ExtentFacts, FactsOfInputs
from metadata.contract.jobs import ClaimedJob, CommitMerge
from metadata.erasures.contract import KeyMark
from metadata.memory.compactors import MemoryCompactors
from metadata.memory.deletion import MemoryDeletion
from wire.batch import CODEC_MASK
from wire.kernels.batches import BatchTable

Plant = Callable[[], AbstractContextManager[None]]


@contextmanager
def _bounds(change: Callable[[CleanBounds], CleanBounds]) -> Iterator[None]:
    begin = PartitionCleaner.__init__

    def changed(self: Any, buffer: Any, bounds: CleanBounds, **options: Any) -> None:
        begin(self, buffer, change(bounds), **options)

    with patch.object(PartitionCleaner, "__init__", changed):
        yield


def drops_tombstones_of_partial_merges() -> AbstractContextManager[None]:
    """A tombstone goes although extents below it are not among the inputs: an old value in one of them comes back."""
    return _bounds(lambda bounds: replace(bounds, whole_through_offset=2**62))


def horizon_from_the_spec_alone() -> AbstractContextManager[None]:
    """The horizon leaves out the time until the commit, when old values really vanish."""
    return _bounds(lambda bounds: replace(bounds, delete_horizon_ms=bounds.now_ms))


def cleans_what_lags() -> AbstractContextManager[None]:
    """min.compaction.lag.ms does not bound the table."""
    return _bounds(lambda bounds: replace(bounds, first_uncleanable_offset=2**62))


@contextmanager
def zombies_commit() -> Iterator[None]:
    """The commit does not check the job's epoch: it takes the present one."""
    commit = MemoryCompactors.commit_merge

    async def unfenced(self: MemoryCompactors, request: CommitMerge) -> Any:
        job = await self.job(request.job_id)
        assert job is not None
        return await commit(self, replace(request, epoch=job.epoch))

    with patch.object(MemoryCompactors, "commit_merge", unfenced):
        yield


@contextmanager
def covers_the_gaps() -> Iterator[None]:
    """An output extent covers offsets that its inputs do not hold."""
    run = MergeEngine.run

    async def covering(self: Any, claimed: ClaimedJob, **options: Any) -> CommitMerge:
        commit = await run(self, claimed, **options)
        outputs = []
        covered: dict[int, Any] = dict(commit.covered)
        for file in commit.outputs:
            extents = list(file.extents)
            for number in range(len(extents) - 1):
                one, other = extents[number], extents[number + 1]
                if one.partition_id == other.partition_id and one.last_offset + 1 < other.base_offset:
                    extents[number] = replace(one, last_offset=other.base_offset - 1)
                    ranges = [list(each) for each in covered[one.partition_id]]
                    for each in ranges:
                        if each[1] == one.last_offset:
                            each[1] = other.base_offset - 1
                    covered[one.partition_id] = [(base, last) for base, last in ranges]
            outputs.append(replace(file, extents=extents))
        return replace(commit, outputs=outputs, covered=covered)

    with patch.object(MergeEngine, "run", covering):
        yield


@contextmanager
def forgets_the_clear() -> Iterator[None]:
    """A pass whose buffer was cleared counts as whole: cleaned-through passes the first clear, tombstones go."""
    scanned = PartitionCleaner.scanned

    def whole(self: Any) -> Any:
        return replace(scanned.__get__(self), first_clear_offset=None, clears=0)

    with patch.object(PartitionCleaner, "scanned", property(whole)):
        yield


@contextmanager
def deletes_without_aborting() -> Iterator[None]:
    """The janitor takes objects of merges that are at work, and leaves no row that would stop their commit."""

    async def unknown(self: MemoryDeletion, key: str) -> bool:
        return key not in await self.known_keys([key])

    with (
        patch("compactor.deletion.janitor.writers_patience_ms", lambda *_, **__: {}),
        patch.object(MemoryDeletion, "abort_file", unknown),
    ):
        yield


@contextmanager
def stamps_as_the_best_input() -> Iterator[None]:
    """An output counts as erased as soon as one of its inputs is."""
    of = FactsOfInputs.of

    def best(self: Any, base_offset: int, last_offset: int, *others: Any) -> ExtentFacts:
        stamps = [
            each.erased_through
            for each in self._inputs
            if each.base_offset <= last_offset and base_offset <= each.last_offset
        ]
        return of(self, base_offset, last_offset, *others)._replace(erased_through=max(stamps, default=0))

    with patch.object(FactsOfInputs, "of", best):
        yield


@contextmanager
def stamps_without_erasing() -> Iterator[None]:
    """Batches that were compressed are copied."""
    erase = PartitionEraser.erase

    def lazy(self: Any, data: Any, table: BatchTable) -> ErasedWindow:
        if (table.attributes & CODEC_MASK).any():
            return ErasedWindow(data, table, 0)
        return erase(self, data, table)

    with patch.object(PartitionEraser, "erase", lazy):
        yield


@contextmanager
def erases_at_the_mark() -> Iterator[None]:
    """The record at the mark goes at once: the tombstone that readers have to hear of, or the value that stays."""
    begin = MarksTable.__init__

    def changed(self: Any, marks: Sequence[KeyMark]) -> None:
        begin(self, [mark._replace(tombstone=True) for mark in marks])

    with patch.object(MarksTable, "__init__", changed):
        yield


IN_ERASURES: Mapping[str, Plant] = {
    "stamps-as-the-best-input": stamps_as_the_best_input,
    "stamps-without-erasing": stamps_without_erasing,
    "erases-at-the-mark": erases_at_the_mark,
}
PLANTED: Mapping[str, Plant] = {
    "drops-tombstones-of-partial-merges": drops_tombstones_of_partial_merges,
    "horizon-from-the-spec-alone": horizon_from_the_spec_alone,
    "cleans-what-lags": cleans_what_lags,
    "zombies-commit": zombies_commit,
    "covers-the-gaps": covers_the_gaps,
    "forgets-the-clear": forgets_the_clear,
    "deletes-without-aborting": deletes_without_aborting,
    **IN_ERASURES,
}
