"""Topics in Postgres: one transaction per change, with a row in `changes` as its last step.

Order of locks: the lock of growth, if partitions are added; the topic's row; watermark rows by id; the name's row in
`deleted_topics`; the locks of `metadata/postgres/rows.py`; the lock of `changes`. The commit function takes only
watermark rows, also by id, so the two cannot deadlock. A deletion waits for commits in flight. A later commit finds no
watermark row and refuses the batches. A deletion also waits for merges, and kills the extents that they put in.

A deletion reads its time after it has locked the watermarks. So every producer with state on the topic has an older
producer id. A new topic of the same name waits at the unique index of the name, so its partitions see that time.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import aggregate_order_by, insert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.configs.changes import Changes, TopicDecision, changed
from metadata.contract.tail import ChangeKind
from metadata.contract.topics import Topic
from metadata.postgres.connection import Database
from metadata.postgres.groups.offsets import delete_offsets_of_topic
from metadata.postgres.log.broker_configs import BROKER_CONFIGS_SET
from metadata.postgres.rows import append_change, begin_killing, kill_extents, now_ms
from metadata.postgres.tables import (
    DELETED_TOPICS,
    EXTENTS,
    LOG_STARTS,
    PARTITIONS,
    PRODUCER_STATES,
    TOPICS,
    WATERMARKS,
)
from metadata.postgres.transactions.tables import ABORTED_TRANSACTIONS, TRANSACTION_PARTITIONS
from metadata.rules.refusals import check_cluster_partitions, not_more_partitions, topic_exists, unknown_topic_id

# Copies the time at which a predecessor of the same name was deleted: the commit then reads nothing more for it.
_INSERT_PARTITIONS = sa.text(
    """WITH made AS (
        INSERT INTO partitions (topic_id, partition, created_ms, predecessor_deleted_ms)
        SELECT t.topic_id, n, clock_ms(), d.deleted_ms
        FROM topics t LEFT JOIN deleted_topics d ON d.name = t.name,
            generate_series(:first ::integer, :last ::integer) AS n
        WHERE t.topic_id = :topic_id ORDER BY n
        RETURNING partition_id, partition
    )
    SELECT array_agg(partition_id ORDER BY partition) FROM made"""
).bindparams(sa.bindparam("topic_id", type_=sa.Uuid))
GROWTH_LOCK = 7_310_575_222
# What concerns each partition stays in the store: rows or ids of 100,000 would hold up the agent's event loop.
_TOPIC_ID = sa.bindparam("topic_id", type_=sa.Uuid)
_INSERT_WATERMARKS = sa.text(
    """INSERT INTO watermarks (partition_id) SELECT partition_id FROM partitions
    WHERE topic_id = :topic_id AND partition BETWEEN :first AND :last"""
).bindparams(_TOPIC_ID)
_INSERT_LOG_STARTS = sa.text(
    """INSERT INTO log_starts (partition_id) SELECT partition_id FROM partitions
    WHERE topic_id = :topic_id AND partition BETWEEN :first AND :last"""
).bindparams(_TOPIC_ID)
_LOCK_WATERMARKS = sa.text(
    """SELECT count(*) FROM (
        SELECT w.partition_id FROM watermarks w JOIN partitions p ON p.partition_id = w.partition_id
        WHERE p.topic_id = :topic_id ORDER BY w.partition_id FOR UPDATE OF w
    ) AS locked"""
).bindparams(_TOPIC_ID)
_LOCK_LOG_STARTS = sa.text(
    """SELECT count(*) FROM (
        SELECT l.partition_id FROM log_starts l JOIN partitions p ON p.partition_id = l.partition_id
        WHERE p.topic_id = :topic_id ORDER BY l.partition_id FOR NO KEY UPDATE OF l
    ) AS locked"""
).bindparams(_TOPIC_ID)


class Topics:
    """Part of `PostgresAgents`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def create_topic(
        self,
        name: str,
        *,
        partitions: int,
        configs: Mapping[str, str],
        replication_factor: int = 1,
        cluster_partitions_max: int | None = None,
    ) -> Topic:
        topic_id = self._database.ids.uuid4()

        async def work(connection: AsyncConnection) -> Topic:
            await _begin_growing(connection, cluster_partitions_max)
            made = sa.insert(TOPICS).values(
                topic_id=topic_id,
                name=name,
                configs=dict(configs),
                created_ms=sa.text("clock_ms()"),
                replication_factor=replication_factor,
            )
            try:
                created_ms = (await connection.execute(made.returning(TOPICS.c.created_ms))).scalar_one()
            # Not looked up before: two creators at once would both find the name free. The unique index decides.
            except IntegrityError as error:
                raise topic_exists(name) from error
            await _check_growth(connection, partitions, cluster_partitions_max)
            partition_ids = await _add_partitions(connection, topic_id, range(partitions))
            topic = Topic(
                topic_id=topic_id,
                name=name,
                partition_ids=partition_ids,
                configs=dict(configs),
                created_ms=created_ms,
                replication_factor=replication_factor,
            )
            detail = {
                "partition_ids": list(partition_ids),
                "configs": dict(configs),
                "created_ms": created_ms,
                "replication_factor": replication_factor,
            }
            await _append(connection, ChangeKind.TOPIC_CREATED, topic, detail)
            return topic

        return await self._database.write(work)

    async def delete_topic(self, topic_id: uuid.UUID) -> None:
        async def work(connection: AsyncConnection) -> None:
            await begin_killing(connection)
            topic = await _locked(connection, topic_id)
            gone = sa.select(PARTITIONS.c.partition_id).where(PARTITIONS.c.topic_id == topic_id)
            # Wait for commits in flight before the time is read and the extents are looked up.
            await connection.execute(_LOCK_WATERMARKS, {"topic_id": topic_id})
            deleted = insert(DELETED_TOPICS).values(name=topic.name, deleted_ms=sa.text("clock_ms()"))
            again = {"deleted_ms": deleted.excluded.deleted_ms}
            await connection.execute(deleted.on_conflict_do_update(index_elements=["name"], set_=again))
            await connection.execute(_LOCK_LOG_STARTS, {"topic_id": topic_id})
            live = sa.select(EXTENTS.c.extent_id).where(EXTENTS.c.partition_id.in_(gone), EXTENTS.c.state == "live")
            dying = sorted((await connection.execute(live)).scalars())
            await kill_extents(connection, dying, at_ms=await now_ms(connection))
            for table in (WATERMARKS, LOG_STARTS, PRODUCER_STATES, TRANSACTION_PARTITIONS, ABORTED_TRANSACTIONS):
                await connection.execute(sa.delete(table).where(table.c.partition_id.in_(gone)))
            for table in (PARTITIONS, TOPICS):
                await connection.execute(sa.delete(table).where(table.c.topic_id == topic_id))
            await delete_offsets_of_topic(connection, topic_id)  # late, because all commits of offsets wait for it
            detail = {"partition_ids": list(topic.partition_ids)}
            await _append(connection, ChangeKind.TOPIC_DELETED, topic, detail)

        await self._database.write(work)

    async def alter_configs(self, topic_id: uuid.UUID, changes: Changes | TopicDecision) -> Topic:
        async def work(connection: AsyncConnection) -> Topic:
            topic = await _locked(connection, topic_id)
            decided = changes
            # Reads the row of `cluster` without a lock: that lock comes before the locks of topics.
            if callable(decided):
                of_cluster: Mapping[str, str] = (await connection.execute(BROKER_CONFIGS_SET)).scalar_one()
                decided = decided(topic.configs, of_cluster)
            if not decided:
                return topic
            configs = changed(topic.configs, decided)
            values = {"configs": configs, "config_version": TOPICS.c.config_version + 1}
            await connection.execute(sa.update(TOPICS).where(TOPICS.c.topic_id == topic_id).values(values))
            await _append(connection, ChangeKind.CONFIGS_CHANGED, topic, {"configs": configs})
            return replace(topic, configs=configs)

        return await self._database.write(work)

    async def create_partitions(
        self, topic_id: uuid.UUID, count: int, *, cluster_partitions_max: int | None = None
    ) -> Topic:
        async def work(connection: AsyncConnection) -> Topic:
            await _begin_growing(connection, cluster_partitions_max)
            topic = await _locked(connection, topic_id)
            present = len(topic.partition_ids)
            if count <= present:
                raise not_more_partitions(topic.name, present, count)
            await _check_growth(connection, count - present, cluster_partitions_max)
            added = await _add_partitions(connection, topic_id, range(present, count))
            partition_ids = topic.partition_ids + added
            detail = {"partition_ids": list(partition_ids)}
            await _append(connection, ChangeKind.PARTITIONS_ADDED, topic, detail)
            return replace(topic, partition_ids=partition_ids)

        return await self._database.write(work)

    async def list_topics(self) -> Sequence[Topic]:
        return await self._database.read(read_topics)


TOPICS_BEFORE_REPLICAS = tuple(column for column in TOPICS.c if column is not TOPICS.c.replication_factor)
"""The columns that a reader's role may see, although an older release granted it its rights."""


async def read_topics(
    connection: AsyncConnection,
    columns: Sequence[sa.Column[Any]] = tuple(TOPICS.c),
    *,
    topic_id: uuid.UUID | None = None,
) -> Sequence[Topic]:
    """All topics by name, or the one with `topic_id`, in one statement."""
    in_order = aggregate_order_by(PARTITIONS.c.partition_id, PARTITIONS.c.partition)
    query = sa.select(*columns, sa.func.array_agg(in_order).label("partition_ids"))
    query = query.join(PARTITIONS, PARTITIONS.c.topic_id == TOPICS.c.topic_id).group_by(TOPICS.c.topic_id)
    if topic_id is not None:
        query = query.where(TOPICS.c.topic_id == topic_id)
    rows = (await connection.execute(query.order_by(TOPICS.c.name))).all()
    return [
        Topic(
            topic_id=row.topic_id,
            name=row.name,
            partition_ids=tuple(row.partition_ids),
            configs=row.configs,
            created_ms=row.created_ms,
            replication_factor=getattr(row, "replication_factor", 1),
        )
        for row in rows
    ]


async def _locked(connection: AsyncConnection, topic_id: uuid.UUID) -> Topic:
    """The topic with its row locked. Raises UnknownTopicError."""
    lock = sa.select(TOPICS.c.topic_id).where(TOPICS.c.topic_id == topic_id).with_for_update()
    await connection.execute(lock)
    # A second statement, because the locking one does not see what committed while it waited.
    found = await read_topics(connection, topic_id=topic_id)
    if not found:
        raise unknown_topic_id(topic_id)
    return found[0]


async def _begin_growing(connection: AsyncConnection, cluster_partitions_max: int | None) -> None:
    """Take the lock of growth, before any other: whoever counts the partitions counts alone."""
    if cluster_partitions_max is not None:
        await connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({GROWTH_LOCK})"))


async def _check_growth(connection: AsyncConnection, added: int, cluster_partitions_max: int | None) -> None:
    if cluster_partitions_max is not None:
        present = (await connection.execute(sa.select(sa.func.count()).select_from(PARTITIONS))).scalar_one()
        check_cluster_partitions(present, added, cluster_partitions_max)


async def _add_partitions(connection: AsyncConnection, topic_id: uuid.UUID, numbers: range) -> tuple[int, ...]:
    span = {"topic_id": topic_id, "first": numbers.start, "last": numbers.stop - 1}
    made = (await connection.execute(_INSERT_PARTITIONS, span)).scalar_one()
    for statement in (_INSERT_WATERMARKS, _INSERT_LOG_STARTS):
        await connection.execute(statement, span)
    return tuple(made)


async def _append(connection: AsyncConnection, kind: ChangeKind, topic: Topic, detail: Mapping[str, Any]) -> None:
    await append_change(connection, kind, topic.topic_id, {"name": topic.name, **detail})
