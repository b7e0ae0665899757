"""The table by which agents share quotas. Postgres is real."""

from __future__ import annotations

import asyncio
import math
import struct
from collections.abc import AsyncIterator

import pytest

from metadata.contract.errors import RightsMissingError
from metadata.contract.leases import AgentAddress
from metadata.migrations.migrate import migrate_async
from metadata.postgres.connection import connect
from metadata.postgres.store import PostgresMetadata
from metadata.security.demands import FORGOTTEN_AFTER_MS, encode_demands
from security.quotas.values import QuotaEntity
from tests.fixtures.postgres import AGENT_ROLE, as_role, run_sql
from tests.fixtures.releases import make_schema

ONE, TWO = AgentAddress(host="one", port=1), AgentAddress(host="two", port=1)


@pytest.fixture
async def service(postgres_url: str) -> AsyncIterator[PostgresMetadata]:
    opened = PostgresMetadata(postgres_url)
    await opened.open()
    yield opened
    await opened.close()


async def test_agents_that_do_not_report_do_not_share(service: PostgresMetadata, postgres_url: str) -> None:
    one, two = await service.agents.register_agent(ONE), await service.agents.register_agent(TWO)
    await service.security.exchange_demands(two, {1: 1.0})
    for older in ("7", "NULL"):
        update = f"UPDATE agents SET program_schema = {older} WHERE writer_id = {two.writer_id}"
        await run_sql(postgres_url, update)
        assert await service.security.exchange_demands(one, {}) == []


async def test_reports_of_agents_that_are_gone_are_deleted_after_a_while(
    service: PostgresMetadata, postgres_url: str
) -> None:
    one, two, three = [
        await service.agents.register_agent(AgentAddress(host=host, port=1)) for host in ("one", "two", "three")
    ]
    for lease in (one, two, three):
        await service.security.exchange_demands(lease, {1: 1.0})
    for lease, gone_ms in ((one, 2), (two, 2), (three, 0.5)):
        gone = f"UPDATE quota_demands SET until_ms = clock_ms() - {gone_ms * FORGOTTEN_AFTER_MS}"
        await run_sql(postgres_url, f"{gone} WHERE writer_id = {lease.writer_id}")
    # its own report, however old, takes the place of the one before
    await service.security.exchange_demands(one, {1: 0.5})
    line = await connect(postgres_url)
    kept = await line.fetchval("SELECT string_agg(writer_id::text, ',' ORDER BY writer_id) FROM quota_demands")
    await line.close()
    assert kept == f"{one.writer_id},{three.writer_id}"


async def test_a_report_that_cannot_be_read_says_nothing_and_the_others_count(
    service: PostgresMetadata, postgres_url: str
) -> None:
    one, two, three = [
        await service.agents.register_agent(AgentAddress(host=host, port=1)) for host in ("one", "two", "three")
    ]
    for lease in (two, three):
        await service.security.exchange_demands(lease, {1: 0.25})
    good = encode_demands({7: 0.5})
    odd = [struct.pack("<qf", 8, demand) for demand in (math.nan, math.inf, -math.inf, -0.5, 1.5)]
    for report, read in ((good + b"x", {}), (good[:-1], {}), (b"".join([*odd, good]), {7: 0.5})):
        set_report = f"UPDATE quota_demands SET demands = '\\x{report.hex()}'"
        await run_sql(postgres_url, f"{set_report} WHERE writer_id = {two.writer_id}")
        assert await service.security.exchange_demands(one, {}) == [read, {1: 0.25}]


async def test_a_cluster_with_quotas_is_migrated_below_its_agents(bare_postgres_url: str) -> None:
    # given an agent of the release before, at work, and a quota
    await make_schema(bare_postgres_url, 7)
    await run_sql(
        bare_postgres_url,
        "INSERT INTO writers (host, port) VALUES ('old', 1)",
        """INSERT INTO agents (writer_id, epoch, lease_until_ms, program_schema)
        SELECT writer_id, 0, clock_ms() + 9000, 7 FROM writers""",
        "INSERT INTO client_quotas VALUES (sha256('a'), 'ann', NULL, NULL, 0, 'producer_byte_rate', 7)",
        "UPDATE schema_versions SET oldest_program = 7 WHERE version = 7",
    )
    # when the schema moves on, and an agent of this release joins
    await migrate_async(bare_postgres_url)
    service = PostgresMetadata(bare_postgres_url)
    await service.open()
    # then both work on, and share nothing
    assert (await service.security.security()).quotas == {QuotaEntity(user="ann"): {"producer_byte_rate": 7.0}}
    (old,) = await service.agents.live_agents()
    new = await service.agents.register_agent(ONE)
    assert await service.security.exchange_demands(new, {1: 1.0}) == []
    assert [each.address.host for each in await service.agents.live_agents()] == [old.address.host, "one"]
    # and its successor shares
    await run_sql(bare_postgres_url, "UPDATE agents SET lease_until_ms = 0 WHERE program_schema = 7")
    successor = await service.agents.register_agent(AgentAddress(host="old", port=1))
    assert await service.security.exchange_demands(successor, {}) == [{1: 1.0}]
    await service.close()


async def test_a_report_that_hangs_costs_no_lease(service: PostgresMetadata, postgres_url: str) -> None:
    one = await service.agents.register_agent(ONE)
    await service.security.exchange_demands(one, {1: 1.0})
    holder = await connect(postgres_url)
    await holder.execute("BEGIN; SELECT FROM quota_demands FOR UPDATE")
    reporting = asyncio.create_task(service.security.exchange_demands(one, {1: 0.5}))
    async with asyncio.timeout(30):
        waits = """SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event_type = 'Lock'"""
        while not await holder.fetchval(waits):
            await asyncio.sleep(0.01)
    await service.agents.heartbeat(one)
    assert [each.writer_id for each in await service.agents.live_agents()] == [one.writer_id]
    # neither does another agent wait for it
    two = await service.agents.register_agent(TWO)
    assert await service.security.exchange_demands(two, {}) == [{1: 1.0}]
    assert not reporting.done()
    await holder.execute("COMMIT")
    await reporting
    await holder.close()
    assert await service.security.exchange_demands(two, {}) == [{1: 0.5}]


async def test_it_writes_nothing_that_postgres_has_to_flush(service: PostgresMetadata, postgres_url: str) -> None:
    line = await connect(postgres_url)
    kept = await line.fetchval("SELECT relpersistence FROM pg_class WHERE relname = 'quota_demands'")
    await line.close()
    assert kept == b"u"


async def test_an_agent_without_the_right_is_told_so_and_keeps_its_lease(postgres_url: str) -> None:
    await run_sql(postgres_url, f"REVOKE ALL ON quota_demands FROM {AGENT_ROLE}")
    service = PostgresMetadata(as_role(postgres_url, AGENT_ROLE))
    await service.open()
    one = await service.agents.register_agent(ONE)
    with pytest.raises(RightsMissingError, match="permission denied for table quota_demands"):
        await service.security.exchange_demands(one, {1: 1.0})
    await service.agents.heartbeat(one)
    await service.close()
