"""The calls of an agent, over Postgres. A module of `metadata/postgres/log/` implements each of them.

Commits have a connection of their own; so do the tail and watermarks, together.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence

from metadata.configs.changes import Changes, ClusterDecision, TopicDecision
from metadata.contract.files import L0File
from metadata.contract.l0_commit import CommitL0, Committed, ProducerState
from metadata.contract.leases import AgentAddress, AgentInfo, WriterLease
from metadata.contract.tail import Cursor, Snapshot, Tail
from metadata.contract.topics import (
    Topic,
    Watermarks,
)
from metadata.postgres.connection import Database
from metadata.postgres.log.broker_configs import BrokerConfigs
from metadata.postgres.log.commit import Committer
from metadata.postgres.log.delete_records import delete_records
from metadata.postgres.log.leases import AgentLeases
from metadata.postgres.log.log import Log
from metadata.postgres.log.news import News
from metadata.postgres.log.producers import Producers
from metadata.postgres.log.topics import Topics
from metadata.transactions.contract import AbortedTransaction


class PostgresAgents:
    """Implements `AgentMetadata`."""

    def __init__(self, database: Database, news: News, *, producer_id_expiration_ms: int) -> None:
        self._database = database
        self._news = news
        self._leases = AgentLeases(database)
        self._topics = Topics(database)
        self._broker_configs = BrokerConfigs(database)
        self._producers = Producers(database)
        self._log = Log(database)
        self._committer = Committer(database, producer_id_expiration_ms=producer_id_expiration_ms)

    async def close(self) -> None:
        await self._committer.close()
        await self._log.close()

    # -- the lease

    async def register_agent(self, address: AgentAddress, *, instead_of: WriterLease | None = None) -> WriterLease:
        return await self._leases.register_agent(address, instead_of=instead_of)

    async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
        return await self._leases.heartbeat(lease, draining=draining)

    async def unregister_agent(self, lease: WriterLease) -> None:
        await self._leases.unregister_agent(lease)

    async def live_agents(self) -> Sequence[AgentInfo]:
        return await self._leases.live_agents()

    async def wait_for_agents(self, timeout_ms: float) -> bool:
        return await self._news.wait_for_agents(timeout_ms)

    async def announce_agents(self) -> None:
        await self._news.announce_agents()

    # -- topics and configs

    async def list_topics(self) -> Sequence[Topic]:
        return await self._topics.list_topics()

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int = 1,
        cluster_partitions_max: int | None = None,
    ) -> Topic:
        return await self._topics.create_topic(
            name,
            partitions=partitions,
            configs=configs,
            replication_factor=replication_factor,
            cluster_partitions_max=cluster_partitions_max,
        )

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        await self._topics.delete_topic(topic_id)

    async def create_partitions(
        self, topic_id: uuid.UUID, count: int, *, cluster_partitions_max: int | None = None
    ) -> Topic:
        return await self._topics.create_partitions(topic_id, count, cluster_partitions_max=cluster_partitions_max)

    async def alter_configs(self, topic_id: uuid.UUID, changes: Changes | TopicDecision) -> Topic:
        return await self._topics.alter_configs(topic_id, changes)

    async def alter_broker_configs(self, changes: Changes | ClusterDecision) -> Mapping[str, str]:
        return await self._broker_configs.alter_broker_configs(changes)

    # -- producers

    async def allocate_producer_ids(self, count: int) -> range:
        return await self._producers.allocate_producer_ids(count)

    async def producer_states(self, partition_ids: Sequence[int] | None = None) -> Sequence[ProducerState]:
        return await self._producers.producer_states(partition_ids)

    # -- the log

    async def commit_l0(self, request: CommitL0) -> Committed:
        return await self._committer.commit_l0(request)

    async def watermarks(self, partition_ids: Sequence[int]) -> Mapping[int, Watermarks]:
        return await self._log.watermarks(partition_ids)

    async def delete_records(self, partition_id: int, offset: int) -> int:
        return await delete_records(self._database, partition_id, offset)

    async def aborted_transactions(self, bases: Mapping[int, int]) -> Sequence[AbortedTransaction]:
        return await self._log.aborted_transactions(bases)

    async def leveled_bytes(self, partition_ids: Sequence[int]) -> Mapping[int, int]:
        return await self._log.leveled_bytes(partition_ids)

    # -- the tail

    async def snapshot(self) -> Snapshot:
        return await self._log.snapshot()

    async def live_files(self, snapshot: Snapshot, after: int) -> Sequence[L0File]:
        return await self._log.live_files(snapshot, after)

    async def tail(self, cursor: Cursor) -> Tail:
        return await self._log.tail(cursor)

    async def wait_for_news(self, timeout_ms: float) -> None:
        await self._news.wait_for_news(timeout_ms)

    def hears_news(self) -> bool:
        return self._news.hears_news

    async def notify(self) -> None:
        await self._news.notify()
