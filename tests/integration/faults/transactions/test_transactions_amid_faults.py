"""Transactions of real clients, of both protocols, at three agents that are killed, frozen and cut off, while Postgres
crashes and the store fails. Whatever the clients were told, and whatever readers saw meanwhile, is judged at the end.
"""

from __future__ import annotations

import random
import time

import pytest

from tests.fixtures.compactors import CompactorProcesses
from tests.fixtures.faults import Postgres, Processes
from tests.fixtures.idempotent_load import fresh_seed
from tests.fixtures.s3 import BucketUrl, S3Server
from tests.integration.faults.transactions.nemesis import ALL, BESIDE, SHORT, strike_and_heal
from tests.integration.faults.transactions.system import BOTH, FIRST, SECOND, TURNED, Mix, system


@pytest.mark.timeout(900)
def test_transactions_are_whole_whatever_happens(
    postgres: Postgres, processes: Processes, moto_server: S3Server, s3_url: BucketUrl
) -> None:
    chance = random.Random(seed := fresh_seed())
    store_url, began_s = s3_url(), time.monotonic()
    with system(
        postgres, processes, endpoint=moto_server.endpoint, store_url=store_url, mix=BOTH, seed=seed
    ) as running:
        running.clients.until_more(5)
        for strike in chance.sample(SHORT, len(SHORT)):
            print(f"{time.monotonic() - began_s:.0f} s: {strike.__name__}")
            strike_and_heal(running.reach, chance, strike)
            running.clients.until_more(3)
        running.finish()


@pytest.mark.soak
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("mix", [BOTH, TURNED, FIRST, SECOND], ids=["both", "turned", "first", "second"])
def test_transactions_are_whole_in_minutes_of_faults(
    postgres: Postgres,
    processes: Processes,
    compactors: CompactorProcesses,
    moto_server: S3Server,
    s3_url: BucketUrl,
    mix: Mix,
) -> None:
    """Compactors merge the files meanwhile, and the janitor deletes them."""
    chance = random.Random(seed := fresh_seed())
    store_url, began_s = s3_url(), time.monotonic()
    with system(
        postgres,
        processes,
        endpoint=moto_server.endpoint,
        store_url=store_url,
        mix=mix,
        seed=seed,
        compactors=compactors,
    ) as running:
        running.clients.until_more(5)
        for strike in chance.sample(ALL * 2, len(ALL) * 2):
            beside = [each for each in BESIDE if each is not strike and chance.random() < 0.15]
            print(f"{time.monotonic() - began_s:.0f} s:", *(each.__name__ for each in (strike, *beside[:2])))
            strike_and_heal(running.reach, chance, strike, *beside[:2])
            running.clients.until_more(3)
        running.finish(readers_after=len(running.plan.addresses))
        merges = postgres.value("SELECT count(*) FROM merge_jobs WHERE state = 'done'")
        print(f"{merges} merges")
        assert merges > 0
