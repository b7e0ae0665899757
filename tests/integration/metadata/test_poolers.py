"""Siltstone through a pooler: everything works in session mode, and any other mode is refused with the reason.

Each test runs against a stand-in on the wire, and against PgBouncer where the machine has it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from metadata.contract.errors import MetadataUnavailableError
from metadata.postgres.connection import connect
from metadata.postgres.driver import open_connection
from metadata.postgres.probes.facts import probe_postgres
from metadata.postgres.probes.pooler import Pooler, SharedBackendsError, find_pooler
from metadata.postgres.store import PostgresMetadata
from tests.fixtures.poolers import PoolerStandIn, pgbouncer

PROGRAMS = ("stand-in", "PgBouncer")


@contextmanager
def pooled(program: str, mode: str, url: str, folder: Path) -> Iterator[str]:
    """The database's URL through a pooler."""
    user, _, place = url.rpartition("@")
    database = place.partition("/")[2]
    if program == "PgBouncer":
        with pgbouncer(url, mode, folder) as port:
            yield f"{user}@127.0.0.1:{port}/{database}"
    else:
        with PoolerStandIn(url, mode) as stand_in:
            yield f"{user}@127.0.0.1:{stand_in.port}/{database}"


@pytest.mark.parametrize("program", PROGRAMS)
async def test_in_session_mode_a_connection_has_its_settings_and_the_store_hears_hints(
    program: str, postgres_url: str, tmp_path: Path
) -> None:
    with pooled(program, "session", postgres_url, tmp_path) as url:
        # given settings that a pooler takes in no startup message, and one that it does
        connection = await connect(url, application="siltstone-test", statement_timeout_ms=7_000)
        read = (
            "SELECT string_agg(name || '=' || setting, ' ' ORDER BY lower(name)) FROM pg_settings WHERE name = ANY($1)"
        )
        names = ["application_name", "default_transaction_isolation", "jit", "statement_timeout", "TimeZone"]
        assert await connection.fetchval(read, names) == (
            "application_name=siltstone-test default_transaction_isolation=read committed jit=off"
            " statement_timeout=7000 TimeZone=UTC"
        )
        await connection.close()
        # then the doctor calls the pooler by its name, and LISTEN and NOTIFY work through it
        assert (await probe_postgres(url)).pooler is Pooler.SESSION
        stores = [PostgresMetadata(url), PostgresMetadata(url)]
        for store in stores:
            await store.open()
        heard = asyncio.create_task(stores[1].agents.wait_for_agents(20_000))

        while not heard.done():  # a hint before the other listens is lost
            await stores[0].agents.announce_agents()
            await asyncio.wait([heard], timeout=0.1)
        assert await heard
        for store in stores:
            await store.close()


@pytest.mark.parametrize("program", PROGRAMS)
async def test_in_transaction_mode_a_process_and_the_doctor_refuse_and_say_why(
    program: str, postgres_url: str, tmp_path: Path
) -> None:
    with pooled(program, "transaction", postgres_url, tmp_path) as url:
        with pytest.raises(SharedBackendsError, match="transaction or statement mode") as refused:
            await probe_postgres(url)
        assert "pool_mode = session" in refused.value.remedy
        with pytest.raises(SharedBackendsError):
            await PostgresMetadata(url).open()


async def test_in_statement_mode_too(postgres_url: str, tmp_path: Path) -> None:
    with (
        pooled("PgBouncer", "statement", postgres_url, tmp_path) as url,
        pytest.raises(SharedBackendsError),
    ):
        await PostgresMetadata(url).open()


@pytest.mark.parametrize("program", PROGRAMS)
async def test_a_pooler_refuses_what_used_to_be_sent_at_startup(
    program: str, postgres_url: str, tmp_path: Path
) -> None:
    """Without this the tests above could pass before a pooler that takes everything."""
    import asyncpg  # pyright: ignore[reportMissingTypeStubs] - it has none

    with pooled(program, "session", postgres_url, tmp_path) as url:
        with pytest.raises(asyncpg.PostgresError, match="unsupported startup parameter: statement_timeout") as refused:
            await asyncpg.connect(url, server_settings={"statement_timeout": "7000"})
        assert refused.value.sqlstate == "08P01"


async def test_a_direct_connection_is_called_direct(postgres_url: str) -> None:
    connection = await connect(postgres_url)
    assert await find_pooler(connection, lambda: connect(postgres_url)) is Pooler.NONE
    await connection.close()


async def test_a_setting_that_postgres_refuses_ends_the_connection(postgres_url: str) -> None:
    with pytest.raises(Exception, match="no_such_setting"):
        await open_connection(postgres_url, connect_timeout_s=5, command_timeout_s=5, settings={"no_such_setting": "1"})
    with pytest.raises(MetadataUnavailableError, match="cannot connect"):
        await connect(postgres_url, statement_timeout_ms=-5)
