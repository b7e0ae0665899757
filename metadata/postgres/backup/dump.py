"""Reads the metadata backup out of Postgres. `metadata/contract/backup.py` defines its content; `restore.py` puts it
back.

One read-only transaction at REPEATABLE READ reads all tables, with a cursor for each and `ROWS_AT_A_TIME` in memory. It
takes no lock that a commit needs. It stays open only while rows are read, because the caller writes them to the local
disk and uploads them later.
"""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.backup import JOB_IDS_IN_FLIGHT, SEQUENCES, BackupInstant, DoneJob, JobCursor, TakeRows
from metadata.contract.tail import Cursor
from metadata.postgres.backup.tables import TABLES
from metadata.postgres.connection import Database
from metadata.postgres.rows import now_ms
from metadata.postgres.tables import MERGE_JOBS, WRITERS

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
_DONE = sa.text(
    """SELECT j.job_id, j.epoch, j.finished_ms,
        coalesce((SELECT array_agg(f.key ORDER BY f.file_id) FROM files f WHERE f.file_id = ANY (j.output_file_ids)),
            '{}') AS keys
    FROM merge_jobs j WHERE j.state = 'done' AND (j.job_id = ANY (:live) OR j.job_id > :above)
        AND NOT j.job_id = ANY (:told) ORDER BY j.job_id"""
).bindparams(
    sa.bindparam("live", type_=pg.ARRAY(sa.BigInteger)),
    sa.bindparam("told", type_=pg.ARRAY(sa.BigInteger)),
    sa.bindparam("above", type_=sa.BigInteger),
)


class PostgresBackup:
    """Implements `BackupMetadata`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def rows(self, take: TakeRows) -> BackupInstant:
        taken_ms = await self._database.read(now_ms)  # before the snapshot: a row outside of it is later than this

        async def work(connection: AsyncConnection) -> BackupInstant:
            # The first statement takes the snapshot that all others see. Sequences ignore snapshots, so they may be
            # ahead of the rows; that does no harm.
            writers = (
                await connection.execute(sa.select(WRITERS.c.writer_id, WRITERS.c.epoch, WRITERS.c.last_seq))
            ).all()
            row = (await connection.execute(_INSTANT)).mappings().one()
            for each in TABLES.values():
                query = sa.select(*(each.table.c[name] for name in each.columns))
                if each.condition:
                    query = query.where(sa.text(each.condition))
                # A first call without rows, so that the backup names an empty table too.
                await take(each, ())
                found = await connection.stream(query, execution_options={"yield_per": ROWS_AT_A_TIME})
                async for some in found.partitions():
                    await take(each, some)
            return BackupInstant(
                taken_ms=taken_ms,
                cluster_id=row["cluster_id"],
                cursor=Cursor(
                    writers={writer.writer_id: (writer.epoch, writer.last_seq) for writer in writers},
                    change_id=row["change_id"],
                ),
                sequences={name: row[name] for name in SEQUENCES},
            )

        return await self._database.read(work, repeatable=True)

    async def done_jobs(self, cursor: JobCursor | None) -> tuple[Sequence[DoneJob], JobCursor]:
        async def work(connection: AsyncConnection) -> tuple[Sequence[DoneJob], JobCursor]:
            job_id, state = MERGE_JOBS.c.job_id, MERGE_JOBS.c.state
            highest = (await connection.execute(sa.select(sa.func.max(job_id)))).scalar_one() or 0
            if cursor is not None:
                highest = max(highest, cursor.highest)
            live = await connection.execute(sa.select(job_id).where(sa.text("state IN ('ready', 'running')")))
            # Ids are drawn before the commit: a lower id may become visible after a higher one.
            recent = sa.select(job_id).where(job_id > highest - JOB_IDS_IN_FLIGHT, state == "done")
            told = await connection.execute(recent)
            after = JobCursor(
                highest=highest, live=frozenset(live.scalars().all()), told=frozenset(told.scalars().all())
            )
            if cursor is None:
                return [], after
            asked = {
                "live": sorted(cursor.live), "told": sorted(cursor.told), "above": cursor.highest - JOB_IDS_IN_FLIGHT
            }  # fmt: skip
            rows = await connection.execute(_DONE, asked)
            return [DoneJob(row.job_id, row.epoch, row.finished_ms, tuple(row.keys)) for row in rows], after

        return await self._database.read(work, repeatable=True)
