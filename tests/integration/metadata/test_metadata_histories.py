"""Postgres against the memory store: random histories must get the same answers and leave the same rows in both.

The strongest oracles of the tree, the simulation and the histories of compaction, run on the memory store. These
histories carry what they prove to Postgres.
"""

from __future__ import annotations

import pytest

from tests.fixtures.metadata_histories import History
from tests.fixtures.security_histories import SecurityHistory, told_state
from tests.fixtures.transaction_histories import TransactionHistory
from tests.fixtures.twin_metadata import Twins

STEPS = 700
MUST_HAPPEN = frozenset(
    {"commit_merge", "trimmed", "expired", "silent", "kept", "duplicate", "error 45", "error 3", "delete_topic"}
    | {"JobLostError", "CommitRefusedError", "AddressTakenError", "gave index", "cold", "warm"}
)
"""In each history of `SEEDS`; another one need not delete a topic, say. `kept`: a dead file that a reader's pin may
protect."""
SEEDS, SOAK_SEEDS = range(2), (2, 3, *range(1_000, 1_040))


@pytest.mark.parametrize("seed", [*SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in SOAK_SEEDS)])
async def test_after_every_call_of_a_history_both_stores_hold_the_same(seed: int, postgres_url: str) -> None:
    print(f"seed {seed}")
    async with Twins(postgres_url) as twins:
        history = History(twins, seed)
        await history.begin()
        for _ in range(STEPS):
            await history.step()
    print(history.counts)
    if seed in SEEDS:
        assert not (missing := {name for name in MUST_HAPPEN if not history.counts[name]}), f"never happened: {missing}"


SECURITY_STEPS = 300
SECURITY_SEEDS = range(2)
SECURITY_MUST_HAPPEN = frozenset(
    {"changed", "same", "behind", "nobody behind", "deleted acls", "report_seen"}
    | {"demands of others", "others without demands", "forgotten demands"}
)


@pytest.mark.parametrize("forgets", [False, True])
@pytest.mark.parametrize(
    "seed", [*SECURITY_SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(100, 110))]
)
async def test_users_acls_and_quotas_are_the_same_in_both_stores(seed: int, forgets: bool, postgres_url: str) -> None:
    print(f"seed {seed}")
    async with Twins(postgres_url) as twins:
        history = SecurityHistory(twins, seed, forgets=forgets)
        await history.begin()
        for _ in range(SECURITY_STEPS):
            await history.step()
        if not forgets:
            assert told_state(twins) == (set(twins.database.acls), twins.database.quotas)
    print(history.counts)
    if seed in SECURITY_SEEDS:
        assert not (missing := {name for name in SECURITY_MUST_HAPPEN if not history.counts[name]}), missing


TRANSACTION_STEPS = 700
TRANSACTION_SEEDS = range(2)
TRANSACTIONS_MUST_HAPPEN = frozenset(
    {"begun", "several markers", "commit 0", "abort 0", "fence 0", "commit 48", "entered 0"}
    | {"entered 90", "added 0", "init of an ongoing one"}
    | {"transactional error 0", "transactional error 48", "transactional error 47"}
    | {"offsets 0 False", "offsets 48 False", "pending", "pending over a committed one", "deleted pending ones"}
    | {"expired offsets", "kept for a transaction"}
)


@pytest.mark.parametrize(
    "seed", [*TRANSACTION_SEEDS, *(pytest.param(seed, marks=pytest.mark.soak) for seed in range(200, 240))]
)
async def test_transactions_are_the_same_in_both_stores(seed: int, postgres_url: str) -> None:
    print(f"seed {seed}")
    async with Twins(postgres_url) as twins:
        history = TransactionHistory(twins, seed)
        await history.begin()
        for _ in range(TRANSACTION_STEPS):
            await history.step()
    print(history.counts)
    if seed in TRANSACTION_SEEDS:
        assert not (missing := {name for name in TRANSACTIONS_MUST_HAPPEN if not history.counts[name]}), missing
