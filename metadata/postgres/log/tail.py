"""The tail in Postgres: the L0 rows and changes that lie ahead of a cursor.

It never waits for a missing seq. A writer commits under its row lock, with ascending seq; so if a seq is visible, every
lower one is visible too, or never will be. The lock of `changes` makes their ids ascend in commit order.

`_TAIL` compares every writer with the cursor, and a cluster has a writer for each address that an agent ever had. So it
is for a cursor of which nothing else is known. Usually `_AHEAD` first names the files above an id up to which all is
decided: a poll that finds nothing new costs the same however many writers there are. Then `_TAIL_OF_SOME` reads what is
ahead of the cursor, of the writers of these files only.

An id is decided when every commit that drew it, or a lower one, has ended. Commits do not become visible in the order
of their ids, so a visible id decides nothing about the lower ones. But a commit has its transaction id before it draws
a file id, because it locks the writer's row first. So when an id is visible, all commits with lower ids have
transaction ids that are given already. They have ended once a later snapshot shows no running transaction below the
next id that was to be given then, and that later snapshot shows their files. Until then the older id serves: an open
transaction anywhere makes `_AHEAD` read more rows, and delays nothing. Above AHEAD_FILES_MAX rows every writer is
compared again.
"""

from __future__ import annotations

import asyncio
import json
import uuid
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from metadata.contract.files import L0File
from metadata.contract.tail import TAIL_FILES_MAX, Change, ChangeKind, Cursor, Decided, Tail

Fetch: TypeAlias = Callable[..., Awaitable[Sequence[Any]]]

AHEAD_FILES_MAX = 1_000
TURN_BYTES = 1 << 20
"""Details of changes that are decoded between two turns of the event loop: some 10 ms."""

# Dead files too: a follower that never saw one alive must still move the end of its partitions. A deleted file can no
# longer move it (`DeletionMetadata.files_deleted`): the writer's mark makes a follower behind it start cold. Only
# writers that are ahead of the cursor are looked at, so a caught-up follower reads no row of `files`.
_TAIL_FORM = """
WITH seen AS (SELECT * FROM unnest($1::integer[], $2::integer[], $3::bigint[]) AS s (writer_id, epoch, seq)),
behind AS (
    SELECT w.writer_id, coalesce(s.epoch, -1) AS epoch, coalesce(s.seq, -1) AS seq,
        (w.forgotten_epoch, w.forgotten_seq) > (coalesce(s.epoch, -1), coalesce(s.seq, -1)) AS cold
    FROM {writers}
    WHERE (w.epoch, w.last_seq) > (coalesce(s.epoch, -1), coalesce(s.seq, -1))
)
SELECT 'cold' AS part, NULL::bigint AS id, NULL::text AS name, NULL::integer AS writer_id, NULL::integer AS epoch,
    NULL::bigint AS seq, NULL::bigint AS size_bytes, NULL::bigint AS created_ms, NULL::bytea AS index,
    NULL::boolean AS live, NULL::bytea AS inline, NULL::bytea AS txn, NULL::uuid AS topic_id, NULL::jsonb AS detail
WHERE $4 < (SELECT forgotten_change_id FROM cluster) OR EXISTS (SELECT FROM behind WHERE cold)
UNION ALL
SELECT 'file', f.file_id, f.key, f.writer_id, f.epoch, f.seq, f.size_bytes, f.created_ms, f.index, f.state = 'live',
    f.inline, f.txn, NULL, NULL
FROM behind b CROSS JOIN LATERAL (
    SELECT * FROM files f
    WHERE f.level = 0 AND f.writer_id = b.writer_id AND (f.epoch, f.seq) > (b.epoch, b.seq)
    ORDER BY f.epoch, f.seq LIMIT {limit}
) AS f
UNION ALL
SELECT 'change', c.change_id, c.kind, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, NULL, c.topic_id, c.detail
FROM changes c WHERE c.change_id > $4
ORDER BY 1, 2
"""
_TAIL = _TAIL_FORM.format(writers="writers w LEFT JOIN seen s ON s.writer_id = w.writer_id", limit=TAIL_FILES_MAX)
_TAIL_OF_SOME = _TAIL_FORM.format(writers="seen s JOIN writers w ON w.writer_id = s.writer_id", limit=TAIL_FILES_MAX)

# `is_old`: rows were forgotten, so no file shows any more that they were ahead of the cursor. `next_xid`: `xmax` alone
# is no bound, because transactions above it may run; `age` counts from it to the next id that will be given.
_AHEAD = f"""
SELECT $2 < (SELECT forgotten_change_id FROM cluster) OR $1 < (SELECT forgotten_file_id FROM cluster) AS is_old,
    $2 < (SELECT max(change_id) FROM changes) AS has_changes,
    greatest((SELECT max(file_id) FROM files), (SELECT forgotten_file_id FROM cluster)) AS newest_id,
    pg_snapshot_xmin(s.now)::text::bigint AS oldest_xid,
    pg_snapshot_xmax(s.now)::text::bigint + age(pg_snapshot_xmax(s.now)::xid) AS next_xid,
    f.writer_id, f.epoch, f.seq
FROM (SELECT pg_current_snapshot() AS now) AS s LEFT JOIN LATERAL (
    SELECT writer_id, epoch, seq FROM files
    WHERE file_id > $1 AND level = 0 AND writer_id IS NOT NULL ORDER BY file_id LIMIT {AHEAD_FILES_MAX + 1}
) AS f ON true
"""  # noqa: S608 - the one thing put in is our own number
_ABOVE_ALL = (1 << 63) - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The state above a file id, as one snapshot shows it."""

    newest_id: int
    oldest_xid: int
    """No older transaction runs."""
    next_xid: int
    """No transaction had this id yet, nor a higher one."""


def decided_by(before: Decided | None, ahead: Ahead) -> Decided:
    """The ids decided for a cursor that has taken in all that `ahead`'s snapshot shows. Pure."""
    if before is not None and ahead.oldest_xid < before.next_xid:
        return before  # of the commits that may lie below `next_file_id`, one may still run
    return Decided(
        file_id=None if before is None else before.next_file_id,
        next_file_id=ahead.newest_id if before is None else max(ahead.newest_id, before.next_file_id),
        next_xid=ahead.next_xid,
    )


async def read_tail(fetch: Fetch, cursor: Cursor) -> Tail:
    """`fetch(query, *arguments)` runs one statement by itself, in a snapshot of its own."""
    before = cursor.decided
    file_id = _ABOVE_ALL if before is None or before.file_id is None else before.file_id
    rows = await fetch(_AHEAD, file_id, cursor.change_id)
    first = rows[0]
    ahead = Ahead(newest_id=first["newest_id"], oldest_xid=first["oldest_xid"], next_xid=first["next_xid"])
    decided = decided_by(before, ahead)
    if file_id == _ABOVE_ALL or first["is_old"] or len(rows) > AHEAD_FILES_MAX:
        return await _tail(cursor, await _fetch_tail(fetch, _TAIL, cursor, cursor.writers), decided)
    some: dict[int, tuple[int, int]] = {}
    for row in rows:
        writer_id = row["writer_id"]
        seen = cursor.writers.get(writer_id, (-1, -1))
        if writer_id is not None and (row["epoch"], row["seq"]) > seen:
            some[writer_id] = seen
    if not some and not first["has_changes"]:
        return await _tail(cursor, (), decided)
    return await _tail(cursor, await _fetch_tail(fetch, _TAIL_OF_SOME, cursor, some), decided)


async def _fetch_tail(
    fetch: Fetch, query: str, cursor: Cursor, writers: Mapping[int, tuple[int, int]]
) -> Sequence[Any]:
    epochs, seqs = [epoch for epoch, _ in writers.values()], [seq for _, seq in writers.values()]
    return await fetch(query, list(writers), epochs, seqs, cursor.change_id)


async def _tail(cursor: Cursor, rows: Sequence[Any], decided: Decided | None) -> Tail:
    """`decided` holds for a cursor that has taken in all that lies ahead of `cursor`."""
    if any(row["part"] == "cold" for row in rows):
        return Tail(files=(), changes=(), cursor=cursor, cold=True)
    files = [l0_file_of(row, row["id"], row["name"], live=row["live"]) for row in rows if row["part"] == "file"]
    changes, turn_bytes = list[Change](), 0
    for row in rows:
        if row["part"] == "change":
            changes.append(_change(row))
            turn_bytes += len(row["detail"])
            if turn_bytes >= TURN_BYTES:  # 100,000 ACLs that were deleted at once, say
                turn_bytes = 0
                await asyncio.sleep(0)
    read: dict[int, tuple[int, int]] = {}
    for file in files:
        read[file.writer_id] = max(read.get(file.writer_id, (-1, -1)), (file.epoch, file.seq))
    is_cut = TAIL_FILES_MAX in Counter(file.writer_id for file in files).values()
    return Tail(
        files=files,
        changes=changes,
        cursor=Cursor(
            # The same mapping if nothing was read: there may be thousands of writers, and a poll is to cost little.
            writers={**cursor.writers, **read} if read else cursor.writers,
            change_id=changes[-1].change_id if changes else cursor.change_id,
            decided=cursor.decided if is_cut else decided,
        ),
    )


def l0_file_of(row: Mapping[Any, Any], file_id: int, key: str, *, live: bool = True) -> L0File:
    return L0File(
        file_id=file_id,
        key=key,
        writer_id=row["writer_id"],
        epoch=row["epoch"],
        seq=row["seq"],
        size_bytes=row["size_bytes"],
        created_ms=row["created_ms"],
        index=row["index"],
        live=live,
        inline=row["inline"] or b"",
        txn_rows=row["txn"] or b"",
    )


def _change(row: Mapping[Any, Any]) -> Change:
    topic_id = row["topic_id"]
    return Change(
        change_id=row["id"],
        kind=ChangeKind(row["name"]),
        topic_id=None if topic_id is None else uuid.UUID(int=topic_id.int),
        detail=json.loads(row["detail"]),
    )
