"""The metadata store for code without an event loop: PySpark calls a data source from plain threads.

A thread runs a loop with one connection pool. Retriable errors are retried for half a minute, so that a failover of
Postgres does not end a streaming query. If the store was never reached, they are retried only for a few seconds,
because then the URL is mostly wrong. Retries are logged, and Spark shows the log on stderr.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata
from runtime.clock import Clock, SystemClock
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from spark_jobs.scan.blocking import LoopThread

T = TypeVar("T")
_log = get_logger(__name__)
RETRY_MS = 30_000
FIRST_RETRY_MS = 3_000
"""The retry time of a store that has never answered."""
RETRY_WAIT_MS = 500


class MetadataThread:
    """A context manager. It opens nothing before the first call; every call may raise the errors of the contract."""

    def __init__(self, url: str, *, clock: Clock | None = None, retry_ms: float | None = None) -> None:
        """`retry_ms`: the retry time of every call, including the first."""
        self._url, self._clock, self._retry_ms = url, clock or SystemClock(), retry_ms
        self._thread: LoopThread | None = None
        self._metadata: MetadataStore | None = None
        self._starting = threading.Lock()

    def __enter__(self) -> MetadataThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def call(self, work: Callable[[MetadataStore], Awaitable[T]], *, retry_ms: float | None = None) -> T:
        """Run `work` and wait for it. Callable from any thread."""
        with self._starting:
            if self._thread is None:
                self._thread = LoopThread("siltstone-source-metadata")
            thread = self._thread
        if retry_ms is None:
            retry_ms = self._retry_ms
        if retry_ms is None:
            retry_ms = FIRST_RETRY_MS if self._metadata is None else RETRY_MS
        return thread.call(self._patiently(work, retry_ms))

    async def _patiently(self, work: Callable[[MetadataStore], Awaitable[T]], retry_ms: float) -> T:
        deadline_ms = self._clock.monotonic_ms() + retry_ms
        told = False
        while True:
            try:
                if self._metadata is None:
                    self._metadata = await self._opened()
                return await work(self._metadata)
            except SiltstoneError as error:
                if not error.retriable or self._clock.monotonic_ms() + RETRY_WAIT_MS > deadline_ms:
                    raise
                if not told:
                    told = True
                    _log.warning("the metadata store is asked again", for_ms=int(retry_ms), error=error.message)
            await self._clock.sleep_ms(RETRY_WAIT_MS)

    async def _opened(self) -> MetadataStore:
        metadata = open_metadata(self._url, runtime=Runtime(clock=self._clock))
        try:
            await metadata.open()
        except BaseException:
            await metadata.close()
            raise
        return metadata

    def close(self) -> None:
        """Close the pool. May be repeated; a later call opens it again."""
        with self._starting:
            # Taken out under the lock, so that two calls of `close` never close one pool twice.
            thread, self._thread = self._thread, None
            metadata, self._metadata = self._metadata, None
        if thread is None:
            return
        if metadata is not None:
            thread.call(metadata.close())
        thread.close()
