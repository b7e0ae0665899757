"""A picture that is redrawn until Ctrl-C or SIGTERM. Both end it without a message and restore the cursor."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from types import FrameType

from rich.console import RenderableType
from rich.live import Live

from runtime.clock import SystemClock
from siltstone.processes.stopping import stop_signals, unless
from siltstone.terminal.output import Escaped, console


async def draw_until_stopped(read: Callable[[], Awaitable[RenderableType]], *, every_ms: int) -> None:
    """Draw the picture that `read` returns, every `every_ms`. Raises the errors of `read`."""
    stopping = asyncio.Event()
    clock = SystemClock()

    async def draw(live: Live) -> None:
        while True:
            live.update(Escaped(await read()), refresh=True)
            await clock.sleep_ms(every_ms)

    with stop_signals(stopping), Live(console=console(), auto_refresh=False, screen=False) as live:
        await unless(stopping, draw(live))


@contextmanager
def quiet_interrupts() -> Generator[None]:
    """Make Ctrl-C and SIGTERM a normal end of the block. Wraps a whole command, from before its picture to after it."""

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    # SIGTERM as Ctrl-C, so that both unwind the block and restore the terminal.
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    except KeyboardInterrupt:
        return
    finally:
        signal.signal(signal.SIGTERM, before)
