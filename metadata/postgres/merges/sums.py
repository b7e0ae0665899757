"""Whether the sums that the database keeps (`0006_sums.sql`) are those of the extents."""

from __future__ import annotations

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

SHOWN_MAX = 100
"""Sums of each kind that are told of."""

# One statement, so one instant. Each part compares the kept rows with those that the extents give now.
_WRONG = sa.text(
    f"""WITH of_files AS (
        SELECT file_id, (count(*) FILTER (WHERE state = 'live'))::integer AS live_extents,
            (sum(length) FILTER (WHERE state = 'live'))::bigint AS live_bytes,
            (sum(coalesce(uncompressed_bytes, length)) FILTER (WHERE state = 'live'))::bigint AS uncompressed_bytes,
            min(dead_ms) AS oldest_dead_ms
        FROM extents GROUP BY file_id HAVING bool_or(state = 'live')
    ), of_topics AS (
        SELECT e.file_id, coalesce(p.topic_id, '00000000-0000-0000-0000-000000000000') AS topic_id,
            count(*)::integer AS live_extents, (count(*) FILTER (WHERE e.max_ts_ms < 0))::integer AS untimed_extents,
            greatest(max(e.max_ts_ms), -1) AS max_ts_ms
        FROM extents e LEFT JOIN partitions p ON p.partition_id = e.partition_id
        WHERE e.state = 'live' GROUP BY 1, 2
    ), of_partitions AS (
        SELECT partition_id, count(*)::integer AS live_extents, sum(length)::bigint AS live_bytes,
            min(base_offset) AS first_base_offset, (array_agg(length ORDER BY base_offset))[1] AS first_bytes,
            (array_agg(max_ts_ms ORDER BY base_offset))[1] AS first_ts_ms,
            (array_agg(file_id ORDER BY base_offset))[1] AS first_file_id
        FROM extents WHERE state = 'live' GROUP BY partition_id
    )
    (SELECT format('file %s', coalesce(s.file_id, x.file_id)) AS place, to_jsonb(s) - 'file_id' AS kept,
        to_jsonb(x) - 'file_id' AS found
    FROM file_sums s FULL JOIN of_files x ON x.file_id = s.file_id
    WHERE s IS DISTINCT FROM x ORDER BY 1 LIMIT {SHOWN_MAX})
    UNION ALL (SELECT format('file %s, topic %s', coalesce(s.file_id, x.file_id), coalesce(s.topic_id, x.topic_id)),
        to_jsonb(s) - '{{file_id,topic_id}}'::text[], to_jsonb(x) - '{{file_id,topic_id}}'::text[]
    FROM file_topic_sums s FULL JOIN of_topics x ON x.file_id = s.file_id AND x.topic_id = s.topic_id
    WHERE s IS DISTINCT FROM x ORDER BY 1 LIMIT {SHOWN_MAX})
    UNION ALL (SELECT format('partition %s', coalesce(s.partition_id, x.partition_id)),
        to_jsonb(s) - 'partition_id', to_jsonb(x) - 'partition_id'
    FROM (
        SELECT partition_id, live_extents, live_bytes, first_base_offset, first_bytes, first_ts_ms, first_file_id
        FROM partition_sums
    ) AS s FULL JOIN of_partitions x ON x.partition_id = s.partition_id
    WHERE s IS DISTINCT FROM x ORDER BY 1 LIMIT {SHOWN_MAX})"""  # noqa: S608 - our own number
)


async def wrong_sums(connection: AsyncConnection) -> list[str]:
    """A line for each kept sum that is not the sum of the extents. Reads all extents."""
    return [_told(*row) for row in await connection.execute(_WRONG)]


def _told(place: str, kept: dict[str, int] | None, found: dict[str, int] | None) -> str:
    if kept is None:
        return f"{place}: has live extents, but no sums"
    if found is None:
        return f"{place}: has sums, but no live extents"
    apart = [f"{name} is {kept[name]}, not {found[name]}" for name in found if kept[name] != found[name]]
    return f"{place}: {', '.join(apart)}"
