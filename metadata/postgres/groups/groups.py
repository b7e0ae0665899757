"""Consumer groups in Postgres. The commit of offsets is in `metadata/postgres/groups/offsets.py`.

The row of a group is its lock. Every write for a group locks the row first and then compares the epoch. The next owner
changes the epoch in that row, so it waits for a write in flight and fences every later one. Order of locks: rows of
`groups` by id, then the lock of all offsets, shared (`OFFSETS_LOCK`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.leases import WriterLease
from metadata.groups.contract import (
    CommittedOffset,
    ExpiredGroups,
    GroupLease,
    GroupRecord,
    GroupSummary,
    OffsetCommitBatch,
    OffsetCommitResult,
    OffsetPlace,
    StableOffsets,
    TakenGroup,
    check_group_id,
)
from metadata.groups.members import decode_members, encode_members
from metadata.postgres.connection import Database
from metadata.postgres.groups.offsets import (
    OffsetCommitter,
    begin_writing_offsets,
    delete_places,
    read_offsets,
    read_stable_offsets,
)
from metadata.postgres.rows import LONGS, now_ms, statement
from metadata.postgres.tables import AGENTS, GROUP_OFFSETS, GROUPS, Utf8
from metadata.postgres.transactions.tables import TRANSACTION_OFFSETS
from metadata.rules.refusals import group_fenced, owner_not_live

NOW_MS = sa.text("clock_ms()")
NEXT_EPOCH = sa.text("nextval('group_epochs')")
EXPIRED_MAX = 10_000
"""Offsets that one call deletes, and groups."""
TAKE_LOCK_TIMEOUT_MS = 2_000
"""Longest wait of `take_group` for the group's row. It is short because takes of other groups queue behind this one."""
_TAKE_LOCK_TIMEOUT = statement(f"SET LOCAL lock_timeout = {TAKE_LOCK_TIMEOUT_MS}")

# Kafka's OffsetMetadataManager.cleanupExpiredOffsets: an offset expires as soon as its age reaches the retention, but
# none for whose place a transaction holds another.
_IS_EXPIRED = """CASE
    WHEN g.empty_since_ms IS NULL THEN
        o.committed_ms <= :before_ms AND g.subscribed_topics IS NOT NULL AND NOT EXISTS (
            SELECT FROM topics t
            WHERE t.topic_id = o.topic_id AND convert_to(t.name, 'UTF8') = ANY (g.subscribed_topics))
    WHEN g.protocol_type <> '' THEN greatest(g.empty_since_ms, o.committed_ms) <= :before_ms
    ELSE o.committed_ms <= :before_ms END
    AND NOT EXISTS (
        SELECT FROM transaction_offsets x
        WHERE x.group_id = o.group_id AND x.topic_id = o.topic_id AND x.partition = o.partition)"""
_IS_NOTHING = """g.empty_since_ms <= :idle_before_ms
    AND NOT EXISTS (SELECT FROM group_offsets o WHERE o.group_id = g.group_id)
    AND NOT EXISTS (SELECT FROM transaction_offsets o WHERE o.group_id = g.group_id)"""
_BEFORE = {"before_ms": sa.BigInteger, "idle_before_ms": sa.BigInteger, "limit": sa.BigInteger}
# The same conditions as in the deletes below: this one only finds and locks the groups.
_LOCK_EXPIRING = statement(
    f"""SELECT g.group_id FROM groups g
    WHERE ({_IS_NOTHING})
        OR EXISTS (SELECT FROM group_offsets o WHERE o.group_id = g.group_id AND {_IS_EXPIRED})
    ORDER BY g.group_id LIMIT :limit FOR NO KEY UPDATE SKIP LOCKED""",  # noqa: S608 - no input of anybody's
    **_BEFORE,
).columns(group_id=Utf8)
_DELETE_EXPIRED = statement(
    f"""DELETE FROM group_offsets d USING (
        SELECT o.group_id, o.topic_id, o.partition
        FROM group_offsets o JOIN groups g ON g.group_id = o.group_id
        WHERE g.group_id = ANY (:group_ids) AND {_IS_EXPIRED} LIMIT :limit
    ) AS x WHERE d.group_id = x.group_id AND d.topic_id = x.topic_id AND d.partition = x.partition""",  # noqa: S608
    group_ids=sa.ARRAY(Utf8),
    before_ms=sa.BigInteger,
    limit=sa.BigInteger,
)
_DELETE_NOTHING = statement(
    f"DELETE FROM groups g WHERE g.group_id = ANY (:group_ids) AND {_IS_NOTHING}",  # noqa: S608
    group_ids=sa.ARRAY(Utf8),
    idle_before_ms=sa.BigInteger,
)
_FENCED_LEASES = statement(
    """SELECT h.group_id, h.epoch FROM unnest(:group_ids, :epochs) AS h (group_id, epoch)
    WHERE NOT EXISTS (SELECT FROM groups g WHERE g.group_id = h.group_id AND g.epoch = h.epoch)""",
    group_ids=sa.ARRAY(Utf8),
    epochs=LONGS,
).columns(group_id=Utf8)
_KNOWN = statement("SELECT group_id FROM groups WHERE group_id = ANY (:group_ids)", group_ids=sa.ARRAY(Utf8)).columns(
    group_id=Utf8
)
_OFFSETS_OF_GROUP = (
    sa.select(sa.func.count())
    .select_from(GROUP_OFFSETS)
    .where(GROUP_OFFSETS.c.group_id == GROUPS.c.group_id)
    .scalar_subquery()
    .label("offsets")
)
SUMMARY = (
    GROUPS.c.group_id,
    GROUPS.c.epoch,
    GROUPS.c.owner_id,
    GROUPS.c.protocol_type,
    GROUPS.c.generation,
    GROUPS.c.member_count,
    GROUPS.c.empty_since_ms,
    _OFFSETS_OF_GROUP,
)
_RECORD = (
    GROUPS.c.protocol_type,
    GROUPS.c.generation,
    GROUPS.c.protocol,
    GROUPS.c.leader,
    GROUPS.c.members,
    GROUPS.c.subscribed_topics,
)


class PostgresGroups:
    """Implements `GroupMetadata`."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._offset_committer = OffsetCommitter(database)

    async def close(self) -> None:
        await self._offset_committer.close()

    async def take_group(self, group_id: str, *, owner: WriterLease, create: bool) -> TakenGroup | None:
        check_group_id(group_id)

        async def work(connection: AsyncConnection) -> TakenGroup | None:
            await connection.execute(_TAKE_LOCK_TIMEOUT)
            # Both statements draw the epoch while they hold the row's lock, so every new owner gets a higher one.
            mine = {"epoch": NEXT_EPOCH, "owner_id": owner.writer_id}
            if create:
                made = insert(GROUPS).values(group_id=group_id, empty_since_ms=NOW_MS, **mine)
                take = made.on_conflict_do_update(index_elements=["group_id"], set_=mine)
                taken = await connection.execute(take.returning(GROUPS.c.epoch, *_RECORD))
            else:
                change = sa.update(GROUPS).where(GROUPS.c.group_id == group_id).values(mine)
                taken = await connection.execute(change.returning(GROUPS.c.epoch, *_RECORD))
            row = taken.one_or_none()
            await check_alive(connection, owner)  # only now: the lease may have ended during the wait for the lock
            if row is None:
                return None
            return TakenGroup(lease=GroupLease(group_id=group_id, epoch=row.epoch), record=record_of(row))

        return await self._database.write(work)

    async def save_group(self, lease: GroupLease, record: GroupRecord) -> None:
        topics = None if record.subscribed_topics is None else sorted(record.subscribed_topics)
        # The first time stays: the age of an empty group counts from when it became empty, not from its last save.
        empty_since_ms = None if record.members else sa.func.coalesce(GROUPS.c.empty_since_ms, NOW_MS)
        values = {
            "protocol_type": record.protocol_type,
            "generation": record.generation,
            "protocol": record.protocol,
            "leader": record.leader,
            "members": encode_members(record.members),
            "member_count": len(record.members),
            "subscribed_topics": topics,
            "empty_since_ms": empty_since_ms,
        }

        async def work(connection: AsyncConnection) -> None:
            saved = await connection.execute(sa.update(GROUPS).where(*_held(lease)).values(values))
            # The epoch is part of the WHERE, so nothing was written by an owner that is fenced.
            if saved.rowcount == 0:
                raise group_fenced(lease)

        await self._database.write(work)

    async def commit_offsets(self, batches: Sequence[OffsetCommitBatch]) -> Sequence[OffsetCommitResult]:
        return await self._offset_committer.commit(batches)

    async def fenced_leases(self, leases: Sequence[GroupLease]) -> Sequence[GroupLease]:
        values = {"group_ids": [each.group_id for each in leases], "epochs": [each.epoch for each in leases]}

        async def work(connection: AsyncConnection) -> Sequence[GroupLease]:
            rows = await connection.execute(_FENCED_LEASES, values)
            return [GroupLease(group_id=row.group_id, epoch=row.epoch) for row in rows]

        return await self._database.read(work)

    async def offsets(
        self, group_id: str, places: Sequence[OffsetPlace] | None = None
    ) -> Mapping[OffsetPlace, CommittedOffset]:
        async def work(connection: AsyncConnection) -> Mapping[OffsetPlace, CommittedOffset]:
            return await read_offsets(connection, group_id, places)

        return await self._database.read(work)

    async def stable_offsets(self, group_id: str, places: Sequence[OffsetPlace] | None = None) -> StableOffsets:
        async def work(connection: AsyncConnection) -> StableOffsets:
            return await read_stable_offsets(connection, group_id, places)

        return await self._database.read(work)

    async def delete_offsets(self, lease: GroupLease, places: Sequence[OffsetPlace]) -> None:
        async def work(connection: AsyncConnection) -> None:
            await _lock(connection, lease)
            await begin_writing_offsets(connection)
            await delete_places(connection, lease.group_id, places)

        await self._database.write(work)

    async def delete_group(self, lease: GroupLease) -> None:
        async def work(connection: AsyncConnection) -> None:
            await _lock(connection, lease)
            await begin_writing_offsets(connection)
            for table in (TRANSACTION_OFFSETS, GROUP_OFFSETS, GROUPS):
                await connection.execute(sa.delete(table).where(table.c.group_id == lease.group_id))

        await self._database.write(work)

    async def list_groups(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[GroupSummary]:
        query = sa.select(*SUMMARY).order_by(GROUPS.c.group_id).limit(limit)
        if after is not None:
            query = query.where(GROUPS.c.group_id > after)

        async def work(connection: AsyncConnection) -> Sequence[GroupSummary]:
            return [summary_of(row) for row in await connection.execute(query)]

        return await self._database.read(work)

    async def groups_with_members(self, *, after: str | None = None, limit: int = 10_000) -> Sequence[str]:
        query = sa.select(GROUPS.c.group_id).where(GROUPS.c.member_count > 0).order_by(GROUPS.c.group_id).limit(limit)
        if after is not None:
            query = query.where(GROUPS.c.group_id > after)

        async def work(connection: AsyncConnection) -> Sequence[str]:
            return (await connection.execute(query)).scalars().all()

        return await self._database.read(work)

    async def group(self, group_id: str) -> GroupRecord | None:
        async def work(connection: AsyncConnection) -> GroupRecord | None:
            query = sa.select(*_RECORD).where(GROUPS.c.group_id == group_id)
            row = (await connection.execute(query)).one_or_none()
            return None if row is None else record_of(row)

        return await self._database.read(work)

    async def known_groups(self, group_ids: Sequence[str]) -> Collection[str]:
        async def work(connection: AsyncConnection) -> Collection[str]:
            return (await connection.execute(_KNOWN, {"group_ids": list(group_ids)})).scalars().all()

        return await self._database.read(work)

    async def expire_groups(self, *, offsets_retention_ms: int, idle_group_ms: int) -> ExpiredGroups:
        async def work(connection: AsyncConnection) -> ExpiredGroups:
            now = await now_ms(connection)
            before = {"before_ms": now - offsets_retention_ms, "idle_before_ms": now - idle_group_ms}
            values: dict[str, Any] = {**before, "limit": EXPIRED_MAX}
            # Skip groups that somebody writes to. Then nobody waits, and nothing can deadlock.
            locked = (await connection.execute(_LOCK_EXPIRING, values)).scalars().all()
            if not locked:
                return ExpiredGroups(offsets=0, groups=0)
            await begin_writing_offsets(connection)
            values["group_ids"] = locked
            # The conditions are checked again, because the rows may have changed before they were locked.
            offsets = await connection.execute(_DELETE_EXPIRED, values)
            groups = await connection.execute(_DELETE_NOTHING, values)
            return ExpiredGroups(offsets=offsets.rowcount, groups=groups.rowcount)

        return await self._database.write(work)


async def check_alive(connection: AsyncConnection, owner: WriterLease) -> None:
    """Raises WriterFencedError unless `owner` is one of `live_agents`."""
    mine = (AGENTS.c.writer_id == owner.writer_id, AGENTS.c.epoch == owner.epoch)
    alive = sa.select(AGENTS.c.writer_id).where(*mine, AGENTS.c.lease_until_ms > NOW_MS, sa.not_(AGENTS.c.draining))
    if (await connection.execute(alive)).first() is None:
        raise owner_not_live(owner)


async def _lock(connection: AsyncConnection, lease: GroupLease) -> None:
    """Lock the group's row. Raises GroupFencedError."""
    lock = sa.select(GROUPS.c.group_id).where(*_held(lease)).with_for_update(key_share=True)
    if (await connection.execute(lock)).first() is None:
        raise group_fenced(lease)


def _held(lease: GroupLease) -> tuple[sa.ColumnElement[bool], ...]:
    """The lease still holds the group. Postgres checks this again on the new row after a wait for the row's lock."""
    return GROUPS.c.group_id == lease.group_id, GROUPS.c.epoch == lease.epoch


def summary_of(row: Any) -> GroupSummary:
    return GroupSummary(
        group_id=row.group_id,
        epoch=row.epoch,
        owner_id=row.owner_id,
        protocol_type=row.protocol_type,
        generation=row.generation,
        members=row.member_count,
        empty_since_ms=row.empty_since_ms,
        offsets=row.offsets,
    )


def record_of(row: Any) -> GroupRecord:
    return GroupRecord(
        protocol_type=row.protocol_type,
        generation=row.generation,
        protocol=row.protocol,
        leader=row.leader,
        members=decode_members(row.members),
        subscribed_topics=None if row.subscribed_topics is None else frozenset(row.subscribed_topics),
    )
