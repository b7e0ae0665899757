"""Reads the metadata backup out of Postgres. `metadata/contract/backup.py` defines its content; `restore.py` puts it
back.

One read-only transaction at REPEATABLE READ copies all tables, as the server sends them, to temporary files on the
local disk. It takes no lock that a commit needs. While it is open, dead versions of hot rows pile up and commits slow
down, so it does nothing else: the rows become values after it has ended, `ROWS_AT_A_TIME` in memory and off the event
loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from tempfile import TemporaryFile
from typing import Any, BinaryIO

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.backup import JOB_IDS_IN_FLIGHT, SEQUENCES, BackupInstant, DoneJob, JobCursor, TakeRows
from metadata.contract.tail import Cursor
from metadata.postgres.backup.copying import rows_of
from metadata.postgres.backup.producers import KEPT, backed_up
from metadata.postgres.backup.tables import PRODUCERS, TABLES, CopiedTable
from metadata.postgres.connection import CLIENT_PATIENCE, Database
from metadata.postgres.driver import Connection, driver_of
from metadata.postgres.rows import now_ms
from metadata.postgres.tables import MERGE_JOBS, PRODUCER_STATES, WRITERS
from runtime.errors import UnavailableError

ROWS_AT_A_TIME = 2_000
COPY_TIMEOUT_MS = 600_000

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


class SpoolError(UnavailableError):
    """The local disk does not take the copied rows."""


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
            driver = await driver_of(connection)
            # Streams take as long as tables are large; the timeouts of statements are for queries.
            await driver.execute(f"SET LOCAL statement_timeout = {COPY_TIMEOUT_MS}")
            try:
                for each in TABLES.values():
                    await _copy(driver, each, files[each.name])
            except BaseException:
                # A copy that was broken off has more to say. Nobody else must get this connection.
                await connection.invalidate()
                raise
            return BackupInstant(
                taken_ms=taken_ms,
                cluster_id=row["cluster_id"],
                cursor=Cursor(
                    writers={writer.writer_id: (writer.epoch, writer.last_seq) for writer in writers},
                    change_id=row["change_id"],
                ),
                sequences={name: row[name] for name in SEQUENCES},
            )

        with ExitStack() as stack:
            files = {name: stack.enter_context(await asyncio.to_thread(TemporaryFile)) for name in TABLES}
            instant = await self._database.read(work, repeatable=True)
            for each in TABLES.values():
                # A first call without rows, so that the backup names an empty table too.
                await take(each, ())
                rows = _rows(each, files[each.name])
                while some := await asyncio.to_thread(next, rows, None):
                    await take(each, some)
                files[each.name].close()  # gives its disk space back
        return instant

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


class _Disk:
    """Writes copied rows to a file. A full disk is no failure of Postgres, so its error leaves in another class."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file

    async def write(self, rows: bytes) -> None:
        try:
            await asyncio.to_thread(self._file.write, rows)
        except OSError as error:
            raise SpoolError(f"cannot keep the copied metadata on the local disk: {error}") from error


async def _copy(driver: Connection, table: CopiedTable, file: BinaryIO) -> None:
    columns = ", ".join(f'"{name}"' for name in _kept(table)[1])
    where = f" WHERE {table.condition}" if table.condition else ""
    query = f"SELECT {columns} FROM {_kept(table)[0].name}{where}"  # noqa: S608 - our own names
    await driver.copy_from_query(
        query, output=_Disk(file).write, format="binary", timeout=COPY_TIMEOUT_MS / 1000 * CLIENT_PATIENCE
    )


def _rows(table: CopiedTable, file: BinaryIO) -> Iterator[list[Sequence[Any]]]:
    source, columns = _kept(table)
    for rows in rows_of(file, [source.c[name].type for name in columns], ROWS_AT_A_TIME):
        yield list(map(backed_up, rows)) if table.table is PRODUCERS else rows


def _kept(table: CopiedTable) -> tuple[sa.Table, tuple[str, ...]]:
    """The table and columns that are read for it: the view of producers would unpack them in the transaction."""
    return (PRODUCER_STATES, KEPT) if table.table is PRODUCERS else (table.table, table.columns)
