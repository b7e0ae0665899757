"""Keeps the files of a planned read from deletion: who renews the pin, and who lets go of it.

Planning a batch query runs in a Python process of Spark that ends with it, and there is no call at the query's end. So:

- planning takes a pin with a time to live (option `pinTtl`), and lets it be;
- the tasks that read renew it, from a third of that time after planning on and then every third: a query that is done
  within ten minutes never asks Postgres from an executor;
- nobody unpins. After the last renewal the pin runs out, and files that died meanwhile live that much longer.

Unpinning at the end of "the last task" would need a count of tasks that retries, speculation and a second action on the
same DataFrame make wrong, and the price of being wrong is files deleted under a reader. The price of waiting is some
disk space for half an hour.

A stream is planned by one process for as long as the query runs. It renews the pins of its batches itself and drops
each when Spark says that the batch is done. Spark says so of a batch when it begins the next one, and ends the process
of a query that has ended without asking it, so the last batch's pin runs out too; its time to live is two minutes.

A pin that ran out all the same (a DataFrame kept for hours before an action, Postgres away for longer than the time to
live) is no loss by itself: a task that meets it, or a file that is gone, plans its own slice anew
(`spark_jobs/source/reading.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

from metadata.contract.compaction import Metadata
from runtime.clock import Clock
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from spark_jobs.source.metadata import MetadataThread

_log = get_logger(__name__)
RENEWALS_PER_TTL = 3
STOP_TIMEOUT_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Pin:
    pin_id: int
    ttl_ms: int
    made_ms: int
    """By the planner's own clock: tells a task about when to begin renewing, and nothing hangs on it."""

    @property
    def renew_every_ms(self) -> float:
        return self.ttl_ms / RENEWALS_PER_TTL


def take_pin(metadata: MetadataThread, holder: str, *, ttl_ms: int, clock: Clock) -> Pin:
    """What lives now, and what dies from now on, stays. Take the snapshot after it."""
    made_ms = clock.wall_ms()
    pin_id = metadata.call(lambda opened: opened.pin(holder, ttl_ms=ttl_ms))
    return Pin(pin_id=pin_id, ttl_ms=ttl_ms, made_ms=made_ms)


def renew(metadata: MetadataThread, pin: Pin) -> bool:
    """False when it had run out."""
    return metadata.call(lambda opened: opened.beat_pin(pin.pin_id, ttl_ms=pin.ttl_ms))


def let_go(metadata: MetadataThread, pins: Iterable[Pin]) -> None:
    """Failing to is no reason to end a query, nor to wait at its end: a pin runs out by itself."""
    try:
        for pin in pins:
            metadata.call(_unpin(pin), retry_ms=0)
    except SiltstoneError as error:
        _log.warning("pin not let go of", error=str(error))


def _unpin(pin: Pin) -> Callable[[Metadata], Awaitable[None]]:
    return lambda opened: opened.unpin(pin.pin_id)


class Renewal:
    """Calls `ask` every `every_ms` in a thread, first after `first_ms`, until it is stopped. Context manager.

    `ask` says False when the pin had run out: `lost` is set, and nothing is renewed any more. An error of ours means
    "could not ask": it is logged, and the next time asks again.
    """

    def __init__(self, ask: Callable[[], bool], *, first_ms: float, every_ms: float) -> None:
        self._ask, self._first_s, self._every_s = ask, first_ms / 1000, every_ms / 1000
        self._stopping = threading.Event()
        self.lost = threading.Event()
        self._thread = threading.Thread(target=self._run, name="pin renewal", daemon=True)

    def __enter__(self) -> Renewal:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()

    def stop(self) -> None:
        self._stopping.set()
        self._thread.join(STOP_TIMEOUT_S)

    def _run(self) -> None:
        wait_s = self._first_s
        while not self._stopping.wait(wait_s):
            wait_s = self._every_s
            try:
                if not self._ask():
                    self.lost.set()
                    return
            except SiltstoneError as error:
                _log.warning("pin not renewed", error=str(error))


def task_renewal(metadata_url: str, pin: Pin, *, now_ms: int) -> Renewal:
    """For a task that reads under `pin`. A connection lives as long as one renewal: executors have many tasks."""
    every_ms = pin.renew_every_ms

    def ask() -> bool:
        with MetadataThread(metadata_url, retry_ms=every_ms) as metadata:
            return renew(metadata, pin)

    waited_ms = max(0, now_ms - pin.made_ms)
    return Renewal(ask, first_ms=max(0.0, every_ms - waited_ms), every_ms=every_ms)
