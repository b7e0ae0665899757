"""A snapshot of a topic whose files are protected from deletion as long as it is used.

Order: first the pin, then the snapshot, so that no file of the snapshot dies before the pin. A thread renews the pin at
a third of its time to live, also while the snapshot is being taken; `close` ends it. The pin of a killed reader runs
out by itself. A pin that could not be renewed in time is *lost*: every later `check` raises PinLostError. (Files are
never changed, so everything read until then is right.)
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TypeVar

from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.readers import TopicSnapshot
from metadata.contract.store import ClusterIdentity, MetadataStore
from metadata.erasures.contract import KeyMark, TopicErasure
from metadata.urls import open_metadata
from runtime.clock import Clock, SystemClock
from runtime.errors import BugError
from runtime.logging import get_logger
from spark_jobs.scan.blocking import BlockingStore, LoopThread
from spark_jobs.scan.contract import PinLostError
from storage.cluster import ClusterMismatchError, decode_cluster_file
from storage.keys import CLUSTER_KEY

_log = get_logger(__name__)
T = TypeVar("T")

PIN_TTL_MS = 60_000
BEATS_PER_TTL = 3
CLUSTER_FILE_BYTES = 1 << 16


class PinnedSnapshot:
    """A context manager; `snapshot` is available inside it."""

    def __init__(
        self,
        metadata: str | Callable[[], MetadataStore],
        topic: str,
        *,
        holder: str = "siltstone.read_topic",
        ttl_ms: int = PIN_TTL_MS,
        clock: Clock | None = None,
    ) -> None:
        """`metadata`: its URL, or a factory of a service that is not open yet. A role that may only read is enough
        (`siltstone migrate --reader`).
        """
        self._make = metadata if callable(metadata) else lambda: open_metadata(metadata)
        self._topic, self._holder, self._ttl_ms = topic, holder, ttl_ms
        self._clock = clock or SystemClock()
        self._thread: LoopThread | None = None
        self._metadata: MetadataStore | None = None
        self._pins: list[int] = []
        """The newest comes last."""
        self._until_ms = 0.0
        """The pins hold at least until then, by our own clock."""
        self._lost = ""
        self._snapshot: TopicSnapshot | None = None
        self._identity = ClusterIdentity(cluster_id="", store_bound=False)
        self._beating: asyncio.Task[None] | None = None

    def __enter__(self) -> PinnedSnapshot:
        return self.open()

    def __exit__(self, *_: object) -> None:
        self.close()

    def open(self) -> PinnedSnapshot:
        """Take the pin and the snapshot. Raises UnknownTopicError, MetadataUnavailableError, SchemaMismatchError."""
        self._thread = LoopThread("siltstone-pin")
        try:
            self._thread.call(self._open())
        except BaseException:
            self.close()
            raise
        return self

    @property
    def snapshot(self) -> TopicSnapshot:
        if self._snapshot is None:
            raise BugError("a snapshot that was not opened")
        return self._snapshot

    def check(self) -> None:
        """Raises PinLostError when files of the snapshot may be gone."""
        if not self._lost and self._clock.monotonic_ms() > self._until_ms:
            self._lost = "it was not renewed in time"
        if self._lost:
            raise PinLostError(
                f"the pin on topic {self._topic!r} is lost: {self._lost}",
                remedy="everything read until now is right; scan again from where it ended",
            )

    def check_store(self, store: BlockingStore) -> None:
        """Raises ClusterMismatchError when the objects there belong to another cluster, or to none."""
        body = store.get_range(CLUSTER_KEY, 0, CLUSTER_FILE_BYTES).result()
        if body is None and not self._identity.store_bound:
            return  # the store is still empty
        stored = None if body is None else decode_cluster_file(body)
        if stored is None or stored.cluster_id != self._identity.cluster_id:
            found = "no cluster's" if stored is None else f"of the cluster {stored.cluster_id}"
            raise ClusterMismatchError(
                f"the object store is {found}, but the metadata belong to cluster {self._identity.cluster_id}",
                remedy="check that both URLs are of one system",
            )
        store.check_second(self._identity.cluster_id)

    def renew(self, *, keep: bool = True) -> TopicSnapshot:
        """Take a new pin, then a new snapshot, which replaces the present one. `keep`: the older pins last until
        `let_go`, for readers that still use an older snapshot. Raises as `open`, and PinLostError.
        """
        self.check()
        snapshot = self._call(self._take)
        if not keep:
            self.let_go()
        return snapshot

    def topic_erasures(self) -> Sequence[TopicErasure]:
        """The erasures of the topic. The snapshot has no record of one that is done: the pin keeps every file of the
        snapshot, and a file that still had the record would keep the erasure open.

        Raises MetadataUnavailableError, RightsMissingError.
        """
        return self._call(lambda metadata: metadata.erasures.topic_erasures(self.snapshot.topic.topic_id))

    def erasure_marks(self, erasure_id: int) -> Mapping[int, Sequence[KeyMark]]:
        """Raises as `topic_erasures`."""
        return self._call(lambda metadata: metadata.erasures.erasure_marks(erasure_id))

    def let_go(self) -> None:
        """End all pins but the newest."""
        old, self._pins = self._pins[:-1], self._pins[-1:]
        for pin_id in old:
            self._call(lambda metadata, pin_id=pin_id: metadata.readers.unpin(pin_id))

    def close(self) -> None:
        """End the pins. May be repeated. If the metadata store does not answer, the pins run out by themselves."""
        thread, self._thread = self._thread, None
        if thread is None or not thread.is_here:  # a forked child must not end its parent's pins
            return
        try:
            thread.call(self._close())
        finally:
            thread.close()

    def _call(self, work: Callable[[MetadataStore], Awaitable[T]]) -> T:
        if self._thread is None or self._metadata is None:
            raise BugError("a snapshot that is not open")
        metadata = self._metadata

        async def run() -> T:
            return await work(metadata)

        return self._thread.call(run())

    # -- in the thread's loop

    async def _open(self) -> None:
        self._metadata = self._make()
        await self._metadata.open()
        self._identity = await self._metadata.cluster_identity()
        await self._take(self._metadata)

    async def _take(self, metadata: MetadataStore) -> TopicSnapshot:
        asked_ms = self._clock.monotonic_ms()
        self._pins.append(await metadata.readers.pin(self._holder, ttl_ms=self._ttl_ms))
        if len(self._pins) == 1:
            self._until_ms = asked_ms + self._ttl_ms
        if self._beating is None:  # before the snapshot, which may take longer than a pin lives
            self._beating = asyncio.create_task(self._beat(metadata))
        self._snapshot = await metadata.readers.topic_snapshot(self._topic)
        return self._snapshot

    async def _beat(self, metadata: MetadataStore) -> None:
        while not self._lost:
            await self._clock.sleep_ms(self._ttl_ms / BEATS_PER_TTL)
            asked_ms = self._clock.monotonic_ms()
            try:
                for pin_id in list(self._pins):
                    # The second condition: `let_go` may have ended this pin while the answer was under way.
                    if not await metadata.readers.beat_pin(pin_id, ttl_ms=self._ttl_ms) and pin_id in self._pins:
                        self._lost = "the metadata store let it run out"
                        return
                # Counted from the question: the store may have renewed the pin at any time since then.
                self._until_ms = asked_ms + self._ttl_ms
            except MetadataUnavailableError as error:
                _log.warning("a pin could not be renewed yet", topic=self._topic, error=error.message)

    async def _close(self) -> None:
        if self._metadata is None:
            return
        if self._beating is not None:
            self._beating.cancel()
            await asyncio.gather(self._beating, return_exceptions=True)
        try:
            for pin_id in self._pins:
                await self._metadata.readers.unpin(pin_id)
        except MetadataUnavailableError as error:
            _log.warning("a pin is left to run out", topic=self._topic, error=error.message)
        finally:
            await self._metadata.close()
