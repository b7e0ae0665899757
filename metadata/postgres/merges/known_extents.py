"""The live extents of compacted partitions, kept from one view of the planner to the next.

Reading them all for each view would cost as much as there are. So a view reads, of the partitions whose sums name a
newer change, what was added and which extents died. A partition that is not known, or changed last long ago, is read
whole. All of one partition's changes are made under its lock, and so their extents get their ids in the order in which
they become visible.

What comes out must agree with the sums of the same snapshot. If it does not, because the row of a dead extent is gone
already, the partition is forgotten and the view is read again. So is a view that would have to read very much at once:
each attempt reads a part, in a transaction of its own, and knows more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import Any, NamedTuple

from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.leveled import LeveledExtent
from metadata.postgres.driver import driver_of
from metadata.postgres.rows import LEVELED_FOR_MERGES

EXTENTS_AT_A_TIME = 50_000
"""About so many extents one attempt reads whole, or those of one partition."""
NEW_IDS_MAX = 50_000
"""A partition whose newest known extent is older than so many ids is read whole: among so many, its own are few."""

# The ORDER BY inside keeps the subquery whole, so that it reads each partition by index. Otherwise a hundred partitions
# seem worth a scan of all extents.
_PARTITION_BY_PARTITION = """FROM unnest($1::integer[]) AS p (partition_id) CROSS JOIN LATERAL (
        SELECT * FROM extents x WHERE x.partition_id = p.partition_id AND x.state = 'live' ORDER BY x.last_offset
    ) AS e"""
_WHOLE = f"""{LEVELED_FOR_MERGES.replace("FROM extents e", _PARTITION_BY_PARTITION)}
    ORDER BY e.partition_id, e.base_offset"""
_ADDED = f"{LEVELED_FOR_MERGES} WHERE e.extent_id > $1 AND e.partition_id = ANY ($2::integer[]) AND e.state = 'live'"
_DEAD = """SELECT e.extent_id FROM unnest($1::integer[]) AS p (partition_id) CROSS JOIN LATERAL (
        SELECT * FROM extents x WHERE x.partition_id = p.partition_id AND x.state = 'dead' ORDER BY x.base_offset
    ) AS e"""

_BASE_OFFSET = itemgetter(LeveledExtent._fields.index("base_offset"))


class KnownExtents(NamedTuple):
    """Those of one partition."""

    changed: tuple[int, int]
    """The timeline of the server, and the transaction that last changed one of them."""
    extents: Sequence[LeveledExtent]
    """By offset."""
    size_bytes: int
    newest_id: int
    """No extent that became visible since has a smaller id."""


class ExtentRows(NamedTuple):
    """The rows that one attempt read."""

    timeline: int
    whole: Mapping[int, Sequence[Any]]
    """By partition id."""
    added: Mapping[int, Sequence[Any]]
    """By the ids of the other partitions that changed."""
    dead: frozenset[int]
    """Ids of dead extents of partitions in `added`."""
    is_part: bool
    """There was too much to read at once."""


async def extent_rows(connection: AsyncConnection, partition_ids: Sequence[int]) -> Sequence[Any]:
    """The live extents of these partitions: rows with the columns of `LeveledExtent`."""
    return await (await driver_of(connection)).fetch(_WHOLE, partition_ids)


async def read_extents(
    connection: AsyncConnection, partitions: Sequence[Any], known: Mapping[int, KnownExtents], *, timeline: int
) -> ExtentRows:
    """Read the extents that changed since. `partitions` are rows with their sums, of the caller's snapshot."""
    driver = await driver_of(connection)
    changed = {row.partition_id: row for row in partitions if _is_changed(row, known, timeline)}
    newest_id = (await driver.fetchval("SELECT max(extent_id) FROM extents") or 0) if changed else 0
    near = {id_ for id_ in changed if _is_near(known.get(id_), timeline, newest_id)}
    whole_ids = _group({id_: row.live_extents for id_, row in changed.items() if id_ not in near})
    whole: dict[int, list[Any]] = {id_: [] for id_ in whole_ids}
    for row in await extent_rows(connection, whole_ids) if whole_ids else ():
        whole[row["partition_id"]].append(row)
    added: dict[int, list[Any]] = {id_: [] for id_ in near}
    if near:
        for row in await driver.fetch(_ADDED, min(known[id_].newest_id for id_ in near), list(near)):
            if row["extent_id"] > known[row["partition_id"]].newest_id:
                added[row["partition_id"]].append(row)
    # Where the numbers agree without deaths there were none: most merges only add to a partition.
    lost = [id_ for id_ in near if not _agrees(changed[id_], known[id_], added[id_])]
    dead = [row["extent_id"] for row in await driver.fetch(_DEAD, lost)] if lost else ()
    return ExtentRows(timeline, whole, added, frozenset(dead), len(whole) + len(near) < len(changed))


def learnt(
    partitions: Sequence[Any], rows: ExtentRows, known: Mapping[int, KnownExtents]
) -> Mapping[int, KnownExtents]:
    """The extents known after the attempt. It lacks partitions that have live extents and must be read again."""
    found: dict[int, KnownExtents] = {}
    for row in partitions:
        id_, before = row.partition_id, known.get(row.partition_id)
        if row.changed is None:
            continue
        if id_ in rows.whole:
            extents = list(map(LeveledExtent._make, rows.whole[id_]))
        elif before is not None and id_ in rows.added:
            extents = [each for each in before.extents if each.extent_id not in rows.dead]
            extents += map(LeveledExtent._make, rows.added[id_])
            extents.sort(key=_BASE_OFFSET)
            if (len(extents), sum(each.length for each in extents)) != (row.live_extents, row.live_bytes):
                continue
        elif before is not None and not _is_changed(row, known, rows.timeline):
            found[id_] = before
            continue
        else:  # one of those that were too many
            continue
        newest_id = max((each.extent_id for each in extents), default=0)
        newest_id = max(newest_id, before.newest_id if before is not None else 0)
        found[id_] = KnownExtents((rows.timeline, row.changed), extents, row.live_bytes, newest_id)
    return found


def _is_changed(row: Any, known: Mapping[int, KnownExtents], timeline: int) -> bool:
    before = known.get(row.partition_id)
    return row.changed is not None and (before is None or before.changed != (timeline, row.changed))


def _is_near(before: KnownExtents | None, timeline: int, newest_id: int) -> bool:
    """Another timeline may have given the same ids to other extents."""
    return before is not None and before.changed[0] == timeline and before.newest_id >= newest_id - NEW_IDS_MAX


def _agrees(row: Any, before: KnownExtents, added: Sequence[Any]) -> bool:
    size_bytes = before.size_bytes + sum(each["length"] for each in added)
    return (len(before.extents) + len(added), size_bytes) == (row.live_extents, row.live_bytes)


def _group(live_extents: Mapping[int, int]) -> list[int]:
    """The first of these partitions that have at most about EXTENTS_AT_A_TIME extents together; at least one."""
    group: list[int] = []
    size = 0
    for partition_id, count in sorted(live_extents.items()):
        size += count
        if group and size > EXTENTS_AT_A_TIME:
            break
        group.append(partition_id)
    return group
