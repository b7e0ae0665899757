"""Changes to rows of L1 and above that several parts share, and the order in which all parts take locks.

1. the *killers' lock*, shared. Every transaction that makes files die takes it first. A new pin takes it exclusively
   while it reads the clock. So a pin waits for deaths in flight, and later deaths are later than the pin's creation;
2. the job's row;
3. rows of `log_starts`, by partition id: each is the lock of its partition's extents. It comes before the extents,
   because a deletion that waited for a merge at the extents would not see the extents that the merge put in;
4. extents by id;
5. files by id;
6. the lock of all committed offsets (`metadata/postgres/groups/offsets.py`), only in `delete_topic`;
7. the lock of `changes`, which `append_change` takes last.

The lock of growth (`metadata/postgres/log/topics.py`) is taken before all of these, by whoever adds partitions.
`delete_topic` takes the topic's row and its watermarks between 1 and 3. A commit of an L0 file takes none of these. A
write for a consumer group takes rows of groups, which no other transaction takes, and then 6, shared. The lock of
stamps and rows of erasures (`metadata/postgres/erasures/erasures.py`) are taken with none of these; those of users,
ACLs and quotas (`metadata/postgres/security/security.py`) with 7 alone, which comes after them.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.leveled import LeveledExtent
from metadata.contract.tail import ChangeKind

KILLERS_LOCK = 7_310_575_219

LONGS = ARRAY(sa.BigInteger)
INTS = ARRAY(sa.Integer)
UUIDS = ARRAY(sa.Uuid)


def statement(text: str, **types: Any) -> sa.TextClause:
    """SQL with typed parameters."""
    return sa.text(text).bindparams(*(sa.bindparam(name, type_=type_) for name, type_ in types.items()))


def any_of(column: sa.Column[Any], values: Iterable[Any]) -> sa.ColumnElement[bool]:
    """`column` is one of `values`. Takes one parameter for any number of values; IN takes one for each, and a statement
    has at most 32,767."""
    return column == sa.func.any(sa.literal(list(values), ARRAY(column.type)))


def between_now_and(column: sa.Column[Any], ms: int) -> sa.ColumnElement[bool]:
    """The time lies ahead, by at most `ms`. The upper bound rejects a lease from before the store's clock went back."""
    return sa.and_(column > sa.text("clock_ms()"), column <= sa.text(f"clock_ms() + {int(ms)}"))


LEVELED = """SELECT e.extent_id, e.partition_id, e.base_offset, e.last_offset, e.file_id, f.key, f.level, f.size_bytes,
    e.position, e.length, e.block_index_position, e.block_index_length, e.record_count, e.crc32c, e.min_ts_ms,
    e.max_ts_ms, e.has_tombstones, e.flagged_reason
FROM extents e JOIN files f ON f.file_id = e.file_id
"""
"""The columns of `LeveledExtent`, in order, as far as agents and readers need them. Roles of readers made by an older
release may read no others."""

LEVELED_FOR_MERGES = LEVELED.replace(
    "e.flagged_reason\n",
    "e.flagged_reason,\n    e.uncompressed_bytes, e.committed_ms, e.earliest_horizon_ms, e.erased_through\n",
)
"""All columns of `LeveledExtent`, in order."""

_APPEND_CHANGE = statement(
    "SELECT append_change_v1(:kind, :topic_id, :detail)", kind=sa.Text, topic_id=sa.Uuid, detail=JSONB
)
_LOCK_PARTITIONS = statement(
    """SELECT partition_id, log_start_offset FROM log_starts WHERE partition_id = ANY (:partition_ids)
    ORDER BY partition_id FOR NO KEY UPDATE""",
    partition_ids=INTS,
)
_LOCK_EXTENTS = statement(
    "SELECT extent_id FROM extents WHERE extent_id = ANY (:extent_ids) ORDER BY extent_id FOR NO KEY UPDATE",
    extent_ids=LONGS,
)
_LOCK_FILES = statement(
    """SELECT file_id FROM files
    WHERE file_id = ANY (:file_ids) OR file_id IN (SELECT file_id FROM extents WHERE extent_id = ANY (:extent_ids))
    ORDER BY file_id FOR NO KEY UPDATE""",
    file_ids=LONGS,
    extent_ids=LONGS,
)
# One statement counts down and kills: a file dies with its last live extent, whoever kills that.
_KILL_EXTENTS = statement(
    """WITH died AS (
        UPDATE extents SET state = 'dead', dead_ms = :now_ms
        WHERE extent_id = ANY (:extent_ids) AND state = 'live' RETURNING file_id, length
    ), counted AS (
        SELECT file_id, count(*) AS deaths FROM died GROUP BY file_id
    ), counted_down AS (
        UPDATE files f SET live_extents = f.live_extents - c.deaths,
            state = CASE WHEN f.live_extents = c.deaths THEN 'dead' ELSE f.state END,
            dead_ms = CASE WHEN f.live_extents = c.deaths THEN :now_ms ELSE f.dead_ms END
        FROM counted c WHERE f.file_id = c.file_id
    )
    SELECT coalesce(sum(length), 0)::bigint FROM died""",
    extent_ids=LONGS,
    now_ms=sa.BigInteger,
)
# `greatest`: a log start never goes back, even if retention and DeleteRecords cross.
_MOVE_LOG_STARTS = statement(
    """UPDATE log_starts l SET log_start_offset = greatest(l.log_start_offset, m.start),
        requested_through_offset = CASE WHEN l.requested_through_offset > m.start THEN l.requested_through_offset END
    FROM unnest(:partition_ids, :offsets) AS m (partition_id, start) WHERE m.partition_id = l.partition_id""",
    partition_ids=INTS,
    offsets=LONGS,
)
_FORGET_ABORTED = statement(
    """DELETE FROM aborted_transactions a USING unnest(:partition_ids, :offsets) AS m (partition_id, start)
    WHERE a.partition_id = m.partition_id AND a.last_offset < m.start""",
    partition_ids=INTS,
    offsets=LONGS,
)


async def now_ms(connection: AsyncConnection) -> int:
    return (await connection.execute(sa.text("SELECT clock_ms()"))).scalar_one()


async def begin_killing(connection: AsyncConnection) -> None:
    """Call this first in every transaction that may make a file die, and read the time of death after it."""
    await connection.execute(sa.text(f"SELECT pg_advisory_xact_lock_shared({KILLERS_LOCK})"))


async def lock_partitions(connection: AsyncConnection, partition_ids: Iterable[int]) -> dict[int, int]:
    """Lock these partitions. Returns partition id -> log start offset of those that exist."""
    rows = await connection.execute(_LOCK_PARTITIONS, {"partition_ids": sorted(set(partition_ids))})
    return {row.partition_id: row.log_start_offset for row in rows}


async def lock_extents(connection: AsyncConnection, extent_ids: Sequence[int]) -> None:
    await connection.execute(_LOCK_EXTENTS, {"extent_ids": list(extent_ids)})


async def lock_files(connection: AsyncConnection, *, extent_ids: Sequence[int], file_ids: Sequence[int] = ()) -> None:
    """Lock the files of these extents, and these files."""
    await connection.execute(_LOCK_FILES, {"file_ids": list(file_ids), "extent_ids": list(extent_ids)})


async def kill_extents(connection: AsyncConnection, extent_ids: Sequence[int], *, at_ms: int) -> int:
    """Kill those of the extents that are live, and every file that loses its last one. The caller has locked the
    partitions. Returns the number of bytes that died."""
    if not extent_ids:
        return 0
    await lock_extents(connection, extent_ids)
    await lock_files(connection, extent_ids=extent_ids)
    killed = await connection.execute(_KILL_EXTENTS, {"extent_ids": list(extent_ids), "now_ms": at_ms})
    return killed.scalar_one()


async def move_log_starts(connection: AsyncConnection, starts: Mapping[int, int]) -> None:
    """Move log starts forward. The caller has locked the partitions. Drops a request for compaction that ends at or
    below the new log start, and aborted transactions that ended below it, because that data is gone."""
    values = {"partition_ids": list(starts), "offsets": list(starts.values())}
    await connection.execute(_MOVE_LOG_STARTS, values)
    await connection.execute(_FORGET_ABORTED, values)


async def append_change(
    connection: AsyncConnection, kind: ChangeKind, topic_id: uuid.UUID | None, detail: Mapping[str, Any]
) -> int:
    """Call this last: every other transaction that appends a change waits for this lock until we have committed.
    Returns the change's id."""
    row = {"kind": kind.value, "topic_id": topic_id, "detail": dict(detail)}
    return (await connection.execute(_APPEND_CHANGE, row)).scalar_one()


async def leveled(
    connection: AsyncConnection, condition: sa.TextClause, values: Mapping[str, Any]
) -> list[LeveledExtent]:
    """The extents that a statement selects; it must begin with LEVELED or LEVELED_FOR_MERGES."""
    return [LeveledExtent(*row) for row in await connection.execute(condition, dict(values))]


def leveled_extent(columns: Sequence[Any]) -> LeveledExtent:
    """Of one row of LEVELED."""
    return LeveledExtent(*columns)
