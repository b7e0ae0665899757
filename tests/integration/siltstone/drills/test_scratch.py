"""The database of a drill: what it needs, and which ones it drops."""

from __future__ import annotations

import asyncio

import pytest

from metadata.postgres.backup.scratch import INT31, NoScratchError, scratch_database
from metadata.postgres.connection import connect
from runtime.ids import SystemIds
from tests.fixtures.postgres import AGENT_ROLE, as_role, run_sql


async def test_a_role_without_createdb_hears_what_to_do(postgres_url: str) -> None:
    with pytest.raises(NoScratchError) as refused:
        async with scratch_database(as_role(postgres_url, AGENT_ROLE), ids=SystemIds(), say=print):
            pass
    assert "CREATEDB" in refused.value.remedy and "--scratch" in refused.value.remedy


async def test_what_a_killed_drill_left_is_dropped_and_databases_of_others_stay(postgres_url: str) -> None:
    connection = await connect(postgres_url)
    try:
        own = await connection.fetchval("SELECT oid FROM pg_database WHERE datname = current_database()")
        left = f"siltstone_drill_{own}_{INT31}"
        others = {
            f"siltstone_drill_{own}_mine_7",
            f"siltstone_drill_{own}_{INT31 + 1}",
            f"siltstone_drill_{own}_99999999999999999999",
            f"siltstone_drill_{own}_٧",
            f"siltstone_drill_{own}_7\n",
            f"siltstonexdrill_{own}_7",
            f"siltstone_drill_{own}0_7",
        }
        for name in (left, *others):
            await connection.execute(f'CREATE DATABASE "{name}" TEMPLATE template0')
        said: list[str] = []
        async with scratch_database(postgres_url, ids=SystemIds(), say=said.append) as scratch:
            await run_sql(scratch.url, "SELECT 1")
            assert not scratch.lost.is_set()
        assert said == [f"dropped {left}, which a killed drill left"]
        rows = await connection.fetch("SELECT datname::text FROM pg_database WHERE datname LIKE 'siltstone_drill_%'")
        assert {row["datname"] for row in rows} == others
    finally:
        for name in (left, *others):
            await connection.execute(f'DROP DATABASE IF EXISTS "{name}"')
        await connection.close()


async def test_a_server_that_soon_ends_idle_sessions_leaves_the_drill_its_lock(postgres_url: str) -> None:
    await run_sql(postgres_url, f"ALTER DATABASE {postgres_url.rpartition('/')[2]} SET idle_session_timeout = 500")
    async with scratch_database(postgres_url, ids=SystemIds(), say=print) as scratch:
        await asyncio.sleep(1.5)
        assert not scratch.lost.is_set()
