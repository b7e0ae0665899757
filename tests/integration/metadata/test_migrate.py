"""Migrations: once, again, two at once, and against a lock. Also compares the tables with the code's definitions."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from click.testing import CliRunner
from sqlalchemy.ext.asyncio import create_async_engine

from metadata.contract.errors import MetadataUnavailableError, SchemaMismatchError
from metadata.migrations import migrate as module
from metadata.migrations.migrate import migrate, migrate_async, schema_revision
from metadata.postgres.connection import connect
from metadata.postgres.store import PostgresMetadata
from metadata.postgres.tables import METADATA, SCHEMA_REVISION
from siltstone.cli import main
from siltstone.embedded.postgres import EmbeddedPostgres, postgres_processes
from tests.fixtures.postgres import database_url, run_sql


async def identity(url: str) -> str:
    service = PostgresMetadata(url)
    await service.open()
    found = await service.cluster_identity()
    await service.close()
    return found.cluster_id


async def test_migrating_again_changes_nothing_and_keeps_the_cluster_id(bare_postgres_url: str) -> None:
    assert await schema_revision(bare_postgres_url) is None
    assert await migrate_async(bare_postgres_url) == SCHEMA_REVISION
    before = await identity(bare_postgres_url)

    assert await migrate_async(bare_postgres_url) == SCHEMA_REVISION

    assert (await identity(bare_postgres_url), await schema_revision(bare_postgres_url)) == (before, SCHEMA_REVISION)


def test_the_command_says_whether_it_did_anything(bare_postgres_url: str) -> None:
    said = [CliRunner().invoke(main, ["migrate", "--metadata", bare_postgres_url]).stdout for _ in range(2)]

    assert said == [f"schema: {SCHEMA_REVISION} (created)\n", f"schema: {SCHEMA_REVISION}, as this release wants it\n"]


def test_the_page_on_upgrades_shows_what_the_command_prints(bare_postgres_url: str) -> None:
    page = (Path(__file__).resolve().parents[3] / "docs" / "operations" / "upgrades.md").read_text(encoding="utf-8")
    shown = page.split("```console\n", 1)[1].split("```", 1)[0]
    dry, real = (
        CliRunner().invoke(main, ["migrate", *words, "--metadata", bare_postgres_url]) for words in (["--dry-run"], [])
    )
    printed = [line for line in shown.splitlines() if not line.startswith("$ ")]
    assert printed == [*dry.stdout.splitlines(), *real.stdout.splitlines()]


def test_the_postgres_of_a_data_directory_runs_for_as_long_as_the_command(tmp_path: Path) -> None:
    refused = CliRunner().invoke(main, ["migrate", "--data", str(tmp_path)])
    assert refused.exit_code == 1 and "contains no metadata of `siltstone dev`" in refused.stderr
    with EmbeddedPostgres(tmp_path / "postgres"):
        pass
    said: list[str] = []
    for options in ([], ["--dry-run"]):
        done = CliRunner().invoke(main, ["migrate", "--data", str(tmp_path), *options])
        assert done.exit_code == 0, done.output
        said += done.stdout.splitlines()

    assert said[0] == f"schema: {SCHEMA_REVISION} (created)"
    assert said[1:] == [f"schema: {SCHEMA_REVISION}", f"target: {SCHEMA_REVISION}", "nothing to do", "no program runs"]
    # and no role is missed there: the programs of `siltstone dev` run as the owner
    status = CliRunner().invoke(main, ["upgrade", "status", "--data", str(tmp_path)])
    assert status.exit_code == 0 and "ROLE" not in status.stdout, status.output
    assert postgres_processes(tmp_path / "postgres" / "data") == []
    twice = CliRunner().invoke(main, ["migrate", "--data", str(tmp_path), "--metadata", "postgresql://db/x"])
    assert twice.exit_code == 2 and "give either --data or --metadata" in twice.stderr


async def test_two_migrations_at_once_make_one_schema_and_one_cluster(bare_postgres_url: str) -> None:
    revisions = await asyncio.gather(migrate_async(bare_postgres_url), migrate_async(bare_postgres_url))

    assert revisions == [SCHEMA_REVISION] * 2
    assert await identity(bare_postgres_url)


async def test_a_migration_gives_up_on_a_lock_that_is_not_free(
    bare_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LOCK_TIMEOUT_MS", 50)
    holder = await connect(bare_postgres_url)
    await holder.execute(f"SELECT pg_advisory_lock({module.MIGRATION_LOCK})")

    with pytest.raises(MetadataUnavailableError, match="not free within 50 ms"):
        await migrate_async(bare_postgres_url)

    await holder.close()
    assert await schema_revision(bare_postgres_url) is None


async def test_a_schema_from_the_future_is_left_alone(postgres_url: str) -> None:
    await run_sql(postgres_url, "UPDATE alembic_version SET version_num = '9999'")

    with pytest.raises(SchemaMismatchError, match="9999"):
        await migrate_async(postgres_url)


def test_migrating_needs_no_file_in_the_working_directory_and_no_event_loop(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)

    assert migrate(postgres_url) == SCHEMA_REVISION
    assert list(tmp_path.iterdir()) == []


async def test_the_tables_of_the_code_are_those_of_the_migrations(postgres_url: str) -> None:
    engine = create_async_engine(postgres_url.replace("postgresql://", "postgresql+asyncpg://"))

    def differences(connection: sa.Connection) -> Any:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        return compare_metadata(context, METADATA)

    async with engine.connect() as connection:
        found = await connection.run_sync(differences)
    await engine.dispose()

    assert found == []


async def test_the_hot_tables_leave_room_for_updates_in_place(postgres_url: str) -> None:
    line = await connect(postgres_url)
    rows = await line.fetch("SELECT relname, array_to_string(reloptions, ' ') AS options FROM pg_class")
    await line.close()
    options = {row["relname"]: row["options"] or "" for row in rows}

    for table, fill in {"watermarks": 10, "writers": 50, "producer_states": 50, "agents": 50}.items():
        assert f"fillfactor={fill}" in options[table], table
        assert "autovacuum_vacuum_threshold=1000" in options[table], table


async def test_ids_are_drawn_one_by_one(postgres_url: str) -> None:
    """A sequence that caches ids per session could give an older file id to a later commit."""
    line = await connect(postgres_url)
    rows = await line.fetch("SELECT sequencename, cache_size FROM pg_sequences")
    await line.close()

    cached = {row["sequencename"]: row["cache_size"] for row in rows}
    assert cached["file_ids"] == cached["change_ids"] == 1


async def test_a_dump_read_into_another_database_of_the_server_halts_the_janitor(
    bare_postgres_url: str, postgres_server: str
) -> None:
    await migrate_async(bare_postgres_url)
    service = PostgresMetadata(bare_postgres_url)
    await service.open()
    assert (await service.deletion.history()).halts == ""
    await service.close()
    # when its rows are in another database, as after a restore from a dump
    name = f"{bare_postgres_url.rpartition('/')[2]}_copy"
    await run_sql(postgres_server, f"CREATE DATABASE {name} TEMPLATE {name.removesuffix('_copy')}")
    try:
        service = PostgresMetadata(database_url(postgres_server, name))
        await service.open()
        history = await service.deletion.history()
        assert history.halts.startswith(
            "the metadata are in a different database of the same Postgres server than before: oid"
        )
        # and the janitor halts until an operator adopts this database
        await service.operators.adopt_history(history.present)
        assert (await service.deletion.history()).halts == ""
        await service.close()
    finally:
        await run_sql(postgres_server, f"DROP DATABASE {name} WITH (FORCE)")
