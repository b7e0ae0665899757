"""The first use of transactions, while programs of older releases may run. Postgres is real."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from metadata.contract.errors import SchemaMismatchError
from metadata.contract.leases import AgentAddress, WriterFencedError
from metadata.migrations.migrate import schema_state
from metadata.migrations.schema_versions import SchemaState
from metadata.postgres.store import PostgresMetadata
from metadata.postgres.tables import SCHEMA_REVISION
from metadata.postgres.transactions.using import OLDEST_PROGRAM
from tests.contract.metadata_worlds import Writer, new_topic, sent, stored
from tests.fixtures.postgres import AGENT_ROLE, as_role, run_sql

OLDER = "UPDATE {} SET program_schema = 8"


@pytest.fixture
async def service(postgres_url: str) -> AsyncIterator[PostgresMetadata]:
    opened = PostgresMetadata(as_role(postgres_url, AGENT_ROLE))
    await opened.open()
    yield opened
    await opened.close()


@pytest.mark.parametrize("kind", ["agent", "compactor"])
async def test_nobody_uses_them_while_an_older_program_runs_and_then_none_may_start(
    service: PostgresMetadata, postgres_url: str, kind: str
) -> None:
    owner = PostgresMetadata(postgres_url)
    await owner.open()
    lease = await service.agents.register_agent(AgentAddress(host="old", port=9092))
    compactor = await owner.compactors.register_compactor("old")
    await run_sql(postgres_url, OLDER.format(f"{kind}s"))

    assert not await service.transactions.enable()
    assert (await schema_state(postgres_url)).takes("0008")
    if kind == "agent":
        await service.agents.unregister_agent(lease)
    else:
        await owner.compactors.unregister_compactor(compactor)
    assert await service.transactions.enable()

    assert await schema_state(postgres_url) == SchemaState(SCHEMA_REVISION, OLDEST_PROGRAM)
    await owner.close()


async def test_one_that_only_slept_loses_its_lease_and_cannot_come_back(
    service: PostgresMetadata, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = AgentAddress(host="old", port=9092)
    lease = await service.agents.register_agent(address)
    await run_sql(postgres_url, OLDER.format("agents"), "UPDATE agents SET lease_until_ms = clock_ms() - 1")

    assert await service.transactions.enable()

    with pytest.raises(WriterFencedError):
        await service.agents.heartbeat(lease)
    monkeypatch.setattr("metadata.postgres.log.registering.SCHEMA_REVISION", "0008")
    with pytest.raises(SchemaMismatchError):
        await service.agents.register_agent(address)


async def test_programs_of_the_schema_before_commit_on_by_their_own_functions(
    service: PostgresMetadata, postgres_url: str
) -> None:
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await writer.commit(sent(one, 0, 0, 2))
    file = f"{writer.lease.writer_id}, 0, {{}}, 'l0/a7/2024010100/1-0-900000{{}}.silt', 10, 1"

    await run_sql(
        postgres_url,
        f"SELECT commit_l0_v1({file.format(5, 1)}, 1, ARRAY[{one}], ARRAY[0], ARRAY[10], ARRAY[1], ARRAY[1::bigint],"
        " ARRAY[1::bigint], '{}', '{0}', '{0}', '{2}', '{}')",
        f"SELECT commit_l0_v3({file.format(6, 2)}, NULL, ARRAY[{one}], ARRAY[1::bigint],"
        " decode(repeat('00', 24), 'hex'), 1, '{1}', '{0}', '{1}', '{0}', '{0}', '{3}', '{}', '{}', '{}', '{}', '{}')",
    )

    assert (await service.agents.watermarks([one]))[one].high_watermark == 4
    writer.seq = 6
    assert list((await writer.commit(sent(one, 0, 4))).results) == [stored(4)]
