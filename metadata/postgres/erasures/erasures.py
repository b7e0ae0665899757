"""The calls for erasures, over Postgres.

Stamps are drawn under one lock, which is held until the transaction is visible: a statement that sees a stamp sees all
smaller ones. It is taken before the rows of erasures, and no other lock is taken after them
(`metadata/postgres/rows.py` has the order of the others, which these transactions do not take).

A request takes no lock of its topic: its marks lie below the high watermark that it reads, so the files with their
records were committed before, and a deletion of the topic at the same time leaves an erasure whose bytes die anyway.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.erasures import stages
from metadata.erasures.contract import (
    ErasedKeys,
    Erasure,
    ErasureStage,
    HoldingTransaction,
    KeyMark,
    NewErasure,
    PendingFile,
    TopicErasure,
)
from metadata.erasures.marks import check_marks, decode_marks, encode_marks, end_offset
from metadata.postgres.connection import Database
from metadata.postgres.erasures.pending import holding_transactions, pending_files, refused_files
from metadata.postgres.rows import INTS, LONGS, now_ms, statement
from metadata.postgres.tables import ERASURE_KEYS, ERASURES, FILES, PARTITIONS, TOPICS, WATERMARKS
from metadata.rules.refusals import unknown_topic_id

STAMPS_LOCK = 7_310_575_221

_LOCK_STAMPS = sa.text(f"SELECT pg_advisory_xact_lock({STAMPS_LOCK})")
_STAMPS = sa.text(
    """SELECT (SELECT max(erased_through) FROM extents WHERE erased_through > 0) AS of_extents,
        (SELECT max(stamp) FROM erasures) AS of_erasures"""
)
_IS_OPEN = ERASURES.c.stage != ErasureStage.DONE.value

_ERASED_KEYS = statement(
    """SELECT k.partition_id, k.marks, r.stamp, r.erases_tombstones
    FROM erasures r JOIN erasure_keys k ON k.erasure_id = r.erasure_id
    WHERE r.stage = 'erasing' AND k.partition_id = ANY (:partition_ids) ORDER BY r.erasure_id""",
    partition_ids=INTS,
)
_PARTITIONS = statement(
    "SELECT erasure_id, partition, partition_id FROM erasure_keys WHERE erasure_id = ANY (:ids) ORDER BY 1, 2",
    ids=LONGS,
)
_DONE = statement(
    """UPDATE erasures SET stage = 'done', done_ms = clock_ms(), report = :report WHERE erasure_id = :erasure_id""",
    report=ERASURES.c.report.type,
    erasure_id=sa.BigInteger,
)


class PostgresErasures:
    """Implements `ErasureMetadata`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def request_erasure(self, new: NewErasure) -> int:
        async def work(connection: AsyncConnection) -> int:
            topic = sa.select(TOPICS.c.name).where(TOPICS.c.topic_id == new.topic_id)
            name = await connection.scalar(topic)
            partitions = await _partitions_of(connection, new)
            if name is None or not partitions:
                raise unknown_topic_id(new.topic_id)
            check_marks(new.marks, [high_watermark for _, high_watermark in partitions])
            # After the watermarks: every file with records below the marks is visible by now.
            l0_through = await connection.scalar(sa.select(sa.func.coalesce(sa.func.max(FILES.c.file_id), 0)))
            partition_ids = tuple(partition_id for partition_id, _ in partitions)
            erasure = stages.requested(new, 0, name, partition_ids, now_ms=await now_ms(connection))
            row = {"l0_through": l0_through, "rest_ms": new.rest_ms or 0, **_values(erasure)}
            erasure_id = await _insert(connection, row, new, erasure.partitions)
            # Last, because others wait for the lock of stamps.
            if not new.wait_ms:
                await connection.execute(_LOCK_STAMPS)
                await _update(connection, erasure_id, stages.begun(erasure, await _next_stamp(connection)))
            return erasure_id

        return await self._database.write(work)

    async def advance_erasures(self) -> Sequence[Erasure]:
        async def is_any_open(connection: AsyncConnection) -> bool:
            return bool(await connection.scalar(sa.select(sa.exists().where(_IS_OPEN))))

        async def work(connection: AsyncConnection) -> list[Erasure]:
            await connection.execute(_LOCK_STAMPS)
            await connection.execute(sa.select(ERASURES.c.erasure_id).where(_IS_OPEN).with_for_update())
            # A second statement: the locking one does not see what committed while it waited.
            found = await _erasures(connection, _IS_OPEN)
            return [await _advanced(connection, erasure) for erasure in found]

        # Mostly there is none.
        if not await self._database.read(is_any_open):
            return []
        return await self._database.write(work)

    async def erasures(self, *, erasure_id: int | None = None, limit: int = 1000) -> Sequence[Erasure]:
        async def work(connection: AsyncConnection) -> list[Erasure]:
            if erasure_id is not None:
                return await _erasures(connection, ERASURES.c.erasure_id == erasure_id)
            newest = sa.select(ERASURES.c.erasure_id).order_by(ERASURES.c.erasure_id.desc()).limit(limit)
            return await _erasures(connection, sa.or_(_IS_OPEN, ERASURES.c.erasure_id.in_(newest)), newest_first=True)

        return await self._database.read(work, repeatable=True)

    async def erasure_marks(self, erasure_id: int) -> Mapping[int, Sequence[KeyMark]]:
        async def work(connection: AsyncConnection) -> Mapping[int, Sequence[KeyMark]]:
            query = sa.select(ERASURE_KEYS.c.partition, ERASURE_KEYS.c.marks)
            query = query.where(ERASURE_KEYS.c.erasure_id == erasure_id).order_by(ERASURE_KEYS.c.partition)
            return {row.partition: decode_marks(row.marks) for row in await connection.execute(query)}

        return await self._database.read(work)

    async def topic_erasures(self, topic_id: uuid.UUID) -> Sequence[TopicErasure]:
        async def work(connection: AsyncConnection) -> Sequence[TopicErasure]:
            columns = (ERASURES.c[name] for name in TopicErasure._fields)
            query = sa.select(*columns).where(ERASURES.c.topic_id == topic_id).order_by(ERASURES.c.erasure_id)
            rows = await connection.execute(query)
            return [
                TopicErasure(row.erasure_id, ErasureStage(row.stage), row.erases_tombstones, row.created_ms)
                for row in rows
            ]

        return await self._database.read(work)

    async def pending_files(self, erasure_id: int, *, limit: int = 10_000) -> Sequence[PendingFile]:
        async def work(connection: AsyncConnection) -> Sequence[PendingFile]:
            return await pending_files(connection, erasure_id, limit=limit)

        return await self._database.read(work)

    async def holding_transactions(self, erasure_id: int, *, limit: int = 100) -> Sequence[HoldingTransaction]:
        async def work(connection: AsyncConnection) -> Sequence[HoldingTransaction]:
            return await holding_transactions(connection, erasure_id, limit=limit)

        return await self._database.read(work)

    async def refused_files(self) -> Sequence[str]:
        return await self._database.read(refused_files)

    async def erased_keys(self, partition_ids: Sequence[int]) -> Mapping[int, ErasedKeys]:
        async def work(connection: AsyncConnection) -> Mapping[int, ErasedKeys]:
            found: dict[int, ErasedKeys] = {}
            # One statement: a stamp that it sees comes with the marks of all smaller ones.
            for row in await connection.execute(_ERASED_KEYS, {"partition_ids": list(partition_ids)}):
                before = found.get(row.partition_id, ErasedKeys((), 0))
                marks = (
                    mark._replace(tombstone=mark.tombstone and row.erases_tombstones)
                    for mark in decode_marks(row.marks)
                )
                found[row.partition_id] = ErasedKeys([*before.marks, *marks], max(before.stamp, row.stamp))
            return found

        return await self._database.read(work)

    async def finish_erasure(self, erasure_id: int, report: Mapping[str, Any]) -> None:
        async def work(connection: AsyncConnection) -> None:
            lock = sa.select(ERASURES.c.erasure_id).where(ERASURES.c.erasure_id == erasure_id, _IS_OPEN)
            await connection.execute(lock.with_for_update())
            found = await _erasures(connection, sa.and_(ERASURES.c.erasure_id == erasure_id, _IS_OPEN))
            if not found:
                return
            stages.check_last_stage(found[0])
            pending = await pending_files(connection, erasure_id, limit=stages.PENDING_SHOWN)
            stages.check_nothing_pending(erasure_id, [file.file_id for file in pending])
            stages.check_not_held(erasure_id, await holding_transactions(connection, erasure_id, limit=1))
            await connection.execute(_DONE, {"report": dict(report), "erasure_id": erasure_id})

        await self._database.write(work)


async def _partitions_of(connection: AsyncConnection, new: NewErasure) -> list[tuple[int, int]]:
    """(partition id, high watermark) of each partition of the topic, by number."""
    query = sa.select(PARTITIONS.c.partition_id, WATERMARKS.c.next_offset)
    query = query.join(WATERMARKS, WATERMARKS.c.partition_id == PARTITIONS.c.partition_id)
    query = query.where(PARTITIONS.c.topic_id == new.topic_id).order_by(PARTITIONS.c.partition)
    return [(row.partition_id, row.next_offset) for row in await connection.execute(query)]


async def _insert(
    connection: AsyncConnection, row: Mapping[str, Any], new: NewErasure, partitions: Mapping[int, int]
) -> int:
    """Insert the erasure and its marks. Returns its id."""
    inserted = await connection.execute(sa.insert(ERASURES).values(row).returning(ERASURES.c.erasure_id))
    erasure_id = inserted.scalar_one()
    for number, partition_id in partitions.items():
        marks = new.marks[number]
        values = {
            "erasure_id": erasure_id,
            "partition": number,
            "partition_id": partition_id,
            "end_offset": end_offset(marks),
            "marks": encode_marks(marks),
        }
        await connection.execute(sa.insert(ERASURE_KEYS).values(values))
    return erasure_id


async def _next_stamp(connection: AsyncConnection) -> int:
    """The caller holds the lock of stamps."""
    row = (await connection.execute(_STAMPS)).one()
    return stages.new_stamp(of_extents=row.of_extents, of_erasures=row.of_erasures)


async def _advanced(connection: AsyncConnection, erasure: Erasure) -> Erasure:
    """The erasure after its next step, if one is due. The caller holds the lock of stamps, and that of its row."""
    at_ms = await now_ms(connection)
    if stages.begins(erasure, at_ms):
        after = stages.begun(erasure, await _next_stamp(connection))
    elif stages.rests_next(erasure) and not (
        await pending_files(connection, erasure.erasure_id, limit=1, live_only=True)
        or await holding_transactions(connection, erasure.erasure_id, limit=1)
    ):
        rest = sa.select(ERASURES.c.rest_ms).where(ERASURES.c.erasure_id == erasure.erasure_id)
        after = stages.resting(erasure, now_ms=at_ms, rest_ms=(await connection.execute(rest)).scalar_one())
    else:
        return erasure
    await _update(connection, erasure.erasure_id, after)
    return after


async def _update(connection: AsyncConnection, erasure_id: int, erasure: Erasure) -> None:
    await connection.execute(sa.update(ERASURES).where(ERASURES.c.erasure_id == erasure_id).values(_values(erasure)))


def _values(erasure: Erasure) -> dict[str, Any]:
    """The columns of the row that the steps of an erasure change, and those that they keep."""
    names = ("topic_id", "topic_name", "stamp", "erases_tombstones", "keys", "tombstones", "created_ms", "next_ms")
    kept = (*names, "begin_ms", "deadline_ms", "done_ms", "secret")
    return {"stage": erasure.stage.value, **{name: getattr(erasure, name) for name in kept}}


async def _erasures(
    connection: AsyncConnection, wanted: sa.ColumnElement[bool], *, newest_first: bool = False
) -> list[Erasure]:
    by_id = ERASURES.c.erasure_id.desc() if newest_first else ERASURES.c.erasure_id
    rows = (await connection.execute(sa.select(ERASURES).where(wanted).order_by(by_id))).all()
    partitions: dict[int, dict[int, int]] = {row.erasure_id: {} for row in rows}
    for row in await connection.execute(_PARTITIONS, {"ids": list(partitions)}):
        partitions[row.erasure_id][row.partition] = row.partition_id
    return [
        Erasure(
            erasure_id=row.erasure_id,
            topic_id=row.topic_id,
            topic_name=row.topic_name,
            stage=ErasureStage(row.stage),
            stamp=row.stamp,
            erases_tombstones=row.erases_tombstones,
            partitions=partitions[row.erasure_id],
            keys=row.keys,
            tombstones=row.tombstones,
            created_ms=row.created_ms,
            next_ms=row.next_ms,
            begin_ms=row.begin_ms,
            deadline_ms=row.deadline_ms,
            done_ms=row.done_ms,
            secret=bytes(row.secret),
            report=row.report,
        )
        for row in rows
    ]
