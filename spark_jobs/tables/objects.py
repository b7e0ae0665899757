"""The project's object stores, called from code without an event loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from runtime.clock import SystemClock
from runtime.ids import SystemIds
from spark_jobs.scan.blocking import LoopThread
from spark_jobs.tables.errors import BadTableError, PlaceUnavailableError
from storage.objects import (
    ObjectStore,
    StoreFullError,
    StoreMisconfiguredError,
    StoreUnavailableError,
    SupportsOpen,
)
from storage.urls import open_store
from storage.wrappers.retrying import Retrying
from wire.crc import crc32c

T = TypeVar("T")
_REMEDY = "check that it can be reached and written, or name another place by --to parquet:..."


@dataclass(frozen=True, slots=True)
class Objects:
    """A store by its URL. Each call opens it, so that the object can travel by pickle."""

    url: str

    def call(self, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        """Raises the errors of `work`, but BadTableError and PlaceUnavailableError for a store that cannot be used: its
        own messages are about the store of the records.
        """
        thread = LoopThread("siltstone-tables")  # the caller's own thread may have a loop, as in a notebook
        try:
            with errors_of(self.url):
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

    def put(self, key: str, body: bytes | memoryview) -> None:
        """Raises ObjectExistsError."""
        self.call(lambda store: store.put_if_absent(key, body, crc32c=crc32c(body)))

    def has(self, prefix: str) -> bool:
        """Whether there is an object whose key begins so."""

        async def found(store: ObjectStore) -> bool:
            async for _ in store.list(prefix):
                return True
            return False

        return self.call(found)

    def remove(self, keys: Sequence[str]) -> None:
        if keys:
            self.call(lambda store: store.delete_many(list(keys)))


@contextmanager
def errors_of(url: str) -> Generator[None]:
    """Turns the errors of the table's store into BadTableError and PlaceUnavailableError."""
    try:
        yield
    except StoreMisconfiguredError as error:
        raise BadTableError(f"{url} cannot hold a table: {_words(error.message)}", remedy=_REMEDY) from error
    except (StoreUnavailableError, StoreFullError) as error:
        raise PlaceUnavailableError(
            f"{url}, where the table lies, cannot be used now: {_words(error.message)}", remedy=_REMEDY
        ) from error


def _words(message: str) -> str:
    return message.replace("object.store.url", "it").replace("the object directory", "the directory")
