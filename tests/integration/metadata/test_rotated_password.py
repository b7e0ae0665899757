"""A Postgres password that changes under running processes: each new connection reads it from a file again."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import urlsplit

import pytest

from metadata.contract.errors import MetadataUnavailableError
from metadata.postgres.store import PostgresMetadata
from tests.fixtures.postgres import run_sql

ROLE = "rotated"


async def lines_lost(url: str) -> None:
    """End every connection of the role, like a failover or a restart of Postgres."""
    await run_sql(url, f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{ROLE}'")


async def test_a_changed_password_in_a_password_file_is_taken_by_the_next_connection(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts, file = urlsplit(postgres_url), tmp_path / "pgpass"
    url = f"postgresql://{ROLE}@{parts.hostname}:{parts.port}{parts.path}"

    def write(password: str) -> None:
        new = file.with_suffix(".new")
        new.touch(mode=0o600)
        new.write_text(f"*:*:*:{ROLE}:{password}\n")
        new.replace(file)

    write("first")
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setenv("PGPASSFILE", str(file))
    await run_sql(postgres_url, f"CREATE ROLE {ROLE} SUPERUSER LOGIN PASSWORD 'first'")
    service = PostgresMetadata(url)
    try:
        await service.open()
        before = await service.cluster_identity()
        # when the password is changed, then existing connections go on
        await run_sql(postgres_url, f"ALTER ROLE {ROLE} PASSWORD 'second'")
        assert await service.cluster_identity() == before
        # but no new one can be made until the file has the new password
        await lines_lost(postgres_url)
        with pytest.raises(MetadataUnavailableError, match="password authentication failed"):
            await service.cluster_identity()
        write("second")
        assert await service.cluster_identity() == before
    finally:
        await service.close()
        await run_sql(postgres_url, f"DROP ROLE {ROLE}")
