"""What the tools say is gone is in no object of the bucket. Shown by random histories of compacted and plain topics
that share files: tombstones, DeleteRecords, topics deleted and created again, merges, forced passes, purges, grace.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from metadata.postgres.store import PostgresMetadata
from runtime.clock import ManualClock
from storage.local import LocalStore
from tests.compaction.claims import CLAIMS, run_claims
from tests.compaction.histories import NO_HABITS, PARTIAL
from tests.compaction.world import World
from tests.fixtures.postgres import run_sql

SEEDS = range(40, 60)
"""One history in ten asks a claim beside an object without a row that holds what was removed; six of these do."""
REAL_SEEDS = (3, 8)
SOAK_FROM, SOAK_SEEDS = 2_000_000, 400


class PushedClock(ManualClock):
    """A manual clock that a Postgres follows."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self._url, self._thread = url, ThreadPoolExecutor(1)
        self._push()

    def advance_ms(self, duration_ms: float) -> None:
        super().advance_ms(duration_ms)
        self._push()

    def _push(self) -> None:
        now = f"CREATE OR REPLACE FUNCTION clock_ms() RETURNS bigint LANGUAGE sql AS 'SELECT {self.wall_ms()}::bigint'"
        self._thread.submit(lambda: asyncio.run(run_sql(self._url, now))).result()


@dataclass
class RealWorld(World):
    """The same histories on Postgres and a directory. No commit becomes visible late: that is the memory store's."""

    url: str = ""
    folder: Path = Path()

    def new_clock(self) -> ManualClock:
        return PushedClock(self.url)

    def stores(self) -> Any:
        return PostgresMetadata(self.url), LocalStore(self.folder)

    async def begin(self) -> None:
        await self.objects.open()
        await super().begin()

    async def close(self) -> None:
        await self.metadata.close()
        await self.objects.close()

    async def write_late(self) -> None: ...


def run_seeds(seeds: range) -> tuple[Counter[str], list[str]]:
    asked: Counter[str] = Counter()
    failed: list[str] = []
    for seed in seeds:
        world = World(seed)
        claims = asyncio.run(run_claims(world, PARTIAL if seed % 2 else NO_HABITS))
        print(f"seed {seed}: {claims.asked}")
        asked.update(claims.asked)
        if world.violations:
            failed.append("\n".join([*world.says[-60:], *world.violations[:8]]))
    return asked, failed


@pytest.mark.timeout(300)
def test_what_is_said_to_be_gone_is_in_no_object() -> None:
    asked, failed = run_seeds(SEEDS)
    assert not failed, "\n\n".join(failed[:3])
    # and something was said to be gone
    assert min(asked[f"{kind} of values"] for kind in CLAIMS) > 10, asked


@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", REAL_SEEDS)
async def test_what_is_said_to_be_gone_is_in_no_object_on_postgres_and_a_directory(
    seed: int, postgres_url: str, tmp_path: Path
) -> None:
    world = RealWorld(seed, url=postgres_url, folder=tmp_path)
    try:
        claims = await run_claims(world, NO_HABITS, periods=2)
    finally:
        await world.close()
    print(f"seed {seed}: {claims.asked}")
    assert not world.violations, "\n".join([*world.says[-60:], *world.violations[:8]])
    assert claims.asked["diagnose of values"]


@pytest.mark.soak
@pytest.mark.timeout(3000)
def test_what_is_said_to_be_gone_is_in_no_object_in_many_more_histories() -> None:
    _, failed = run_seeds(range(SOAK_FROM, SOAK_FROM + SOAK_SEEDS))
    assert not failed, "\n\n".join(failed[:3])
