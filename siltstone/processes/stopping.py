"""Stop signals: a signal sets an event, and `unless` cancels work when the event is set."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Coroutine, Generator
from contextlib import contextmanager
from typing import Any, TypeVar

T = TypeVar("T")
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the number of SIGINT, as in shells."""
STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@contextmanager
def stop_signals(stopping: asyncio.Event, again: asyncio.Event | None = None) -> Generator[None]:
    """While the block runs, SIGTERM, SIGINT and SIGHUP set `stopping`; a second signal sets `again`."""
    loop = asyncio.get_running_loop()

    def stop() -> None:
        if stopping.is_set() and again is not None:
            again.set()
        stopping.set()

    for number in STOP_SIGNALS:
        loop.add_signal_handler(number, stop)
    try:
        yield
    finally:
        for number in STOP_SIGNALS:
            loop.remove_signal_handler(number)


def on_hangup(then: Callable[[], None]) -> None:
    """Within `stop_signals`: SIGHUP no longer stops the process but calls `then`."""
    asyncio.get_running_loop().add_signal_handler(signal.SIGHUP, then)


async def unless(stopping: asyncio.Event, work: Coroutine[Any, Any, T] | asyncio.Future[T]) -> T | None:
    """The result of `work`. If `stopping` is set first, `work` is cancelled and awaited, and the result is None."""
    task = asyncio.ensure_future(work)
    stopped = asyncio.create_task(stopping.wait())
    try:
        await asyncio.wait({task, stopped}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for each in (stopped, task):
            if not each.done():
                each.cancel()
        # Wait until a cancelled `work` has really ended, so that its caller can close what it used.
        await asyncio.gather(task, stopped, return_exceptions=True)
