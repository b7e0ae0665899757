"""A signal sets an event, and the event cancels work."""

from __future__ import annotations

import asyncio
import os
import signal

import pytest

from siltstone.processes.stopping import stop_signals, unless


async def test_a_first_signal_stops_and_a_second_is_told_apart() -> None:
    stopping, again = asyncio.Event(), asyncio.Event()
    with stop_signals(stopping, again):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.wait_for(stopping.wait(), 5)
        assert not again.is_set()
        os.kill(os.getpid(), signal.SIGHUP)
        await asyncio.wait_for(again.wait(), 5)


async def test_work_that_ends_first_gives_its_result_or_raises() -> None:
    async def fails() -> None:
        raise ValueError("why")

    assert await unless(asyncio.Event(), asyncio.sleep(0, "done")) == "done"
    with pytest.raises(ValueError, match="why"):
        await unless(asyncio.Event(), fails())


async def test_work_is_cancelled_and_has_ended_when_stopping_comes_first() -> None:
    stopping, ended = asyncio.Event(), False

    async def work() -> None:
        nonlocal ended
        try:
            stopping.set()
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            ended = True

    assert await unless(stopping, work()) is None
    assert ended
