"""Broker configs in Postgres.

Order of locks in an alteration: the row of `cluster`, the topics' rows by id, the lock of `changes`. No other
transaction waits for a topic while it holds the row of `cluster`, or for the row of `cluster` while it holds a topic,
and none locks more than one topic's row. So none of them can deadlock with an alteration.
"""

from __future__ import annotations

from collections.abc import Mapping

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.configs.broker import topic_defaults
from metadata.configs.changes import Changes, ClusterDecision, changed
from metadata.contract.tail import ChangeKind
from metadata.postgres.connection import Database
from metadata.postgres.rows import (
    append_change,
)
from metadata.postgres.tables import (
    CLUSTER,
    TOPICS,
)

BROKER_CONFIGS_SET = sa.select(CLUSTER.c.broker_configs)
"""One row and column: the cluster-wide broker configs that are set, by Kafka's names."""

CONFIGS_IN_FORCE = sa.type_coerce(
    sa.select(CLUSTER.c.topic_defaults).scalar_subquery().op("||")(TOPICS.c.configs), JSONB
).label("configs")
"""The configs in force of a row of `topics`: its overrides over the cluster-wide defaults."""

TOPICS_IN_FORCE = sa.select(
    TOPICS.c.topic_id, TOPICS.c.name, CONFIGS_IN_FORCE, TOPICS.c.config_version, TOPICS.c.created_ms
)

_MOVE_VERSIONS = sa.text(
    """UPDATE topics t SET config_version = t.config_version + 1
    FROM (SELECT topic_id FROM topics ORDER BY topic_id FOR NO KEY UPDATE) AS locked
    WHERE t.topic_id = locked.topic_id"""
)


class BrokerConfigs:
    """Part of `PostgresAgents`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def alter_broker_configs(self, changes: Changes | ClusterDecision) -> Mapping[str, str]:
        async def work(connection: AsyncConnection) -> Mapping[str, str]:
            present = sa.select(CLUSTER.c.broker_configs).with_for_update(key_share=True)
            before: Mapping[str, str] = (await connection.execute(present)).scalar_one()
            decided = changes(before) if callable(changes) else changes
            if not decided:
                return before
            configs = changed(before, decided)
            defaults = topic_defaults(configs)
            values = {"broker_configs": configs, "topic_defaults": defaults}
            await connection.execute(sa.update(CLUSTER).values(values))
            # A topic's configs in force include the defaults, so a change of the defaults gives every topic a new
            # version.
            if defaults != topic_defaults(before):
                await connection.execute(_MOVE_VERSIONS)
            await append_change(connection, ChangeKind.BROKER_CONFIGS_CHANGED, None, {"configs": configs})
            return configs

        return await self._database.write(work)
