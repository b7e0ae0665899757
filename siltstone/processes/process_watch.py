"""What a process tells of itself for as long as it runs: which release it is, whether it is ready, how late its event
loop wakes who sleeps. The rest (processor time, memory, open files) is read from the system whenever somebody asks.

A late event loop is how too much work for one core shows first: each request, each beat of a lease waits as long.
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
    """While the block runs. `not_ready`: why no work should be sent here; asked whenever metrics are."""
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
