"""Leases of compactors and their duties, in Postgres."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.leases import JOB_LEASE_MS, WriterLease
from metadata.migrations.schema_versions import version_of
from metadata.postgres.connection import Database
from metadata.postgres.log.registering import begin_registering
from metadata.postgres.merges.jobs import ready_again
from metadata.postgres.rows import (
    between_now_and,
)
from metadata.postgres.tables import (
    COMPACTORS,
    DUTIES,
    MERGE_JOBS,
    SCHEMA_REVISION,
)
from metadata.rules import jobs as job_rules
from metadata.rules.refusals import compactor_lease_ended

NOW_MS = sa.text("clock_ms()")

_LEASE_END = sa.literal_column(f"clock_ms() + {JOB_LEASE_MS}", sa.BigInteger)

_LEASED_MS_MAX = job_rules.LEASE_SLACK * JOB_LEASE_MS

_IS_ALIVE = between_now_and(COMPACTORS.c.lease_until_ms, _LEASED_MS_MAX)


class CompactorLeases:
    """Part of `PostgresCompactors`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register_compactor(self, host: str) -> WriterLease:
        async def work(connection: AsyncConnection) -> WriterLease:
            await begin_registering(connection)
            node_id = sa.text("nextval('node_ids')")
            made = sa.insert(COMPACTORS).values(node_id=node_id, host=host, lease_until_ms=_LEASE_END)
            made = made.values(program_schema=version_of(SCHEMA_REVISION))
            drawn = await connection.execute(made.returning(COMPACTORS.c.node_id))
            return WriterLease(writer_id=drawn.scalar_one(), epoch=0)

        return await self._database.write(work)

    async def beat_compactor(self, lease: WriterLease) -> None:
        async def work(connection: AsyncConnection) -> None:
            beat = sa.update(COMPACTORS).where(COMPACTORS.c.node_id == lease.writer_id)
            if (await connection.execute(beat.values(lease_until_ms=_LEASE_END))).rowcount == 0:
                raise compactor_lease_ended(lease)

        await self._database.write(work)

    async def unregister_compactor(self, lease: WriterLease) -> None:
        async def work(connection: AsyncConnection) -> None:
            await connection.execute(sa.delete(COMPACTORS).where(COMPACTORS.c.node_id == lease.writer_id))
            await connection.execute(ready_again(MERGE_JOBS.c.holder == lease.writer_id))

        await self._database.write(work)

    async def live_compactors(self) -> Sequence[tuple[int, str]]:
        async def work(connection: AsyncConnection) -> Sequence[tuple[int, str]]:
            query = sa.select(COMPACTORS.c.node_id, COMPACTORS.c.host).where(_IS_ALIVE)
            rows = await connection.execute(query.order_by(COMPACTORS.c.node_id))
            return [(row.node_id, row.host) for row in rows]

        return await self._database.read(work)

    async def take_duty(self, name: str, lease: WriterLease, *, ttl_ms: int) -> bool:
        async def work(connection: AsyncConnection) -> bool:
            # The end of a duty has no upper bound, unlike a lease: a live holder may have taken it for any time. If the
            # clock went back, the holder's lease shows whether it lives.
            until = sa.literal_column(f"clock_ms() + {int(ttl_ms)}", sa.BigInteger)
            mine = {"holder": lease.writer_id, "until_ms": until}
            taken = insert(DUTIES).values(name=name, **mine)
            alive = sa.exists().where(COMPACTORS.c.node_id == DUTIES.c.holder, _IS_ALIVE)
            free = sa.or_(DUTIES.c.holder == lease.writer_id, DUTIES.c.until_ms <= NOW_MS, ~alive)
            taken = taken.on_conflict_do_update(index_elements=["name"], set_=mine, where=free)
            return (await connection.execute(taken.returning(DUTIES.c.name))).first() is not None

        return await self._database.write(work)
