"""The metadata contracts over Postgres >= 15: cold queries by SQLAlchemy Core, the commit by one prepared call.

Connections of one service: a pool of 4 (up to 8), one for commits, one for commits of offsets, one for the tail and
watermarks, one each to listen and to notify. None stays in a transaction between two calls.
"""

from __future__ import annotations

from metadata.contract.service import CommitL0, Committed
from metadata.postgres.admin import PostgresAdmin
from metadata.postgres.catalogue import PostgresCatalog
from metadata.postgres.connection import Database
from metadata.postgres.groups.groups import PostgresGroups
from metadata.postgres.log.agents import PostgresAgents
from metadata.postgres.log.commit import Committer
from metadata.postgres.log.log import PostgresLog
from metadata.postgres.log.news import PostgresNews
from metadata.postgres.log.topics import PostgresTopics
from metadata.postgres.merges.commit import PostgresMerge
from metadata.postgres.merges.jobs import PostgresJobs
from metadata.postgres.merges.retention import PostgresRetention
from metadata.postgres.merges.views import PostgresCompaction
from metadata.postgres.observation import PostgresObservation
from metadata.postgres.scan import PostgresScan
from runtime.runtime import Runtime


class PostgresMetadata(
    PostgresAgents,
    PostgresTopics,
    PostgresLog,
    PostgresJobs,
    PostgresMerge,
    PostgresCompaction,
    PostgresRetention,
    PostgresGroups,
    PostgresAdmin,
    PostgresObservation,
    PostgresScan,
    PostgresCatalog,
):
    """All contracts: those that `metadata.contract.compaction.Metadata` names. The parents are its parts; each works
    on the one
    `Database`."""

    def __init__(
        self,
        url: str,
        *,
        runtime: Runtime | None = None,
        producer_id_expiration_ms: int = 86_400_000,
    ) -> None:
        database = Database(url, runtime=runtime or Runtime())
        PostgresAgents.__init__(self, database)
        PostgresTopics.__init__(self, database)
        PostgresLog.__init__(self, database, producer_id_expiration_ms=producer_id_expiration_ms)
        PostgresRetention.__init__(self, database, producer_id_expiration_ms=producer_id_expiration_ms)
        PostgresGroups.__init__(self, database)
        self._committer = Committer(database, producer_id_expiration_ms=producer_id_expiration_ms)
        self._postgres_news = PostgresNews(database)

    async def open(self) -> None:
        """Raises SchemaMismatchError, UnsafeDatabaseError, MetadataUnavailableError."""
        await self._database.open()
        self._postgres_news.start()

    async def close(self) -> None:
        await self._postgres_news.close()
        await self._committer.close()
        await PostgresGroups.close(self)
        await PostgresLog.close(self)
        await self._database.close()

    async def commit_l0(self, request: CommitL0) -> Committed:
        return await self._committer.commit_l0(request)

    async def wait_for_news(self, timeout_ms: float) -> None:
        await self._postgres_news.wait_for_news(timeout_ms)

    async def notify(self) -> None:
        await self._postgres_news.notify()

    async def wait_for_agents(self, timeout_ms: float) -> bool:
        return await self._postgres_news.wait_for_agents(timeout_ms)

    async def announce_agents(self) -> None:
        await self._postgres_news.announce_agents()
