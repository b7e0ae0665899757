"""A loop of a compactor: it runs one body over and over, often while there is work and rarely while there is none.

A failed round is logged and tried again after a pause that doubles (full jitter). A loop ends by itself only when the
metadata store went back in time, fenced this compactor, or has another schema.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

from metadata.contract.errors import SchemaMismatchError, WentBackError
from metadata.contract.leases import WriterFencedError
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from runtime.runtime import Runtime

_log = get_logger(__name__)

IDLE_FACTOR_MAX = 5
"""An idle patient loop waits up to this many intervals."""
PAUSE_MS = 250.0
PAUSE_MS_MAX = 30_000.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """The time between the rounds of a loop."""

    interval_ms: float
    eager: bool = False
    """After a round that found something to do, begin the next at once."""
    patient: bool = False
    """After rounds that found nothing, wait up to `IDLE_FACTOR_MAX` intervals."""


class CompactorLoop:
    """Args:
    body: one round; returns whether it found something to do.
    on_fatal: called once when the process must halt.
    """

    def __init__(
        self,
        name: str,
        body: Callable[[], Awaitable[bool]],
        *,
        pace: Pace,
        runtime: Runtime,
        on_fatal: Callable[[BaseException], None],
    ) -> None:
        self._name = name
        self._body = body
        self._pace = pace
        self._clock = runtime.clock
        self._ids = runtime.ids
        self._errors = runtime.metrics.compactor_errors_total.labels(loop=name)
        self._on_fatal = on_fatal
        self._factor_max = IDLE_FACTOR_MAX if pace.patient else 1
        self._woken = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._end = asyncio.Event()

    def start(self) -> None:
        self._task = asyncio.create_task(self._run(), name=f"compactor-{self._name}")

    def wake(self) -> None:
        """Begins the next round soon."""
        self._woken.set()

    def end(self) -> None:
        """Begins no further round."""
        self._end.set()
        self._woken.set()

    async def ended(self) -> None:
        """Waits until the present round is over. Call `end` first."""
        if self._task is not None:
            await asyncio.wait({self._task})

    async def cancel(self) -> None:
        """Cuts the present round off."""
        self._end.set()
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        idle, failures = 1.0, 0
        while not self._end.is_set():
            pause_ms = 0.0
            try:
                found = await self._body()
                failures = 0
                # Grows slowly, so one empty round after a burst costs little; a wake-up cuts any wait short.
                idle = 1.0 if found else min(idle * 1.5, self._factor_max)
                if not (found and self._pace.eager):
                    # Jitter, so that several compactors do not query the metadata store in step.
                    pause_ms = self._pace.interval_ms * idle * (0.9 + 0.2 * self._ids.jitter())
            except (WentBackError, WriterFencedError, SchemaMismatchError) as error:
                _log.error("compactor halts", loop=self._name, error=str(error))
                self._on_fatal(error)
                return
            except Exception as error:
                failures += 1
                pause_ms = self._failed(error, failures)
            if not pause_ms:
                # An eager loop that always finds work must still let other tasks run.
                await asyncio.sleep(0)
                continue
            # `wake` does not shorten the pause after a failure; only `end` does.
            await self._pause(pause_ms, until=self._end if failures else self._woken)
            self._woken.clear()

    def _failed(self, error: Exception, failures: int) -> float:
        """Returns the pause in ms."""
        self._errors.inc()
        pause_ms = min(PAUSE_MS * 2 ** min(failures, 16), PAUSE_MS_MAX) * self._ids.jitter() + PAUSE_MS
        # Our own errors explain themselves. Any other one may be a bug, so its stack is logged.
        if isinstance(error, SiltstoneError):
            _log.warning("round failed", loop=self._name, error=str(error), pause_ms=int(pause_ms))
        else:
            _log.exception("round failed", loop=self._name, pause_ms=int(pause_ms))
        return pause_ms

    async def _pause(self, pause_ms: float, *, until: asyncio.Event) -> None:
        timer = asyncio.ensure_future(self._clock.sleep_ms(pause_ms))
        event = asyncio.ensure_future(until.wait())
        try:
            await asyncio.wait({timer, event}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            # Both are awaited after the cancel, or a late exception in one of them would be reported as never
            # retrieved.
            timer.cancel()
            event.cancel()
            await asyncio.gather(timer, event, return_exceptions=True)
