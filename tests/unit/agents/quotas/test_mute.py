"""A mute ends by itself, never too early, and never after its connection."""

from __future__ import annotations

import asyncio

from agents.quotas.mute import Mute
from runtime.clock import ManualClock, SystemClock
from tests.fixtures.waiting import until

CLOCK = SystemClock()


async def test_a_mute_that_is_made_longer_ends_once_and_not_before_its_time() -> None:
    # The timers are real, and what is left is told by a clock that stands still between the lines.
    clock, mute, ended = ManualClock(), Mute(), list[str]()
    mute.on_end = lambda: ended.append("once")
    mute.hold(20, clock)
    mute.hold(120, clock)
    mute.hold(10, clock)
    assert mute.on and mute.left_ms() == 120
    clock.advance_ms(119)
    first = mute._timer
    await until(lambda: mute._timer is not first)
    assert mute.on and not ended and mute.left_ms() == 1
    clock.advance_ms(1)
    await until(lambda: ended)
    assert not mute.on and mute.left_ms() == 0 and mute._timer is None
    mute.hold(1, clock)
    clock.advance_ms(1)
    await until(lambda: len(ended) == 2)


async def test_a_mute_whose_connection_is_gone_holds_nothing() -> None:
    mute, ended = Mute(), list[str]()
    mute.on_end = lambda: ended.append("too late")
    mute.hold(5, CLOCK)
    mute.close()
    mute.hold(5, CLOCK)
    assert not mute.on and mute._timer is None
    await asyncio.sleep(0.05)
    assert ended == []


async def test_a_mute_that_is_made_shorter_ends_at_its_new_time_and_a_longer_time_changes_nothing() -> None:
    mute, ended = Mute(), list[float]()
    mute.on_end = lambda: ended.append(CLOCK.monotonic_ms())
    mute.shorten(1)
    assert not mute.on
    begun_ms = CLOCK.monotonic_ms()
    mute.hold(600_000, CLOCK)
    mute.shorten(50)
    mute.shorten(300_000)
    await until(lambda: ended)
    assert not mute.on and ended[0] - begun_ms >= 49
    mute.hold(600_000, CLOCK)
    mute.shorten(0)
    assert len(ended) == 2 and not mute.on
