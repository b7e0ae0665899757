"""ListOffsets by timestamp: Kafka's rule is by record, not by batch, and in offset order, not in order of time.

The candidates are known without reading: the largest timestamp of every L0 extent is in the index, that of every merged
one in the metadata store. The candidates are read in offset order: a large one by its block index, and in a block only
batches whose header qualifies are walked. An extent, block or batch may promise more than it holds, because dedupe
keeps the timestamps of batches that it emptied.

L0 extents are looked at *before* the store is asked for merged ones. Records that are merged in between are then in
both and read once; in the other order they would be in neither. Flagged extents, whose bytes are no batches, are passed
over. For sound batches whose records cannot be read, the header gives the answer.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from agents.read.leveled import BlockIndexes
from agents.read.locate import TRIES_MAX, CatchUp
from agents.read.pieces import Pieces
from agents.read.plan import CutBatch, ReadRange, batches_of
from agents.read.pools import Pools
from agents.tail.log_index import LogIndex, PartitionLog
from metadata.contract.leveled import LeveledExtent
from metadata.contract.readers import ReaderMetadata
from storage.format.block_index import BLOCK_BYTES, BlockEntry, block_end
from storage.format.file_format import CorruptFileError
from storage.objects import ObjectNotFoundError, ObjectStoreError
from wire.batch import NO_TIMESTAMP_MS, BatchHeader, CorruptBatchError, crc_matches, read_header
from wire.codecs import CodecError
from wire.records import CorruptRecordError, walk

EXTENTS_PER_LOOK_UP = 64
RECORDS_MAX = 1 << 20
"""Records of one batch: a batch that claims more is not walked, as the compactor does not read it either."""
TIMESTAMP_ERRORS = (ObjectStoreError, CorruptFileError, CorruptBatchError, CorruptRecordError, CodecError)
"""The errors that a look-up by timestamp may raise."""

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class TimestampedOffset:
    offset: int
    timestamp_ms: int


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

    async def first_at(self, partition_id: int, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record in offset order, from the log start on, whose timestamp is at or above `timestamp_ms`."""

        async def search() -> TimestampedOffset | None:
            async for candidate in self._candidates(partition_id, timestamp_ms):
                found = await self._first_in(candidate, timestamp_ms, self._log_start(partition_id))
                if found is not None:
                    return found
            return None

        return await self._again_when_gone(search)

    async def largest(self, partition_id: int) -> TimestampedOffset | None:
        """The first record that has the partition's largest timestamp; None if the partition is empty."""

        async def search() -> TimestampedOffset | None:
            best = await self._most_promising(partition_id)
            if best is None:
                return None
            found = await self._first_in(best, best.max_timestamp_ms, self._log_start(partition_id))
            # Dedupe may have emptied the batch that had the largest timestamp: then every extent has to be compared.
            return found if found is not None else await self._largest_of_all(partition_id)

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

    async def _largest_of_all(self, partition_id: int) -> TimestampedOffset | None:
        """The fallback if the most promising extent did not keep its promise: all of them, until none can do better."""
        candidates = [each async for each in self._candidates(partition_id, None)]
        best: TimestampedOffset | None = None
        for candidate in sorted(candidates, key=_promise):
            # Sorted by promise: no later extent can do better than what was found.
            if best is not None and _promise(candidate) > _rank(best):
                break
            found = await self._largest_in(candidate, self._log_start(partition_id))
            if found is not None and (best is None or _rank(found) < _rank(best)):
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
        ref = self._index.file(extent.file_id)
        where = ReadRange(
            extent.file_id,
            ref.key,
            ref.size_bytes,
            ref.created_ms,
            extent.position,
            extent.length,
            extent.base_offset,
            extent.base_offset,
            extent.last_offset,
            extent.position,
            extent.position + extent.length,
        )
        return _Candidate(where, extent.max_timestamp_ms)

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
        self, candidate: _Candidate, timestamp_ms: int, log_start_offset: int
    ) -> TimestampedOffset | None:
        if candidate.merged is not None and candidate.merged.flagged_reason is not None:
            return None
        for where, promised_ms in await self._blocks_of(candidate):
            if promised_ms >= timestamp_ms:
                data = await self._pools.bytes_of(where)
                for found in _records_of(data, where, timestamp_ms, log_start_offset):
                    if found.timestamp_ms >= timestamp_ms:
                        return found
        return None

    async def _largest_in(self, candidate: _Candidate, log_start_offset: int) -> TimestampedOffset | None:
        best: TimestampedOffset | None = None
        for where, promised_ms in sorted(await self._blocks_of(candidate), key=lambda each: -each[1]):
            least_ms = best.timestamp_ms if best is not None else NO_TIMESTAMP_MS
            if promised_ms < least_ms:
                break
            for found in _records_of(await self._pools.bytes_of(where), where, least_ms, log_start_offset):
                if best is None or _rank(found) < _rank(best):
                    best = found
        return best

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


def _records_of(
    data: memoryview, where: ReadRange, timestamp_ms: int, log_start_offset: int
) -> Iterator[TimestampedOffset]:
    """Records at or above the log start, from the batches that promise one at or above the timestamp.

    A sound batch may still have records that cannot be read (a client can send one to a topic that is not compacted).
    Only its header can be believed: it counts as a record of the largest timestamp at its base offset, so that a
    consumer that reads on from the answer misses no record that qualifies.
    """
    for batch in batches_of(Pieces([data]), where):
        if isinstance(batch, CutBatch):
            raise CorruptBatchError(f"an extent or block of {where.key} ends inside a batch")
        whole = data[batch.start : batch.start + batch.size_bytes]
        header = read_header(whole)
        if header.max_timestamp_ms < timestamp_ms or batch.next_offset <= log_start_offset:
            continue
        try:
            for offset, at_ms in _walked(whole, header):
                if batch.base_offset + offset >= log_start_offset:
                    yield TimestampedOffset(batch.base_offset + offset, at_ms)
        except (CorruptRecordError, CodecError):
            if not crc_matches(whole, 0, header):
                raise
            yield TimestampedOffset(max(batch.base_offset, log_start_offset), header.max_timestamp_ms)


def _walked(batch: memoryview, header: BatchHeader) -> Iterator[tuple[int, int]]:
    """(offset delta, timestamp) of each record. Raises CodecError or CorruptRecordError, maybe after some records."""
    if header.records_count > RECORDS_MAX:
        raise CorruptRecordError(0, f"the batch claims {header.records_count} records; at most {RECORDS_MAX} are read")
    last = -1
    for number, record in enumerate(walk(batch)):
        if not last < record.offset_delta <= header.last_offset_delta:
            raise CorruptRecordError(number, f"offset delta {record.offset_delta} after {last}")
        last = record.offset_delta
        at_ms = header.base_timestamp_ms + record.timestamp_delta_ms
        yield last, header.max_timestamp_ms if header.is_log_append_time else at_ms


def _rank(found: TimestampedOffset) -> tuple[int, int]:
    """The larger timestamp first, then the lower offset."""
    return -found.timestamp_ms, found.offset


def _promise(candidate: _Candidate) -> tuple[int, int]:
    """The best rank that a record of the extent may have."""
    return -candidate.max_timestamp_ms, candidate.where.base_offset
