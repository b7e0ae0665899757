"""The metadata stores that the contract suites run on."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.contract.metadata_worlds import MemoryWorld, PostgresWorld, World


@pytest.fixture(params=["memory", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    """A metadata store, once in memory and once in Postgres."""
    made: World
    made = MemoryWorld() if request.param == "memory" else PostgresWorld(request.getfixturevalue("postgres_url"))
    await made.service.open()
    yield made
    await made.close()
