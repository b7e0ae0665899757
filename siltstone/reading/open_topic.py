"""A topic at one instant, open for reading, and the care that everything of it is closed.

It opens, in this order: the system (it starts the Postgres of a data directory if none runs there), the object store, a
pin, and a snapshot of the topic. It closes all of this and ends the pin when it is closed or collected, or when the
process ends. A process that dies leaves its pin, which expires after a minute.

It belongs to the process that made it, so a forked child cannot use it.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
import threading
import weakref
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from queue import SimpleQueue

from metadata.contract.readers import TopicSnapshot
from runtime.errors import BadInputError, SiltstoneError
from runtime.logging import get_logger
from runtime.settings.checks import is_memory
from runtime.settings.loading import load_settings
from siltstone.embedded.attach import attach
from siltstone.processes.places import place_of
from spark_jobs.scan.blocking import BlockingStore, LoopThread
from spark_jobs.scan.contract import ScanOptions
from spark_jobs.scan.pinned import PinnedSnapshot
from spark_jobs.scan.timestamps import look_up

_CLOSING_AT_EXIT_S = 10


class NotOpenError(SiltstoneError):
    """The topic was closed, or was opened by another process."""


class OpenTopic:
    """One topic as it was when `open` returned."""

    def __init__(self, options: ScanOptions) -> None:
        self.options = options
        """After `open` without times: they are looked up."""
        self.failure: tuple[str, str] = ("", "")
        """Message and remedy of a read that failed, for a caller that gets the error from others, as text."""
        self._stack = ExitStack()
        self._store: BlockingStore | None = None
        self._pinned: PinnedSnapshot | None = None
        self._pid = os.getpid()
        _closing.starts()
        _open.add(self)

    def open(self, *, data: str | Path | None, metadata: str, object_store: str) -> None:
        """Raises the errors of opening the system. Close it also after one of them."""
        self.open_at(*self._places(data, metadata, object_store))

    def open_at(self, metadata_url: str, store_url: str) -> None:
        """As `open`, with URLs that name the whole place."""
        self._store = self._stack.enter_context(BlockingStore.opened(store_url))
        self._pinned = self._stack.enter_context(PinnedSnapshot(metadata_url, self.options.topic))
        self._pinned.check_store(self._store)
        self.options = look_up(self._store, self.snapshot, self.options)

    @property
    def snapshot(self) -> TopicSnapshot:
        """Raises NotOpenError."""
        if self._pinned is None:
            raise self._closed()
        return self._pinned.snapshot

    @property
    def store(self) -> BlockingStore:
        """Raises NotOpenError."""
        if self._store is None:
            raise self._closed()
        return self._store

    @property
    def is_ours(self) -> bool:
        """Whether this process opened it; not so in a forked child."""
        return os.getpid() == self._pid

    def check(self) -> None:
        """Raises PinLostError when files of the snapshot may be gone, and NotOpenError."""
        if not self.is_ours:
            raise NotOpenError("this topic was opened by another process", remedy="open it again in this one")
        if self._pinned is None:
            raise self._closed()
        self._pinned.check()

    def _closed(self) -> NotOpenError:
        return NotOpenError(f"topic {self.options.topic!r} was closed before it was read", remedy="open it again")

    def _places(self, data: str | Path | None, metadata: str, object_store: str) -> tuple[str, str]:
        if data is not None:
            if metadata or object_store:
                raise BadInputError("`data` already names the whole system: give either data or URLs, not both")
            found = self._stack.enter_context(attach(Path(data)))
            return found.metadata_url, found.object_store_url
        settings = load_settings(None, os.environ, {})
        metadata = metadata or settings.metadata_url
        object_store = place_of(replace(settings, object_store_url=object_store or settings.object_store_url))
        for url, name, variable in (
            (metadata, "metadata", "SILTSTONE_METADATA_URL"),
            (object_store, "object_store", "SILTSTONE_OBJECT_STORE_URL"),
        ):
            if not url or is_memory(url):
                raise BadInputError(
                    f"{name} names nothing that can be read: {url or 'it is empty'}",
                    remedy=f"give data='./siltstone-data', or {name}=URL, or set {variable}",
                )
        return metadata, object_store

    def close(self) -> None:
        """Safe to repeat. Does nothing in a forked child, where the threads that it would wait for do not exist."""
        if not self.is_ours:
            # Keep the attributes alive: the connections belong to the parent and must not be collected here either.
            _not_ours.append(self.__dict__)
            return
        self._store = self._pinned = None
        self._stack.close()

    def __del__(self) -> None:
        """Close. `close` of an Arrow reader ends here and waits, so that the pin has ended when it returns.

        It never waits inside the garbage collector. The collector runs in any thread, with any locks held, and may run
        in the thread that this call would wait for; then the closing thread does the work.
        """
        if self.is_ours and (sys.is_finalizing() or _collecting == threading.get_ident() or LoopThread.is_current()):
            _closing.put(self._stack.pop_all())
        else:
            self.close()


class _Closing:
    """A thread that closes what it is given. `put` may be called from anywhere, because it takes no lock of ours."""

    def __init__(self) -> None:
        self._given: SimpleQueue[ExitStack | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._starting = threading.Lock()

    def starts(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="reader closing", daemon=True)
                self._thread.start()

    def put(self, stack: ExitStack) -> None:
        self._given.put(stack)

    def end(self) -> None:
        thread = self._thread
        if thread is not None:
            self._given.put(None)
            thread.join(_CLOSING_AT_EXIT_S)

    def _run(self) -> None:
        while (stack := self._given.get()) is not None:
            try:
                stack.close()
            except Exception as error:
                _log.warning("a reader was not closed completely", error=str(error))


_log = get_logger(__name__)
_closing = _Closing()
_open: weakref.WeakSet[OpenTopic] = weakref.WeakSet()
_not_ours: list[object] = []
_collecting = 0
"""The thread that runs the garbage collector now; 0 if none does."""


def _note_collector(phase: str, _info: object) -> None:
    global _collecting
    _collecting = threading.get_ident() if phase == "start" else 0


def _at_exit() -> None:
    """Close all topics while threads still exist. One that is collected later has none to wait for."""
    for topic in list(_open):
        topic.close()
    _closing.end()


def _after_fork() -> None:
    """Start fresh in a forked child: it has no closing thread, and the parent may have held the locks."""
    global _closing, _open
    _not_ours.append((_closing, _open))
    _closing, _open = _Closing(), weakref.WeakSet[OpenTopic]()


gc.callbacks.append(_note_collector)
atexit.register(_at_exit)
os.register_at_fork(after_in_child=_after_fork)
