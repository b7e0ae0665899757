"""The calls of operators, over Postgres. Each view shows one instant. A thread makes the objects of a large view."""

from __future__ import annotations

import asyncio
import uuid
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.configs.topic import as_int, resolve
from metadata.contract.compactors import PartitionView
from metadata.contract.files import FileInfo, FileState
from metadata.contract.jobs import (
    JobState,
    MergeJob,
)
from metadata.contract.leveled import LeveledExtent
from metadata.contract.operators import (
    AbortedRow,
    EnteredPartition,
    GroupsView,
    HeldBytes,
    HeldView,
    Observation,
    OngoingTransaction,
    StrayOffset,
    SystemView,
    TransactionsView,
)
from metadata.groups.contract import OffsetPlace
from metadata.postgres import history as postgres_history
from metadata.postgres.connection import Database
from metadata.postgres.groups.groups import SUMMARY, record_of, summary_of
from metadata.postgres.log.broker_configs import TOPICS_IN_FORCE
from metadata.postgres.log.snapshot import WATERMARKS_QUERY, live_file_of, watermarks_of
from metadata.postgres.log.topics import read_topics
from metadata.postgres.merges.jobs import job_of
from metadata.postgres.merges.known_extents import extent_rows
from metadata.postgres.merges.sums import wrong_sums
from metadata.postgres.merges.views import BUSY_INPUTS, PartitionRows, partition_rows, partition_views_of
from metadata.postgres.observation import observe
from metadata.postgres.rows import (
    INTS,
    LEVELED,
    LONGS,
    leveled,
    lock_partitions,
    now_ms,
    statement,
)
from metadata.postgres.tables import (
    FILES,
    GROUPS,
    MERGE_JOBS,
    PARTITIONS,
    PINS,
    TOPICS,
    Utf8,
)
from metadata.postgres.transactions.tables import ABORTED_TRANSACTIONS, TRANSACTION_PARTITIONS, TRANSACTIONS
from metadata.postgres.transactions.transactions import read_whole
from metadata.rules.history import ServerHistory
from metadata.rules.packed_index import iter_index
from metadata.rules.refusals import not_compacted, unknown_topic_id
from metadata.rules.retention import (
    cleanable_through,
    retention_policy,
)
from metadata.rules.stretches import held_rows
from metadata.transactions.contract import AbortedTransaction, TransactionState

NOW_MS = sa.text("clock_ms()")

STRAY_OFFSETS_MAX = 1_000

_STRAY_OFFSETS = statement(
    """SELECT o.group_id, o.topic_id, o.partition FROM group_offsets o
    WHERE NOT EXISTS (SELECT FROM groups g WHERE g.group_id = o.group_id)
        OR NOT EXISTS (SELECT FROM partitions p WHERE p.topic_id = o.topic_id AND p.partition = o.partition)
    ORDER BY o.group_id, o.topic_id, o.partition LIMIT :limit""",
    limit=sa.BigInteger,
).columns(group_id=Utf8, topic_id=sa.Uuid)

_ALL_LIVE = sa.text(f"{LEVELED} WHERE e.state = 'live' ORDER BY e.partition_id, e.base_offset")

_HELD_EXTENTS = statement(
    """SELECT e.partition_id, e.base_offset, e.last_offset, e.file_id, f.key, f.level, e.position, e.length,
        e.block_index_position, e.block_index_length,
        e.flagged_reason IS NOT NULL AS is_flagged, coalesce(e.dead_ms, f.dead_ms) AS dead_ms,
        f.dead_ms AS file_dead_ms
    FROM extents e JOIN files f ON f.file_id = e.file_id
    WHERE e.partition_id = ANY (:partition_ids) AND f.state IN ('live', 'dead')""",
    partition_ids=INTS,
)
_HELD_L0 = sa.select(FILES.c.file_id, FILES.c.key, FILES.c.index, FILES.c.dead_ms).where(
    FILES.c.level == 0, FILES.c.state.in_(["live", "dead"]), FILES.c.inline.is_(None)
)

_ONGOING = (
    sa.select(
        TRANSACTIONS.c.transactional_id,
        TRANSACTIONS.c.producer_id,
        TRANSACTIONS.c.producer_epoch,
        TRANSACTIONS.c.txn_seq,
    )
    .where(TRANSACTIONS.c.state == TransactionState.ONGOING.value)
    .order_by(TRANSACTIONS.c.transactional_id)
)
_MARKS = statement(f"{WATERMARKS_QUERY} WHERE w.partition_id = ANY (:partition_ids) ORDER BY 1", partition_ids=INTS)

# Only where a pass can change something: new records, an overflowed buffer, or tombstones that may go.
_REQUEST = statement(
    """UPDATE log_starts l SET requested_through_offset = greatest(l.requested_through_offset, r.through)
    FROM unnest(:partition_ids, :through) AS r (partition_id, through)
    WHERE l.partition_id = r.partition_id AND r.through > l.log_start_offset AND (
        r.through > l.cleaned_through_offset OR l.passes_needed > 1
        OR EXISTS (
            SELECT FROM extents e
            WHERE e.partition_id = l.partition_id AND e.state = 'live' AND e.has_tombstones
                AND e.base_offset < r.through
        ))""",
    partition_ids=INTS,
    through=LONGS,
)


class PostgresOperators:
    """Implements `OperatorMetadata`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def files(self, *, after_file_id: int = 0, limit: int = 1000) -> Sequence[FileInfo]:
        async def work(connection: AsyncConnection) -> Sequence[FileInfo]:
            page = sa.select(FILES).where(FILES.c.file_id > after_file_id).order_by(FILES.c.file_id).limit(limit)
            return [_file_info(row) for row in (await connection.execute(page)).mappings()]

        return await self._database.read(work)

    async def jobs(
        self,
        *,
        states: Sequence[JobState] = (),
        topic_id: uuid.UUID | None = None,
        result: str = "",
        limit: int = 100,
    ) -> Sequence[MergeJob]:
        query = sa.select(MERGE_JOBS).order_by(MERGE_JOBS.c.job_id.desc()).limit(limit)
        if states:
            query = query.where(MERGE_JOBS.c.state.in_([state.value for state in states]))
        if topic_id is not None:
            query = query.where(_concerns(topic_id))
        if result:
            query = query.where(MERGE_JOBS.c.result.has_key(result))

        async def work(connection: AsyncConnection) -> Sequence[MergeJob]:
            return [job_of(row) for row in await connection.execute(query)]

        return await self._database.read(work)

    async def partition_views(self, topic_id: uuid.UUID) -> Sequence[PartitionView]:
        async def work(connection: AsyncConnection) -> tuple[PartitionRows, Sequence[Any]]:
            rows = await partition_rows(connection, [await _topic(connection, topic_id)])
            return rows, await extent_rows(connection, [row.partition_id for row in rows.partitions])

        return await asyncio.to_thread(_views_of, *await self._database.read(work, repeatable=True))

    async def held_bytes(self, partition_ids: Sequence[int]) -> Sequence[HeldBytes]:
        wanted = frozenset(partition_ids)

        async def work(connection: AsyncConnection) -> Sequence[HeldBytes]:
            extents = await connection.execute(_HELD_EXTENTS, {"partition_ids": sorted(wanted)})
            found = [HeldBytes(*row) for row in extents]
            for file_id, key, index, dead_ms in await connection.execute(_HELD_L0):
                found += held_rows(file_id, key, index, dead_ms, wanted)
            return sorted(found, key=lambda each: each[:4])

        return await self._database.read(work, repeatable=True)

    async def request_compaction(self, topic_id: uuid.UUID) -> Mapping[int, int]:
        async def work(connection: AsyncConnection) -> Mapping[int, int]:
            topic = await _topic(connection, topic_id)
            if not retention_policy(topic.configs).compacts:
                raise not_compacted(topic.name)
            ids = (
                await connection.execute(
                    sa.select(PARTITIONS.c.partition_id)
                    .where(PARTITIONS.c.topic_id == topic_id)
                    .order_by(PARTITIONS.c.partition)
                )
            ).scalars()
            starts = await lock_partitions(connection, partition_ids := list(ids))
            marks = await connection.execute(
                sa.text(f"{WATERMARKS_QUERY} WHERE w.partition_id = ANY (:ids)").bindparams(
                    sa.bindparam("ids", partition_ids, INTS)
                )
            )
            ends = {mark["partition_id"]: watermarks_of(mark).last_stable_offset for mark in marks.mappings()}
            min_lag_ms = as_int(resolve(topic.configs), "min.compaction.lag.ms")
            # This reads every live L0 index, so it is done only where a lag makes it necessary.
            stretches = await _stretches(connection, starts) if min_lag_ms > 0 else {}
            at_ms = await now_ms(connection)
            through = {
                partition_id: cleanable_through(
                    stretches.get(partition_id, ()), end_offset=ends[partition_id], min_lag_ms=min_lag_ms, now_ms=at_ms
                )
                for partition_id in partition_ids
                if partition_id in ends
            }
            await connection.execute(_REQUEST, {"partition_ids": list(through), "through": list(through.values())})
            return through

        return await self._database.write(work)

    async def system_view(self) -> SystemView:
        async def work(connection: AsyncConnection) -> SystemView:
            at_ms = await now_ms(connection)
            live = sa.select(FILES).where(FILES.c.state == "live").order_by(FILES.c.file_id)
            l0 = (await connection.execute(live.where(FILES.c.level == 0))).mappings()
            counts = live.with_only_columns(FILES.c.file_id, FILES.c.live_extents).where(FILES.c.level > 0)
            pins = sa.select(PINS.c.created_ms).where(PINS.c.expires_ms > at_ms).order_by(PINS.c.pin_id)
            marks = (await connection.execute(sa.text(f"{WATERMARKS_QUERY} ORDER BY 1"))).mappings()
            return SystemView(
                now_ms=at_ms,
                watermarks=[watermarks_of(row) for row in marks],
                l0_files=[live_file_of(row) for row in l0],
                extents=await leveled(connection, _ALL_LIVE, {}),
                live_extents={row.file_id: row.live_extents for row in await connection.execute(counts)},
                job_inputs=[
                    (row.job_id, row.of_file if row.file_id is None else row.file_id, row.extent_id)
                    for row in await connection.execute(BUSY_INPUTS)
                    if row.file_id is not None or row.of_file is not None
                ],
                pins=list((await connection.execute(pins)).scalars()),
                wrong_sums=await wrong_sums(connection),
            )

        return await self._database.read(work, repeatable=True)

    async def groups_view(self) -> GroupsView:
        async def work(connection: AsyncConnection) -> GroupsView:
            columns = (*SUMMARY, GROUPS.c.protocol, GROUPS.c.leader, GROUPS.c.members, GROUPS.c.subscribed_topics)
            query = sa.select(*columns).order_by(GROUPS.c.group_id)
            groups = [(summary_of(row), record_of(row)) for row in await connection.execute(query)]
            strays = await connection.execute(_STRAY_OFFSETS, {"limit": STRAY_OFFSETS_MAX})
            # A sequence ignores the snapshot. Read last, it is at or above the epochs of all these groups.
            last = await connection.execute(sa.text("SELECT last_value FROM group_epochs"))
            return GroupsView(
                groups=groups,
                last_epoch=last.scalar_one(),
                stray_offsets=[StrayOffset(row.group_id, OffsetPlace(row.topic_id, row.partition)) for row in strays],
            )

        return await self._database.read(work, repeatable=True)

    async def transactions_view(self) -> TransactionsView:
        async def work(connection: AsyncConnection) -> TransactionsView:
            marks = (await connection.execute(sa.text(f"{WATERMARKS_QUERY} ORDER BY 1"))).mappings().all()
            aborted = sa.select(ABORTED_TRANSACTIONS).order_by(sa.text("partition_id, last_offset"))
            return TransactionsView(
                watermarks=[watermarks_of(row) for row in marks],
                ongoing=[OngoingTransaction(*row) for row in await connection.execute(_ONGOING)],
                entered=await _entered(connection),
                aborted=[
                    AbortedRow(
                        AbortedTransaction(row.partition_id, row.producer_id, row.first_offset, row.last_offset),
                        row.stable_offset,
                    )
                    for row in await connection.execute(aborted)
                ],
            )

        return await self._database.read(work, repeatable=True)

    async def held_view(self, transactional_ids: Sequence[str] = ()) -> HeldView:
        named = TRANSACTIONS.c.transactional_id == sa.func.any(sa.literal(list(transactional_ids), ARRAY(Utf8)))
        ongoing = TRANSACTIONS.c.state == TransactionState.ONGOING.value
        wanted = sa.select(TRANSACTIONS).where(sa.or_(ongoing, named)).order_by(TRANSACTIONS.c.transactional_id)

        async def work(connection: AsyncConnection) -> HeldView:
            infos, entered = await read_whole(connection, wanted), await _entered(connection)
            marks = await connection.execute(_MARKS, {"partition_ids": list({row.partition_id for row in entered})})
            return HeldView(
                now_ms=await now_ms(connection),
                infos=infos,
                entered=entered,
                watermarks=[watermarks_of(row) for row in marks.mappings()],
                topics=await read_topics(connection),
            )

        return await self._database.read(work, repeatable=True)

    async def pins(self) -> Sequence[tuple[int, str, int, int]]:
        async def work(connection: AsyncConnection) -> Sequence[tuple[int, str, int, int]]:
            rows = await connection.execute(sa.select(PINS).where(PINS.c.expires_ms > NOW_MS).order_by(PINS.c.pin_id))
            return [(row.pin_id, row.holder, row.created_ms, row.expires_ms) for row in rows]

        return await self._database.read(work)

    async def observe(self, *, lags_max: int) -> Observation:
        async def work(connection: AsyncConnection) -> Observation:
            return await observe(connection, lags_max)

        return await self._database.read(work)

    async def adopt_history(self, present: ServerHistory) -> None:
        async def work(connection: AsyncConnection) -> None:
            await postgres_history.adopt_history(connection, present)

        await self._database.write(work)


async def _entered(connection: AsyncConnection) -> Sequence[EnteredPartition]:
    query = sa.select(TRANSACTION_PARTITIONS).order_by(sa.text("partition_id, producer_id"))
    return [
        EnteredPartition(row.partition_id, row.producer_id, row.epoch, row.txn_seq, row.first_offset)
        for row in await connection.execute(query)
    ]


def _views_of(rows: PartitionRows, extents: Sequence[Any]) -> list[PartitionView]:
    by_partition: dict[int, list[LeveledExtent]] = defaultdict(list)
    for extent in map(LeveledExtent._make, extents):
        by_partition[extent.partition_id].append(extent)
    return partition_views_of(rows, by_partition)


def _file_info(row: Mapping[Any, Any]) -> FileInfo:
    names = ("file_id", "key", "level", "writer_id", "epoch", "seq", "size_bytes", "crc32c", "created_ms", "index")
    more = ("dead_ms", "live_extents", "job_id")
    fields = {name: row[name] for name in (*names, *more)}
    return FileInfo(
        state=FileState(row["state"]),
        file_class=row["class"],
        inline=row["inline"] or b"",
        txn_rows=row["txn"] or b"",
        **fields,
    )


def _concerns(topic_id: uuid.UUID) -> sa.ColumnElement[bool]:
    partitions = sa.select(PARTITIONS.c.partition_id).where(PARTITIONS.c.topic_id == topic_id)
    forced = MERGE_JOBS.c.forced_partition_ids.op("&&")(sa.func.array(partitions.scalar_subquery(), type_=INTS))
    held = sa.text(
        """EXISTS (SELECT FROM merge_inputs i JOIN extents e ON e.extent_id = i.extent_id
        JOIN partitions p ON p.partition_id = e.partition_id
        WHERE i.job_id = merge_jobs.job_id AND p.topic_id = :topic_id)"""
    ).bindparams(sa.bindparam("topic_id", topic_id, sa.Uuid))
    return sa.or_(forced, held)


async def _topic(connection: AsyncConnection, topic_id: uuid.UUID) -> Any:
    """The topic's row, with its configs in force. Raises UnknownTopicError."""
    topic = (await connection.execute(TOPICS_IN_FORCE.where(TOPICS.c.topic_id == topic_id))).one_or_none()
    if topic is None:
        raise unknown_topic_id(topic_id)
    return topic


async def _stretches(connection: AsyncConnection, starts: Mapping[int, int]) -> dict[int, list[tuple[int, int]]]:
    """(base offset, largest timestamp) of the live extents and L0 batches of these partitions."""
    found: dict[int, list[tuple[int, int]]] = {partition_id: [] for partition_id in starts}
    for extent in map(LeveledExtent._make, await extent_rows(connection, list(starts))):
        found[extent.partition_id].append((extent.base_offset, extent.max_timestamp_ms))
    l0 = sa.select(FILES.c.index).where(FILES.c.level == 0, FILES.c.state == "live")
    for index in (await connection.execute(l0)).scalars():
        for row in iter_index(index):
            if row.last_offset >= starts.get(row.partition_id, row.last_offset + 1):
                found[row.partition_id].append((row.base_offset, row.max_timestamp_ms))
    return found
