"""DeleteRecords in Postgres: move a log start and kill the extents below it, with the locks of
`metadata/postgres/rows.py`."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.tail import ChangeKind
from metadata.postgres.connection import Database
from metadata.postgres.rows import (
    append_change,
    begin_killing,
    kill_extents,
    lock_partitions,
    move_log_starts,
    now_ms,
)
from metadata.postgres.tables import (
    EXTENTS,
    PARTITIONS,
    WATERMARKS,
)
from metadata.rules.refusals import offset_outside, unknown_partition


async def delete_records(database: Database, partition_id: int, offset: int) -> int:
    async def work(connection: AsyncConnection) -> int:
        await begin_killing(connection)
        starts = await lock_partitions(connection, [partition_id])
        query = sa.select(WATERMARKS.c.next_offset, PARTITIONS.c.topic_id).join(
            PARTITIONS, PARTITIONS.c.partition_id == WATERMARKS.c.partition_id
        )
        row = (await connection.execute(query.where(WATERMARKS.c.partition_id == partition_id))).one_or_none()
        if row is None or partition_id not in starts:
            raise unknown_partition(partition_id)
        if offset < -1 or offset > row.next_offset:
            raise offset_outside(offset, row.next_offset)
        wanted: int = row.next_offset if offset == -1 else offset
        # Not an error in Kafka, and no change: agents need no news of it.
        if wanted <= starts[partition_id]:
            return starts[partition_id]
        below = sa.select(EXTENTS.c.extent_id).where(
            EXTENTS.c.partition_id == partition_id, EXTENTS.c.state == "live", EXTENTS.c.last_offset < wanted
        )
        dying = sorted((await connection.execute(below)).scalars())
        await kill_extents(connection, dying, at_ms=await now_ms(connection))
        await move_log_starts(connection, {partition_id: wanted})
        detail = {"offsets": {str(partition_id): wanted}}
        # Last, as everywhere: its lock serialises all changes and is held to the end.
        await append_change(connection, ChangeKind.LOG_START_MOVED, row.topic_id, detail)
        return wanted

    return await database.write(work)
