"""The files that erasures wait for, and the stamps that they look for, in Postgres.

An extent is pending when it lies below the marks of an erasure and its stamp is smaller (`metadata/erasures/stamps.py`
has the same rule). Each answer comes from one statement, so from one instant: between two, a merge could replace files
that the first did not see yet by files that the second did not see any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.files import FileState
from metadata.erasures.contract import HoldingTransaction, PendingFile
from metadata.erasures.stamps import OpenStamp
from metadata.postgres.rows import INTS, statement
from metadata.rules.results import ROW_BYTES

_NO_STAMP = "9223372036854775807"

# One branch for each partial index. `k` has a partition, the end of its marks and the stamp.
_PENDING_EXTENTS = """CROSS JOIN LATERAL (
        SELECT e.file_id, e.base_offset, e.flagged_reason, true AS lives FROM extents e
        WHERE e.partition_id = k.partition_id AND e.state = 'live'
            AND e.base_offset < k.end_offset AND e.erased_through < k.stamp
        UNION ALL
        SELECT e.file_id, e.base_offset, NULL, false FROM extents e
        WHERE e.partition_id = k.partition_id AND e.state = 'dead'
            AND e.base_offset < k.end_offset AND e.erased_through < k.stamp
    ) AS x"""

# A pin keeps every file that died after its creation; the oldest pin decides.
_PENDING = statement(
    f"""WITH k AS MATERIALIZED (
        SELECT w.partition_id, w.end_offset, coalesce(r.stamp, {_NO_STAMP}) AS stamp
        FROM erasures r JOIN erasure_keys w ON w.erasure_id = r.erasure_id
        WHERE r.erasure_id = :erasure_id AND r.stage <> 'done'
    ), held AS MATERIALIZED (
        SELECT x.file_id, count(*) FILTER (WHERE x.lives) AS live_extents,
            (array_agg(x.flagged_reason ORDER BY k.partition_id, x.base_offset)
                FILTER (WHERE x.flagged_reason IS NOT NULL))[1] AS flagged_reason
        FROM k {_PENDING_EXTENTS} GROUP BY x.file_id
        UNION ALL
        SELECT f.file_id, 0, NULL FROM files f
        WHERE f.level = 0 AND f.state IN ('live', 'dead') AND f.file_id <= (
            SELECT r.l0_through FROM erasures r WHERE r.erasure_id = :erasure_id AND r.stage <> 'done'
        )
    )
    SELECT f.file_id, f.key, f.level, f.size_bytes, f.state, f.dead_ms, h.live_extents, h.flagged_reason,
        CASE WHEN f.trouble_until_ms > clock_ms() THEN coalesce(f.trouble, '') ELSE '' END AS trouble,
        f.state = 'dead' AND coalesce(
            f.dead_ms >= (SELECT min(p.created_ms) FROM pins p WHERE p.expires_ms > clock_ms()), false
        ) AS is_pinned
    FROM held h JOIN files f ON f.file_id = h.file_id
    WHERE f.state IN ('live', 'dead') AND (f.state = 'live' OR NOT :live_only)
    ORDER BY f.file_id LIMIT :limit""",  # noqa: S608 - our own text
    erasure_id=sa.BigInteger,
    live_only=sa.Boolean,
    limit=sa.BigInteger,
)

# No transaction begins below the marks after the request, so one look that finds none holds for good.
_HOLDING = statement(
    """SELECT k.partition, t.producer_id, t.first_offset, x.transactional_id
    FROM erasures r JOIN erasure_keys k ON k.erasure_id = r.erasure_id
    JOIN transaction_partitions t ON t.partition_id = k.partition_id AND t.first_offset < k.end_offset
    LEFT JOIN transactions x ON x.producer_id = t.producer_id
    WHERE r.erasure_id = :erasure_id AND r.stage <> 'done'
    ORDER BY k.partition, t.first_offset LIMIT :limit""",
    erasure_id=sa.BigInteger,
    limit=sa.BigInteger,
)

# A row of `files.results` (`metadata/rules/results.py`) begins with the error, two bytes, and the duplicate flag.
_REFUSED = sa.text(
    f"""SELECT f.key FROM files f WHERE f.level = 0 AND f.state IN ('live', 'dead') AND EXISTS (
        SELECT FROM generate_series(0, length(f.results) - 1, {ROW_BYTES}) AS at
        WHERE get_byte(f.results, at) <> 0 OR get_byte(f.results, at + 1) <> 0 OR get_byte(f.results, at + 2) <> 0
    ) ORDER BY f.file_id"""  # noqa: S608 - our own text
)

_IS_ERASING = sa.text("SELECT EXISTS (SELECT FROM erasures WHERE stage = 'erasing')")
# A merge can erase nothing from an extent that lives and cannot be read.
_ERASING_FILES = sa.text(
    f"""WITH k AS MATERIALIZED (
        SELECT w.partition_id, w.end_offset, r.stamp, r.begin_ms
        FROM erasures r JOIN erasure_keys w ON w.erasure_id = r.erasure_id WHERE r.stage = 'erasing'
    ), held AS MATERIALIZED (
        SELECT x.file_id, min(k.begin_ms) AS begin_ms FROM k {_PENDING_EXTENTS}
        WHERE x.flagged_reason IS NULL GROUP BY x.file_id
    )
    SELECT h.file_id, h.begin_ms FROM held h JOIN files f ON f.file_id = h.file_id WHERE f.state = 'live'"""  # noqa: S608
)

_OPEN_STAMPS = statement(
    """SELECT w.partition_id, r.stamp, w.end_offset FROM erasures r JOIN erasure_keys w ON w.erasure_id = r.erasure_id
    WHERE r.stage <> 'done' AND r.stamp IS NOT NULL AND w.partition_id = ANY (:partition_ids)""",
    partition_ids=INTS,
)


async def pending_files(
    connection: AsyncConnection, erasure_id: int, *, limit: int, live_only: bool = False
) -> list[PendingFile]:
    """See `ErasureMetadata.pending_files`."""
    values = {"erasure_id": erasure_id, "live_only": live_only, "limit": limit}
    rows = await connection.execute(_PENDING, values)
    return [PendingFile._make(row)._replace(state=FileState(row.state)) for row in rows]


async def holding_transactions(connection: AsyncConnection, erasure_id: int, *, limit: int) -> list[HoldingTransaction]:
    """See `ErasureMetadata.holding_transactions`."""
    rows = await connection.execute(_HOLDING, {"erasure_id": erasure_id, "limit": limit})
    return [
        HoldingTransaction(
            row.partition,
            row.producer_id,
            row.first_offset,
            bytes(row.transactional_id or b"").decode("utf-8", "surrogatepass"),
        )
        for row in rows
    ]


async def refused_files(connection: AsyncConnection) -> list[str]:
    """See `ErasureMetadata.refused_files`."""
    return list(await connection.scalars(_REFUSED))


async def erasing_files(connection: AsyncConnection) -> dict[int, int]:
    """See `CompactionView.erasing_files`. Without an erasure, one look at a small table."""
    if not await connection.scalar(_IS_ERASING):
        return {}
    return {row.file_id: row.begin_ms for row in await connection.execute(_ERASING_FILES)}


async def open_stamps(connection: AsyncConnection, partition_ids: Sequence[int]) -> Mapping[int, list[OpenStamp]]:
    """The open erasures of these partitions that have a stamp, by partition id."""
    found: dict[int, list[OpenStamp]] = {}
    for row in await connection.execute(_OPEN_STAMPS, {"partition_ids": list(partition_ids)}):
        found.setdefault(row.partition_id, []).append(OpenStamp(row.stamp, row.end_offset))
    return found
