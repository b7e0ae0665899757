"""The roles of Postgres that agents and compactors connect as: what they cannot do, and how they get their rights.

That the rights suffice is shown elsewhere: the contract suite (`tests/fixtures/metadata_parts.py`) and all processes of
`tests/fixtures/faults.py` connect under these roles.
"""

from __future__ import annotations

import asyncio
import itertools
import re
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest
from asyncpg.exceptions import InsufficientPrivilegeError, InvalidPasswordError
from click.testing import CliRunner

from metadata.contract.leases import AgentAddress
from metadata.migrations.grants import AGENT, COMPACTOR, READER, Rights, grant
from metadata.migrations.role_passwords import scram_verifier, set_password
from metadata.postgres.driver import Connection, open_connection
from metadata.postgres.store import PostgresMetadata
from metadata.postgres.tables import METADATA
from runtime.errors import BadInputError
from siltstone.cli import main
from tests.contract.test_security import acl
from tests.fixtures.faults import in_thread
from tests.fixtures.postgres import AGENT_ROLE, COMPACTOR_ROLE, as_role, run_sql

Connect = Callable[[str], Awaitable[Connection]]
ROOT = Path(__file__).resolve().parents[3]
SALT = bytes(range(16))
_numbers = itertools.count(1)

FORBIDDEN_TO_BOTH = (
    "CREATE TABLE more (a int)",
    "CREATE SCHEMA more",
    "CREATE FUNCTION public.more() RETURNS int LANGUAGE sql AS 'SELECT 1'",
    "ALTER TABLE files ADD COLUMN more int",
    "ALTER TABLE extents DISABLE TRIGGER ALL",
    "DROP TABLE merge_inputs",
    "TRUNCATE files",
    "DROP FUNCTION commit_l0_v4",
    "ALTER ROLE {owner} PASSWORD 'x'",
    "SET ROLE {owner}",
    "UPDATE cluster SET cluster_id = 'x'",
    "UPDATE cluster SET adopted_system_identifier = 1",
    "UPDATE schema_versions SET oldest_program = 1",
    "UPDATE alembic_version SET version_num = 'x'",
    "DELETE FROM cluster",
    "UPDATE files SET key = 'x'",
    "UPDATE files SET crc32c = 0",
    "INSERT INTO erasures DEFAULT VALUES",
    "DELETE FROM erasure_keys",
    "INSERT INTO secrets VALUES ('x', '')",
    "UPDATE secrets SET value = ''",
    "UPDATE changes SET detail = '{{}}'",
    "SELECT pin_files_v1('x', 1)",
    "SELECT setval('file_ids', 1)",
    "SELECT rolpassword FROM pg_authid",
    "COPY (SELECT 1) TO PROGRAM 'true'",
)
FORBIDDEN_TO_AGENTS = (
    "DELETE FROM files",
    "DELETE FROM extents",
    "INSERT INTO extents DEFAULT VALUES",
    "INSERT INTO merge_jobs DEFAULT VALUES",
    "UPDATE merge_jobs SET state = 'done'",
    "DELETE FROM merge_jobs",
    "INSERT INTO merge_inputs (job_id) VALUES (1)",
    "DELETE FROM merge_inputs",
    "INSERT INTO compactors VALUES (1, 'x', 1)",
    "DELETE FROM compactors",
    "UPDATE duties SET until_ms = 0",
    "DELETE FROM changes",
    "DELETE FROM deleted_topics",
    "DELETE FROM pins",
    "SELECT * FROM erasures",
    "UPDATE writers SET forgotten_seq = 0",
    "UPDATE cluster SET forgotten_file_id = 0",
)
FORBIDDEN_TO_COMPACTORS = (
    "SELECT * FROM scram_users",
    "SELECT name FROM scram_users",
    "SELECT * FROM secrets",
    "INSERT INTO acls DEFAULT VALUES",
    "DELETE FROM acls",
    "DELETE FROM client_quotas",
    "INSERT INTO topics DEFAULT VALUES",
    "DELETE FROM topics",
    "UPDATE topics SET configs = '{{}}'",
    "UPDATE watermarks SET next_offset = 0",
    "DELETE FROM group_offsets",
    "UPDATE groups SET epoch = 0",
    "UPDATE agents SET lease_until_ms = 0",
    "DELETE FROM agents",
    "UPDATE writers SET epoch = 0",
    "UPDATE cluster SET next_producer_id = 0",
    "SELECT lock_older_programs_v1()",
    "SELECT end_older_programs_v1()",
)


@pytest.fixture
async def connect() -> AsyncIterator[Connect]:
    opened: list[Connection] = []

    async def made(url: str) -> Connection:
        opened.append(await open_connection(url, connect_timeout_s=30, command_timeout_s=30, settings={}))
        return opened[-1]

    yield made
    for each in opened:
        await each.close()


@pytest.fixture
async def role(postgres_server: str) -> AsyncIterator[str]:
    """A name that no role has; a role of that name is dropped afterwards, once its database is gone."""
    name = f"role_{next(_numbers)}"
    yield name
    await run_sql(postgres_server, f"DROP ROLE IF EXISTS {name}")


async def rights_of(connection: Connection, role: str) -> set[str]:
    """All that the role was granted, by itself: "UPDATE files.state", "SELECT agents", "EXECUTE unpin_v1"."""
    rows = await connection.fetch(
        """SELECT a.privilege_type || ' ' || c.relname AS told FROM pg_class c, aclexplode(c.relacl) a
        WHERE a.grantee = to_regrole($1)
        UNION ALL SELECT a.privilege_type || ' ' || c.relname || '.' || t.attname
        FROM pg_attribute t JOIN pg_class c ON c.oid = t.attrelid, aclexplode(t.attacl) a
        WHERE a.grantee = to_regrole($1)
        UNION ALL SELECT a.privilege_type || ' ' || p.proname FROM pg_proc p, aclexplode(p.proacl) a
        WHERE a.grantee = to_regrole($1)""",
        role,
    )
    return {row["told"] for row in rows}


@pytest.mark.parametrize(
    ("role", "forbidden"),
    [
        (AGENT_ROLE, FORBIDDEN_TO_BOTH + FORBIDDEN_TO_AGENTS),
        (COMPACTOR_ROLE, FORBIDDEN_TO_BOTH + FORBIDDEN_TO_COMPACTORS),
    ],
)
async def test_a_role_can_do_nothing_that_its_process_need_not(
    postgres_url: str, connect: Connect, role: str, forbidden: tuple[str, ...]
) -> None:
    owner = await (await connect(postgres_url)).fetchval("SELECT current_user")
    connection = await connect(as_role(postgres_url, role))
    allowed: list[str] = []
    for statement in forbidden:
        try:
            await connection.execute(f"BEGIN; {statement.format(owner=owner)}")
            allowed.append(statement)
        except InsufficientPrivilegeError:
            pass
        await connection.execute("ROLLBACK")
    assert allowed == []


def test_every_table_is_named_and_nobody_but_agents_sees_what_is_kept_of_passwords() -> None:
    known = {*METADATA.tables, "alembic_version", "commit_gate", "producers"}
    for rights in (AGENT, COMPACTOR, READER):
        assert rights.tables.keys() <= known
    assert AGENT.tables.keys() | COMPACTOR.tables.keys() == known
    for hidden in ("scram_users", "secrets"):
        assert hidden not in COMPACTOR.tables and hidden not in READER.tables
    assert AGENT.tables["secrets"] == "SELECT"


async def test_a_second_call_changes_nothing_and_what_was_given_beside_it_is_taken(
    postgres_url: str, role: str, connect: Connect
) -> None:
    owner = await connect(postgres_url)
    given_beside = f"GRANT DELETE ON merge_jobs TO {role}; GRANT SELECT (name) ON topics TO {role}"
    await owner.execute(f"CREATE ROLE {role}; {given_beside}")
    try:
        assert await grant(postgres_url, role, AGENT) == []
        given = await rights_of(owner, role)
        assert await grant(postgres_url, role, AGENT) == []
        assert await rights_of(owner, role) == given == await rights_of(owner, AGENT_ROLE)
        # another kind of program: nothing is left of the first
        await grant(postgres_url, role, READER)
        assert not any(told.startswith(("INSERT", "UPDATE", "DELETE")) for told in await rights_of(owner, role))
    finally:
        await owner.execute(f"DROP OWNED BY {role}")


async def test_a_role_is_made_with_a_password_that_the_server_never_sees(
    postgres_url: str, role: str, connect: Connect
) -> None:
    owner = await connect(postgres_url)
    place = postgres_url.rpartition("@")[2]
    try:
        await set_password(postgres_url, role, COMPACTOR, "first/one", salt=SALT)
        await grant(postgres_url, role, COMPACTOR)
        await (await connect(f"postgresql://{role}:first%2Fone@{place}")).execute("SELECT FROM files")
        kept = await owner.fetchval("SELECT rolpassword FROM pg_authid WHERE rolname = $1", role)
        assert kept == scram_verifier("first/one", SALT)
        # a new password takes the old one's place; without one, the old one stays
        await set_password(postgres_url, role, COMPACTOR, "second", salt=SALT)
        await grant(postgres_url, role, COMPACTOR)
        await (await connect(f"postgresql://{role}:second@{place}")).execute("SELECT FROM files")
        with pytest.raises(InvalidPasswordError):
            await connect(f"postgresql://{role}:first%2Fone@{place}")
    finally:
        await owner.execute(f"DROP OWNED BY {role}")


def test_who_may_not_adopt_a_history_is_told_who_may(postgres_url: str, tmp_path: Path) -> None:
    in_thread(run_sql(postgres_url, "UPDATE cluster SET adopted_timeline = 0"))
    places = "--metadata", as_role(postgres_url, COMPACTOR_ROLE), "--object-store", tmp_path.as_uri()
    refused = CliRunner().invoke(main, ["fsck", "--adopt", *places])
    assert refused.exit_code == 1 and "permission denied for table cluster" in refused.stderr, refused.output
    assert "remedy: run it as the owner of the schema, the role that ran `siltstone migrate`" in refused.stderr


@pytest.mark.parametrize("password", ["two words", "schlüssel", "line\n"])
def test_a_password_that_clients_may_prepare_in_other_ways_is_refused(password: str) -> None:
    with pytest.raises(BadInputError, match="beyond ASCII"):
        scram_verifier(password, SALT)


@pytest.mark.parametrize("rights", [AGENT, COMPACTOR, READER], ids=lambda rights: rights.purpose)
async def test_a_missing_role_and_the_owner_are_refused(postgres_url: str, connect: Connect, rights: Rights) -> None:
    with pytest.raises(BadInputError, match="Postgres has no role 'nobody'") as missing:
        await grant(postgres_url, "nobody", rights)
    assert missing.value.remedy.startswith("create it first: CREATE ROLE nobody LOGIN PASSWORD '...'")
    assert ("_PGPASSWORD" in missing.value.remedy) == (rights is not READER)
    assert rights.variable in missing.value.remedy
    owner = await (await connect(postgres_url)).fetchval("SELECT current_user")
    with pytest.raises(BadInputError, match="may do everything here already") as too_much:
        await grant(postgres_url, owner, rights)
    assert too_much.value.remedy == f"name a role that is only for {rights.purpose}"


async def test_an_agents_role_shuts_programs_out_that_know_no_acls(postgres_url: str, connect: Connect) -> None:
    # given a compactor of an older release whose lease has lapsed in the middle of a merge
    owner = await connect(postgres_url)
    await owner.execute("INSERT INTO compactors VALUES (7, 'old', clock_ms() - 1, 6)")
    service = PostgresMetadata(as_role(postgres_url, AGENT_ROLE))
    await service.open()
    await service.agents.register_agent(AgentAddress(host="agent", port=9092))
    # when an agent writes the first ACL
    await service.security.create_acls([acl()])
    await service.close()
    # then the other one has to register again, and cannot
    assert await owner.fetchval("SELECT count(*) FROM compactors") == 0
    assert await owner.fetchval("SELECT max(oldest_program) FROM schema_versions") == 7


def test_the_documented_command_gives_both_roles_and_one_role_is_not_for_two(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    # given the example of the page, on this database and with roles of this test's own
    page = (ROOT / "docs" / "operations" / "postgres.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^siltstone (migrate .*--agent .*)$", page, re.MULTILINE)
    agent, compactor = (f"role_{next(_numbers)}" for _ in range(2))
    config = tmp_path / "owner.toml"
    config.write_text(f'metadata.url = "{postgres_url}"\n')
    words = example.replace("owner.toml", str(config)).replace("silt_agent", agent).replace("silt_compactor", compactor)
    monkeypatch.setenv("AGENT_PGPASSWORD", "canary-password")
    monkeypatch.setenv("COMPACTOR_PGPASSWORD", "canary-password")
    try:
        said = CliRunner().invoke(main, words.split())
        assert said.exit_code == 0, said.output
        assert f"agent: {agent} has the rights of agents, with the password of the environment\n" in said.output
        assert f"compactor: {compactor} has the rights of compactors, with the password" in said.output
        assert "canary" not in said.output
    finally:
        asyncio.run(run_sql(postgres_url, *(f"DROP OWNED BY {each}; DROP ROLE {each}" for each in (agent, compactor))))
    same = CliRunner().invoke(main, ["migrate", "--metadata", postgres_url, "--agent", "a", "--compactor", "a"])
    assert (
        same.exit_code != 0
        and "one role is given for several kinds of programs: a (--agent, --compactor)" in same.output
    )
