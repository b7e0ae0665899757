"""The project's object stores, called from code without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from siltstone.clock import SystemClock
from siltstone.ids import SystemIds
from spark_jobs.scan.blocking import LoopThread
from storage.objects import Body, ObjectStore, SupportsOpen
from storage.retrying import Retrying
from storage.urls import open_store
from wire.crc import crc32c

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Objects:
    """A store by its URL; each call opens it, so that it travels by pickle."""

    url: str

    def call(self, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        """Raises what `work` raises, and StoreMisconfiguredError, StoreUnavailableError."""
        thread = LoopThread("siltstone-tables")  # the caller's own thread may have a loop: a notebook's has
        try:
            return thread.call(self._call(work))
        finally:
            thread.close()

    async def _call(self, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        inner = open_store(self.url)
        store = Retrying(inner, SystemClock(), SystemIds())
        try:
            if isinstance(inner, SupportsOpen):
                await inner.open()
            return await work(store)
        finally:
            await store.close()

    def put(self, key: str, body: Body) -> None:
        """Raises ObjectExistsError."""
        self.call(lambda store: store.put_if_absent(key, body, crc32c=crc32c(body)))

    def remove(self, keys: Sequence[str]) -> None:
        if keys:
            self.call(lambda store: store.delete_many(list(keys)))
