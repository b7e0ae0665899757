"""The checks at the end of a run, when all faults are healed and the system has settled: the invariants, and the
answers that clients got.

The truth is read directly from the metadata and the objects, not through an agent: for each partition, each stored
batch with its offset.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass

from metadata.contract.agents import each_live_file
from metadata.memory.store import MemoryMetadata
from metadata.rules.invariants import all_levels as invariants
from metadata.rules.invariants.transactions import check_txn_1, check_txn_2, check_txn_3
from storage.objects import ObjectNotFoundError, ObjectStat
from tests.simulation.book import Book, TopicPartition
from tests.simulation.stores import Stores
from wire.batch import BatchHeader, iter_headers
from wire.crc import crc32c
from wire.markers import read_marker
from wire.records import walk


@dataclass(frozen=True, slots=True)
class StoredBatch:
    offset: int
    header: BatchHeader
    values: tuple[bytes, ...]
    is_commit: bool = False
    """It is the marker of a transaction that was committed."""


Truth = Mapping[TopicPartition, Sequence[StoredBatch]]


class _Objects:
    """The object store as the invariants read it, and the files that lie in their rows alone."""

    def __init__(self, server: MemoryMetadata, store: Stores) -> None:
        self._database, self._store = server.database, store

    def _inline(self, key: str) -> bytes:
        return self._database.files[self._database.file_ids[key]].info.inline

    async def head(self, key: str) -> ObjectStat | None:
        if inline := self._inline(key):
            return ObjectStat(key=key, size_bytes=len(inline), crc32c=crc32c(inline), last_modified_ms=0)
        try:
            return await self._store.head(key)
        except ObjectNotFoundError:
            return None

    async def get(self, key: str) -> bytes | None:
        if inline := self._inline(key):
            return inline
        try:
            return await self._store.get(key)
        except ObjectNotFoundError:
            return None


async def check_invariants(server: MemoryMetadata, store: Stores, *, has_merges: bool) -> list[str]:
    """The invariants of `metadata/rules/invariants/`, on the present state."""
    objects = _Objects(server, store)
    files = [file async for file in _all_files(server)]
    states = await server.agents.producer_states()
    snapshot = await server.agents.snapshot()
    marks = {mark.partition_id: mark for mark in snapshot.watermarks}
    live = [file async for file in each_live_file(server.agents, snapshot)]
    view = await server.operators.transactions_view()
    extents = invariants.live_extents(live, marks, (await server.operators.system_view()).extents)
    # Merges leave gaps: `transactions/merges.py` judges what they leave.
    written = [extent for extent in extents if not extent.level]
    found = [
        *invariants.check_log_1(files, marks, complete=not has_merges),
        *invariants.check_log_2(extents, marks),
        *await invariants.check_log_2_bytes(written, objects),
        *invariants.check_log_3(extents, marks),
        *await invariants.check_file_1(files, objects),
        *invariants.check_prod_1(states, marks),
        *await invariants.check_prod_1_bytes(written, objects),
        *check_txn_1(view),
        *check_txn_2(view),
        *check_txn_3(view),
    ]
    return [f"{violation.id}: {violation.message}" for violation in found]


async def _all_files(server: MemoryMetadata) -> AsyncIterator[invariants.FileInfo]:
    after = 0
    while page := await server.operators.files(after_file_id=after):
        for file in page:
            yield file
        after = page[-1].file_id


async def read_truth(server: MemoryMetadata, store: Stores) -> Truth:
    """Every stored batch by topic and partition number, in offset order. Only valid for a state that keeps the
    invariants."""
    snapshot = await server.agents.snapshot()
    marks = {mark.partition_id: mark for mark in snapshot.watermarks}
    names: dict[int, TopicPartition] = {
        id_: (topic.name, number) for topic in snapshot.topics for number, id_ in enumerate(topic.partition_ids)
    }
    truth: dict[TopicPartition, list[StoredBatch]] = {place: [] for place in names.values()}
    objects = _Objects(server, store)
    live = [file async for file in each_live_file(server.agents, snapshot)]
    for extent in invariants.live_extents(live, marks, (await server.operators.system_view()).extents):
        row = extent.row
        data = memoryview(await objects.get(extent.key) or b"")[row.position : row.position + row.length]
        position = 0
        for offset, header in _walk(extent, bytes(data)):
            batch = data[position : position + header.size_bytes]
            values = tuple(bytes(record.value or b"") for record in walk(batch))
            marker = read_marker(batch)
            is_commit = marker is not None and marker.commit
            truth[names[row.partition_id]].append(StoredBatch(offset, header, values, is_commit))
            position += header.size_bytes
    for batches in truth.values():
        batches.sort(key=lambda batch: batch.offset)
    return truth


def _walk(extent: invariants.LiveExtent, data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    if not extent.level:
        yield from invariants.walk_batches(extent.row, data)
        return
    for _, header in iter_headers(data):
        yield header.base_offset, header


def check_clients(truth: Truth, book: Book, deleted_ms: Mapping[str, float]) -> Iterator[str]:
    """Every acknowledged record is there once, at the offset that the client was told; nothing unexpected is there.
    Those of transactions have checks of their own (`transactions/checks.py`).

    If a topic was deleted, only batches sent after the last deletion (`deleted_ms`) must be there.
    """
    times_stored: Counter[tuple[TopicPartition, tuple[bytes, ...]]] = Counter(
        (place, stored.values)
        for place, batches in truth.items()
        for stored in batches
        if not stored.header.is_transactional
    )
    at_offset = {(place, stored.offset): stored for place, batches in truth.items() for stored in batches}
    for batch in book.batches:
        times = times_stored.pop((batch.place, batch.values), 0)
        since_ms = deleted_ms.get(batch.place[0], -1.0)
        if times > 1:
            yield f"{batch.name} is stored {times} times"
        if batch.told_offset < 0:
            if batch.is_idempotent:
                yield f"{batch.name} was retried to the end and never acknowledged"
            continue
        stored = at_offset.get((batch.place, batch.told_offset))
        is_there = stored is not None and stored.values == batch.values
        if batch.told_sent_ms > since_ms and not is_there:
            found = stored.values if stored is not None else "nothing"
            yield f"{batch.name} was acknowledged at {batch.place} {batch.told_offset}, where {found} is"
    for (place, values), times in times_stored.items():
        yield f"{place} holds {times} times what nobody sent: {values}"
    for batch, offset in book.copies_told:
        if batch.told_offset not in (-1, offset):
            yield f"a copy of {batch.name} was acknowledged at {offset}, itself at {batch.told_offset}"
    yield from _check_sequences(truth)


def _check_sequences(truth: Truth) -> Iterator[str]:
    """The batches of one idempotent producer lie in the order of their sequences, without a hole."""
    for place, batches in truth.items():
        expected: dict[int, int] = {}
        for stored in batches:
            header = stored.header
            if header.producer_id < 0 or header.is_transactional:
                continue
            if header.base_sequence != expected.get(header.producer_id, 0):
                yield (
                    f"{place}: producer {header.producer_id} has sequence {header.base_sequence} at {stored.offset},"
                    f" {expected.get(header.producer_id, 0)} was next"
                )
            expected[header.producer_id] = header.last_sequence + 1


def check_seen(truth: Truth, book: Book, ends: Mapping[TopicPartition, int]) -> Iterator[str]:
    """Consumers saw only stored records, and all of them up to `ends`, the offsets to which they had to read."""
    for place, end in ends.items():
        stored = {batch.offset + n: value for batch in truth[place] for n, value in enumerate(batch.values)}
        seen = book.seen[place]
        wrong = [offset for offset in seen if stored.get(offset) != seen[offset]]
        if wrong:
            first = min(wrong)
            yield f"consumers read {seen[first]!r} at {place} {first}, where {stored.get(first)!r} is"
        if missed := [offset for offset in stored if offset < end and offset not in seen]:
            yield f"nobody was shown {place} {min(missed)}"
