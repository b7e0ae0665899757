"""Agents share quotas by their clients' demands: one statement reports them and reads the others' reports.

It locks rows of `quota_demands` alone, and each agent writes its own. Postgres flushes nothing to disk for it, because
the table is unlogged.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import ARRAY

from metadata.contract.leases import LEASE_MS, WriterLease
from metadata.postgres.connection import Database
from metadata.postgres.rows import statement
from metadata.rules.jobs import LEASE_SLACK
from metadata.security.demands import FORGOTTEN_AFTER_MS, decode_demands, encode_demands

REPORTS_SINCE: Final = 8
"""The schema of the first programs that report."""

_EXCHANGE: Final = statement(
    f"""WITH forgotten AS (
        DELETE FROM quota_demands WHERE until_ms < clock_ms() - {FORGOTTEN_AFTER_MS} AND writer_id <> :writer_id
    ), reported AS (
        INSERT INTO quota_demands (writer_id, epoch, until_ms, demands)
        SELECT writer_id, epoch, clock_ms() + {LEASE_MS}, :demands FROM agents
        WHERE writer_id = :writer_id AND epoch = :epoch
        ON CONFLICT (writer_id) DO UPDATE
        SET epoch = excluded.epoch, until_ms = excluded.until_ms, demands = excluded.demands
    )
    SELECT array_agg(coalesce(q.demands, '') ORDER BY a.writer_id) AS reports FROM agents a LEFT JOIN quota_demands q
        ON q.writer_id = a.writer_id AND q.epoch = a.epoch AND q.until_ms > clock_ms()
        AND q.until_ms <= clock_ms() + {LEASE_SLACK * LEASE_MS}
    WHERE a.writer_id <> :writer_id AND a.program_schema >= {REPORTS_SINCE} AND a.lease_until_ms > clock_ms()
        AND a.lease_until_ms <= clock_ms() + {LEASE_SLACK * LEASE_MS}""",  # noqa: S608 - our own numbers
    writer_id=sa.Integer,
    epoch=sa.Integer,
    demands=sa.LargeBinary,
).columns(reports=ARRAY(sa.LargeBinary))


async def exchange_demands(
    database: Database, lease: WriterLease, demands: Mapping[int, float]
) -> Sequence[Mapping[int, float]]:
    values = {"writer_id": lease.writer_id, "epoch": lease.epoch, "demands": encode_demands(demands)}
    found = await database.write_one(_EXCHANGE.bindparams(**values))
    return [decode_demands(report) for report in (found.reports if found is not None else None) or ()]
