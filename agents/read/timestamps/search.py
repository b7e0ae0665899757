"""ListOffsets by timestamp: Kafka's rule is by record, not by batch, and in offset order, not in order of time.

The candidates are known without reading: the largest timestamp of every L0 extent is in the index, that of every merged
one in the metadata store. The candidates are read in offset order: a large one by its block index, and in a block only
batches whose header qualifies are walked. An extent, block or batch may promise more than it holds, because dedupe
keeps the timestamps of batches that it emptied, and a sender may claim any.

L0 extents are looked at *before* the store is asked for merged ones. Records that are merged in between are then in
both and read once; in the other order they would be in neither. Flagged extents, whose bytes are no batches, are passed
over. For sound batches whose records cannot be read, and for those that the request's budget does not reach, the header
gives the answer (`walk.py`, `budget.py`).
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agents.read.leveled import BlockIndexes
from agents.read.locate import TRIES_MAX, CatchUp
from agents.read.plan import ReadRange, whole_l0
from agents.read.pools import Pools
from agents.read.timestamps.budget import LookUpBudget, LookUpShares
from agents.read.timestamps.walk import FirstAt, Largest, Looking, TimestampedOffset, look_through
from agents.tail.log_index import LogIndex, PartitionLog
from metadata.contract.leveled import LeveledExtent
from metadata.contract.readers import ReaderMetadata
from storage.format.block_index import BLOCK_BYTES, BlockEntry, block_end
from storage.format.file_format import CorruptFileError
from storage.objects import ObjectNotFoundError, ObjectStoreError
from wire.batch import NO_TIMESTAMP_MS, CorruptBatchError
from wire.codecs import CodecError
from wire.records import CorruptRecordError

EXTENTS_PER_LOOK_UP = 64
TIMESTAMP_ERRORS = (ObjectStoreError, CorruptFileError, CorruptBatchError, CorruptRecordError, CodecError)
"""The errors that a look-up by timestamp may raise."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Candidate:
    """An extent that may hold the answer. `merged` is None for L0."""

    where: ReadRange
    max_timestamp_ms: int
    merged: LeveledExtent | None = None


class TimestampSearch:
    """Its methods raise TIMESTAMP_ERRORS and MetadataUnavailableError."""

    def __init__(
        self, *, index: LogIndex, metadata: ReaderMetadata, blocks: BlockIndexes, pools: Pools, catch_up: CatchUp
    ) -> None:
        self._index = index
        self._metadata = metadata
        self._blocks = blocks
        self._pools = pools
        self._catch_up = catch_up
        self._shares = LookUpShares()

    async def first_at(self, partition_id: int, timestamp_ms: int, budget: LookUpBudget) -> TimestampedOffset | None:
        """The first record in offset order, from the log start on, whose timestamp is at or above `timestamp_ms`."""

        async def search() -> TimestampedOffset | None:
            async for candidate in self._candidates(partition_id, timestamp_ms):
                found = await self._first_in(candidate, timestamp_ms, self._log_start(partition_id), budget)
                if found is not None:
                    return found
            return None

        return await self._again_when_gone(search)

    async def largest(self, partition_id: int, budget: LookUpBudget) -> TimestampedOffset | None:
        """The first record that has the partition's largest timestamp; None if the partition is empty."""

        async def search() -> TimestampedOffset | None:
            best = await self._most_promising(partition_id)
            if best is None:
                return None
            found = await self._first_in(best, best.max_timestamp_ms, self._log_start(partition_id), budget)
            # Dedupe may have emptied the batch that had the largest timestamp: then every extent has to be compared.
            return found if found is not None else await self._largest_of_all(partition_id, budget)

        return await self._again_when_gone(search)

    async def _most_promising(self, partition_id: int) -> _Candidate | None:
        """The lowest of the extents with the largest timestamp."""
        log = self._index.partition(partition_id)
        row = log.row_of_largest_timestamp() if log is not None else -1
        candidates = [self._candidate_at(log, row)] if log is not None and row >= 0 else []
        merged = await self._metadata.largest_leveled_timestamp(partition_id)
        if merged is not None:
            candidates.append(_Candidate(_range_of(merged), merged.max_timestamp_ms, merged))
        return min(candidates, key=_promise, default=None)

    async def _largest_of_all(self, partition_id: int, budget: LookUpBudget) -> TimestampedOffset | None:
        """The fallback if the most promising extent did not keep its promise: all of them, until none can do better."""
        candidates = [each async for each in self._candidates(partition_id, None)]
        best: TimestampedOffset | None = None
        for candidate in sorted(candidates, key=_promise):
            # Sorted by promise: no later extent can do better than what was found.
            if best is not None and _promise(candidate) > best.rank:
                break
            found = await self._largest_in(candidate, self._log_start(partition_id), budget)
            if found is not None and (best is None or found.rank < best.rank):
                best = found
        return best

    async def _again_when_gone(self, search: Callable[[], Awaitable[T]]) -> T:
        """Handles a file that is gone: it was merged meanwhile, so the index drops it and the search begins again."""
        for _ in range(TRIES_MAX - 1):
            try:
                return await search()
            except ObjectNotFoundError:
                await self._catch_up()
        return await search()

    # ---- where it may be

    async def _candidates(self, partition_id: int, timestamp_ms: int | None) -> AsyncIterator[_Candidate]:
        """Extents with a timestamp at or above `timestamp_ms` (None = all), in offset order, looked up lazily."""
        offset = self._log_start(partition_id)
        while (log := self._index.partition(partition_id)) is not None and offset < log.end:
            unmerged = self._next_l0(partition_id, offset, timestamp_ms)
            end = log.end if unmerged is None else unmerged.where.base_offset
            async for merged in self._merged(partition_id, timestamp_ms, offset, end):
                yield merged
            if unmerged is None:
                return
            yield unmerged
            offset = unmerged.where.last_offset + 1

    def _next_l0(self, partition_id: int, offset: int, timestamp_ms: int | None) -> _Candidate | None:
        log = self._index.partition(partition_id)
        if log is None:
            return None
        row = log.row_of(offset)
        if timestamp_ms is not None:
            row = log.first_row_with_timestamp(timestamp_ms, row)
        return self._candidate_at(log, row) if row < len(log) else None

    def _candidate_at(self, log: PartitionLog, row: int) -> _Candidate:
        extent = log.at(row)
        return _Candidate(whole_l0(extent, self._index.file(extent.file_id)), extent.max_timestamp_ms)

    async def _merged(
        self, partition_id: int, timestamp_ms: int | None, offset: int, end: int
    ) -> AsyncIterator[_Candidate]:
        """Merged extents that begin in [offset, end)."""
        while offset < end:
            page = await self._page(partition_id, timestamp_ms, offset)
            for extent in page:
                # Behind the next L0 extent: the caller asks again from there.
                if extent.base_offset >= end:
                    return
                if extent.flagged_reason is None and extent.length:
                    yield _Candidate(_range_of(extent), extent.max_timestamp_ms, extent)
            if len(page) < EXTENTS_PER_LOOK_UP:
                return
            offset = page[-1].last_offset + 1

    async def _page(self, partition_id: int, timestamp_ms: int | None, offset: int) -> Sequence[LeveledExtent]:
        if timestamp_ms is None:
            return await self._metadata.leveled_extents(partition_id, offset, limit=EXTENTS_PER_LOOK_UP)
        return await self._metadata.leveled_extents_by_timestamp(
            partition_id, timestamp_ms, from_offset=offset, limit=EXTENTS_PER_LOOK_UP
        )

    def _log_start(self, partition_id: int) -> int:
        log = self._index.partition(partition_id)
        return log.start if log is not None else 0

    # ---- looking into an extent

    async def _first_in(
        self, candidate: _Candidate, timestamp_ms: int, log_start_offset: int, budget: LookUpBudget
    ) -> TimestampedOffset | None:
        if candidate.merged is not None and candidate.merged.flagged_reason is not None:
            return None
        first = FirstAt(timestamp_ms)
        for where, promised_ms in await self._blocks_of(candidate):
            if promised_ms >= timestamp_ms and await self._look_through(where, first, log_start_offset, budget):
                return first.found
        return None

    async def _largest_in(
        self, candidate: _Candidate, log_start_offset: int, budget: LookUpBudget
    ) -> TimestampedOffset | None:
        largest = Largest(NO_TIMESTAMP_MS)
        for where, promised_ms in sorted(await self._blocks_of(candidate), key=lambda each: -each[1]):
            if promised_ms < largest.least_ms:
                break
            await self._look_through(where, largest, log_start_offset, budget)
        return largest.found

    async def _look_through(
        self, where: ReadRange, looking: Looking, log_start_offset: int, budget: LookUpBudget
    ) -> bool:
        release = await self._shares.read.take(where.length, self._pools.source([where]))
        try:
            data = await self._pools.bytes_of(where)
            budget.took_read(where.length)
            return await look_through(
                data, where, looking, log_start_offset=log_start_offset, budget=budget, shares=self._shares
            )
        finally:
            release()

    async def _blocks_of(self, candidate: _Candidate) -> list[tuple[ReadRange, int]]:
        """Ranges of whole batches and the largest timestamp of each; in pieces of a MiB if there is an index."""
        extent = candidate.merged
        if extent is None or extent.length <= BLOCK_BYTES:
            return [(candidate.where, candidate.max_timestamp_ms)]
        return list(_pieces(extent, await self._blocks.read(extent)))


def _range_of(extent: LeveledExtent, position: int = 0, length: int | None = None) -> ReadRange:
    """`length` bytes of a merged extent from `position` of it; None = all."""
    return ReadRange(
        extent.file_id,
        extent.key,
        extent.file_size_bytes,
        None,
        extent.position + position,
        extent.length if length is None else length,
        extent.base_offset,
        extent.base_offset,
        extent.last_offset,
        extent.position,
        extent.position + extent.length,
    )


def _pieces(extent: LeveledExtent, blocks: Sequence[BlockEntry]) -> Iterator[tuple[ReadRange, int]]:
    for number, block in enumerate(blocks):
        end = block_end(blocks, number, extent.length)
        yield _range_of(extent, block.position, end - block.position), block.max_timestamp_ms


def _promise(candidate: _Candidate) -> tuple[int, int]:
    """The best rank that a record of the extent may have."""
    return -candidate.max_timestamp_ms, candidate.where.base_offset
