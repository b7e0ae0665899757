"""Writes one merged file (L1, L2) as a stream: extents of whole batches, block indexes, properties, index, trailer.

Bytes leave in parts of 8 MiB, each while the next is being made: one part is being uploaded, one waits, one is filled.
So memory does not grow with the file. A file that ends within its first part goes as one PUT. The CRC-32C of an extent
is summed as its bytes pass, or joined from sums that the caller has; the CRC-32C of the object is joined from those of
its extents. So every byte is read for checksums once at most.

Nothing is visible under the key before `finish` has completed the upload. A crash before that leaves parts, which
`abort_multiparts` removes by age. A crash after it leaves a whole object that no metadata names: an orphan for the
janitor. `storage/wrappers/retrying.py` settles a completion whose answer was lost.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from runtime.errors import BugError
from storage.format.block_index import BLOCK_BYTES, BlockEntry, encode_block_index
from storage.format.file_format import (
    SECTION_BLOCK_INDEXES,
    SECTION_PROPERTIES,
    ExtentRow,
    Section,
    encode_footer,
)
from storage.format.file_properties import FileProperties, encode_properties
from storage.objects import MultipartUpload, ObjectStore
from storage.parts import VIEW_BYTES_MIN, Parts, packed
from wire.batch import DELETE_HORIZON_BIT, LOG_APPEND_TIME_BIT, NO_TIMESTAMP_MS
from wire.crc import Body, crc32c, joined_crc32c

PART_BYTES = 8 << 20
PARTS_IN_FLIGHT = 2
"""The parts in memory behind the one being filled: one is being uploaded, one waits."""


class BatchColumns(Protocol):
    """The columns that the writer needs of its batches: one row per batch, in order, columns equally long.

    `wire.kernels.batches.BatchTable` is such a table; this room does not import the compiled kernels.
    """

    @property
    def positions(self) -> NDArray[np.int64]: ...
    @property
    def sizes(self) -> NDArray[np.int64]: ...
    @property
    def base_offsets(self) -> NDArray[np.int64]: ...
    @property
    def record_counts(self) -> NDArray[np.int64]: ...
    @property
    def attributes(self) -> NDArray[np.int64]: ...
    @property
    def base_timestamps_ms(self) -> NDArray[np.int64]: ...
    @property
    def max_timestamps_ms(self) -> NDArray[np.int64]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    """A whole file that is in the store."""

    key: str
    size_bytes: int
    crc32c: int
    """The CRC-32C of the whole object."""
    rows: tuple[ExtentRow, ...]
    """The rows of its index."""


class FileWriter:
    """A writer of one file. Write extents one after the other, by (partition id, base offset); then call `finish` or
    `abort`.

    All methods that touch the store raise the store's errors; after an error only `abort` may follow.
    """

    def __init__(
        self, store: ObjectStore, key: str, *, level: int, created_ms: int, part_bytes: int = PART_BYTES
    ) -> None:
        self.key = key
        self._level = level
        self._created_ms = created_ms
        self._upload = _PartUpload(store, key, part_bytes)
        self._crc32c = 0
        """The CRC-32C of all finished extents."""
        self._rows: list[ExtentRow] = []
        self._block_indexes: list[bytes] = []
        self._extent: _OpenExtent | None = None
        self._position = 0
        """The start of the open extent, or of the next one."""

    @property
    def extents_bytes(self) -> int:
        """The bytes of all extents so far, including the open one."""
        return self._position + (self._extent.length if self._extent else 0)

    @property
    def extents(self) -> int:
        """The number of finished extents."""
        return len(self._rows)

    def start_extent(self, topic_id: UUID, partition: int) -> None:
        if self._extent is not None:
            raise BugError("an extent was begun inside another")
        self._extent = _OpenExtent(topic_id, partition)

    async def write(self, data: Body, table: BatchColumns, *, crc32c: int | None = None) -> None:
        """Write whole batches with their offsets stamped. `table` has a row for each, and together they are all of
        `data`.

        `crc32c` is that of all of `data`, if the caller knows it. The writer keeps `data` until its part has left; do
        not change it.
        """
        self._open_extent().add(data, table, crc32c)
        await self._upload.write(data)

    async def write_verbatim(self, data: Body) -> None:
        """Write bytes that cannot be read as batches. The extent gets no block index; the caller gives `end_extent` the
        rest.
        """
        self._open_extent().add_verbatim(data)
        await self._upload.write(data)

    def end_extent(
        self,
        base_offset: int,
        last_offset: int,
        *,
        flags: int = 0,
        record_count: int | None = None,
        min_timestamp_ms: int | None = None,
        max_timestamp_ms: int | None = None,
    ) -> ExtentRow:
        """End the extent. It answers for offsets `base_offset` to `last_offset` (inclusive), whatever batches it holds.

        Count and timestamps are those of the batches unless given. The returned row has the length of the block index
        but not its position: `finish` gives the final rows.
        """
        extent = self._open_extent()
        block_index = encode_block_index(extent.blocks())
        row = ExtentRow(
            extent.topic_id,
            extent.partition,
            self._position,
            extent.length,
            base_offset,
            last_offset,
            extent.record_count if record_count is None else record_count,
            extent.min_timestamp_ms if min_timestamp_ms is None else min_timestamp_ms,
            extent.max_timestamp_ms if max_timestamp_ms is None else max_timestamp_ms,
            extent.crc32c,
            len(block_index),
            0,
            flags,
        )
        self._rows.append(row)
        self._block_indexes.append(block_index)
        self._crc32c = joined_crc32c(self._crc32c, extent.crc32c, extent.length)
        self._position += extent.length
        self._extent = None
        return row

    async def finish(self, properties: FileProperties) -> WrittenFile:
        """Write sections, index and trailer, and publish the file under its key.

        Raises ObjectExistsError, PutInDoubtError (the object may or may not be there then), and ValueError for a value
        that does not fit the index.
        """
        if self._extent is not None:
            raise BugError("the file cannot be finished inside an extent")
        rows, block_indexes = self._placed_rows()
        described = encode_properties(properties)
        sections = [
            Section(SECTION_PROPERTIES, 0, crc32c(described), self._position + len(block_indexes), len(described))
        ]
        if block_indexes:
            at = self._position
            # In the order of their bytes: block indexes, then properties.
            sections.insert(0, Section(SECTION_BLOCK_INDEXES, 0, crc32c(block_indexes), at, len(block_indexes)))
        end = self._position + len(block_indexes) + len(described)
        footer = encode_footer(
            rows, level=self._level, created_ms=self._created_ms, index_position=end, sections=sections
        )
        tail = b"".join((block_indexes, described, footer))
        crc = crc32c(tail, self._crc32c)
        await self._upload.write(tail)
        await self._upload.finish(crc)
        return WrittenFile(key=self.key, size_bytes=self._position + len(tail), crc32c=crc, rows=tuple(rows))

    async def abort(self) -> None:
        """Give the file up: nothing will be under its key, unless `finish` had begun to publish it. May be repeated.

        `abort_multiparts` later removes parts that the store does not abort now; the store's error is raised.
        """
        self._extent = None
        await self._upload.abort()

    def _open_extent(self) -> _OpenExtent:
        if self._extent is None:
            raise BugError("there is no open extent to write to")
        return self._extent

    def _placed_rows(self) -> tuple[list[ExtentRow], bytes]:
        """The rows with the positions of their block indexes, and the block indexes, joined."""
        rows: list[ExtentRow] = []
        at = self._position
        for row in self._rows:
            rows.append(row._replace(block_index_position=at) if row.block_index_length else row)
            at += row.block_index_length
        return rows, b"".join(self._block_indexes)


class _OpenExtent:
    """The extent that is being written, as far as it is known."""

    def __init__(self, topic_id: UUID, partition: int) -> None:
        self.topic_id = topic_id
        self.partition = partition
        self.length = 0
        self.crc32c = 0
        self.record_count = 0
        self.min_timestamp_ms = NO_TIMESTAMP_MS
        self.max_timestamp_ms = NO_TIMESTAMP_MS
        self._has_batches = False
        self._verbatim = False
        self._blocks: list[BlockEntry] = []

    def add(self, data: Body, table: BatchColumns, known_crc32c: int | None) -> None:
        if self._verbatim:
            raise BugError("batches were written to an extent of verbatim bytes")
        covered = int(table.sizes.sum())
        if covered != len(data):
            raise BugError(f"{len(table.sizes)} batches have {covered} bytes, but {len(data)} bytes were given")
        if not covered:
            return
        self._add_blocks(table)
        self.record_count += int(table.record_counts.sum())
        least, most = timestamp_range(table)
        self.min_timestamp_ms = min(self.min_timestamp_ms, least) if self._has_batches else least
        self.max_timestamp_ms = max(self.max_timestamp_ms, most)
        self._has_batches = True
        self._add_bytes(data, known_crc32c)

    def add_verbatim(self, data: Body) -> None:
        if self._has_batches:
            raise BugError("verbatim bytes were written to an extent of batches")
        self._verbatim = True
        self._add_bytes(data, None)

    def blocks(self) -> Sequence[BlockEntry]:
        return self._blocks

    def _add_bytes(self, data: Body, known_crc32c: int | None) -> None:
        if known_crc32c is None:
            self.crc32c = crc32c(data, self.crc32c)
        else:
            self.crc32c = joined_crc32c(self.crc32c, known_crc32c, len(data))
        self.length += len(data)

    def _add_blocks(self, table: BatchColumns) -> None:
        """Divide the batches into blocks; the first batches may continue the open block."""
        starts = table.positions - table.positions[0] + self.length
        batches = len(starts)
        at = 0
        # The open block takes batches until one begins BLOCK_BYTES or more behind its start.
        if self._blocks:
            at = int(starts.searchsorted(self._blocks[-1].position + BLOCK_BYTES))
            if at:
                open_block = self._blocks[-1]
                most = max(open_block.max_timestamp_ms, int(table.max_timestamps_ms[:at].max()))
                self._blocks[-1] = open_block._replace(max_timestamp_ms=most)
        while at < batches:
            position = int(starts[at])
            end = int(starts.searchsorted(position + BLOCK_BYTES))
            most = int(table.max_timestamps_ms[at:end].max())
            self._blocks.append(BlockEntry(int(table.base_offsets[at]), most, position))
            at = end


def timestamp_range(table: BatchColumns) -> tuple[int, int]:
    """The (least, largest) timestamp of at least one batch, in ms, as far as headers tell.

    The least is the first record's timestamp. The batch's largest stands in for it if the batch has no record, or if
    the header holds something else in that place (a delete horizon, or the records' own times where the append time
    counts).
    """
    largest = table.max_timestamps_ms
    other_base = (table.attributes & (DELETE_HORIZON_BIT | LOG_APPEND_TIME_BIT) != 0) | (table.record_counts == 0)
    least = np.where(other_base, largest, np.minimum(table.base_timestamps_ms, largest))
    return int(least.min()), int(largest.max())


class _PartUpload:
    """A pipeline of parts: they leave in order, one at a time, while the caller makes the next."""

    def __init__(self, store: ObjectStore, key: str, part_bytes: int) -> None:
        self._store = store
        self._key = key
        self._part_bytes = part_bytes
        self._chunks: deque[Body] = deque()
        self._buffered_bytes = 0
        self._multipart: MultipartUpload | None = None
        self._in_flight: deque[asyncio.Task[None]] = deque()

    async def write(self, data: Body) -> None:
        """Waits only while `PARTS_IN_FLIGHT` parts have not left. Raises the error of an earlier part."""
        if len(data):
            # Copied, because a small slice would keep the whole window in memory.
            small_slice = isinstance(data, memoryview) and 2 * len(data) <= memoryview(data.obj).nbytes
            self._chunks.append(bytes(data) if small_slice else data)
            self._buffered_bytes += len(data)
        # A part leaves only when something follows it: so the last part is never empty, and a small file never goes in
        # parts.
        while self._buffered_bytes > self._part_bytes:
            await self._send(self._taken(self._part_bytes))

    async def finish(self, crc: int) -> None:
        """Publish the file; `crc` is that of all the bytes."""
        last = self._taken(self._buffered_bytes)
        # Nothing has left yet, so one PUT does for the whole file.
        if not self._in_flight and self._multipart is None:
            await self._store.put_if_absent(self._key, last, crc32c=crc)
            return
        await self._send(last)
        while self._in_flight:
            await self._in_flight.popleft()
        if self._multipart is None:
            raise BugError("parts were uploaded without an upload")
        await self._multipart.complete()

    async def abort(self) -> None:
        for task in self._in_flight:
            task.cancel()
        await asyncio.gather(*self._in_flight, return_exceptions=True)
        self._in_flight.clear()
        self._chunks.clear()
        self._buffered_bytes = 0
        if self._multipart is not None:
            await self._multipart.abort()
            self._multipart = None

    async def _send(self, part: Parts) -> None:
        # Looked at before it is removed: if this wait is cancelled, `abort` still finds the task.
        while len(self._in_flight) >= PARTS_IN_FLIGHT:
            await self._in_flight[0]
            self._in_flight.popleft()
        before = self._in_flight[-1] if self._in_flight else None
        self._in_flight.append(asyncio.create_task(self._upload_after(before, part)))

    async def _upload_after(self, before: asyncio.Task[None] | None, part: Parts) -> None:
        # In order: parts are numbered as they are written, and a failed one must stop those behind it.
        if before is not None:
            await before
        if self._multipart is None:
            self._multipart = await self._store.start_multipart(self._key)
        await self._multipart.write(part)

    def _taken(self, size_bytes: int) -> Parts:
        """The first `size_bytes` of what is buffered. Large chunks stay where they lie, or every byte of a merge would
        be copied once more.
        """
        taken: list[memoryview] = []
        left = size_bytes
        while left:
            view = memoryview(self._chunks.popleft()).cast("B")
            if len(view) > left:
                self._chunks.appendleft(view[left:])
                view = view[:left]
            taken.append(view)
            left -= len(view)
        self._buffered_bytes -= size_bytes
        return Parts(taken) if len(taken) * VIEW_BYTES_MIN <= size_bytes else packed(taken)
