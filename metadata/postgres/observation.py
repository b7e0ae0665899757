"""The figures behind the metrics of the whole cluster: six statements, each on its own. None waits for a row.

One statement reads the lags: a hash join of all committed offsets with the watermarks, summed by group and topic. It
reads each row once, so its cost grows with the number of committed offsets; the caller rests longer in proportion
(`compactor/observer.py`). Two more look up the oldest unread records of the pairs that are shown. The figures of
Postgres are those that warn early. For example, a snapshot that keeps vacuum from removing dead rows of `watermarks`
and `files` slows every commit long before anything fails.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.leases import JOB_LEASE_MS, LEASE_MS
from metadata.contract.operators import GroupLag, GroupLags, Observation, PostgresFigures, TableFigures
from metadata.postgres.groups.lateness import oldest_unread
from metadata.postgres.rows import statement
from metadata.postgres.tables import METADATA, Utf8
from metadata.rules.jobs import LEASE_SLACK

_LAGS = statement(
    """SELECT o.group_id, o.topic_id, t.name, sum(greatest(w.next_offset - greatest(o.committed_offset, 0), 0)) AS lag,
        max(o.committed_ms) AS newest_commit_ms, count(*) OVER () AS pairs,
        sum(sum(greatest(w.next_offset - greatest(o.committed_offset, 0), 0))) OVER () AS total_lag
    FROM group_offsets o
    JOIN topics t ON t.topic_id = o.topic_id
    JOIN partitions p ON p.topic_id = o.topic_id AND p.partition = o.partition
    JOIN watermarks w ON w.partition_id = p.partition_id
    GROUP BY o.group_id, o.topic_id, t.name
    ORDER BY lag DESC, o.group_id, t.name COLLATE "C" LIMIT greatest(:limit, 1)""",
    limit=sa.Integer,
).columns(group_id=Utf8, topic_id=sa.Uuid)
"""The limit is at least one row, because every row carries the sums."""
_LIVE = statement(
    f"""SELECT clock_ms() AS now_ms,
    (SELECT count(*) FILTER (WHERE NOT draining) FROM agents
        WHERE lease_until_ms > clock_ms() AND lease_until_ms <= clock_ms() + {LEASE_SLACK * LEASE_MS}) AS serving,
    (SELECT count(*) FILTER (WHERE draining) FROM agents
        WHERE lease_until_ms > clock_ms() AND lease_until_ms <= clock_ms() + {LEASE_SLACK * LEASE_MS}) AS draining,
    (SELECT count(*) FROM compactors
        WHERE lease_until_ms > clock_ms() AND lease_until_ms <= clock_ms() + {LEASE_SLACK * JOB_LEASE_MS})
        AS compactors"""  # noqa: S608 - numbers of ours
)
# Sessions of other roles may be hidden from ours (`hidden`): they count, but say nothing of their state. A vacuum has a
# snapshot that holds nothing back; a session that wrote and idles has none, but holds back by its transaction id.
_FIGURES = statement(
    """WITH sessions AS (
        SELECT pid, datname, state, backend_xmin, xact_start,
            CASE WHEN state IS NULL THEN 'hidden' WHEN state LIKE 'idle in transaction%' THEN 'idle_in_transaction'
                WHEN state IN ('active', 'idle') THEN state ELSE 'other' END AS shown
        FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND (backend_type = 'client backend' OR backend_type IS NULL)
    )
    SELECT
    (SELECT max(greatest(age(backend_xmin), age(backend_xid))) FROM pg_stat_activity
        WHERE pid <> pg_backend_pid() AND (datname = current_database() OR datname IS NULL)
            AND coalesce(leader_pid, pid) NOT IN (SELECT pid FROM pg_stat_progress_vacuum)) AS session_xmin,
    (SELECT max(age(xmin)) FROM pg_replication_slots) AS slot_xmin,
    (SELECT max(age(transaction)) FROM pg_prepared_xacts WHERE database = current_database()) AS prepared_xmin,
    (SELECT max(extract(epoch FROM clock_timestamp() - xact_start)) FROM sessions
        WHERE datname = current_database() AND pid NOT IN (SELECT pid FROM pg_stat_progress_vacuum)) AS longest_s,
    (SELECT jsonb_object_agg(shown, sessions) FROM (
        SELECT shown, count(*) AS sessions FROM sessions WHERE datname IS NOT NULL GROUP BY shown) AS counted)
        AS connections,
    current_setting('max_connections')::int AS connections_max,
    (SELECT age(datfrozenxid) FROM pg_database WHERE datname = current_database()) AS xid_age,
    (pg_current_wal_lsn() - '0/0'::pg_lsn)::bigint AS wal_position,
    (SELECT max(pg_current_wal_lsn() - restart_lsn)::bigint FROM pg_replication_slots) AS slot_retained"""
)
_TABLES = statement(
    """SELECT relname AS name, n_live_tup AS live_rows, n_dead_tup AS dead_rows,
        pg_total_relation_size(relid) AS size_bytes
    FROM pg_stat_user_tables WHERE schemaname = ANY (current_schemas(false)) AND relname = ANY (:names)
    ORDER BY relname COLLATE "C" """,
    names=sa.ARRAY(sa.Text),
)
_STATES = ("active", "idle", "idle_in_transaction", "other", "hidden")


async def observe(connection: AsyncConnection, lags_max: int) -> Observation:
    live = (await connection.execute(_LIVE)).one()
    return Observation(
        now_ms=live.now_ms,
        agents={"serving": live.serving, "draining": live.draining},
        compactors=live.compactors,
        lags=await _lags(connection, lags_max),
        postgres=await _figures(connection),
    )


async def _lags(connection: AsyncConnection, lags_max: int) -> GroupLags:
    rows = (await connection.execute(_LAGS, {"limit": lags_max})).all()
    shown = rows[:lags_max]
    late = [row for row in shown if row.lag]
    times = await oldest_unread(connection, [(row.group_id, row.topic_id) for row in late])
    unread_ms = {(late[at].group_id, late[at].topic_id): ms for at, ms in times.items()}
    largest = [
        GroupLag(
            group_id=row.group_id,
            topic=row.name,
            lag=int(row.lag),
            newest_commit_ms=row.newest_commit_ms,
            oldest_unread_ms=unread_ms.get((row.group_id, row.topic_id)),
        )
        for row in shown
    ]
    return GroupLags(
        largest=largest, pairs=rows[0].pairs if rows else 0, total_lag=int(rows[0].total_lag) if rows else 0
    )


async def _figures(connection: AsyncConnection) -> PostgresFigures:
    row: Any = (await connection.execute(_FIGURES)).one()
    tables = (await connection.execute(_TABLES, {"names": sorted(METADATA.tables)})).all()
    counted: Mapping[str, int] = row.connections or {}
    return PostgresFigures(
        oldest_xmin_transactions={
            "session": row.session_xmin or 0,
            "slot": row.slot_xmin or 0,
            "prepared": row.prepared_xmin or 0,
        },
        longest_transaction_seconds=float(row.longest_s or 0),
        connections={state: counted.get(state, 0) for state in _STATES},
        connections_max=row.connections_max,
        xid_age_transactions=row.xid_age,
        wal_position_bytes=row.wal_position,
        slot_retained_bytes=row.slot_retained or 0,
        tables=[
            TableFigures(name=each.name, live_rows=each.live_rows, dead_rows=each.dead_rows, size_bytes=each.size_bytes)
            for each in tables
        ],
    )
