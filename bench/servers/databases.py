"""Databases of benchmarks on one embedded Postgres: each case has a new one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import sqlalchemy as sa
from alembic import command
from sqlalchemy.ext.asyncio import create_async_engine

from metadata.migrations.migrate import alembic_config, migrate_async
from metadata.postgres.driver import open_connection
from siltstone.embedded.postgres import EmbeddedPostgres


@asynccontextmanager
async def migrated_database(server: EmbeddedPostgres, name: str, *, revision: str = "head") -> AsyncGenerator[str]:
    """The URL of a database that is dropped at the end. It has this release's schema, or an earlier revision."""
    connection = await open_connection(server.url, connect_timeout_s=10, command_timeout_s=60, settings={})
    try:
        await connection.execute(f"CREATE DATABASE {name}")
        url = f"{server.url.rpartition('/')[0]}/{name}"
        if revision == "head":
            await migrate_async(url)
        else:
            await _upgrade(url, revision)
        yield url
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
    finally:
        await connection.close()


async def _upgrade(url: str, revision: str) -> None:
    def upgrade(connection: sa.Connection) -> None:
        config = alembic_config()
        config.attributes["connection"] = connection
        command.upgrade(config, revision)
        connection.execute(
            sa.text(
                "INSERT INTO cluster (cluster_id, adopted_system_identifier, adopted_timeline) VALUES ('bench', 1, 1)"
            )
        )

    engine = create_async_engine(url.replace("postgresql://", "postgresql+asyncpg://"))
    try:
        async with engine.begin() as connection:
            await connection.run_sync(upgrade)
    finally:
        await engine.dispose()


async def run_on(url: str, *statements: str) -> None:
    """Run statements, each by itself."""
    connection = await open_connection(url, connect_timeout_s=10, command_timeout_s=600, settings={})
    try:
        for statement in statements:
            await connection.execute(statement)
    finally:
        await connection.close()


async def wal_position(url: str) -> int:
    """Bytes of WAL that the server has written since it was made."""
    connection = await open_connection(url, connect_timeout_s=10, command_timeout_s=60, settings={})
    try:
        return int(await connection.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))
    finally:
        await connection.close()


@asynccontextmanager
async def held_snapshot(url: str, held: bool) -> AsyncGenerator[None]:
    """Another session sits in a transaction from before, if `held`: Postgres can prune nothing that dies meanwhile."""
    if not held:
        yield
        return
    connection = await open_connection(url, connect_timeout_s=10, command_timeout_s=60, settings={})
    try:
        await connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
        # A transaction takes its snapshot with its first query, not with BEGIN.
        await connection.fetchval("SELECT count(*) FROM cluster")
        yield
    finally:
        await connection.close()
