"""The rule of the write stall, and how one agent applies it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

import agents.write.stall
from agents.write.stall import (
    DELAY_MS_MAX,
    DELAY_MS_MIN,
    StallLevel,
    StallLimits,
    WriteStall,
    decide,
    decide_alarm,
    patience_ms,
)
from runtime.metrics import Metrics

LIMITS = StallLimits(stall_files=20, refuse_files=100)
REQUEST_TIMEOUT_MS = 30_000
"""The default of librdkafka and of the Java client."""
SECONDS_A_TEST_WOULD_FEEL = 2.0


def stall(limits: StallLimits = LIMITS) -> tuple[WriteStall, Metrics]:
    metrics = Metrics()
    return WriteStall(limits, metrics), metrics


def metric(metrics: Metrics, name: str, **labels: str) -> float:
    return metrics.registry.get_sample_value(f"siltstone_{name}", labels) or 0.0


@pytest.mark.parametrize("files", [0, 1, 19, 20])
def test_up_to_the_limit_nothing_is_delayed(files: int) -> None:
    verdict = decide(files, LIMITS)
    assert (verdict.level, verdict.delay_ms) == (StallLevel.NONE, 0)


def test_the_delay_grows_from_its_least_to_its_most_between_the_limits() -> None:
    delays = [decide(files, LIMITS).delay_ms for files in range(21, 101)]
    assert delays == sorted(delays)
    assert len(set(delays)) == len(delays)
    assert DELAY_MS_MIN <= delays[0] < 3 * DELAY_MS_MIN
    assert delays[39] == pytest.approx((DELAY_MS_MIN + DELAY_MS_MAX) / 2)
    assert delays[-1] == DELAY_MS_MAX
    assert all(decide(files, LIMITS).level is StallLevel.DELAYING for files in range(21, 101))


@pytest.mark.parametrize("files", [101, 10_000_000])
def test_above_the_second_limit_produce_is_refused(files: int) -> None:
    assert decide(files, LIMITS).level is StallLevel.REFUSING
    assert decide(files, LIMITS).delay_ms == DELAY_MS_MAX


def test_no_delay_comes_near_the_time_clients_give_a_request() -> None:
    assert DELAY_MS_MAX <= REQUEST_TIMEOUT_MS / 6
    assert patience_ms(REQUEST_TIMEOUT_MS, 0) > DELAY_MS_MAX
    # a client with a short timeout, and one whose request has waited for the store already
    assert patience_ms(1_000, 300) == 200
    assert patience_ms(1_000, 700) == 0


@pytest.mark.parametrize(
    ("limits", "level", "delay_ms"),
    [
        (StallLimits(stall_files=0, refuse_files=0), StallLevel.NONE, 0.0),
        (StallLimits(stall_files=20, refuse_files=0), StallLevel.DELAYING, DELAY_MS_MAX),
        (StallLimits(stall_files=0, refuse_files=100), StallLevel.REFUSING, DELAY_MS_MAX),
    ],
)
def test_zero_switches_a_limit_off(limits: StallLimits, level: StallLevel, delay_ms: float) -> None:
    verdict = decide(1_000_000, limits)
    assert (verdict.level, verdict.delay_ms) == (level, delay_ms)


def test_a_count_that_hovers_at_a_limit_is_one_alarm() -> None:
    alarm, alarms = StallLevel.NONE, list[StallLevel]()
    for files in [19, 20, 21, 20, 21, 19, 22, 101, 100, 99, 101, 95, 89, 50, 20, 19, 17, 3]:
        alarm = decide_alarm(alarm, files, LIMITS)
        alarms.append(alarm)
    changes = [one for number, one in enumerate(alarms) if number == 0 or one is not alarms[number - 1]]
    assert changes == [StallLevel.NONE, StallLevel.DELAYING, StallLevel.REFUSING, StallLevel.DELAYING, StallLevel.NONE]
    assert alarms[12] is StallLevel.DELAYING, "89 files are clearly below 100"


def test_each_level_is_said_once_with_its_remedy(capsys: pytest.CaptureFixture[str]) -> None:
    one, metrics = stall()
    for files in [5, 21, 22, 21, 30]:
        one.files_changed(files)
    said = capsys.readouterr().err
    assert said.count("answers to producers are delayed") == 1
    assert "check that a compactor runs and keeps up" in said
    assert 0 < metric(metrics, "write_stall_delay_seconds") < DELAY_MS_MAX / 1000
    assert (one.refusal, metric(metrics, "write_stall_refusing")) == (None, 0)
    for files in [101, 102]:
        one.files_changed(files)
    said = capsys.readouterr().err
    assert said.count("produce is refused") == 1
    assert "check that a compactor runs and keeps up" in said
    assert "l0.refuse.files (100)" in (one.refusal or "")
    assert metric(metrics, "write_stall_refusing") == 1
    one.files_changed(7)
    assert (one.refusal, one.delays) == (None, False)
    assert (metric(metrics, "write_stall_refusing"), metric(metrics, "write_stall_delay_seconds")) == (0, 0)


async def test_answers_are_held_back_as_long_as_the_rule_says() -> None:
    one, metrics = stall()
    one.files_changed(22)
    started = time.monotonic()
    await one.hold_back(REQUEST_TIMEOUT_MS)
    assert time.monotonic() - started >= decide(22, LIMITS).delay_ms / 1000
    assert metric(metrics, "produce_stalled_total", outcome="delayed") == 1


async def begun(one: WriteStall, count: int) -> Sequence[asyncio.Task[None]]:
    tasks = [asyncio.create_task(one.hold_back(REQUEST_TIMEOUT_MS)) for _ in range(count)]
    for _ in range(3):
        await asyncio.sleep(0)
    return tasks


async def test_answers_go_at_once_when_the_files_do() -> None:
    one, _ = stall()
    one.files_changed(99)
    held = await begun(one, 5)
    assert not any(task.done() for task in held)
    one.files_changed(20)
    async with asyncio.timeout(SECONDS_A_TEST_WOULD_FEEL):
        await asyncio.gather(*held)


async def test_an_agent_that_stops_holds_nothing_back() -> None:
    one, _ = stall()
    one.files_changed(99)
    held = await begun(one, 5)
    one.end()
    async with asyncio.timeout(SECONDS_A_TEST_WOULD_FEEL):
        await asyncio.gather(*held)
        one.files_changed(101)
        await one.hold_back(REQUEST_TIMEOUT_MS)


async def test_a_client_that_has_left_is_forgotten() -> None:
    one, _ = stall()
    one.files_changed(99)
    held = await begun(one, 3)
    for task in held:
        task.cancel()
    await asyncio.gather(*held, return_exceptions=True)
    assert not one._delayed


async def test_the_oldest_answer_leaves_when_there_are_too_many(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agents.write.stall, "DELAYED_MAX", 3)
    one, _ = stall()
    one.files_changed(99)
    held = await begun(one, 5)
    assert [task.done() for task in held] == [True, True, False, False, False]
    one.end()
    await asyncio.gather(*held)
