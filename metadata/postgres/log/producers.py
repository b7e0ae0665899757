"""Producer ids and the state of producers, in Postgres."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.l0_commit import ProducerState
from metadata.postgres.connection import Database
from metadata.postgres.rows import (
    any_of,
)
from metadata.postgres.tables import (
    CLUSTER,
    PRODUCER_ID_BLOCKS,
    PRODUCER_STATES,
)
from metadata.rules.producer_tail import decode_tail

NOW_MS = sa.text("clock_ms()")
ROWS_AT_A_TIME = 20_000


class Producers:
    """Part of `PostgresAgents`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def allocate_producer_ids(self, count: int) -> range:
        async def work(connection: AsyncConnection) -> range:
            # Under the row's lock, so blocks never overlap and are dated in order.
            move = sa.update(CLUSTER).values(next_producer_id=CLUSTER.c.next_producer_id + count)
            end = (await connection.execute(move.returning(CLUSTER.c.next_producer_id))).scalar_one()
            block = sa.insert(PRODUCER_ID_BLOCKS).values(first_id=end - count, count=count, allocated_ms=NOW_MS)
            await connection.execute(block)
            return range(end - count, end)

        return await self._database.write(work)

    async def producer_states(self, partition_ids: Sequence[int] | None = None) -> Sequence[ProducerState]:
        async def work(connection: AsyncConnection) -> Sequence[ProducerState]:
            found: list[ProducerState] = []
            # Page by page: with a million producers one statement would take longer than its time-out.
            while page := (await connection.execute(_page(partition_ids, found[-1] if found else None))).all():
                found += map(_state, page)
            return found

        return await self._database.read(work)


def _page(partition_ids: Sequence[int] | None, after: ProducerState | None) -> sa.Select[Any]:
    where = PRODUCER_STATES.c
    query = sa.select(PRODUCER_STATES).order_by(where.partition_id, where.producer_id).limit(ROWS_AT_A_TIME)
    if partition_ids is not None:
        query = query.where(any_of(where.partition_id, partition_ids))
    if after is not None:
        query = query.where(sa.tuple_(where.partition_id, where.producer_id) > (after.partition_id, after.producer_id))
    return query


def _state(row: Any) -> ProducerState:
    return ProducerState(
        partition_id=row.partition_id,
        producer_id=row.producer_id,
        epoch=row.epoch,
        batches=[
            (batch.first_sequence, batch.last_sequence, batch.base_offset)
            for batch in decode_tail(row.tail, row.append_times)
        ],
        last_seen_ms=row.last_seen_ms,
    )
