"""`siltstone erase verify`: read every object of the bucket that may hold records of a topic, and look for keys.

It lists the objects of L0, L1 and L2, whether or not a row of the metadata names them, and reads the extents of the
topic in each, live and dead ones alike. If an object is gone before it is read, its records may have moved to an object
that was not listed, so the bucket is listed again for the objects that are new. A record of an L0 file has an offset
only after the commit, so a file in which a record without one was found is read once more under new rows.

The search is pure; `verify_bucket` does the I/O.
"""

from __future__ import annotations

import hashlib
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from metadata.contract.files import FileInfo, FileState
from metadata.contract.store import MetadataStore
from metadata.erasures.contract import KeyMark
from metadata.rules.packed_index import IndexRow, iter_index
from siltstone.ops.fsck import all_files
from storage.format.file_format import EXTENT_FLAGGED, CorruptFileError, ExtentRow, FileIndex, read_file
from storage.format.inspect import read_footer
from storage.keys import LEVEL_PREFIXES
from storage.objects import ObjectNotFoundError, ObjectStat, ObjectStore
from wire.batch import BATCH_HEADER_BYTES, BatchHeader, CorruptBatchError, crc_matches, iter_headers, read_header
from wire.codecs import CodecError
from wire.records import walk

NO_OFFSET = -1
WINDOW_BYTES = 8 << 20
"""An object up to this size is read whole; of a larger one this much at a time."""


class Search(Protocol):
    def holds(self, partition: int, offset: int, key: bytes) -> bool:
        """Whether this record should not be there. `offset` may be NO_OFFSET."""
        ...

    def may_be_in(self, partition: int, base_offset: int) -> bool:
        """Whether an extent from this offset on may hold such a record. `base_offset` may be NO_OFFSET."""
        ...


class KeySearch:
    """Any record of these keys."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = frozenset(keys)

    def holds(self, partition: int, offset: int, key: bytes) -> bool:
        return key in self._keys

    def may_be_in(self, partition: int, base_offset: int) -> bool:
        return True


class MarkSearch:
    """The records that an erasure removes, its tombstones included."""

    def __init__(self, marks: Mapping[int, Sequence[KeyMark]]) -> None:
        self._ends = {
            number: {mark.key_hash: mark.before_offset + mark.tombstone for mark in each}
            for number, each in marks.items()
        }
        self._last_ends = {number: max(ends.values(), default=0) for number, ends in self._ends.items()}
        self._empty = hashlib.new("sha512_256")

    def holds(self, partition: int, offset: int, key: bytes) -> bool:
        ends = self._ends.get(partition)
        if not ends:
            return False
        hashed = self._empty.copy()
        hashed.update(key)
        end = ends.get(hashed.digest())
        return end is not None and offset < end

    def may_be_in(self, partition: int, base_offset: int) -> bool:
        return base_offset < self._last_ends.get(partition, NO_OFFSET)


class Found(NamedTuple):
    """A record of a key. `state`: of the file's row, "live" or "dead", or "no row"."""

    object_key: str
    state: str
    partition: int
    offset: int
    is_tombstone: bool


class Unread(NamedTuple):
    """An object, or a part of one, that may hold the keys and cannot be read."""

    object_key: str
    why: str


@dataclass
class Verified:
    """The answer, as it grows."""

    found: list[Found] = field(default_factory=list[Found])
    unread: list[Unread] = field(default_factory=list[Unread])
    objects: int = 0
    read_bytes: int = 0
    records: int = 0
    """Of the topic."""
    unsearched: set[str] = field(default_factory=set[str])
    """Keys of objects with records of deleted topics. One of these may have had the same name."""

    @property
    def is_clean(self) -> bool:
        return not self.found and not self.unread


class ExtentKeys:
    """The keys of one extent, as its bytes arrive in order."""

    def __init__(self, row: ExtentRow, starts: Mapping[int, tuple[int, int]]) -> None:
        """`starts`, of an L0 file: position in the file -> (end of the stretch there, its base offset)."""
        self._row, self._starts = row, starts
        self._rest = b""
        self._position = row.position
        self._stretch_end = 0
        self._next_offset = NO_OFFSET

    def feed(self, data: bytes) -> Iterator[tuple[int, bytes, bool]]:
        """(offset, key, whether it is a tombstone) of each record with a key in the whole batches so far.

        Raises CorruptBatchError, CodecError; no bytes after it can be read.
        """
        view = memoryview(self._rest + data)
        whole = _whole_batches(view)
        for at, header in iter_headers(view[:whole]):
            batch = view[at : at + header.size_bytes]
            base = self._base(header, self._position + at)
            if not crc_matches(batch, 0, header):
                raise CorruptBatchError(f"the CRC-32C of the batch at offset {base} does not match its bytes")
            if header.is_control:
                continue
            for record in walk(batch):
                if record.key is not None:
                    offset = base if base == NO_OFFSET else base + record.offset_delta
                    yield offset, bytes(record.key), record.value is None
        self._rest = bytes(view[whole:])
        self._position += whole

    def finish(self) -> None:
        """Raises CorruptBatchError when the extent ends inside a batch."""
        if self._rest:
            raise CorruptBatchError(f"the extent ends inside the batch at position {self._position} of the file")

    def _base(self, header: BatchHeader, place: int) -> int:
        if self._row.base_offset >= 0:
            return header.base_offset
        if place in self._starts:
            self._stretch_end, self._next_offset = self._starts[place]
        elif place >= self._stretch_end:
            return NO_OFFSET  # a batch that the commit refused, or a file without a row
        base = self._next_offset
        self._next_offset += header.last_offset_delta + 1
        return base


def _whole_batches(view: memoryview) -> int:
    """The length of the whole batches at the start."""
    end = 0
    while len(view) - end >= BATCH_HEADER_BYTES:
        size = read_header(view, end).size_bytes
        # A length that makes no sense is left to `iter_headers`, which says why.
        if size < BATCH_HEADER_BYTES:
            return len(view)
        if size > len(view) - end:
            break
        end += size
    return end


async def verify_bucket(
    metadata: MetadataStore,
    store: ObjectStore,
    topic_id: uuid.UUID,
    search: Search,
    *,
    on_read: Callable[[int, int], None] = lambda _done, _all: None,
) -> Verified:
    """Read the bucket. `on_read` hears of the bytes of objects that are done, and of all. Raises the errors of both
    services; damage is in the answer."""
    done: set[str] = set()
    result = Verified()
    while True:
        listed = [stat for prefix in LEVEL_PREFIXES async for stat in store.list(prefix) if stat.key not in done]
        # Asked after the listing, so that a file that was committed before it is known.
        rows = {file.key: file for file in await all_files(metadata)}
        topics = {topic_id, *(each.topic_id for each in await metadata.agents.list_topics())}
        whole, read, is_gone = sum(each.size_bytes for each in listed), 0, False
        for stat in listed:
            done.add(stat.key)
            try:
                index = await _look_into(store, stat, rows.get(stat.key), topic_id, search, result)
            except ObjectNotFoundError:
                is_gone = True
                index = None
            if index is not None and any(row.length and row.topic_id not in topics for row in index.extents):
                result.unsearched.add(stat.key)
            read += stat.size_bytes
            on_read(read, whole)
        if not is_gone:
            break
    unplaced = {each.object_key for each in result.found if each.offset == NO_OFFSET}
    if unplaced:
        await _look_again(metadata, store, topic_id, search, result, unplaced)
    return result


async def _look_again(
    metadata: MetadataStore,
    store: ObjectStore,
    topic_id: uuid.UUID,
    search: Search,
    result: Verified,
    keys: set[str],
) -> None:
    """Read the objects again whose records had no offset: they may have been committed meanwhile."""
    result.found = [each for each in result.found if each.object_key not in keys]
    result.unread = [each for each in result.unread if each.object_key not in keys]
    rows = {file.key: file for file in await all_files(metadata)}
    for key in sorted(keys):
        try:
            stat = await store.head(key)
            await _look_into(store, stat, rows.get(key), topic_id, search, result, counts=False)
        except ObjectNotFoundError:
            continue


async def _look_into(
    store: ObjectStore,
    stat: ObjectStat,
    file: FileInfo | None,
    topic_id: uuid.UUID,
    search: Search,
    result: Verified,
    *,
    counts: bool = True,
) -> FileIndex | None:
    """Add what the object holds to `result`. Returns its index, None for one that cannot be read. Raises
    ObjectNotFoundError."""
    body: bytes | None = None
    index: FileIndex
    try:
        if stat.size_bytes <= WINDOW_BYTES:
            body = await store.get(stat.key)
            index = read_file(body)
        else:
            _, index = await read_footer(store, stat.key, stat.size_bytes)
    except CorruptFileError as error:
        result.unread.append(Unread(stat.key, error.message))
        return None
    starts = {row.position: (row.position + row.length, row.base_offset) for row in _index_rows(file)}
    state = file.state.value if file and file.state in (FileState.LIVE, FileState.DEAD) else "no row"
    for row in index.extents:
        if row.topic_id != topic_id or not row.length or not search.may_be_in(row.partition, row.base_offset):
            continue
        if row.flags & EXTENT_FLAGGED:
            where = f"offsets {row.base_offset} to {row.last_offset} of partition {row.partition}"
            result.unread.append(Unread(stat.key, f"{where} are flagged as unreadable"))
            continue
        keys = ExtentKeys(row, starts)
        try:
            for start in range(row.position, row.position + row.length, WINDOW_BYTES):
                length = min(WINDOW_BYTES, row.position + row.length - start)
                data = await store.get_range(stat.key, start, length) if body is None else body[start : start + length]
                for offset, key, is_tombstone in keys.feed(data):
                    result.records += counts
                    if search.holds(row.partition, offset, key):
                        result.found.append(Found(stat.key, state, row.partition, offset, is_tombstone))
            keys.finish()
        except (CorruptBatchError, CodecError) as error:
            result.unread.append(Unread(stat.key, f"partition {row.partition}: {error.message}"))
    if counts:
        result.objects += 1
        result.read_bytes += stat.size_bytes
    return index


def _index_rows(file: FileInfo | None) -> Iterator[IndexRow]:
    return iter(()) if file is None or file.level or not file.index else iter_index(file.index)
