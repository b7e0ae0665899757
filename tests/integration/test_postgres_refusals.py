"""What the Postgres driver refuses by itself, beside what a lost connection looks like."""

from __future__ import annotations

import pytest
import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.postgres_connection import Database
from metadata.service import MetadataUnavailableError
from siltstone.clock import SystemClock
from siltstone.errors import BugError
from siltstone.ids import SystemIds


async def test_what_the_driver_refuses_is_our_fault_and_a_connection_it_has_lost_is_not(postgres_url: str) -> None:
    database = Database(postgres_url, clock=SystemClock(), ids=SystemIds())
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
