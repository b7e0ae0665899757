"""The metadata store over Postgres >= 15. SQLAlchemy Core runs the cold queries; one prepared call runs the commit.

Connections of one store: a pool of 4 (up to 8), one for commits, one for commits of offsets, one to enter and one to
end transactions, one for the tail and watermarks, one to listen and one to notify. No connection stays in a transaction
between two calls.
"""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.store import ClusterIdentity
from metadata.postgres.agents import PostgresAgents
from metadata.postgres.backup.dump import PostgresBackup
from metadata.postgres.compactors import PostgresCompactors
from metadata.postgres.connection import Database
from metadata.postgres.deletion import PostgresDeletion
from metadata.postgres.erasures.erasures import PostgresErasures
from metadata.postgres.groups.groups import PostgresGroups
from metadata.postgres.log.news import News
from metadata.postgres.operators import PostgresOperators
from metadata.postgres.readers import PostgresReaders
from metadata.postgres.rows import now_ms
from metadata.postgres.security.security import PostgresSecurity
from metadata.postgres.tables import CLUSTER
from metadata.postgres.transactions.transactions import PostgresTransactions
from runtime.runtime import Runtime


class PostgresMetadata:
    """Implements `MetadataStore`. Its parts share one `Database`. A test may replace a part by its own."""

    def __init__(
        self,
        url: str,
        *,
        runtime: Runtime | None = None,
        producer_id_expiration_ms: int = 86_400_000,
    ) -> None:
        database = Database(url, runtime=runtime or Runtime())
        self._database = database
        self._news = News(database)
        self.agents = PostgresAgents(database, self._news, producer_id_expiration_ms=producer_id_expiration_ms)
        self.groups = PostgresGroups(database)
        self.compactors = PostgresCompactors(database, self._news)
        self.deletion = PostgresDeletion(database, producer_id_expiration_ms=producer_id_expiration_ms)
        self.erasures = PostgresErasures(database)
        self.security = PostgresSecurity(database, self._news)
        self.transactions = PostgresTransactions(database)
        self.readers = PostgresReaders(database)
        self.operators = PostgresOperators(database)
        self.backup = PostgresBackup(database)

    async def open(self) -> None:
        """Raises SchemaMismatchError, UnsafeDatabaseError, MetadataUnavailableError, RightsMissingError."""
        await self._database.open()
        self._news.start()

    async def close(self) -> None:
        await self._news.close()
        await self.agents.close()
        await self.groups.close()
        await self.transactions.close()
        await self._database.close()

    async def cluster_identity(self) -> ClusterIdentity:
        async def work(connection: AsyncConnection) -> ClusterIdentity:
            row = (await connection.execute(sa.select(CLUSTER.c.cluster_id, CLUSTER.c.store_bound))).one()
            return ClusterIdentity(cluster_id=row.cluster_id, store_bound=row.store_bound)

        return await self._database.read(work)

    async def bind_store(self) -> None:
        async def work(connection: AsyncConnection) -> None:
            await connection.execute(sa.update(CLUSTER).values(store_bound=True))

        await self._database.write(work)

    async def now_ms(self) -> int:
        return await self._database.read(now_ms)
