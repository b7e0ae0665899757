"""A schema that is upgraded under programs of several releases. Postgres is real, and so is every program."""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Awaitable
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from click.testing import CliRunner

from metadata.contract.errors import MetadataUnavailableError, SchemaMismatchError
from metadata.contract.l0_commit import CommitL0
from metadata.contract.leases import AgentAddress, WriterFencedError, WriterLease
from metadata.groups.contract import GroupFencedError, OffsetCommitBatch
from metadata.migrations.grants import READER, grant
from metadata.migrations.migrate import (
    OldProgramsAtWorkError,
    migrate_async,
    plan_migration,
    schema_revision,
    schema_state,
)
from metadata.migrations.schema_versions import Running, SchemaState, revision_of
from metadata.postgres.connection import connect
from metadata.postgres.driver import Connection
from metadata.postgres.store import PostgresMetadata
from metadata.postgres.tables import SCHEMA_REVISION
from runtime.errors import BugError
from siltstone.cli import main
from tests.fixtures.faults import in_thread
from tests.fixtures.postgres import run_sql
from tests.fixtures.releases import command_of, make_first_schema, next_release, ours

NEXT = revision_of(ours() + 1)


async def opens(url: str) -> str:
    service = PostgresMetadata(url)
    try:
        await service.open()
        return (await service.cluster_identity()).cluster_id
    finally:
        await service.close()


def dry_run(url: str) -> tuple[int, list[str]]:
    done = CliRunner().invoke(main, ["migrate", "--dry-run", "--metadata", url])
    return done.exit_code, done.stdout.splitlines()


async def test_a_program_goes_on_with_the_next_schema_when_that_takes_it(postgres_url: str, tmp_path: Path) -> None:
    before = await opens(postgres_url)

    assert await migrate_async(postgres_url, versions=next_release(tmp_path / "next")) == NEXT

    assert await schema_state(postgres_url) == SchemaState(NEXT, ours())
    assert await opens(postgres_url) == before


async def test_a_program_that_the_next_schema_does_not_take_is_refused_and_told_why(
    postgres_url: str, tmp_path: Path
) -> None:
    versions = next_release(tmp_path / "next", oldest_program=ours() + 1)
    await migrate_async(postgres_url, versions=versions)

    with pytest.raises(SchemaMismatchError, match="this program is too old") as refused:
        await opens(postgres_url)
    assert NEXT in refused.value.message and SCHEMA_REVISION in refused.value.message
    with pytest.raises(SchemaMismatchError, match="this program is too old"):
        await migrate_async(postgres_url)  # the migration of our own release


async def test_what_one_migration_asks_for_a_later_one_cannot_take_back(postgres_url: str, tmp_path: Path) -> None:
    versions = next_release(tmp_path / "next", oldest_program=ours() + 1)
    next_release(versions, version=ours() + 2, oldest_program=ours())
    await migrate_async(postgres_url, versions=versions)

    with pytest.raises(SchemaMismatchError, match="this program is too old"):
        await opens(postgres_url)


async def test_a_database_of_the_first_release_is_brought_up_and_its_programs_may_stay(bare_postgres_url: str) -> None:
    await make_first_schema(bare_postgres_url)
    assert await schema_state(bare_postgres_url) == SchemaState("0001", None)
    with pytest.raises(SchemaMismatchError, match="run `siltstone migrate` of this release first"):
        await opens(bare_postgres_url)
    # given an agent and a compactor of the first release, at work
    await run_sql(
        bare_postgres_url,
        "INSERT INTO writers (host, port) VALUES ('a', 9092)",
        "INSERT INTO agents (writer_id, epoch, lease_until_ms) SELECT writer_id, 0, clock_ms() + 60000 FROM writers",
        "INSERT INTO compactors (node_id, host, lease_until_ms) VALUES (7, 'b', clock_ms() + 60000)",
    )
    running = [Running("agent", "a:9092", 1), Running("compactor", "node 7 on b", 1)]
    plan = await plan_migration(bare_postgres_url)
    assert (plan.running, plan.must_stop) == (running, [])

    await migrate_async(bare_postgres_url)

    assert await opens(bare_postgres_url) == "first-cluster"
    assert (await plan_migration(bare_postgres_url)).running == running, "they said nothing of their schema"
    assert (await schema_state(bare_postgres_url)).oldest_program == 1
    # and agents of this release do not ask them for blocks
    await run_sql(bare_postgres_url, "UPDATE agents SET lease_until_ms = clock_ms() + 10000")
    service = PostgresMetadata(bare_postgres_url)
    await service.open()
    ports = [agent.address.zone_port for agent in await service.agents.live_agents()]
    await service.close()
    assert ports == [0]


async def test_agents_and_compactors_say_which_schema_they_were_made_for(postgres_url: str) -> None:
    service = PostgresMetadata(postgres_url)
    await service.open()
    await service.agents.register_agent(AgentAddress(host="a", port=9092, zone=""))
    await service.compactors.register_compactor("b")
    await service.close()

    assert [(each.kind, each.program) for each in (await plan_migration(postgres_url)).running] == [
        ("agent", ours()),
        ("compactor", ours()),
    ]


async def test_a_migration_waits_for_nobody_but_refuses_while_programs_work_that_it_does_not_take(
    postgres_url: str, tmp_path: Path
) -> None:
    versions = next_release(tmp_path / "next", oldest_program=ours() + 1)
    service = PostgresMetadata(postgres_url)
    await service.open()
    lease = await service.agents.register_agent(AgentAddress(host="a", port=9092, zone=""))
    # when an excluded program is at work
    with pytest.raises(OldProgramsAtWorkError, match=r"older ones are at work: agent a:9092 .*nothing was changed"):
        await migrate_async(postgres_url, versions=versions)
    assert await schema_revision(postgres_url) == SCHEMA_REVISION
    # and when that program has gone
    await service.agents.unregister_agent(lease)
    await service.close()
    assert await migrate_async(postgres_url, versions=versions) == NEXT


REGISTERING = {
    "agent": lambda service: service.agents.register_agent(AgentAddress(host="a", port=9092, zone="")),
    "compactor": lambda service: service.compactors.register_compactor("b"),
}


async def until_waits(watcher: Connection, application: str, task: asyncio.Task[Any]) -> None:
    """Wait until `application` waits for a lock or `task` is done. The rest of the test shows which it should be."""
    waits = """SELECT count(*) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name = $1 AND wait_event_type = 'Lock'"""
    async with asyncio.timeout(30):
        while not task.done() and not await watcher.fetchval(waits, application):
            await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", REGISTERING)
async def test_who_registers_while_a_migration_runs_that_does_not_take_it_is_refused(
    postgres_url: str, tmp_path: Path, kind: str
) -> None:
    # given a program that has passed the check, and then a migration that waits for the last of its tables
    service = PostgresMetadata(postgres_url)
    await service.open()
    await service.cluster_identity()
    holder, watcher = await connect(postgres_url), await connect(postgres_url)
    await holder.execute("BEGIN")
    await holder.execute("LOCK TABLE watermarks IN ROW EXCLUSIVE MODE")
    versions = next_release(tmp_path / "next", oldest_program=ours() + 1)
    migration = asyncio.create_task(migrate_async(postgres_url, versions=versions))
    await until_waits(watcher, "siltstone-migrate", migration)
    # when it registers
    registering = asyncio.create_task(REGISTERING[kind](service))
    await until_waits(watcher, "siltstone-pool", registering)
    await holder.execute("COMMIT")
    # then
    assert await migration == NEXT
    with pytest.raises(SchemaMismatchError, match="this program is too old") as refused:
        await registering
    assert refused.value.remedy == "start the release that migrated the database, or a newer one"
    assert (await plan_migration(postgres_url, versions=versions)).running == []
    await service.close()
    for line in (holder, watcher):
        await line.close()


@pytest.mark.parametrize(("kind", "table"), [("agent", "writers"), ("compactor", "compactors")])
async def test_a_migration_sees_who_is_registering(postgres_url: str, tmp_path: Path, kind: str, table: str) -> None:
    # given a program that waits in the middle of its registration
    service = PostgresMetadata(postgres_url)
    await service.open()
    holder, watcher = await connect(postgres_url), await connect(postgres_url)
    await holder.execute("BEGIN")
    await holder.execute(f"LOCK TABLE {table} IN SHARE MODE")
    registering = asyncio.create_task(REGISTERING[kind](service))
    await until_waits(watcher, "siltstone-pool", registering)
    # when a migration begins that excludes it
    versions = next_release(tmp_path / "next", oldest_program=ours() + 1)
    migration = asyncio.create_task(migrate_async(postgres_url, versions=versions))
    await until_waits(watcher, "siltstone-migrate", migration)
    await holder.execute("COMMIT")
    # then
    await registering
    with pytest.raises(OldProgramsAtWorkError, match=f"older ones are at work: {kind}"):
        await migration
    assert await schema_revision(postgres_url) == SCHEMA_REVISION
    await service.close()
    for line in (holder, watcher):
        await line.close()


def empty_file(lease: WriterLease, *, seq: int) -> CommitL0:
    key = f"l0/00/2024010100/{lease.writer_id}-{lease.epoch}-{UUID(int=seq)}.silt"
    return CommitL0(lease=lease, seq=seq, key=key, size_bytes=70, crc32c=0, batches=[])


async def test_what_slept_through_a_migration_that_does_not_take_it_has_no_lease_and_gets_none(
    postgres_url: str, tmp_path: Path
) -> None:
    # given an agent and a compactor whose leases have expired
    service = PostgresMetadata(postgres_url)
    await service.open()
    lease = await service.agents.register_agent(AgentAddress(host="a", port=9092, zone=""))
    node = await service.compactors.register_compactor("b")
    await service.agents.commit_l0(empty_file(lease, seq=0))
    group = await service.groups.take_group("g", owner=lease, create=True)
    assert group is not None
    nothing = OffsetCommitBatch(lease=group.lease, offsets=[])
    assert not (await service.groups.commit_offsets([nothing]))[0].fenced
    lapse = "SET lease_until_ms = clock_ms() - 1"
    await run_sql(postgres_url, f"UPDATE agents {lapse}", f"UPDATE compactors {lapse}")
    # when they wake up after the migration
    await migrate_async(postgres_url, versions=next_release(tmp_path / "next", oldest_program=ours() + 1))
    # then
    with pytest.raises(WriterFencedError):
        await service.agents.heartbeat(lease)
    with pytest.raises(WriterFencedError):
        await service.compactors.beat_compactor(node)
    with pytest.raises(WriterFencedError):
        await service.agents.commit_l0(empty_file(lease, seq=1))
    with pytest.raises(GroupFencedError):
        await service.groups.save_group(group.lease, group.record)
    assert (await service.groups.commit_offsets([nothing]))[0].fenced
    with pytest.raises(SchemaMismatchError, match="this program is too old"):
        await service.agents.register_agent(AgentAddress(host="a", port=9092, zone=""))
    await service.close()


@pytest.mark.parametrize("kind", REGISTERING)
async def test_one_that_wakes_up_in_the_midst_of_a_migration_stops_it_and_keeps_its_lease(
    postgres_url: str, tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a program whose lease has expired, and its next heartbeat in flight
    monkeypatch.setattr("tests.fixtures.releases.HOT_TABLES", ("watermarks",))  # the migration does not lock heartbeats
    service = PostgresMetadata(postgres_url)
    await service.open()
    await REGISTERING[kind](service)
    await run_sql(postgres_url, f"UPDATE {kind}s SET lease_until_ms = clock_ms() - 1")
    beat, watcher = await connect(postgres_url), await connect(postgres_url)
    await beat.execute("BEGIN")
    await beat.execute(f"UPDATE {kind}s SET lease_until_ms = clock_ms() + 60000")
    # when
    versions = next_release(tmp_path / "next", oldest_program=ours() + 1)
    migration = asyncio.create_task(migrate_async(postgres_url, versions=versions))
    await until_waits(watcher, "siltstone-migrate", migration)
    await beat.execute("COMMIT")
    # then
    with pytest.raises(OldProgramsAtWorkError, match=f"older ones are at work: {kind}"):
        await migration
    assert [each.kind for each in (await plan_migration(postgres_url)).running] == [kind]
    assert await schema_revision(postgres_url) == SCHEMA_REVISION
    await service.close()
    for line in (beat, watcher):
        await line.close()


async def test_each_new_connection_of_a_program_asks_whether_it_is_taken(postgres_url: str, tmp_path: Path) -> None:
    service = PostgresMetadata(postgres_url)
    await service.open()
    await service.cluster_identity()
    await migrate_async(postgres_url, versions=next_release(tmp_path / "next", oldest_program=ours() + 1))
    # when its connections are lost
    await run_sql(
        postgres_url,
        """SELECT pg_terminate_backend(pid) FROM pg_stat_activity
        WHERE datname = current_database() AND application_name LIKE 'siltstone%' AND pid <> pg_backend_pid()""",
    )
    # then it gets no new one
    with pytest.raises(SchemaMismatchError, match="this program is too old"):
        await service.cluster_identity()
    await service.close()


async def test_a_migration_that_does_not_say_whom_it_takes_is_not_run(postgres_url: str, tmp_path: Path) -> None:
    with pytest.raises(BugError, match=f"{NEXT} does not state its oldest_program"):
        await migrate_async(postgres_url, versions=next_release(tmp_path / "next", oldest_program=0))
    assert await schema_revision(postgres_url) == SCHEMA_REVISION


async def test_a_readers_role_reads_on_after_a_migration_without_a_new_grant(
    bare_postgres_url: str, tmp_path: Path
) -> None:
    # given a role that got its rights before the table of versions existed
    role = f"reader_{bare_postgres_url.rpartition('/')[2]}"
    await make_first_schema(bare_postgres_url)
    columns = "GRANT SELECT (version_num) ON alembic_version TO"
    await run_sql(bare_postgres_url, f"CREATE ROLE {role} LOGIN PASSWORD 'x'", f"{columns} {role}")
    try:
        # when the schema is upgraded twice
        await migrate_async(bare_postgres_url)
        await migrate_async(bare_postgres_url, versions=next_release(tmp_path / "next"))
        # then it may read whether the schema supports it
        place = bare_postgres_url.rpartition("@")[2]
        assert await schema_state(f"postgresql://{role}:x@{place}") == SchemaState(NEXT, ours())
        await grant(bare_postgres_url, role, READER)
    finally:
        await run_sql(bare_postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}")


def test_a_dry_run_says_what_would_be_done_and_changes_nothing(bare_postgres_url: str) -> None:
    in_thread(make_first_schema(bare_postgres_url))

    code, said = dry_run(bare_postgres_url)

    assert code == 0
    assert said[:2] == ["schema: 0001", f"target: {SCHEMA_REVISION}"]
    assert said[2].startswith("  0002  ") and said[2].endswith("(accepts programs of 0001 or newer)")
    assert said[-1] == "no program runs"
    assert in_thread(schema_revision(bare_postgres_url)) == "0001"


def test_a_dry_run_names_who_may_stay_and_who_must_stop(postgres_url: str, tmp_path: Path) -> None:
    add = "INSERT INTO agents (writer_id, epoch, lease_until_ms, program_schema) "
    in_thread(
        run_sql(
            postgres_url,
            "INSERT INTO writers (host, port) VALUES ('a', 9092)",
            f"{add} SELECT writer_id, 0, clock_ms() + 60000, {ours()} FROM writers",
        )
    )
    assert dry_run(postgres_url)[1][-2:] == ["nothing to do", "may stay: 1 running program"]
    # the next release's schema supports no older program
    versions = next_release(tmp_path / "next", oldest_program=ours() + 1)
    plan = in_thread(plan_migration(postgres_url, versions=versions))
    assert [each.place for each in plan.must_stop] == ["a:9092"]


async def loses_a_deadlock(url: str, migration: Awaitable[str], *, last: str) -> str:
    """The result of a migration that loses a deadlock to a transaction that holds the last of its tables."""
    holder, watcher = await connect(url), await connect(url)
    await holder.execute("SET deadlock_timeout = '1min'")  # the session that checks for deadlocks first is the victim
    await holder.execute("BEGIN")
    await holder.execute(f"LOCK TABLE {last} IN ROW EXCLUSIVE MODE")
    task = asyncio.ensure_future(migration)
    waits = f"SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = '{last}'::regclass"
    async with asyncio.timeout(30):
        while not await watcher.fetchval(waits):
            await asyncio.sleep(0.01)
    # when that transaction asks for the first of the migration's tables
    await holder.execute("LOCK TABLE agents IN ROW EXCLUSIVE MODE")
    await holder.execute("COMMIT")
    for line in (holder, watcher):
        await line.close()
    return await task


async def test_a_migration_that_loses_a_deadlock_to_a_commit_begins_anew(postgres_url: str, tmp_path: Path) -> None:
    migration = migrate_async(postgres_url, versions=next_release(tmp_path / "next"))

    assert await loses_a_deadlock(postgres_url, migration, last="watermarks") == NEXT


async def test_one_written_as_a_script_begins_anew_too(bare_postgres_url: str) -> None:
    await make_first_schema(bare_postgres_url)

    migration = migrate_async(bare_postgres_url)

    assert await loses_a_deadlock(bare_postgres_url, migration, last="compactors") == SCHEMA_REVISION


def test_an_older_release_says_that_a_newer_one_has_been_here(postgres_url: str, tmp_path: Path) -> None:
    in_thread(migrate_async(postgres_url, versions=next_release(tmp_path / "next")))

    done = CliRunner().invoke(main, ["migrate", "--metadata", postgres_url])

    assert done.exit_code == 0, done.output
    done_text = (
        f"schema: {NEXT} (nothing to do: newer than {SCHEMA_REVISION} of this release, and accepts this release)\n"
    )
    assert done.stdout == done_text
    assert dry_run(postgres_url) == (
        0,
        [
            f"schema: {NEXT}",
            f"target: {SCHEMA_REVISION}",
            "nothing to do: a newer release has migrated the schema, and the schema accepts this release too",
        ],
    )


def test_the_command_line_of_another_release_is_refused_both_ways(postgres_url: str, tmp_path: Path) -> None:
    store = (tmp_path / "objects").as_uri()
    words = ("fsck", "--quick", "--metadata", postgres_url, "--object-store", store)

    ahead = subprocess.run(command_of(ours() + 1, *words), capture_output=True, text=True, timeout=60)

    assert ahead.returncode == 1
    assert f"this release needs {NEXT}" in ahead.stderr
    assert "remedy: run `siltstone migrate` of this release first" in ahead.stderr

    in_thread(migrate_async(postgres_url, versions=next_release(tmp_path / "next", oldest_program=ours() + 1)))
    behind = CliRunner().invoke(main, words)

    assert behind.exit_code == 1
    assert "error: this program is too old" in behind.stderr
    assert "remedy: start the release that migrated the database" in behind.stderr


async def test_a_migration_beside_a_transaction_that_holds_its_tables_gives_up_and_changes_nothing(
    postgres_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("metadata.migrations.migrate.LOCK_TIMEOUT_MS", 50)
    holder = await connect(postgres_url, application="somebody")
    await holder.execute("BEGIN")
    await holder.execute("LOCK TABLE topics IN ROW EXCLUSIVE MODE")

    with pytest.raises(MetadataUnavailableError, match="not free within 50 ms") as refused:
        await migrate_async(postgres_url, versions=next_release(tmp_path / "next"))

    pid = await holder.fetchval("SELECT pg_backend_pid()")
    await holder.close()
    assert f"somebody (pid {pid}, idle in transaction)" in refused.value.remedy
    assert await schema_revision(postgres_url) == SCHEMA_REVISION
    assert await opens(postgres_url)


async def test_one_written_as_a_script_gives_up_too(bare_postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("metadata.migrations.migrate.LOCK_TIMEOUT_MS", 50)
    await make_first_schema(bare_postgres_url)
    holder = await connect(bare_postgres_url)
    await holder.execute("BEGIN")
    await holder.execute("LOCK TABLE compactors IN ROW EXCLUSIVE MODE")

    with pytest.raises(MetadataUnavailableError, match="not free within 50 ms"):
        await migrate_async(bare_postgres_url)

    await holder.close()
    assert await schema_revision(bare_postgres_url) == "0001"


def test_a_role_that_may_not_alter_is_told_so(bare_postgres_url: str) -> None:
    # given a role that may read and write, but owns nothing
    role = f"writer_{bare_postgres_url.rpartition('/')[2]}"
    in_thread(make_first_schema(bare_postgres_url))
    rights = f"GRANT ALL ON ALL TABLES IN SCHEMA public TO {role}; GRANT CREATE ON SCHEMA public TO {role}"
    in_thread(run_sql(bare_postgres_url, f"CREATE ROLE {role} LOGIN PASSWORD 'x'", rights))
    url = f"postgresql://{role}:x@{bare_postgres_url.rpartition('@')[2]}"
    try:
        done = CliRunner().invoke(main, ["migrate", "--metadata", url])
    finally:
        in_thread(run_sql(bare_postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}"))

    assert done.exit_code == 1
    assert "must be owner of table agents" in done.stderr
    assert "remedy: run it as the owner of the schema" in done.stderr
    assert in_thread(schema_revision(bare_postgres_url)) == "0001"
