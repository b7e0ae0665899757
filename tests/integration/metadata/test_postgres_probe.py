"""The facts that the doctor judges, read from a real Postgres."""

from __future__ import annotations

from metadata.postgres.pooler import Pooler
from metadata.postgres.probe import probe_postgres
from runtime.clock import SystemClock
from siltstone.ops.doctor import Verdict, judge_postgres
from tests.fixtures.postgres import run_sql


async def test_a_migrated_database_is_fit_but_for_what_the_test_server_lacks(postgres_url: str) -> None:
    facts = await probe_postgres(postgres_url)
    faults = {check.name for check in judge_postgres(facts, SystemClock().wall_ms()) if check.verdict is not Verdict.OK}
    # the test server has no standby and runs without fsync
    assert faults <= {"postgres durability", "postgres failover"}
    assert facts.schema.revision == facts.revision_needed
    assert facts.pooler is Pooler.NONE and facts.may_create
    assert facts.tables_lacking_rights == ()


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
    try:
        facts = await probe_postgres(f"postgresql://{role}:x@{place}")
    finally:
        await run_sql(postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")
    assert "files" in facts.tables_lacking_rights
    assert not facts.may_create


async def test_a_role_that_does_not_wait_for_its_commits_is_found(postgres_url: str) -> None:
    database = postgres_url.rpartition("/")[2]
    await run_sql(postgres_url, f'ALTER DATABASE "{database}" SET synchronous_commit = off')
    assert (await probe_postgres(postgres_url)).synchronous_commit == "off"
