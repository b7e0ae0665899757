"""Keeps the files of a planned read from deletion: rules for renewing and dropping its pin.

Spark plans a batch query in a Python process that ends with the planning, and makes no call at the query's end. So:

- Planning takes a pin with a time to live (option `pinTtl`) and leaves it.
- The reading tasks renew it, first a third of that time after planning and then every third: a query that finishes
  within ten minutes never asks Postgres from an executor.
- Nobody unpins. After the last renewal the pin runs out, and files that died meanwhile live that much longer.

Unpinning at the end of "the last task" would need a count of tasks. Retries, speculation and a second action on the
same DataFrame make such a count wrong, and then files would be deleted under a reader. Waiting costs some disk space
for half an hour.

One process plans a stream for as long as the query runs. It renews the pins of its batches itself and drops each when
Spark says that the batch is done. Spark says so when it begins the next batch, and it ends the process of a finished
query without a call, so the last batch's pin runs out too; its time to live is two minutes.

A pin that ran out all the same (a DataFrame kept for hours before an action, Postgres away for longer than the time to
live) is no loss by itself: a task that finds its pin or a file gone plans its own slice again
(`spark_jobs/source/reading.py`).
"""

from __future__ import annotations

import threading
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass
from types import TracebackType

from metadata.contract.store import MetadataStore
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
    """The time on the planner's clock. A task estimates from it when to begin renewing; nothing else uses it."""

    @property
    def renew_every_ms(self) -> float:
        return self.ttl_ms / RENEWALS_PER_TTL


def take_pin(metadata: MetadataThread, holder: str, *, ttl_ms: int, clock: Clock) -> Pin:
    """Pin every file that is live now: its object stays even if the file dies later. Take the snapshot afterwards."""
    made_ms = clock.wall_ms()
    pin_id = metadata.call(lambda opened: opened.readers.pin(holder, ttl_ms=ttl_ms))
    return Pin(pin_id=pin_id, ttl_ms=ttl_ms, made_ms=made_ms)


def renew(metadata: MetadataThread, pin: Pin) -> bool:
    """Renew the pin. False if it had run out."""
    return metadata.call(lambda opened: opened.readers.beat_pin(pin.pin_id, ttl_ms=pin.ttl_ms))


def let_go(metadata: MetadataThread, pins: Iterable[Pin]) -> None:
    """Drop the pins. A failure must not end a query or delay its end: a pin runs out by itself."""
    try:
        for pin in pins:
            # The first failure ends the loop: with Postgres away, trying the others only delays the query's end.
            metadata.call(_unpin(pin), retry_ms=0)
    except SiltstoneError as error:
        _log.warning("pin not let go of", error=str(error))


def _unpin(pin: Pin) -> Callable[[MetadataStore], Awaitable[None]]:
    return lambda opened: opened.readers.unpin(pin.pin_id)


class Renewal:
    """Calls `ask` every `every_ms` in a thread, first after `first_ms`, until it is stopped. A context manager.

    `ask` returns False when the pin had run out: this sets `lost` and ends the renewals. An error of ours means "could
    not ask": it is logged, and the next turn asks again.
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
    """The renewal for a task that reads under `pin`. Each renewal opens a connection of its own, because executors have
    many tasks.
    """
    every_ms = pin.renew_every_ms

    def ask() -> bool:
        with MetadataThread(metadata_url, retry_ms=every_ms) as metadata:
            return renew(metadata, pin)

    # The clocks of planner and executor may differ; a negative wait would put the first renewal too late.
    waited_ms = max(0, now_ms - pin.made_ms)
    return Renewal(ask, first_ms=max(0.0, every_ms - waited_ms), every_ms=every_ms)
