"""The facts that the doctor judges, read from a real Postgres."""

from __future__ import annotations

import asyncio

import pytest

from metadata.migrations.grants import AGENT, COMPACTOR, Rights, grant
from metadata.postgres.driver import Connection, open_connection
from metadata.postgres.probes.facts import probe_postgres
from metadata.postgres.probes.pooler import Pooler
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from security.acls.values import Acl, Operation, PatternType, Permission, ResourceType
from siltstone.ops.doctor import Verdict, judge_postgres
from tests.fixtures.postgres import run_sql

ACL = Acl(
    resource_type=ResourceType.TOPIC,
    resource_name="orders",
    pattern_type=PatternType.LITERAL,
    principal="User:ann",
    host="*",
    operation=Operation.READ,
    permission=Permission.ALLOW,
)


async def test_a_migrated_database_is_fit_but_for_what_the_test_server_lacks(postgres_url: str) -> None:
    facts = await probe_postgres(postgres_url)
    faults = {check.name for check in judge_postgres(facts, SystemClock().wall_ms()) if check.verdict is not Verdict.OK}
    # the test server has no standby and runs without fsync
    assert faults <= {"postgres durability", "postgres failover"}
    assert facts.schema.revision == facts.revision_needed
    assert facts.pooler is Pooler.NONE and facts.may_create and facts.owns_schema
    assert facts.lacking_rights_on == ()


async def test_a_database_without_a_schema_is_looked_at_all_the_same(bare_postgres_url: str) -> None:
    facts = await probe_postgres(bare_postgres_url)
    assert facts.schema.revision is None
    assert facts.version_number >= 150_000


async def test_a_role_without_rights_is_found(postgres_url: str) -> None:
    # given a role that may only read
    role = f"reader_{postgres_url.rpartition('/')[2]}"
    await run_sql(
        postgres_url, f"CREATE ROLE {role} LOGIN PASSWORD 'x'", f"GRANT SELECT ON ALL TABLES IN SCHEMA public TO {role}"
    )
    place = postgres_url.rpartition("@")[2]
    owner = await session_on(postgres_url)
    try:
        facts = await probe_postgres(f"postgresql://{role}:x@{place}")
    finally:
        await owner.close()
        await run_sql(postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert "files" in facts.lacking_rights_on
    assert facts.role == role
    assert not facts.may_create
    # and it does not see what the sessions of others do
    assert facts.sessions_hidden >= 1
    assert (await probe_postgres(postgres_url)).sessions_hidden == 0


@pytest.mark.parametrize("rights", [AGENT, COMPACTOR], ids=["agents", "compactors"])
async def test_the_roles_of_processes_lack_nothing(postgres_url: str, rights: Rights) -> None:
    role = f"process_{postgres_url.rpartition('/')[2]}"
    await run_sql(postgres_url, f"CREATE ROLE {role} LOGIN PASSWORD 'x'")
    url = f"postgresql://{role}:x@{postgres_url.rpartition('@')[2]}"
    try:
        await grant(postgres_url, role, rights)
        facts = await probe_postgres(url)
        assert facts.lacking_rights_on == ()
        # and doctor finds nothing amiss in that it owns nothing
        assert (facts.owns_schema, facts.may_create) == (False, False)
        checks = judge_postgres(facts, SystemClock().wall_ms())
        assert [check.verdict for check in checks if check.name == "postgres rights"] == [Verdict.OK]
        # and one right less, on a column alone, is noticed
        await run_sql(postgres_url, f"REVOKE UPDATE (state) ON files FROM {role}")
        assert (await probe_postgres(url)).lacking_rights_on
    finally:
        await run_sql(postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


async def test_a_role_that_reads_past_the_acls_is_told_once_there_are_acls(postgres_url: str) -> None:
    # given a reader, and a role that works as agents do
    reader, agent = (f"{kind}_{postgres_url.rpartition('/')[2]}" for kind in ("reader", "agent"))
    await run_sql(
        postgres_url,
        f"CREATE ROLE {reader} LOGIN PASSWORD 'x'",
        f"GRANT SELECT (file_id) ON extents TO {reader}",
        f"CREATE ROLE {agent} LOGIN PASSWORD 'x'",
        f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {agent}",
    )
    metadata = open_metadata(postgres_url)
    await metadata.open()
    try:
        before = await probe_postgres(postgres_url)
        await metadata.security.create_acls([ACL])
        after = await probe_postgres(postgres_url)
    finally:
        await metadata.close()
        for role in (reader, agent):
            await run_sql(postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert (before.readers_past_acls, after.readers_past_acls) == ((), (reader,))
    (told,) = [check for check in judge_postgres(after, SystemClock().wall_ms()) if check.name == "acls"]
    assert told.verdict is Verdict.WARN and reader in told.detail and "docs/security.md" in told.remedy


async def test_a_role_that_does_not_wait_for_its_commits_is_found(postgres_url: str) -> None:
    database = postgres_url.rpartition("/")[2]
    await run_sql(postgres_url, f'ALTER DATABASE "{database}" SET synchronous_commit = off')
    assert (await probe_postgres(postgres_url)).synchronous_commit == "off"


async def session_on(url: str) -> Connection:
    return await open_connection(url, connect_timeout_s=10, command_timeout_s=60, settings={})


async def test_a_transaction_that_wrote_and_idles_is_told_although_it_has_no_snapshot(postgres_url: str) -> None:
    # given a session that wrote something and then left its transaction open
    writer = await session_on(postgres_url)
    await writer.execute("BEGIN; CREATE TABLE forgotten (number int)")
    await asyncio.sleep(0.2)
    try:
        # then its age is told, because vacuum spares what died since
        assert (await probe_postgres(postgres_url)).oldest_snapshot_ms >= 200
    finally:
        await writer.close()


async def test_a_snapshot_in_another_database_is_not_told(postgres_url: str) -> None:
    # given a session of another database that holds a snapshot
    stranger = await session_on(f"{postgres_url.rpartition('/')[0]}/postgres")
    await stranger.execute("BEGIN ISOLATION LEVEL REPEATABLE READ; SELECT 1")
    await asyncio.sleep(0.5)
    try:
        # then it does not count, because vacuum here need not spare what it sees
        assert (await probe_postgres(postgres_url)).oldest_snapshot_ms < 500
    finally:
        await stranger.close()


async def test_a_vacuum_that_takes_long_is_not_told(postgres_url: str) -> None:
    # given a vacuum that rests after each page
    await run_sql(postgres_url, "CREATE TABLE wide AS SELECT repeat('x', 1500) FROM generate_series(1, 2000)")
    cleaner = await session_on(postgres_url)
    await cleaner.execute("SET vacuum_cost_delay = 100; SET vacuum_cost_limit = 1")
    vacuum = asyncio.create_task(cleaner.execute("VACUUM wide"))
    try:
        # when it has run for a while
        await asyncio.sleep(1)
        assert not vacuum.done()
        # then its snapshot does not count
        assert (await probe_postgres(postgres_url)).oldest_snapshot_ms < 1000
    finally:
        vacuum.cancel()
        await asyncio.gather(vacuum, return_exceptions=True)
        await cleaner.close()
