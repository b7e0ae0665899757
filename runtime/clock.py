"""Time as an argument. Nothing else in the tree reads a clock or sleeps on one (ruff bans it).

`wall_ms` is milliseconds since the epoch (record timestamps, keys); durable tables use Postgres's clock instead.
`monotonic_ms` never goes back; timers and latencies use it. Where the system can tell (Linux), it goes on while the
machine sleeps, as do the leases that others keep for us.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol


class Clock(Protocol):
    def wall_ms(self) -> int: ...

    def monotonic_ms(self) -> float: ...

    async def sleep_ms(self, duration_ms: float) -> None: ...


_MONOTONIC = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


class SystemClock:
    """The machine's clock."""

    def wall_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.clock_gettime_ns(_MONOTONIC) / 1e6

    async def sleep_ms(self, duration_ms: float) -> None:
        await asyncio.sleep(duration_ms / 1000)


class ManualClock:
    """A clock that tests move by hand; `sleep_ms` moves it and yields once."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._wall_ms = float(now_ms)
        self._monotonic_ms = 0.0

    def wall_ms(self) -> int:
        return int(self._wall_ms)

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance_ms(self, duration_ms: float) -> None:
        self._wall_ms += duration_ms
        self._monotonic_ms += duration_ms

    async def sleep_ms(self, duration_ms: float) -> None:
        self.advance_ms(duration_ms)
        await asyncio.sleep(0)
