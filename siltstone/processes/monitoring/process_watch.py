"""The metrics that every process exports: its release, its readiness, and the lag of its event loop; and a few figures
of all its metrics in its log. Other metrics of the process (processor time, memory, open files) are read from the
system whenever metrics are scraped.

A lagging event loop is the first sign of too much work for one core: each request and each lease renewal waits that
long.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version

from runtime.clock import Clock
from runtime.logging import get_logger
from runtime.metrics import Metrics
from runtime.metrics.figures import Role, Samples, figures, read_samples
from runtime.runtime import Runtime

_log = get_logger(__name__)

LAG_INTERVAL_MS = 250.0


@asynccontextmanager
async def process_watched(
    runtime: Runtime, *, role: Role, not_ready: Callable[[], Sequence[str]], figures_interval_ms: int = 0
) -> AsyncGenerator[None]:
    """Export the metrics while the block runs, and log figures (0: never). `not_ready`: reasons to send no work here;
    called on every scrape."""
    runtime.metrics.build_info.labels(role=role, version=version("siltstone"), python=platform.python_version()).set(1)
    runtime.metrics.ready.labels(role=role).set_function(lambda: float(not not_ready()))
    tasks = [asyncio.create_task(_measure_lag(runtime), name="event-loop-lag")]
    log = FiguresLog(runtime.metrics, role)
    if figures_interval_ms:
        tasks.append(asyncio.create_task(_tell_figures(log, runtime.clock, figures_interval_ms), name="figures"))
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        if figures_interval_ms:
            log.tell()  # what was counted since the last line


class FiguresLog:
    """The lines of one process."""

    def __init__(self, metrics: Metrics, role: Role) -> None:
        self._metrics = metrics
        self._role: Role = role
        self._before: Samples = ()

    def tell(self) -> None:
        now = read_samples(self._metrics.registry)
        _log.info("figures", role=self._role, **figures(self._role, now, self._before))
        self._before = now


async def _tell_figures(log: FiguresLog, clock: Clock, interval_ms: int) -> None:
    while True:
        await clock.sleep_ms(interval_ms)
        log.tell()


async def _measure_lag(runtime: Runtime) -> None:
    while True:
        asked_ms = runtime.clock.monotonic_ms()
        await runtime.clock.sleep_ms(LAG_INTERVAL_MS)
        late_ms = runtime.clock.monotonic_ms() - asked_ms - LAG_INTERVAL_MS
        runtime.metrics.event_loop_lag_seconds.observe(max(late_ms, 0.0) / 1000)
