"""Leases of agents in Postgres.

Registering raises the writer's epoch under its row lock. So it waits for a commit of the predecessor in flight, and it
fences every later one. Under the same lock it looks at the lease of the holder; if that may still run, the transaction
is rolled back. The lease is a separate row, in `agents`, so a hanging commit does not block the heartbeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.ext.asyncio import AsyncConnection

from metadata.contract.leases import LEASE_MS, AgentAddress, AgentInfo, Endpoint, WriterLease
from metadata.migrations.schema_versions import version_of
from metadata.postgres.connection import Database
from metadata.postgres.log.registering import begin_registering
from metadata.postgres.rows import between_now_and
from metadata.postgres.tables import AGENTS, SCHEMA_REVISION, WRITERS
from metadata.rules.jobs import LEASE_SLACK
from metadata.rules.refusals import agent_lease_ended, check_not_taken, former_until

AGENTS_QUERY = (
    sa.select(
        AGENTS.c.writer_id,
        # Not that of AGENTS: a row that is nobody's has none.
        WRITERS.c.epoch,
        AGENTS.c.zone,
        AGENTS.c.zone_port,
        AGENTS.c.endpoints,
        AGENTS.c.program_schema,
        WRITERS.c.host,
        WRITERS.c.port,
    )
    .join(WRITERS, WRITERS.c.writer_id == AGENTS.c.writer_id)
    .order_by(AGENTS.c.writer_id)
)
"""The columns that `agent_info` needs, for all agents."""
NOBODYS_EPOCH = -1
_ENDPOINTS_SINCE = 7
"""The schema of the first programs that write `endpoints`."""


def agent_info(row: Any) -> AgentInfo:
    # An older program that took the address over left the endpoints of the one before it.
    has_endpoints = (row.program_schema or 0) >= _ENDPOINTS_SINCE
    endpoints = tuple(Endpoint(**each) for each in row.endpoints) if has_endpoints else ()
    address = AgentAddress(host=row.host, port=row.port, zone=row.zone, zone_port=row.zone_port, endpoints=endpoints)
    return AgentInfo(writer_id=row.writer_id, epoch=row.epoch, address=address)


class AgentLeases:
    """Part of `PostgresAgents`."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def register_agent(self, address: AgentAddress, *, instead_of: WriterLease | None = None) -> WriterLease:
        async def work(connection: AsyncConnection) -> WriterLease:
            await begin_registering(connection)
            here = (WRITERS.c.host == address.host, WRITERS.c.port == address.port)
            # Update first: an INSERT that meets a conflict burns a writer id each time, and ids are int31.
            take = sa.update(WRITERS).where(*here).values(epoch=WRITERS.c.epoch + 1, last_seq=-1)
            taken = await connection.execute(take.returning(WRITERS.c.writer_id, WRITERS.c.epoch))
            row = taken.one_or_none()
            if row is None:  # a new address, or one that another session registers at this moment
                made = insert(WRITERS).values(host=address.host, port=address.port)
                made = made.on_conflict_do_update(
                    constraint="writers_address", set_={"epoch": WRITERS.c.epoch + 1, "last_seq": -1}
                )
                row = (await connection.execute(made.returning(WRITERS.c.writer_id, WRITERS.c.epoch))).one()
            former_until_ms = await _take_over(connection, address, row.writer_id, instead_of)
            # In the same transaction as the epoch: no moment in which the old lease looks valid under the new epoch.
            lease: dict[str, Any] = {
                "epoch": row.epoch,
                "zone": address.zone,
                "lease_until_ms": _lease_end(),
                "draining": False,
                "program_schema": version_of(SCHEMA_REVISION),
                "zone_port": address.zone_port,
                "endpoints": [asdict(endpoint) for endpoint in address.endpoints],
                "seen_change": 0,  # what the last process here had applied says nothing about this one
                "former_until_ms": former_until_ms,
            }
            leased = insert(AGENTS).values(writer_id=row.writer_id, **lease)
            await connection.execute(leased.on_conflict_do_update(index_elements=["writer_id"], set_=lease))
            return WriterLease(writer_id=row.writer_id, epoch=row.epoch)

        return await self._database.write(work)

    async def heartbeat(self, lease: WriterLease, *, draining: bool = False) -> int:
        beat = sa.update(AGENTS).where(AGENTS.c.writer_id == lease.writer_id, AGENTS.c.epoch == lease.epoch)
        beat = beat.values(lease_until_ms=_lease_end(), draining=draining)
        done = await self._database.write_one(beat.returning(AGENTS.c.lease_until_ms))
        if done is None:
            raise agent_lease_ended(lease)
        return done.lease_until_ms - LEASE_MS

    async def unregister_agent(self, lease: WriterLease) -> None:
        async def work(connection: AsyncConnection) -> None:
            mine = (AGENTS.c.writer_id == lease.writer_id, AGENTS.c.epoch == lease.epoch)
            # The row stays, as nobody's, while another process may act that was here before.
            ends = sa.update(AGENTS).where(*mine, AGENTS.c.former_until_ms > sa.text("clock_ms()"))
            if not (await connection.execute(ends.values(epoch=NOBODYS_EPOCH, lease_until_ms=0))).rowcount:
                await connection.execute(sa.delete(AGENTS).where(*mine))

        await self._database.write(work)

    async def live_agents(self) -> Sequence[AgentInfo]:
        async def work(connection: AsyncConnection) -> Sequence[AgentInfo]:
            leased = between_now_and(AGENTS.c.lease_until_ms, LEASE_SLACK * LEASE_MS)
            alive = (leased, sa.not_(AGENTS.c.draining))
            return [agent_info(row) for row in await connection.execute(AGENTS_QUERY.where(*alive))]

        return await self._database.read(work)


async def _take_over(
    connection: AsyncConnection, address: AgentAddress, writer_id: int, instead_of: WriterLease | None
) -> int:
    """Until when a process may act that was here before.

    The caller has locked the writer's row, so nobody else registers until it commits. Raises AddressTakenError.
    """
    # The lease is locked too: a beat of the holder either counts here or comes too late.
    columns = (AGENTS.c.epoch, AGENTS.c.lease_until_ms, AGENTS.c.former_until_ms)
    lease = sa.select(*columns, sa.literal_column("clock_ms()", sa.BigInteger))
    found = await connection.execute(lease.where(AGENTS.c.writer_id == writer_id).with_for_update())
    held = found.one_or_none()
    if held is None:
        return 0
    epoch, lease_until_ms, former_until_ms, now_ms = held
    holder = WriterLease(writer_id=writer_id, epoch=epoch)
    check_not_taken(address, holder, lease_until_ms, now_ms, instead_of=instead_of)
    return former_until(holder, lease_until_ms, former_until_ms, instead_of=instead_of)


def _lease_end() -> sa.ColumnElement[int]:
    return sa.literal_column(f"clock_ms() + {LEASE_MS}", sa.BigInteger)
