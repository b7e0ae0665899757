"""Random histories of a compacting cluster, each from its seed: see README.md on how to replay one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import pytest

from compactor.planning.spec import MergeKind
from tests.compaction.histories import ACTIONS, NO_ERASURES, NO_HABITS, PARTIAL, Outcome, run_seed
from tests.compaction.planted import IN_ERASURES, PLANTED

SEEDS = 50
SOAK_FROM, SOAK_SEEDS = 1_000_000, 10_000
FIRST_SEEDS = {
    "deletes-without-aborting": 216,
    "drops-tombstones-of-partial-merges": 283,
    "erases-at-the-mark": 6,
    "forgets-the-clear": 22,
    "stamps-as-the-best-input": 4,
}
"""Where to begin to look for a planted bug that few histories show."""
MUST_HAPPEN = frozenset(
    {"write", "late", "arbitrary", "run", "not run", "overflow", "deep", "commit", "trimmed", "crash", "JobLostError"}
    | {"poison", "delete records", "expire", "sweep", "policy", "recreate", "request", "reader at the end"}
    | {"erasure", "erasure with tombstones", "erasure pending", "erasure done", "records erased", "erasing blocked"}
    | {"arbitrary erasing merge", "sent again", "commit unreached", "commit in doubt"}
    | {f"job {kind}" for kind in MergeKind}
)


def run_seeds(seeds: range, habits: Mapping[str, float], *, heavy: bool = False) -> tuple[Counter[str], list[Outcome]]:
    counts: Counter[str] = Counter()
    failed: list[Outcome] = []
    for seed in seeds:
        outcome = run_seed(seed, habits=habits, heavy=heavy)
        counts.update(outcome.counts)
        if outcome.violations:
            failed.append(outcome)
    return counts, failed


@pytest.mark.timeout(400)
def test_nothing_is_lost_and_nothing_comes_back_in_any_history() -> None:
    counts, failed = run_seeds(range(SEEDS), NO_HABITS)
    more, more_failed = run_seeds(range(SEEDS, 2 * SEEDS), PARTIAL)
    failed, counts = failed + more_failed, counts + more
    assert not failed, "\n\n".join(map(str, failed[:3]))
    # and the histories meant something
    assert not (missing := MUST_HAPPEN - counts.keys()), f"never happened: {sorted(missing)}"


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Units end inside extents too: blocks, between which they may be cut, are single batches."""
    monkeypatch.setattr("storage.format.file_writer.BLOCK_BYTES", 1)


@pytest.mark.usefixtures("small_blocks")
def test_nothing_is_lost_and_nothing_comes_back_where_merges_are_cut_into_units() -> None:
    counts, failed = run_seeds(range(6), NO_HABITS, heavy=True)
    more, more_failed = run_seeds(range(6, 12), PARTIAL, heavy=True)
    failed, counts = failed + more_failed, counts + more
    assert not failed, "\n\n".join(map(str, failed[:3]))
    assert counts["units"] > counts["commit"] - counts["job level"]
    assert counts["crash"]


@pytest.mark.soak
@pytest.mark.timeout(3000)
@pytest.mark.usefixtures("small_blocks")
def test_nothing_is_lost_and_nothing_comes_back_where_very_many_merges_are_cut_into_units() -> None:
    _, failed = run_seeds(range(SOAK_FROM, SOAK_FROM + SOAK_SEEDS // 20), NO_HABITS, heavy=True)
    _, more = run_seeds(range(SOAK_FROM + SOAK_SEEDS // 2, SOAK_FROM + 11 * SOAK_SEEDS // 20), PARTIAL, heavy=True)
    failed += more
    assert not failed, "\n\n".join(map(str, failed[:3]))


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_nothing_is_lost_and_nothing_comes_back_in_many_more_histories() -> None:
    _, failed = run_seeds(range(SOAK_FROM, SOAK_FROM + SOAK_SEEDS // 2), NO_HABITS)
    _, more = run_seeds(range(SOAK_FROM + SOAK_SEEDS // 2, SOAK_FROM + SOAK_SEEDS), PARTIAL)
    failed += more
    assert not failed, "\n\n".join(map(str, failed[:3]))


def test_a_seed_is_one_history() -> None:
    said = run_seed(7).says
    assert said == run_seed(7).says
    assert said != run_seed(8).says
    assert {name for name, _ in ACTIONS} >= {"crash", "arbitrary", "recreate"}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", sorted(PLANTED))
def test_a_planted_bug_is_found(name: str) -> None:
    # given a rule removed from the product, of a kind that lost data in a simpler design
    seeds = range(first := FIRST_SEEDS.get(name, 0), first + 200)
    with PLANTED[name]():
        habits = PARTIAL if name in IN_ERASURES else {**PARTIAL, **NO_ERASURES}
        found = next((seed for seed in seeds if run_seed(seed, habits=habits).violations), None)
    # then some history shows it
    assert found is not None, f"{name} was not found in 200 histories"
