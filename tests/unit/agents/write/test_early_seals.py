"""Early seals help clients that wait for us, and only them, within a budget: whole rounds in virtual time."""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from agents.write.budget import EarlyBudget, early_per_second, share_of
from agents.write.buffer import SealReason
from tests.unit.agents.write.closed_loop import (
    KIB,
    OPTIONS,
    Answers,
    Behaviour,
    Client,
    Pause,
    Wait,
    World,
    one_by_one,
    trickle,
    windowed,
)

ROOT = Path(__file__).resolve().parents[4]
PRICED = replace(OPTIONS, early_per_second=20)
LEARNING_MS = 1_000.0
"""Two rounds of 250 ms and their answers."""


@pytest.mark.parametrize("window", [1, 5])
@pytest.mark.parametrize(("put_ms", "commit_ms"), [(1.0, 1.0), (3.0, 2.0), (30.0, 3.0)])
def test_a_client_with_a_full_window_is_bound_by_the_put_and_the_commit(
    window: int, put_ms: float, commit_ms: float
) -> None:
    world = World(put_ms, commit_ms, replace(OPTIONS, early_per_second=1_000))
    world.client(windowed(window, 16 * KIB))
    world.run(20)
    # Every eighth second one round is held for 110 ms.
    rounds = len(world.files_since(LEARNING_MS))
    assert rounds >= 0.9 * 19_000 / (put_ms + commit_ms + 1 + 0.1 * window)
    carried = sum(file.requests for file in world.files_since(LEARNING_MS))
    assert carried >= 0.95 * window * rounds, "a round goes into one file"


@pytest.mark.parametrize("answer_ms", [2.0, 5.0, 35.0, 100.0, 300.0])
@pytest.mark.parametrize("interval_ms", [*range(1, 40, 3), *range(40, 400, 9), 750, 1000])
def test_a_trickle_keeps_its_linger(interval_ms: float, answer_ms: float) -> None:
    world = World(answer_ms - 1, 1.0)
    world.client(trickle(interval_ms))
    world.run(30)
    assert len(world.files) <= 30 * 4 + 1


@pytest.mark.parametrize("interval_ms", [3, 7, 8, 9, 11, 20, 33, 45, 60, 90])
def test_a_trickle_that_was_answered_quickly_because_of_others_keeps_its_linger_afterwards(interval_ms: float) -> None:
    world = World(3.0, 2.0)
    world.client(trickle(interval_ms))
    world.client(windowed(1, 16 * KIB, until_ms=10_000))
    world.run(40)
    assert len(world.files_since(12_000)) <= 28 * 4 + 1


def test_a_client_that_stops_waiting_and_trickles_in_step_with_its_answers_is_found_out() -> None:
    world = World(3.0, 2.0)
    one = world.client(windowed(1, 16 * KIB, until_ms=5_000))
    world.run(6)
    # The same connection, now by the clock: 3 ms after each answer, so every round looks like one that waited.
    one.behave(trickle(8))
    world.run(60)
    assert len(world.files_since(20_000)) <= 46 * 4 + 1


def test_records_that_trickle_in_ride_along_and_have_no_say() -> None:
    alone = World(3.0, 2.0)
    alone.client(windowed(5, 16 * KIB))
    alone.run(10)
    beside = World(3.0, 2.0)
    beside.client(windowed(5, 16 * KIB))
    other = beside.client(trickle(1.3))
    beside.run(10)
    assert len(beside.files) >= 0.9 * len(alone.files)
    assert sorted(other.answer_times_ms)[len(other.answer_times_ms) // 2] < 20


def test_a_client_that_waited_once_and_trickles_now_does_not_hold_up_others() -> None:
    world = World(3.0, 2.0)
    one = world.client(windowed(1, 16 * KIB, until_ms=5_000))
    world.run(6)
    one.behave(trickle(8))
    world.client(windowed(1, 16 * KIB))
    world.run(40)
    assert len(world.files_since(36_000)) >= 0.9 * 10_000 / 6.1


def test_a_file_that_was_sealed_for_another_reason_leaves_nobody_to_wait_for() -> None:
    world = World(3.0, 2.0)
    five, one = (world.client(windowed(window, 4 * KIB, until_ms=3_000)) for window in (5, 1))
    world.run(4)
    for _ in range(2):
        five.send(KIB)
    assert len(world.buffer.take(SealReason.LINGER, world.now_ms)) == 2
    one.send(KIB)
    assert (world.files[-1].sealed_ms, world.files[-1].reason) == (world.now_ms, SealReason.EARLY)


def test_a_request_that_is_still_coming_is_awaited() -> None:
    world = World(3.0, 2.0)
    client = world.client(windowed(2, 4 * KIB, until_ms=3_000))
    world.run(4)
    client.send(KIB)
    client.sender.arriving(world.now_ms + 2.9)
    due_ms = world.now_ms + 2.9 + OPTIONS.early_idle_ms
    assert world.buffer.due(due_ms - 0.1) is None
    assert world.buffer.due(due_ms) is SealReason.EARLY


def test_fifty_writers_that_wait_share_their_files() -> None:
    world = World(3.0, 2.0)
    for number in range(50):
        world.client(one_by_one(think_ms=0.2 + number / 25))
    world.run(10)
    files = world.files_since(LEARNING_MS)
    assert len(files) >= 0.8 * 9_000 / (3 + 2 + 2.2)
    assert sum(file.requests for file in files) >= 40 * len(files)


def test_a_client_that_thinks_for_long_keeps_its_linger() -> None:
    world = World(3.0, 2.0)
    client = world.client(one_by_one(think_ms=745))
    world.run(20)
    assert {file.reason for file in world.files} == {SealReason.LINGER}
    assert min(client.answer_times_ms) >= 250


def test_a_busy_python_client_is_not_left_to_the_linger() -> None:
    """Its network thread waits for the main thread: it is back after 10 to 95 ms, in no order."""
    chance = Random(7)

    def busy(client: Client) -> Generator[Wait]:
        while True:
            client.send(16 * KIB)
            yield Answers(0)
            yield Pause(chance.uniform(10, 95))

    world = World(3.0, 2.0)
    world.client(busy)
    world.run(30)
    assert {file.reason for file in world.files_since(LEARNING_MS)} == {SealReason.EARLY}


@pytest.mark.parametrize(("linger_ms", "is_known"), [(100, False), (120, True)])
def test_a_linger_too_short_for_a_proof_alone_bounds_the_wait(linger_ms: float, is_known: bool) -> None:
    world = World(3.0, 2.0, replace(OPTIONS, linger_ms=linger_ms))
    world.client(windowed(1, 16 * KIB))
    world.run(10)
    assert (SealReason.EARLY in {file.reason for file in world.files}) == is_known


def test_a_slow_reader_of_answers_does_not_hold_up_a_quick_one() -> None:
    world = World(3.0, 2.0)
    world.client(windowed(1, 16 * KIB))
    world.client(one_by_one(think_ms=40))
    world.run(10)
    assert len(world.files_since(LEARNING_MS)) >= 0.75 * 9_000 / 6.1


def test_a_client_bound_by_its_own_cpu_is_not_held_to_the_linger() -> None:
    """Its window fills in 6.5 ms. Answered sooner than that it never waits, and held longer it always does."""
    world = World(2.0, 1.0)
    client = world.client(windowed(5, 16 * KIB, return_ms=0, pause_ms=1.3))
    world.run(20)
    assert len(client.answer_times_ms) >= 0.5 * 20_000 / 1.3


@pytest.mark.parametrize("size", [KIB, 80 * KIB, 256 * KIB])
def test_the_budget_bounds_the_files_by_time_and_by_bytes(size: int) -> None:
    world = World(20.0, 3.0, replace(PRICED, early_tokens_max=100))
    for _ in range(4):
        world.client(windowed(1, size, return_ms=3))
    world.run(60)
    early = [file for file in world.files if file.reason is SealReason.EARLY]
    carried = sum(file.bytes for file in early)
    assert len(early) <= 100 + 60 * 20 + carried / (512 * KIB) + 1
    assert len(early) >= 60 * 20 * 0.9, "and they are spent"


def test_without_tokens_waiting_clients_gather_in_fewer_and_larger_files() -> None:
    world = World(20.0, 3.0, replace(PRICED, early_tokens_max=1))
    for number in range(20):
        world.client(windowed(1, 4 * KIB, return_ms=3 + number / 10))
    world.run(20)
    files = world.files_since(LEARNING_MS)
    assert len(files) <= 19 * 20 / (1 - 80 / 512) + 1
    assert sum(file.requests for file in files) >= 15 * len(files)


def test_large_batches_are_free_however_many() -> None:
    world = World(10.0, 2.0, replace(PRICED, early_tokens_max=1))
    world.client(windowed(1, 1_000_000, return_ms=2))
    world.run(10)
    assert len(world.files_since(LEARNING_MS)) >= 0.9 * 9_000 / (10 + 2 + 2 + OPTIONS.early_idle_ms)


@pytest.mark.parametrize("per_second", [0, 20])
def test_no_early_seal_when_it_is_switched_off(per_second: int) -> None:
    world = World(3.0, 2.0, replace(OPTIONS, early_per_second=per_second))
    if per_second:
        world.buffer.set_early_share(0.0, 0.0)
    world.client(windowed(1, 600 * KIB))
    world.run(10)
    assert {file.reason for file in world.files} == {SealReason.LINGER}


# ---- the budget


def test_tokens_are_spent_and_come_back_at_the_rate() -> None:
    budget = EarlyBudget(per_second=10, free_bytes=1000, tokens_max=2)
    for _ in range(2):
        assert budget.affordable_ms(0, 0.0) == 0.0
        budget.spend(0, 0.0)
    assert budget.affordable_ms(0, 0.0) == pytest.approx(100.0)
    assert budget.affordable_ms(500, 0.0) == pytest.approx(50.0), "half of it is carried"
    assert budget.affordable_ms(1000, 0.0) == 0.0, "large files cost nothing"
    budget.spend(0, 100.0)
    assert budget.affordable_ms(0, 150.0) == pytest.approx(200.0)
    budget.set_share(0.5, 150.0)
    assert budget.affordable_ms(0, 150.0) == pytest.approx(250.0), "half the rate for the half that is missing"
    assert budget.affordable_ms(0, 200.0) == pytest.approx(250.0), "and half of it has come by now"


def test_a_long_rest_gives_no_more_than_the_bucket_holds() -> None:
    budget = EarlyBudget(per_second=10, free_bytes=1000, tokens_max=2)
    for _ in range(2):
        budget.spend(0, 1e9)
    assert budget.affordable_ms(0, 1e9) > 1e9


def test_the_rate_falls_while_merges_lag_behind() -> None:
    assert [share_of(live, 1000) for live in (0, 500, 750, 1000, 5000)] == [1, 1, 0.5, 0, 0]
    assert share_of(10**6, 0) == 1, "without a write stall there is no bound to approach"


def test_the_rate_by_the_store() -> None:
    assert early_per_second(-1, "s3://bucket/prefix") == 20
    assert early_per_second(-1, "file:///data") == early_per_second(-1, "memory://") == 250
    assert early_per_second(0, "s3://bucket") == 0
    assert early_per_second(7, "file:///data") == 7


# ---- the page


CLIENTS: Mapping[str, Sequence[Behaviour]] = {
    "1 request of 16 KiB at a time": [windowed(1, 16 * KIB)],
    "5 of 16 KiB": [windowed(5, 16 * KIB)],
    "5 of 96 KiB": [windowed(5, 96 * KIB)],
    "1 of 1 MB": [windowed(1, 1_000_000)],
    "50 clients, 1 of 1 KiB each": [one_by_one(0.2 + number / 50) for number in range(50)],
    "a record of 1 KiB every 8 ms": [trickle(8)],
    "the same beside 5 of 16 KiB": [trickle(8), windowed(5, 16 * KIB)],
    "a record, its answer, 750 ms of thought": [one_by_one(750)],
}
NEVER = replace(OPTIONS, early_per_second=0)
COLUMNS = (
    # PUT and commit in ms
    (2.0, 1.0, NEVER),
    (2.0, 1.0, OPTIONS),
    (30.0, 3.0, NEVER),
    (30.0, 3.0, PRICED),
    (30.0, 3.0, replace(PRICED, early_tokens_max=1)),
)


def rows() -> list[str]:
    lines: list[str] = []
    for name, behaviours in CLIENTS.items():
        cells: list[str] = []
        for put_ms, commit_ms, options in COLUMNS:
            world = World(put_ms, commit_ms, options)
            for behaviour in behaviours:
                world.client(behaviour)
            world.run(LEARNING_MS / 1000 + 8)
            files = world.files_since(LEARNING_MS)
            cells.append(f"{sum(file.bytes for file in files) / 8e6:.2f}, {len(files) / 8:.0f}")
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return lines


def test_the_page_shows_these_results() -> None:
    page = (ROOT / "docs" / "decisions" / "0009-early-seals.md").read_text()
    for row in rows():
        assert row in page, f"the table should say\n{chr(10).join(rows())}"
