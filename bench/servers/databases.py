"""Databases of benchmarks on one embedded Postgres: each case has a new one."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from metadata.migrations.migrate import migrate_async
from metadata.postgres.driver import open_connection
from siltstone.embedded.postgres import EmbeddedPostgres


@asynccontextmanager
async def migrated_database(server: EmbeddedPostgres, name: str) -> AsyncGenerator[str]:
    """The URL of a migrated database that is dropped at the end."""
    connection = await open_connection(server.url, connect_timeout_s=10, command_timeout_s=60, settings={})
    try:
        await connection.execute(f"CREATE DATABASE {name}")
        url = f"{server.url.rpartition('/')[0]}/{name}"
        await migrate_async(url)
        yield url
        await connection.execute(f"DROP DATABASE {name} WITH (FORCE)")
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
