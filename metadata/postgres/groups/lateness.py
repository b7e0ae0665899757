"""The oldest records that groups have not read, for the pairs of a group and a topic that metrics show.

One statement looks up each lagging partition of these pairs in the index of extents; what is not there lies in L0
files, and a second statement reads the packed indexes of the newest of them. Both are bounded. Neither waits for a row.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.postgres.rows import UUIDS, statement
from metadata.postgres.tables import Utf8
from metadata.rules.unread import FirstUnread, times_in_l0

PLACES_MAX = 10_000
"""Look-ups in all; a pair with more lagging partitions than its share has only those looked up that lag most."""
L0_INDEX_BYTES_MAX = 4 << 20
"""Packed indexes read in a round: the newest, so that groups that keep up find theirs."""

# An extent without times (records of old producers) has the time of its commit.
_UNREAD = statement(
    """SELECT s.pair, u.partition_id, u.first_unread,
        CASE WHEN e.max_ts_ms >= 0 THEN e.max_ts_ms ELSE e.committed_ms END AS unread_ms, e.max_ts_ms IS NULL AS in_l0
    FROM unnest(CAST(:group_ids AS bytea[]), CAST(:topic_ids AS uuid[])) WITH ORDINALITY AS s (group_id, topic_id, pair)
    CROSS JOIN LATERAL (
        SELECT p.partition_id, w.next_offset, greatest(o.committed_offset, l.log_start_offset, 0) AS first_unread
        FROM group_offsets o
        JOIN partitions p ON p.topic_id = o.topic_id AND p.partition = o.partition
        JOIN watermarks w ON w.partition_id = p.partition_id
        JOIN log_starts l ON l.partition_id = p.partition_id
        WHERE o.group_id = s.group_id AND o.topic_id = s.topic_id
            AND w.next_offset > greatest(o.committed_offset, l.log_start_offset, 0)
        ORDER BY w.next_offset - greatest(o.committed_offset, l.log_start_offset, 0) DESC LIMIT :partitions_max
    ) u
    LEFT JOIN LATERAL (
        SELECT e.max_ts_ms, e.committed_ms FROM extents e
        WHERE e.partition_id = u.partition_id AND e.state = 'live' AND e.last_offset >= u.first_unread
            AND e.record_count > 0
        ORDER BY e.last_offset LIMIT 1
    ) e ON true""",
    group_ids=sa.ARRAY(Utf8),
    topic_ids=UUIDS,
    partitions_max=sa.Integer,
)
_NEWEST_L0 = statement(
    """SELECT created_ms, index, live_files
    FROM (
        SELECT file_id, created_ms, index, count(*) OVER () AS live_files,
            sum(octet_length(index)) OVER (ORDER BY file_id DESC) - octet_length(index) AS bytes_before
        FROM files WHERE state = 'live' AND level = 0
    ) f
    WHERE bytes_before < :bytes_max ORDER BY file_id DESC""",
    bytes_max=sa.BigInteger,
)


async def oldest_unread(connection: AsyncConnection, pairs: Sequence[tuple[str, uuid.UUID]]) -> Mapping[int, int]:
    """A time in ms for each pair (by its place) with a record that the group has not read, as far as it is known."""
    if not pairs:
        return {}
    group_ids, topic_ids = zip(*pairs, strict=True)
    rows = await connection.execute(
        _UNREAD,
        {
            "group_ids": list(group_ids),
            "topic_ids": list(topic_ids),
            "partitions_max": max(PLACES_MAX // len(pairs), 1),
        },
    )
    oldest: dict[int, int] = {}
    in_l0: list[tuple[int, FirstUnread]] = []
    for pair, partition_id, first_unread, unread_ms, is_in_l0 in rows:
        if is_in_l0:
            in_l0.append((pair - 1, FirstUnread(partition_id, first_unread)))
        elif unread_ms is not None:
            oldest[pair - 1] = min(oldest.get(pair - 1, unread_ms), unread_ms)
    times = await _times_in_l0(connection, {place for _, place in in_l0})
    for pair, place in in_l0:
        # A merge that ended between the two statements took it out of L0: the next round finds it.
        if place in times:
            oldest[pair] = min(oldest.get(pair, times[place]), times[place])
    return oldest


async def _times_in_l0(connection: AsyncConnection, wanted: set[FirstUnread]) -> Mapping[FirstUnread, int]:
    if not wanted:
        return {}
    rows: Sequence[Any] = (await connection.execute(_NEWEST_L0, {"bytes_max": L0_INDEX_BYTES_MAX})).all()
    is_cut = bool(rows) and len(rows) < rows[0][2]
    return times_in_l0(wanted, ((written_ms, index) for written_ms, index, _ in rows), is_cut=is_cut)
