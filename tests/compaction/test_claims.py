"""What the tools say is gone is in no object of the bucket. Shown by random histories of compacted and plain topics
that share files: tombstones, DeleteRecords, topics deleted and created again, merges, forced passes, purges, grace.
"""

from __future__ import annotations

import asyncio
from collections import Counter

import pytest

from tests.compaction.claims import run_claims
from tests.compaction.histories import NO_HABITS, PARTIAL

SEEDS = 20
SOAK_FROM, SOAK_SEEDS = 2_000_000, 400


def run_seeds(seeds: range) -> tuple[Counter[str], list[str]]:
    asked: Counter[str] = Counter()
    failed: list[str] = []
    for seed in seeds:
        claims, world = asyncio.run(run_claims(seed, PARTIAL if seed % 2 else NO_HABITS))
        print(f"seed {seed}: {claims.asked}")
        asked.update(claims.asked)
        if world.violations:
            failed.append("\n".join([*world.says[-60:], *world.violations[:8]]))
    return asked, failed


@pytest.mark.timeout(300)
def test_what_is_said_to_be_gone_is_in_no_object() -> None:
    asked, failed = run_seeds(range(SEEDS))
    assert not failed, "\n\n".join(failed[:3])
    # and something was said to be gone
    assert asked["explain of values"] > 10 and asked["diagnose of values"] > 10, asked


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_what_is_said_to_be_gone_is_in_no_object_in_many_more_histories() -> None:
    _, failed = run_seeds(range(SOAK_FROM, SOAK_FROM + SOAK_SEEDS))
    assert not failed, "\n\n".join(failed[:3])
