"""The first use of users, ACLs and quotas, while programs of older releases may run. Postgres is real."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from metadata.contract.errors import SchemaMismatchError
from metadata.contract.leases import AgentAddress, WriterFencedError
from metadata.contract.tail import Cursor
from metadata.migrations.migrate import migrate_async, schema_state
from metadata.migrations.schema_versions import SchemaState
from metadata.postgres.connection import connect
from metadata.postgres.security.older import OLDEST_PROGRAM
from metadata.postgres.store import PostgresMetadata
from metadata.postgres.tables import SCHEMA_REVISION
from metadata.security.contract import OlderProgramsAtWorkError
from security.quotas.values import QuotaEntity
from tests.contract.test_security import acl, sets
from tests.fixtures.postgres import run_sql
from tests.fixtures.releases import make_schema

USES: dict[str, Callable[[PostgresMetadata], Awaitable[object]]] = {
    "users": lambda service: service.security.alter_users([sets("ann")]),
    "acls": lambda service: service.security.create_acls([acl()]),
    "quotas": lambda service: service.security.alter_quotas({QuotaEntity(user="ann"): {"x": 1.0}}),
    "enforcing": lambda service: service.security.exclude_older_programs(),
}
OLDER = "UPDATE {} SET program_schema = 6"


@pytest.fixture
async def service(postgres_url: str) -> AsyncIterator[PostgresMetadata]:
    opened = PostgresMetadata(postgres_url)
    await opened.open()
    yield opened
    await opened.close()


async def untouched(service: PostgresMetadata, url: str) -> bool:
    state = await service.security.security()
    nothing = not (state.users or state.acls or state.quotas or (await service.agents.tail(Cursor())).changes)
    return nothing and (await schema_state(url)).takes("0006")


@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("kind", ["agent", "compactor"])
async def test_it_is_refused_while_an_older_program_runs_and_shuts_older_ones_out_afterwards(
    service: PostgresMetadata, postgres_url: str, use: str, kind: str
) -> None:
    lease = await service.agents.register_agent(AgentAddress(host="old", port=9092))
    compactor = await service.compactors.register_compactor("old")
    await run_sql(postgres_url, OLDER.format(f"{kind}s"))
    with pytest.raises(
        OlderProgramsAtWorkError, match=rf"older ones are at work: {kind} .*\(schema 0006\); nothing was"
    ):
        await USES[use](service)
    assert await untouched(service, postgres_url)
    if kind == "agent":
        await service.agents.unregister_agent(lease)
    else:
        await service.compactors.unregister_compactor(compactor)

    await USES[use](service)

    assert await schema_state(postgres_url) == SchemaState(SCHEMA_REVISION, OLDEST_PROGRAM)
    for each in USES.values():  # it costs no lock any more
        await each(service)


async def test_one_that_only_slept_loses_its_lease_and_cannot_come_back(
    service: PostgresMetadata, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = AgentAddress(host="old", port=9092)
    lease = await service.agents.register_agent(address)
    await run_sql(postgres_url, OLDER.format("agents"), "UPDATE agents SET lease_until_ms = clock_ms() - 1")
    await service.security.create_acls([acl()])
    with pytest.raises(WriterFencedError):
        await service.agents.heartbeat(lease)
    # as a program of schema 0006 over a connection that it still has
    monkeypatch.setattr("metadata.postgres.log.registering.SCHEMA_REVISION", "0006")
    with pytest.raises(SchemaMismatchError, match="this program is too old"):
        await service.agents.register_agent(address, instead_of=lease)


async def test_a_program_that_registers_at_that_moment_is_seen_or_sees_it(
    service: PostgresMetadata, postgres_url: str
) -> None:
    holder = await connect(postgres_url)
    # given: an older program in the middle of its registration
    await holder.execute("BEGIN; SELECT pg_advisory_xact_lock_shared(7310575218)")
    await holder.execute("INSERT INTO writers (host, port) VALUES ('old', 1)")
    await holder.execute(
        """INSERT INTO agents (writer_id, epoch, lease_until_ms, program_schema)
        SELECT writer_id, 0, clock_ms() + 9000, 6 FROM writers"""
    )
    using = asyncio.create_task(service.security.create_acls([acl()]))
    async with asyncio.timeout(30):
        waits = "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"
        while not await holder.fetchval(waits):
            assert not using.done()
            await asyncio.sleep(0.01)
    await holder.execute("COMMIT")
    with pytest.raises(OlderProgramsAtWorkError):
        await using
    await holder.close()


async def test_several_first_uses_at_once_all_succeed(service: PostgresMetadata) -> None:
    other = [USES[use](service) for use in ("users", "acls", "quotas", "enforcing") * 2]
    await asyncio.gather(*other)
    state = await service.security.security()
    assert (len(state.users), len(state.acls), len(state.quotas)) == (1, 1, 1)


async def test_an_older_agent_that_takes_an_address_over_has_no_endpoints_of_the_one_before(
    service: PostgresMetadata, postgres_url: str
) -> None:
    await run_sql(
        postgres_url,
        "INSERT INTO writers (host, port) VALUES ('old', 1)",
        """INSERT INTO agents (writer_id, epoch, lease_until_ms, program_schema, endpoints)
        SELECT writer_id, 0, clock_ms() + 9000, 6, '[{"listener": "x", "host": "y", "port": 1}]' FROM writers""",
    )
    (agent,) = await service.agents.live_agents()
    assert agent.address == AgentAddress(host="old", port=1)


async def test_a_cluster_that_is_migrated_gets_its_secret_and_keeps_its_agents(bare_postgres_url: str) -> None:
    await make_schema(bare_postgres_url, 6)
    await run_sql(
        bare_postgres_url,
        "INSERT INTO writers (host, port) VALUES ('old', 1)",
        """INSERT INTO agents (writer_id, epoch, lease_until_ms, program_schema)
        SELECT writer_id, 0, clock_ms() + 9000, 6 FROM writers""",
    )
    await migrate_async(bare_postgres_url)
    opened = PostgresMetadata(bare_postgres_url)
    await opened.open()
    state = await opened.security.security()
    assert (len(state.cluster_secret), state.users, state.acls) == (32, {}, [])
    assert [agent.address.endpoints for agent in await opened.agents.live_agents()] == [()]
    assert [agent.address.host for agent in await opened.security.agents_behind(1)] == ["old"]
    await opened.close()
