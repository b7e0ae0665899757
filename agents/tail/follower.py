"""Follows the metadata store: one statement brings every new L0 file and every change, for all partitions at once.

It runs on a hint, and whenever a caller must see the present (`catch_up`). It also runs when no hint came for a while:
for QUIET_POLL_MS as long as hints reach us, and for `poll_ms` otherwise. So a hint that was lost costs at most
QUIET_POLL_MS (or `poll_ms`, if that is longer). Hints never make two polls begin within HINT_INTERVAL_MS: with many
agents there are more commits than polls are worth. The first hint after a quiet time is served at once.

It takes in one answer of the store in this order:

1. Users and ACLs, because nobody who lost a right may see a file of the same answer.
2. Other changes, because a file may name a partition that the same answer creates.
3. Files.
4. Drops: the index drops, in slices, the files that merges replaced. Other work runs between the slices. If drops came
   earlier, an own commit could arrive after its merge and before its file, and would count as a live file.

The write path takes in own commits at once; they arrive here a second time, and the index ignores them. One answer of
the store shows one instant: no change in it merges a file that is live in it. A later merge comes in a later answer,
with the change that reports it.

A cold start reads a snapshot, then the live files, then the aborted transactions from the lowest offset in these files
on, then one tail. An aborted transaction may have been forgotten before it was asked for; so a merge had replaced its
files since the snapshot, or the log start had passed its records. That tail names the merge and the log start; so what
they replaced or passed is dropped before anybody reads it.

While the store does not answer, the known state stands: caught-up readers wait, known records are served. A cursor that
fell behind the rows that the store keeps starts again from a snapshot.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextvars import Context
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, Protocol

from agents.tail.log_index import FileRef, LogIndex
from agents.tail.waiters import ParkedReaders
from agents.topics.topic_cache import TopicCache
from agents.yielding import LOAD_SLICE, Slices
from metadata.contract.agents import AgentMetadata, each_live_file
from metadata.contract.errors import SchemaMismatchError, WentBackError
from metadata.contract.files import L0File
from metadata.contract.tail import Change, ChangeKind, Cursor, Snapshot, Tail
from metadata.rules.packed_index import ROW_BYTES, iter_index
from metadata.transactions.contract import OpenTransaction
from runtime.logging import get_logger
from runtime.runtime import Runtime

_log = get_logger(__name__)

ERROR_BACKOFF_MS = 250.0
HINT_INTERVAL_MS = 50.0
"""Least time between the beginnings of two polls that hints ask for. Hints that come meanwhile share the next poll."""
QUIET_POLL_MS = 1_000.0
"""Time between two polls while hints reach us and none comes."""
LATE_MS = 2 * QUIET_POLL_MS
"""A state of the store that is older than this is late: several polls have failed since the last one was due, or one
still waits."""


class FollowsSecurity(Protocol):
    """The keeper of users, ACLs and quotas; this module only passes their changes on."""

    async def load(self) -> None:
        """Read everything again. Called after a snapshot was read and before its cursor is taken: no change in between
        is missed. If it raises, the snapshot is not taken either."""
        ...

    async def take_in(self, changes: Iterable[Change]) -> None:
        """All changes of an answer, before the cursor moves. If it raises, they come again."""
        ...

    def heard(self, sent_ms: float) -> None:
        """All that the store answered to a read is taken in. `sent_ms`: when it was sent, by the monotonic clock."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowerCallbacks:
    """The owner's reactions to what a follower learns."""

    on_fatal: Callable[[Exception], None]
    """The agent must halt: the store went back in time, or its schema does not support this program."""
    on_live_files: Callable[[int], None] = lambda _: None
    """The number of live L0 files, after each change."""
    on_deduped: Callable[[Iterable[int]], None] = lambda _: None
    """Ids of partitions whose extents a merge replaced."""
    on_merged: Callable[[Collection[str]], None] = lambda _: None
    """Keys of L0 files that a merge replaced, once the index no longer names them."""
    security: FollowsSecurity | None = None


class Follower:
    def __init__(
        self,
        *,
        metadata: AgentMetadata,
        topic_cache: TopicCache,
        index: LogIndex,
        parked_readers: ParkedReaders,
        poll_ms: float,
        callbacks: FollowerCallbacks,
        runtime: Runtime,
    ) -> None:
        self._metadata = metadata
        self._topic_cache = topic_cache
        self._index = index
        self._parked_readers = parked_readers
        self._poll_ms = poll_ms
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._callbacks = callbacks
        self._cursor = Cursor()
        self._applied_id = 0
        """The last change taken in. The cursor may be behind it, if an answer was taken in only in part."""
        self._seen_ms = float("-inf")
        """When the last read of the store that succeeded was sent."""
        self._began_ms = float("-inf")
        """When the last poll of our own accord began."""
        self._own_meanwhile: list[L0File] | None = None
        """Own files of the time since a snapshot was asked for; None if none is on its way."""
        self._poll: asyncio.Task[None] | None = None
        self._next_poll: asyncio.Task[None] | None = None
        self._loop: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Load the present, then follow. Raises MetadataUnavailableError."""
        await self._load_snapshot()
        self._loop = asyncio.create_task(self._follow(), name="follower")

    async def stop(self) -> None:
        tasks = [task for task in (self._loop, self._poll, self._next_poll) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    @property
    def is_late(self) -> bool:
        """The last answer of the store is older than LATE_MS, or than two polls."""
        return self._clock.monotonic_ms() - self._seen_ms > max(LATE_MS, 2 * self._poll_ms)

    async def catch_up(self) -> None:
        """Return when everything committed before this call has been taken in. Raises MetadataUnavailableError.

        Calls share polls: a poll that is under way began too early, so all calls that come meanwhile share the next.
        """
        running = self._poll if self._poll is not None and not self._poll.done() else None
        waiting = self._next_poll if self._next_poll is not None and not self._next_poll.done() else None
        # The poll under way may have read the store before this call, so it proves nothing to this caller.
        if waiting is None and running is not None:
            waiting = self._next_poll = _shared(self._poll_after(running), "next tail")
        if waiting is not None:
            # Wait for it also if it is scheduled and has not run yet: two polls at once would take in changes twice,
            # and the older answer might come last.
            await asyncio.shield(waiting)
            return
        self._poll = _shared(self._take_tail(), "tail")
        await asyncio.shield(self._poll)

    def saw_own(self, file: L0File) -> None:
        """Take in a file that this agent has just committed, of records or of markers."""
        self._add(file)
        if self._own_meanwhile is not None:
            self._own_meanwhile.append(file)
        # Move the cursor only if nothing lies between. A snapshot that was read before an own commit and loaded after
        # it does not hold that file; a cursor moved past it would hide it for ever.
        if self._cursor.writers.get(file.writer_id) == (file.epoch, file.seq - 1):
            writers = {**self._cursor.writers, file.writer_id: (file.epoch, file.seq)}
            self._cursor = replace(self._cursor, writers=writers)
        self._report()

    # ---- following

    async def _follow(self) -> None:
        wait = self._wait_for_news
        while True:
            try:
                await wait()
                self._began_ms = self._clock.monotonic_ms()
                await self.catch_up()
                wait = self._wait_for_news
            except (WentBackError, SchemaMismatchError) as error:
                self._callbacks.on_fatal(error)
                return
            except Exception as error:  # the store is away: keep the known state, and ask again
                self._metrics.tail_errors_total.inc()
                _log.warning("tail not read", error=str(error))
                wait = self._back_off  # no hint may come for what this poll should have read

    async def _wait_for_news(self) -> None:
        interval_ms = max(self._poll_ms, QUIET_POLL_MS) if self._metadata.hears_news() else self._poll_ms
        # The rest comes before the wait: the store keeps a hint that comes during the rest, or came during the poll, so
        # none is lost, and all of them are served by one poll that begins after them.
        rest_ms = min(HINT_INTERVAL_MS, interval_ms) - (self._clock.monotonic_ms() - self._began_ms)
        if rest_ms > 0:
            await self._clock.sleep_ms(rest_ms)
        await self._metadata.wait_for_news(interval_ms - max(rest_ms, 0))

    async def _back_off(self) -> None:
        await self._clock.sleep_ms(ERROR_BACKOFF_MS)

    async def _poll_after(self, running: asyncio.Task[None]) -> None:
        await asyncio.gather(running, return_exceptions=True)
        self._poll = asyncio.current_task()
        self._next_poll = None
        await self._take_tail()

    async def _take_tail(self) -> None:
        sent_ms = self._clock.monotonic_ms()
        tail = await self._metadata.tail(self._cursor)
        if tail.cold:
            _log.warning("cursor too old, starting from a snapshot")
            await self._load_snapshot()
            return
        # Before the files: a reader who wakes up for a record must be judged by every change that came before it.
        if self._callbacks.security is not None:
            await self._callbacks.security.take_in(tail.changes)
        # Own commits may be taken in between two slices, as they may before and after the whole answer.
        slices = Slices()
        for change in tail.changes:
            # An answer that failed half-way comes again. Taken in twice, the creation of a topic that was deleted and
            # made anew would take the name from its successor.
            if change.change_id > self._applied_id:
                await self._apply(change, slices)
                self._applied_id = change.change_id
        for file in tail.files:
            self._add(file)
            await slices.took(len(file.index) // ROW_BYTES)
        await self._drop_merged(tail)
        # The cursor moves last: an answer that was taken in only in part is brought again, and taking it in twice does
        # no harm.
        self._cursor = _later(self._cursor, tail.cursor)
        self._saw(sent_ms)
        self._metrics.tail_files_total.inc(len(tail.files))
        self._report()

    async def _drop_merged(self, tail: Tail) -> None:
        merged = _merged_by(tail)
        keys = {file.key for file in tail.files if not file.live}
        merged.update(file.file_id for file in tail.files if not file.live)
        keys.update(self._index.keys(merged))
        for _ in self._index.drop_files(merged):
            await asyncio.sleep(0)
        if keys:
            self._callbacks.on_merged(keys)

    # ---- taking in

    async def _load_snapshot(self) -> None:
        sent_ms = self._clock.monotonic_ms()
        self._own_meanwhile = []
        try:
            while not await self._load(await self._metadata.snapshot()):
                _log.warning("snapshot too old by the time it was taken in, starting from another")
        finally:
            self._own_meanwhile = None
        self._saw(sent_ms)

    def _saw(self, sent_ms: float) -> None:
        self._seen_ms = sent_ms
        if self._callbacks.security is not None:
            self._callbacks.security.heard(sent_ms)

    async def _load(self, snapshot: Snapshot) -> bool:
        """Built beside the known state, in slices: until all is there, readers see what was known before.

        Returns False, and changes nothing, if the store does not know any more what it merged since.
        """
        topic_cache, index, slices = self._topic_cache.empty(snapshot.broker_configs), LogIndex(), Slices()
        for topic in snapshot.topics:
            topic_cache.add(topic)
            await slices.took(len(topic.partition_ids))
        open_transactions: dict[int, list[OpenTransaction]] = {}
        for each in snapshot.open_transactions:
            open_transactions.setdefault(each.partition_id, []).append(each)
        for watermarks in snapshot.watermarks:
            index.open_partition(
                watermarks.partition_id,
                start=watermarks.log_start_offset,
                end=watermarks.high_watermark,
                open_transactions=open_transactions.get(watermarks.partition_id, ()),
            )
            await slices.took(1)
        async for file in each_live_file(self._metadata, snapshot):
            ref, rows = _ref(file), iter_index(file.index)
            for _ in range(0, len(file.index), LOAD_SLICE * ROW_BYTES):
                index.load_file(file.file_id, ref, islice(rows, LOAD_SLICE))
                await slices.took(min(len(file.index) // ROW_BYTES, LOAD_SLICE))
        merged_keys = await self._load_aborted(index, snapshot.cursor)
        if merged_keys is None:
            return False
        if self._callbacks.security is not None:
            await self._callbacks.security.load()
        # Nothing may yield from here on.
        self._topic_cache.become(topic_cache)
        self._index.become(index)
        # The snapshot may be older than an own commit of meanwhile. Until the next poll, readers would miss records
        # that they saw before, and the write stall would miss the file. The index ignores the files that the snapshot
        # knows, live or merged: they lie below the end. The cursor stays, so the tail brings the others again.
        for own in self._own_meanwhile or ():
            self._add(own)
        self._cursor = snapshot.cursor
        self._applied_id = snapshot.cursor.change_id
        # Any offset may have moved, or its topic may be gone, while the cursor was out of date.
        self._parked_readers.wake_all()
        if merged_keys:
            self._callbacks.on_merged(merged_keys)
        self._report()
        return True

    async def _load_aborted(self, index: LogIndex, cursor: Cursor) -> set[str] | None:
        """Aborted transactions for the files of a snapshot; drops those that a merge replaced since. Returns the keys
        of these, or None if the store does not know them any more."""
        if not index.extents:
            return set()
        lowest_bases = index.lowest_bases()
        while some := dict(islice(lowest_bases, LOAD_SLICE)):
            index.load_aborted(await self._metadata.aborted_transactions(some))
        # Read after them: if an entry died before it was asked for, the reason is named here.
        since = await self._metadata.tail(cursor)
        if since.cold:
            return None
        for change in since.changes:
            if change.kind is ChangeKind.LOG_START_MOVED:
                _move_log_starts(index, change)
        merged = _merged_by(since)
        merged_keys = set(index.keys(merged))
        for _ in index.drop_files(merged):
            await asyncio.sleep(0)
        return merged_keys

    async def _apply(self, change: Change, slices: Slices) -> None:
        partition_ids: Sequence[int] = change.detail.get("partition_ids", ())
        # Before the topic is known: nobody finds a partition of it that is not open. Cancelled here, and in the loop
        # over the dropped ones, it is done again.
        if change.kind in (ChangeKind.TOPIC_CREATED, ChangeKind.PARTITIONS_ADDED):
            for some in _slices_of(partition_ids):
                for partition_id in some:
                    self._index.open_partition(partition_id, start=0, end=0)
                await slices.took(len(some))
        self._topic_cache.apply(change)
        if change.kind is ChangeKind.TOPIC_DELETED:
            for some in _slices_of(partition_ids):
                for partition_id in some:
                    self._index.drop_partition(partition_id)
                self._parked_readers.wake(some)
                await slices.took(len(some))
        if change.kind is ChangeKind.LOG_START_MOVED:
            _move_log_starts(self._index, change)
        if change.kind is ChangeKind.MERGED:
            # This forgets cached look-ups only. `_drop_merged` drops the files, after their rows were taken in.
            self._callbacks.on_deduped(change.detail["deduped"])

    def _add(self, file: L0File) -> None:
        rows = iter_index(file.index)
        moved = self._index.add_file(file.file_id, _ref(file), rows, txn_rows=file.txn_rows, live=file.live)
        self._parked_readers.wake(moved)

    def _report(self) -> None:
        self._metrics.index_extents.set(self._index.extents)
        self._metrics.index_bytes.set(self._index.bytes_used)
        self._metrics.live_l0_files.set(self._index.files)
        self._callbacks.on_live_files(self._index.files)
        self._metrics.tail_gaps.set(self._index.gaps)


def _shared(poll: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
    """Runs in a context of its own: a poll's log lines do not belong to the request that happened to begin it."""
    return asyncio.create_task(poll, name=name, context=Context())


def _ref(file: L0File) -> FileRef:
    return FileRef(file.key, file.size_bytes, file.created_ms, inline=file.inline)


def _move_log_starts(index: LogIndex, change: Change) -> None:
    for partition_id, offset in change.detail["offsets"].items():
        index.move_log_start(int(partition_id), offset)


def _merged_by(tail: Tail) -> set[int]:
    """The L0 files that merges replaced, by the changes of a tail."""
    merged: set[int] = set()
    for change in tail.changes:
        if change.kind is ChangeKind.MERGED:
            merged.update(change.detail["l0_files"])
    return merged


def _later(one: Cursor, other: Cursor) -> Cursor:
    """The later position of the two, writer by writer: an own commit may have overtaken the poll that was under way."""
    writers = one.writers
    if other.writers is not writers:
        writers = dict(writers)
        for writer_id, seen in other.writers.items():
            writers[writer_id] = max(writers.get(writer_id, seen), seen)
    return Cursor(writers=writers, change_id=max(one.change_id, other.change_id), decided=other.decided)


def _slices_of(partition_ids: Sequence[int]) -> Iterator[Sequence[int]]:
    return (partition_ids[first : first + LOAD_SLICE] for first in range(0, len(partition_ids), LOAD_SLICE))
