"""An agent that starts reads from Postgres: first the state at one instant, then the live L0 files.

While a transaction holds a snapshot, commits slow down, so the transaction at the beginning reads the small things
only. The files have no transaction: each slice is a statement of its own and reads the present.
`metadata/contract/tail.py` says why a follower may take that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.files import L0File
from metadata.contract.tail import LIVE_FILES_MAX, Cursor, Snapshot
from metadata.contract.topics import Topic, Watermarks
from metadata.postgres.connection import Database
from metadata.postgres.driver import driver_of
from metadata.postgres.log.tail import l0_file_of
from metadata.postgres.log.topics import read_topics
from metadata.postgres.tables import CLUSTER
from metadata.transactions.contract import OpenTransaction

WATERMARKS_SLICE = 5_000
"""Watermarks that are turned into values between two turns of the event loop."""
INDEX_BYTES_SLICE = 2 << 20
"""A slice of files ends with the file whose index passes this many bytes, if not before."""

WATERMARKS_QUERY = """
SELECT w.partition_id, w.next_offset, l.log_start_offset, (
    SELECT t.first_offset FROM transaction_partitions t
    WHERE t.partition_id = w.partition_id AND t.first_offset IS NOT NULL
    ORDER BY t.partition_id, t.first_offset LIMIT 1
) AS first_open_offset
FROM watermarks w JOIN log_starts l ON l.partition_id = w.partition_id
"""
_ALL_WATERMARKS = """
SELECT w.partition_id, w.next_offset, l.log_start_offset, NULL::bigint AS first_open_offset
FROM watermarks w JOIN log_starts l ON l.partition_id = w.partition_id ORDER BY 1
"""
"""Without a look at the transactions of each partition: a snapshot reads all open ones."""
_OPEN = """SELECT partition_id, producer_id, first_offset FROM transaction_partitions
WHERE first_offset IS NOT NULL ORDER BY partition_id, producer_id"""

_LAST_LIVE = "SELECT coalesce(max(file_id), 0) FROM files WHERE level = 0 AND state = 'live'"
# The length of an index is known without reading it, so only the files of this slice are read.
LIVE_FILES_QUERY = f"""
SELECT file_id, key, writer_id, epoch, seq, size_bytes, created_ms, index, inline, txn
FROM (
    SELECT s.*, sum(octet_length(index)) OVER (ORDER BY file_id ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)
        - octet_length(index) AS bytes_before
    FROM (
        SELECT file_id, key, writer_id, epoch, seq, size_bytes, created_ms, index, inline, txn
        FROM files WHERE level = 0 AND state = 'live' AND file_id > $1 AND file_id <= $2
        ORDER BY file_id LIMIT {LIVE_FILES_MAX}
    ) AS s
) AS measured
WHERE bytes_before < {INDEX_BYTES_SLICE}
ORDER BY file_id
"""  # noqa: S608 - the only things put in are our own numbers


async def read_snapshot(database: Database) -> Snapshot:
    async def work(connection: AsyncConnection) -> tuple[Any, ...]:
        cluster = sa.select(CLUSTER.c.forgotten_change_id, CLUSTER.c.broker_configs)
        floor, broker_configs = (await connection.execute(cluster)).one()
        driver = await driver_of(connection)
        writers = await driver.fetch("SELECT writer_id, epoch, last_seq FROM writers")
        # With all changes forgotten the table is empty; a cursor of 0 would count as too old at once.
        change_id = max(await driver.fetchval("SELECT coalesce(max(change_id), 0) FROM changes"), floor)
        last_file_id = await driver.fetchval(_LAST_LIVE)
        topics: Sequence[Topic] = await read_topics(connection)
        watermarks = await driver.fetch(_ALL_WATERMARKS)
        open_rows = await driver.fetch(_OPEN)
        return writers, change_id, broker_configs, last_file_id, topics, watermarks, open_rows

    # Rows become values after the transaction has ended.
    read = await database.read(work, repeatable=True)
    writers, change_id, broker_configs, last_file_id, topics, watermarks, open_rows = read
    database.saw_file(last_file_id)
    return Snapshot(
        topics=topics,
        watermarks=await _values(watermarks, first_open_offsets(open_rows)),
        last_file_id=last_file_id,
        cursor=Cursor(
            writers={row["writer_id"]: (row["epoch"], row["last_seq"]) for row in writers}, change_id=change_id
        ),
        broker_configs=broker_configs,
        open_transactions=[OpenTransaction(*row) for row in open_rows],
    )


def watermarks_of(row: Mapping[Any, Any], first_open: int | None = None) -> Watermarks:
    high, start = row["next_offset"], row["log_start_offset"]
    first = row["first_open_offset"] if first_open is None else first_open
    return Watermarks(
        partition_id=row["partition_id"],
        log_start_offset=start,
        last_stable_offset=high if first is None else max(first, start),
        high_watermark=high,
    )


def first_open_offsets(rows: Sequence[Mapping[str, Any]]) -> Mapping[int, int]:
    """By partition id."""
    found: dict[int, int] = {}
    for row in rows:
        found[row["partition_id"]] = min(found.get(row["partition_id"], row["first_offset"]), row["first_offset"])
    return found


async def _values(rows: Sequence[Mapping[str, Any]], first_open: Mapping[int, int]) -> Sequence[Watermarks]:
    """In slices, because a process with 100,000 partitions has clients to answer meanwhile."""
    found: list[Watermarks] = []
    for first in range(0, len(rows), WATERMARKS_SLICE):
        some = rows[first : first + WATERMARKS_SLICE]
        found += [watermarks_of(row, first_open.get(row["partition_id"])) for row in some]
        await asyncio.sleep(0)
    return found


def live_file_of(row: Mapping[Any, Any]) -> L0File:
    return l0_file_of(row, row["file_id"], row["key"])
