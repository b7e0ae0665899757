"""The simulation finds the bugs that it exists to find: each is planted, and seeds run until one shows it."""

from __future__ import annotations

import pytest

from tests.simulation import planted_access, planted_seals, planted_transactions
from tests.simulation.access.access import has_acls
from tests.simulation.planted import PLANTED
from tests.simulation.transactions.transactions import has_transactions
from tests.simulation.world import has_kinds, run_seed

SEEDS_MAX = 256
FIRST_SEED = {
    "asks-anew-what-was-aborted": 140,
    "commits-into-the-next-transaction": 37,
    "commits-without-a-look-at-transactions": 37,
    "ends-anew-after-a-doubt": 1326,
    "moves-offsets-after-the-commit": 29,
    "rebalances-over-offsets-on-their-way": 31,
    "takes-ids-without-an-epoch": 1028,
    "times-out-whatever-is-open": 29,
    "times-out-without-a-new-epoch": 274,
    "commits-an-aborted-key": 5,
    "deletes-without-winning-the-key": 5,
    "fences-nobody": 276,
    "fills-the-bucket-twice": 47,
    "goes-on-after-a-doubt": 12,
    "judges-a-parked-fetch-once": 28,
    "judges-without-a-lease": 1943,
    "keeps-rights-over-a-change": 10,
    "never-seals-early": 8,
    "reads-producers-before-the-locks": 7,
    "seals-again-what-is-in-doubt": 12,
    "seals-early-in-a-stall": 20,
    "serves-over-a-gap": 12,
    "takes-a-put-in-doubt-for-done": 5,
    "takes-a-trickle-for-blocked": 47,
    "takes-no-tokens": 47,
}
"""A seed that showed the bug, so that those before it, which do not, are not run each time; else 0. Where another order
of callbacks asks for a later seed, that one is found, and named in the output."""
OF_THE_SEAL_RULE = {name for name, plant in PLANTED.items() if plant.__module__ == planted_seals.__name__}
"""Only producers that wait and trickles can show these."""
OF_RIGHTS = {name for name, plant in PLANTED.items() if plant.__module__ == planted_access.__name__}
"""Only runs with ACLs can show these. The others are looked for in runs without, which cost half as much."""
OF_TRANSACTIONS = {name for name, plant in PLANTED.items() if plant.__module__ == planted_transactions.__name__}
"""Only runs with transactions can show these, and the others are looked for in runs without."""


def _may_show(seed: int, name: str) -> bool:
    if has_transactions(seed) != (name in OF_TRANSACTIONS):
        return False
    return has_acls(seed) == (name in OF_RIGHTS) and (name not in OF_THE_SEAL_RULE or has_kinds(seed))


@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_bug_is_found(name: str) -> None:
    # given a bug in the product
    with PLANTED[name]():
        # when seeds run, one after the other
        first = FIRST_SEED.get(name, 0)
        seeds = (seed for seed in range(first, first + SEEDS_MAX) if _may_show(seed, name))
        outcomes = (run_seed(seed, planted=name) for seed in seeds)
        found = next((outcome for outcome in outcomes if outcome.violations), None)
    # then one of the first shows it
    assert found is not None, f"{SEEDS_MAX} seeds did not show it"
    print(f"{name}: seed {found.seed}: {found.violations[0]}")
    # and as a broken promise, not as an exception in the planted code
    assert "Traceback" not in found.violations[0]
