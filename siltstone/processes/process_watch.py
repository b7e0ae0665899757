"""The metrics that every process exports: its release, its readiness, and the lag of its event loop. Other metrics of
the process (processor time, memory, open files) are read from the system whenever metrics are scraped.

A lagging event loop is the first sign of too much work for one core: each request and each lease renewal waits that
long.
"""

from __future__ import annotations

import asyncio
import platform
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from importlib.metadata import version
from typing import Literal

from runtime.runtime import Runtime

LAG_INTERVAL_MS = 250.0


@asynccontextmanager
async def process_watched(
    runtime: Runtime, *, role: Literal["agent", "compactor"], not_ready: Callable[[], Sequence[str]]
) -> AsyncGenerator[None]:
    """Export the metrics while the block runs. `not_ready`: reasons to send no work here; called on every scrape."""
    runtime.metrics.build_info.labels(role=role, version=version("siltstone"), python=platform.python_version()).set(1)
    runtime.metrics.ready.labels(role=role).set_function(lambda: float(not not_ready()))
    lag = asyncio.create_task(_measure_lag(runtime), name="event-loop-lag")
    try:
        yield
    finally:
        lag.cancel()
        await asyncio.gather(lag, return_exceptions=True)


async def _measure_lag(runtime: Runtime) -> None:
    while True:
        asked_ms = runtime.clock.monotonic_ms()
        await runtime.clock.sleep_ms(LAG_INTERVAL_MS)
        late_ms = runtime.clock.monotonic_ms() - asked_ms - LAG_INTERVAL_MS
        runtime.metrics.event_loop_lag_seconds.observe(max(late_ms, 0.0) / 1000)
