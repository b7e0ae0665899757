"""Stores and metadata for callers without an event loop: each loop runs in a thread of its own.

A task on an executor is plain Python that wants bytes. `BlockingStore.at(url)` opens a store once per process, because
making an S3 client takes some tenths of a second and a Python worker reads many slices; it gives futures of ranged
reads. A forked child opens its own, because threads do not live on in it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator
from concurrent.futures import Future
from contextlib import suppress
from typing import Any, TypeVar

from runtime.clock import SystemClock
from runtime.errors import UnavailableError
from runtime.ids import SystemIds
from storage.objects import ObjectNotFoundError, ObjectStore, SupportsOpen
from storage.second_store import look
from storage.urls import ObjectStoreUrl, open_store
from storage.wrappers.retrying import Retrying

T = TypeVar("T")

CLOSING_AT_EXIT_S = 5


class LoopClosedError(UnavailableError):
    """The thread was closed while a call was still waiting."""


class LoopThread:
    """An event loop in a daemon thread. Calls come from any thread but its own.

    A forked child has the loop but no thread: calls there are refused, and closing it does nothing.
    """

    def __init__(self, name: str) -> None:
        self._pid = os.getpid()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @property
    def is_here(self) -> bool:
        """Whether the thread runs in this process; not so in a forked child."""
        return os.getpid() == self._pid

    @staticmethod
    def is_current() -> bool:
        """Whether the caller runs in such a thread, where it must not wait for one."""
        return threading.get_ident() in _loop_threads

    def submit(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Raises LoopClosedError."""
        if self._loop.is_closed() or not self.is_here:
            # A coroutine that nobody awaits would warn on stderr.
            work.close()
            raise LoopClosedError("this was closed already" if self.is_here else "this belongs to the parent process")
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def call(self, work: Coroutine[Any, Any, T], *, patience_s: float | None = None) -> T:
        return self.submit(work).result(patience_s)

    def close(self) -> None:
        """Close the loop; ends running calls. May be repeated."""
        if self.is_here and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        _loop_threads.add(threading.get_ident())
        try:
            self._loop.run_forever()
        finally:
            tasks = asyncio.all_tasks(self._loop)
            # Calls that still wait get CancelledError from this; otherwise their threads would wait for ever.
            for task in tasks:
                task.cancel()
            self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
            self._loop.run_until_complete(self._loop.shutdown_asyncgens())
            self._loop.run_until_complete(self._loop.shutdown_default_executor())
            self._loop.close()
            _loop_threads.discard(threading.get_ident())


_loop_threads: set[int] = set()


class BlockingStore:
    """Ranged reads of an object store. `close` it, unless it came from `at`."""

    def __init__(self, store: ObjectStore, *, owns: bool = False) -> None:
        """`store` must allow calls from the loop of a thread of ours: a directory and memory do, an open S3 client does
        not. `owns`: it is not open yet, and is opened and closed with this one.
        """
        self._store = store
        self._owns = owns
        self._thread = LoopThread("siltstone-scan-store")
        if owns:
            try:
                self._thread.call(_open(store))
            except BaseException:
                self._thread.close()
                raise

    @classmethod
    def opened(cls, url: str | ObjectStoreUrl) -> BlockingStore:
        """Open the store at a URL. Raises the store's errors."""
        return cls(Retrying(open_store(url, must_exist=True), SystemClock(), SystemIds()), owns=True)

    @classmethod
    def at(cls, url: str | ObjectStoreUrl) -> BlockingStore:
        """This process's one store at `url`; it is closed when the process ends."""
        with _lock:
            # With the process id: a forked child inherits the table, but not the threads behind its stores.
            place = (os.getpid(), url)
            if place not in _shared:
                _shared[place] = cls.opened(url)
            return _shared[place]

    def get_range(self, key: str, start: int, length: int) -> Future[bytes | None]:
        """The bytes: fewer when the object ends before, None when there is no object. Fails with ObjectStoreError."""
        return self._thread.submit(_range_of(self._store, key, start, length))

    def call(self, work: Callable[[ObjectStore], Awaitable[T]]) -> T:
        """Run work with the store, on the loop that the store belongs to. Raises its errors."""
        return self._thread.call(_awaited(work, self._store))

    def iterate(self, make: Callable[[ObjectStore], AsyncGenerator[T]]) -> Iterator[T]:
        """The items of an asynchronous generator, each made when it is asked for. Ending early closes it."""
        items = make(self._store)
        try:
            while (step := self._thread.call(_next(items))) is not None:
                yield step[0]
        finally:
            self._thread.call(items.aclose())

    def check_second(self, cluster_id: str) -> None:
        """Raises ClusterMismatchError when the L0 files lie in another second store than this one's, or in one at all
        where this has none.
        """
        self._thread.call(look(self._store, cluster_id=cluster_id, ids=SystemIds(), clock=SystemClock()))

    def close(self, *, patience_s: float | None = None) -> None:
        """Close it. May be repeated. Raises TimeoutError."""
        if self._owns and self._thread.is_here:
            self._owns = False
            self._thread.call(self._store.close(), patience_s=patience_s)
        self._thread.close()

    def __enter__(self) -> BlockingStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


_lock = threading.Lock()
_shared: dict[tuple[int, str | ObjectStoreUrl], BlockingStore] = {}


def _forget_lock() -> None:
    """Replace the lock in a forked child: the parent may have held it."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forget_lock)


@atexit.register
def _close_shared() -> None:
    """Close all shared stores: an S3 client that is not closed complains on stderr."""
    for (pid, _), store in _shared.items():
        if pid == os.getpid():
            with suppress(Exception):  # the process is ending, so the store's error does not matter
                store.close(patience_s=CLOSING_AT_EXIT_S)


async def _range_of(store: ObjectStore, key: str, start: int, length: int) -> bytes | None:
    """Returns None for a missing object instead of raising: an exception that comes from another thread keeps its
    catcher's frames, and everything they hold, until the next garbage collection.
    """
    try:
        return await store.get_range(key, start, length)
    except ObjectNotFoundError:
        return None


async def _awaited(work: Callable[[ObjectStore], Awaitable[T]], store: ObjectStore) -> T:
    return await work(store)


async def _next(items: AsyncGenerator[T]) -> tuple[T] | None:
    """The next item, in a tuple because it may be None itself; None at the end."""
    async for item in items:
        return (item,)
    return None


async def _open(store: ObjectStore) -> None:
    if isinstance(store, SupportsOpen):
        await store.open()
