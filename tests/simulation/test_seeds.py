"""Many runs, each under a seed of its own. README.md explains how to replay one and how to read the counts."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from tests.simulation.faults import Kind, never
from tests.simulation.planted import PLANTED
from tests.simulation.summary import record
from tests.simulation.transactions.orders import ELSEWHERE, Order, never_seen
from tests.simulation.transactions.transactions import has_transactions
from tests.simulation.world import Outcome, run_seed

ROOT = Path(__file__).resolve().parents[2]
FIRST_SEED, SEEDS, SLICED_SEEDS = 110, 80, 30
"""Some paths are taken under one seed of a hundred. Whoever changes the order of callbacks may have to begin elsewhere:
`python -m tests.simulation` counts the paths of a seed."""
TRANSACTION_SEEDS_TO = 400
"""One seed of five has transactions. Some of their orders come about in one of thirty of these."""
SOAK_FROM, SOAK_SEEDS = 1_000_000, 2_500
RecordProperty = Callable[[str, object], None]


def run_seeds(seeds: Sequence[int]) -> tuple[Counter[Kind], list[Outcome]]:
    counts: Counter[Kind] = Counter()
    failed: list[Outcome] = []
    for seed in seeds:
        outcome = run_seed(seed)
        counts += outcome.counts
        if outcome.violations:
            failed.append(outcome)
    return counts, failed


def run_by_hand(*options: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "tests.simulation", *options],
        cwd=ROOT,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=100,
    )


@pytest.mark.timeout(300)
def test_every_promise_is_kept_under_every_seed(record_property: RecordProperty) -> None:
    # when the world runs under each seed, with the faults that the seed draws
    counts, failed = run_seeds(range(FIRST_SEED, FIRST_SEED + SEEDS))
    record(record_property, counts, SEEDS)
    # then no promise was broken
    assert not failed, "\n\n".join(map(str, failed))
    # and the seeds were worth running: every fault fired, every in-doubt path was taken
    assert never(counts) == []


@pytest.mark.timeout(900)
def test_every_promise_of_transactions_is_kept_and_the_rare_orders_come_about(record_property: RecordProperty) -> None:
    # when the world runs under seeds with transactions
    seeds = [seed for seed in range(TRANSACTION_SEEDS_TO) if has_transactions(seed)]
    counts, failed = run_seeds(seeds)
    record(record_property, counts, len(seeds))
    # then no promise was broken
    assert not failed, "\n\n".join(map(str, failed))
    # and each order of events that can come about here did
    assert never_seen(counts) == []


def test_the_orders_that_cannot_come_about_here_have_tests_elsewhere() -> None:
    here = {int(str(order).split()[1].rstrip(":")) for order in Order}
    assert here | ELSEWHERE.keys() == set(range(1, 37))
    assert not here & ELSEWHERE.keys()
    tests = [each.partition("::") for each in ELSEWHERE.values()]
    assert [name for path, _, name in tests if f"def {name}(" not in (ROOT / path).read_text()] == []


def test_every_promise_is_kept_where_agents_take_in_row_by_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("agents.yielding.LOAD_SLICE", 1)
    _, failed = run_seeds(range(SLICED_SEEDS))
    assert not failed, "\n\n".join(map(str, failed))


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("first", range(SOAK_FROM, SOAK_FROM + 4 * SOAK_SEEDS, SOAK_SEEDS))
def test_every_promise_is_kept_under_many_more_seeds(first: int, record_property: RecordProperty) -> None:
    counts, failed = run_seeds(range(first, first + SOAK_SEEDS))
    record(record_property, counts, SOAK_SEEDS)
    assert not failed, "\n\n".join(map(str, failed))


def test_a_seed_is_one_run_whatever_the_process_and_its_hash_seed() -> None:
    # when two processes that hash strings differently run the same seeds
    traces = [run_by_hand("--seeds", "0-5", "--hash", PYTHONHASHSEED=seed).stdout.splitlines() for seed in ("1", "2")]
    # then every event of every run came at the same time in the same order
    assert traces[0] == traces[1]
    # and runs of different seeds differ
    assert len({line.split()[1] for line in traces[0]}) == 6


def test_a_seed_that_fails_can_be_replayed_by_the_command_it_prints() -> None:
    # given a run that breaks a promise
    name = "serves-over-a-gap"
    with PLANTED[name]():
        failed = next(
            outcome for outcome in (run_seed(seed, planted=name) for seed in range(12, 100)) if outcome.violations
        )
    assert f"seed {failed.seed}" in str(failed)
    # when the command in its text is run
    python, m, module, *options = failed.replay.split()
    assert (python, m, module) == ("python", "-m", "tests.simulation")
    replayed = run_by_hand(*options)
    # then it breaks the same promise, and the trace shows the way to it
    assert replayed.returncode == 1
    assert failed.violations[0] in replayed.stdout
    assert "is ready" in replayed.stdout
