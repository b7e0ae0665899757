"""Refusals by the Postgres driver or the server, told apart from lost connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest
import sqlalchemy as sa
from click.testing import CliRunner
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.errors import MetadataUnavailableError, RightsMissingError
from metadata.postgres.connection import Database
from runtime.errors import BugError, Outcome
from runtime.runtime import Runtime
from siltstone.cli import main
from siltstone.cli.postgres_remedies import remedy_of
from tests.fixtures.postgres import run_sql
from tests.fixtures.releases import make_first_schema


async def test_what_the_driver_refuses_is_our_fault_and_a_connection_it_has_lost_is_not(postgres_url: str) -> None:
    database = Database(postgres_url, runtime=Runtime())
    many = sa.select(sa.literal(1).in_(list(range(33_000))))
    unfit = sa.select(sa.literal(2**63, sa.BigInteger))

    for query in (many, unfit):

        async def work(connection: AsyncConnection, query: sa.Select[tuple[object]] = query) -> object:
            return await connection.scalar(query)

        for call in (database.read, database.write):
            with pytest.raises(BugError, match="refuse"):
                await call(work)

    async def lose(connection: AsyncConnection) -> object:
        driver = (await connection.get_raw_connection()).driver_connection
        assert driver is not None
        driver.terminate()
        return await connection.scalar(sa.select(1))

    for call in (database.read, database.write):
        with pytest.raises(MetadataUnavailableError):
            await call(lose)
    await database.close()


@pytest.fixture
async def powerless_url(postgres_url: str) -> AsyncIterator[str]:
    """The database for a role that may only connect and read how new the database is."""
    role = f"powerless_{postgres_url.rpartition('/')[2]}"
    await run_sql(
        postgres_url,
        f"CREATE ROLE {role} LOGIN PASSWORD 'x'",
        f"GRANT SELECT ON schema_versions, alembic_version, cluster, files TO {role}",
    )
    yield f"postgresql://{role}:x@{postgres_url.rpartition('@')[2]}"
    await run_sql(postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_rights_that_are_missing_are_told_as_a_refusal_and_not_as_silence(powerless_url: str) -> None:
    database = Database(powerless_url, runtime=Runtime())

    async def work(connection: AsyncConnection) -> object:
        return await connection.scalar(sa.text("SELECT count(*) FROM topics"))

    async def slow(connection: AsyncConnection) -> object:
        await connection.execute(sa.text("SET statement_timeout = 10"))
        return await connection.scalar(sa.text("SELECT pg_sleep(5)"))

    for call in (database.read, database.write):
        with pytest.raises(RightsMissingError) as refused:
            await call(work)
        assert refused.value.message == "Postgres refused: permission denied for table topics"
        assert remedy_of(refused.value).startswith("run it as the owner of the schema")
        assert (refused.value.outcome, refused.value.retriable) == (Outcome.NOT_DONE, False)
        # a time-out may pass, so it is no refusal
        with pytest.raises(
            MetadataUnavailableError, match=r"^Postgres gave up: canceling statement due to statement t"
        ):
            await call(slow)
    await database.close()


def test_a_command_of_a_role_without_rights_says_what_it_lacks(powerless_url: str) -> None:
    for command in ("levels", "migrate"):
        ran = CliRunner().invoke(main, [command], env={"SILTSTONE_METADATA_URL": powerless_url})
        assert ran.exit_code == 1
        first, second = ran.stderr.splitlines()[:2]
        assert first.startswith("error: Postgres refused: permission denied for table "), ran.stderr
        assert second.startswith("remedy: run it as the owner of the schema, the role that ran `siltstone migrate`")


async def test_a_dry_run_says_which_rights_a_migration_would_lack(bare_postgres_url: str) -> None:
    """The dry run reports missing rights before the migration is tried, and changes nothing."""
    role = f"reader_{bare_postgres_url.rpartition('/')[2]}"
    url = f"postgresql://{role}:x@{bare_postgres_url.rpartition('@')[2]}"
    dry_run = ["migrate", "--dry-run", "--metadata", url]
    await run_sql(
        bare_postgres_url, f"CREATE ROLE {role} LOGIN PASSWORD 'x'", "REVOKE CREATE ON SCHEMA public FROM public"
    )
    try:
        # given no schema at all
        ran = await asyncio.to_thread(CliRunner().invoke, main, dry_run)
        assert (ran.exit_code, "this role lacks: CREATE in the schema public" in ran.stdout) == (1, True), ran.output
        # given an older schema that another role made
        await make_first_schema(bare_postgres_url)
        await run_sql(bare_postgres_url, f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}")
        ran = await asyncio.to_thread(CliRunner().invoke, main, dry_run)
        lacks = [line.removeprefix("this role lacks: ") for line in ran.stdout.splitlines() if "lacks" in line]
        assert ran.exit_code == 1 and lacks[0] == "CREATE in the schema public", ran.output
        assert "ownership of the table files" in lacks and "ownership of the table alembic_version" in lacks
        refused = await asyncio.to_thread(CliRunner().invoke, main, ["migrate", "--metadata", url])
        assert refused.exit_code == 1 and "Postgres refused" in refused.stderr
        # and its owner lacks no right
        ran = await asyncio.to_thread(CliRunner().invoke, main, [*dry_run[:3], bare_postgres_url])
        assert ran.exit_code == 0 and "lacks" not in ran.stdout
    finally:
        await run_sql(bare_postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
