"""Catalogue snapshots out of Postgres. What is in them: `metadata/catalog.py`; the way back: `catalog_restore.py`.

One read-only transaction at REPEATABLE READ, a cursor for each table, `ROWS_AT_A_TIME` in memory. It locks nothing that
a commit wants, and it is open only while rows are read: the caller writes them to this machine's disk.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.catalog import SEQUENCES, TABLES, CatalogInstant, DoneJob, TakeRows
from metadata.postgres_connection import Database
from metadata.postgres_rows import now_ms, statement
from metadata.service import Cursor
from metadata.tables import WRITERS

ROWS_AT_A_TIME = 2_000

_JOB_IDS = "pg_get_serial_sequence('merge_jobs', 'job_id')"
_LAST = ", ".join(
    f"(SELECT CASE WHEN is_called THEN last_value ELSE last_value - 1 END FROM {name}) AS {name}"  # noqa: S608
    for name in SEQUENCES
    if name != "job_ids"
)
_INSTANT = sa.text(
    f"""SELECT {_LAST}, coalesce(pg_sequence_last_value({_JOB_IDS}::regclass), 0) AS job_ids, cluster_id,
    greatest((SELECT max(change_id) FROM changes), forgotten_change_id) AS change_id FROM cluster"""  # noqa: S608
)
_DONE = statement(
    """SELECT j.job_id, j.epoch, j.finished_ms,
        coalesce((SELECT array_agg(f.key ORDER BY f.file_id) FROM files f WHERE f.file_id = ANY (j.output_file_ids)),
            '{}') AS keys
    FROM merge_jobs j WHERE j.state = 'done' AND j.finished_ms >= :since_ms ORDER BY j.finished_ms, j.job_id""",
    since_ms=sa.BigInteger,
)


class PostgresCatalog:
    """Part of `PostgresMetadata`. Keeps `metadata.catalog.CatalogMetadata`."""

    _database: Database

    async def catalog_rows(self, take: TakeRows) -> CatalogInstant:
        taken_ms = await self._database.read(now_ms)  # before the snapshot: what is not in it is later

        async def work(connection: AsyncConnection) -> CatalogInstant:
            # the first statement makes the snapshot that all others see; sequences are read outside of it, so they may
            # be ahead, which does no harm
            writers = (
                await connection.execute(sa.select(WRITERS.c.writer_id, WRITERS.c.epoch, WRITERS.c.last_seq))
            ).all()
            row = (await connection.execute(_INSTANT)).mappings().one()
            for each in TABLES.values():
                query = sa.select(*(each.table.c[name] for name in each.columns))
                if each.condition:
                    query = query.where(sa.text(each.condition))
                await take(each, ())
                found = await connection.stream(query, execution_options={"yield_per": ROWS_AT_A_TIME})
                async for some in found.partitions():
                    await take(each, some)
            return CatalogInstant(
                taken_ms=taken_ms,
                cluster_id=row["cluster_id"],
                cursor=Cursor(
                    writers={writer.writer_id: (writer.epoch, writer.last_seq) for writer in writers},
                    change_id=row["change_id"],
                ),
                sequences={name: row[name] for name in SEQUENCES},
            )

        return await self._database.read(work, repeatable=True)

    async def done_jobs(self, since_ms: int) -> Sequence[DoneJob]:
        async def work(connection: AsyncConnection) -> Sequence[DoneJob]:
            rows = await connection.execute(_DONE, {"since_ms": since_ms})
            return [DoneJob(row.job_id, row.epoch, row.finished_ms, tuple(row.keys)) for row in rows]

        return await self._database.read(work)
