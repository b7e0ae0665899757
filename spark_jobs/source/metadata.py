"""The metadata store for code that runs in no event loop: PySpark calls a data source from plain threads.

A loop of its own in a thread, one connection pool in it. What says that it may be tried again is tried again for half a
minute, so that a failover of Postgres does not end a streaming query; where it was never reached, for a few seconds
only, for then it is mostly the URL that is wrong. That it is tried again is logged, which Spark shows on stderr.
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable
from types import TracebackType
from typing import TypeVar

from metadata.contract.compaction import Metadata
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
"""Of what has not answered yet."""
RETRY_WAIT_MS = 500


class MetadataThread:
    """Context manager. Opens nothing before the first call; every call may raise what the contract says there."""

    def __init__(self, url: str, *, clock: Clock | None = None, retry_ms: float | None = None) -> None:
        """`retry_ms`: of every call, the first too."""
        self._url, self._clock, self._retry_ms = url, clock or SystemClock(), retry_ms
        self._thread: LoopThread | None = None
        self._metadata: Metadata | None = None
        self._starting = threading.Lock()

    def __enter__(self) -> MetadataThread:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def call(self, work: Callable[[Metadata], Awaitable[T]], *, retry_ms: float | None = None) -> T:
        """Blocks. From any thread."""
        with self._starting:
            if self._thread is None:
                self._thread = LoopThread("siltstone-source-metadata")
            thread = self._thread
        if retry_ms is None:
            retry_ms = self._retry_ms
        if retry_ms is None:
            retry_ms = FIRST_RETRY_MS if self._metadata is None else RETRY_MS
        return thread.call(self._patiently(work, retry_ms))

    async def _patiently(self, work: Callable[[Metadata], Awaitable[T]], retry_ms: float) -> T:
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

    async def _opened(self) -> Metadata:
        metadata = open_metadata(self._url, runtime=Runtime(clock=self._clock))
        try:
            await metadata.open()
        except BaseException:
            await metadata.close()
            raise
        return metadata

    def close(self) -> None:
        """May be repeated; a call after it opens anew."""
        with self._starting:
            thread, self._thread = self._thread, None
            metadata, self._metadata = self._metadata, None
        if thread is None:
            return
        if metadata is not None:
            thread.call(metadata.close())
        thread.close()
