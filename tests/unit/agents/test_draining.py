"""When an agent that stops may end, and which connections it closes before."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest

from agents.draining import QUIET_MS, Draining, SendingAway, Talk, Verdict, judge
from runtime.clock import ManualClock

NOTICE_MS = 100_000.0


def talk(
    *, busy: bool = False, silent_ms: float = 0, asked: bool = True, works: bool = True, told: bool = False
) -> Talk:
    return Talk(is_busy=busy, silent_ms=silent_ms, has_asked=asked, works=works, is_told=told)


def verdict(*talks: Talk, passed_ms: float = QUIET_MS, owes: bool = False) -> Verdict:
    return judge(talks, passed_ms=passed_ms, notice_ms=NOTICE_MS, owes=owes)


SILENT = QUIET_MS


def test_it_is_over_when_nobody_is_there_but_not_before_a_late_one_may_have_come() -> None:
    assert not verdict(passed_ms=QUIET_MS - 1).is_over
    assert verdict().is_over


@pytest.mark.parametrize(
    "talks",
    [talk(), talk(told=True), talk(works=False), talk(busy=True, silent_ms=SILENT, told=True)],
    ids=["works", "was told a moment ago", "asked a moment ago", "waits for an answer"],
)
def test_it_goes_on_while_a_client_talks(talks: Talk) -> None:
    found = verdict(talks)
    assert (found.is_over, found.talking, found.close) == (False, 1, [])
    assert verdict(talks, passed_ms=NOTICE_MS).is_over


def test_one_that_knows_the_others_and_is_silent_is_closed_and_holds_up_nothing() -> None:
    found = verdict(talk(silent_ms=SILENT, told=True))
    assert (list(found.close), found.is_over) == ([0], True)


def test_one_that_only_asked_the_way_is_closed_and_holds_up_nothing() -> None:
    found = verdict(talk(silent_ms=SILENT, works=False))
    assert (list(found.close), found.is_over) == ([0], True)


def test_one_that_may_not_know_the_others_is_closed_and_may_come_back_to_the_end() -> None:
    found = verdict(talk(silent_ms=SILENT, told=True), talk(silent_ms=SILENT))
    assert (list(found.close), found.is_over) == ([0, 1], False)
    # and later, when it is gone
    assert not verdict(passed_ms=NOTICE_MS - 1, owes=True).is_over
    assert verdict(passed_ms=NOTICE_MS, owes=True).is_over


def test_a_health_check_without_a_request_is_nobody_who_talks() -> None:
    found = verdict(talk(asked=False, works=False))
    assert (found.is_over, found.talking, found.close) == (True, 0, [])


class Line:
    """A connection."""

    def __init__(self, clock: ManualClock) -> None:
        self._clock = clock
        self.asked_ms = 0.0
        self.closed: str = ""

    def talk(self, now_ms: float) -> Talk:
        return talk(silent_ms=now_ms - self.asked_ms, told=True)

    def close(self, reason: str) -> None:
        self.closed = reason


class Agent:
    """The server and the list of agents."""

    def __init__(self, *lines: Line) -> None:
        self.lines = list(lines)
        self.is_last = False

    def talking(self) -> Sequence[Line]:
        return [line for line in self.lines if not line.closed]


class StepClock(ManualClock):
    async def sleep_ms(self, duration_ms: float) -> None:
        self.advance_ms(duration_ms)
        await asyncio.sleep(0)


async def run(
    agent: Agent,
    clock: StepClock,
    hurry: asyncio.Event,
    *,
    notice_ms: float = NOTICE_MS,
    state: Draining | None = None,
) -> float:
    began_ms = clock.monotonic_ms()
    await SendingAway(
        state=state or Draining(), server=agent, others=agent, clock=clock, notice_ms=notice_ms, hurry=hurry
    ).run()
    return clock.monotonic_ms() - began_ms


async def test_it_closes_the_silent_ones_and_ends_soon_after_the_last_one_talked() -> None:
    clock = StepClock()
    agent = Agent(Line(clock), Line(clock))
    agent.lines[1].asked_ms = clock.monotonic_ms() + 10_000
    agent.lines[0].asked_ms = clock.monotonic_ms()
    assert 15_000 <= await run(agent, clock, asyncio.Event()) <= 16_000
    assert all(line.closed == "the agent stops" for line in agent.lines)


async def test_it_ends_with_the_notice_whoever_talks() -> None:
    clock = StepClock()
    agent = Agent(Line(clock))
    agent.lines[0].asked_ms = float("inf")
    assert NOTICE_MS <= await run(agent, clock, asyncio.Event()) <= NOTICE_MS + 1_000
    assert not agent.lines[0].closed


async def test_a_second_signal_ends_it() -> None:
    clock, hurry = StepClock(), asyncio.Event()
    agent = Agent(Line(clock))
    agent.lines[0].asked_ms = float("inf")
    asyncio.get_running_loop().call_soon(hurry.set)
    assert await run(agent, clock, hurry) < 1_000


async def test_the_last_agent_sends_nobody_to_itself() -> None:
    clock = StepClock()
    agent = Agent(Line(clock))
    agent.lines[0].asked_ms = float("inf")
    agent.is_last = True
    assert await run(agent, clock, asyncio.Event()) == 0


async def test_one_that_was_cut_off_for_another_reason_may_come_back_too() -> None:
    clock = StepClock()
    assert await run(Agent(), clock, asyncio.Event(), state=Draining(owes=True)) >= NOTICE_MS
