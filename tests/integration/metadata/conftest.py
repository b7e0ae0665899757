"""A store, and a session beside it, on the test's own database."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from metadata.postgres.connection import connect
from metadata.postgres.driver import Connection
from metadata.postgres.store import PostgresMetadata


@pytest.fixture
async def service(postgres_url: str) -> AsyncIterator[PostgresMetadata]:
    made = PostgresMetadata(postgres_url)
    await made.open()
    yield made
    await made.close()


@pytest.fixture
async def session(postgres_url: str) -> AsyncIterator[Connection]:
    """A separate session for the test: it holds locks, watches and kills."""
    made = await connect(postgres_url)
    yield made
    await made.close()
