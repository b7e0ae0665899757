"""New passwords of Postgres roles in secrets: at any moment, and after any failure, a version of the secret works."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from asyncpg.exceptions import InvalidPasswordError
from click.testing import CliRunner, Result

from metadata.contract.errors import MetadataUnavailableError
from metadata.migrations import role_passwords
from metadata.migrations.grants import AGENT
from metadata.migrations.migrate import migrate_async
from metadata.migrations.role_passwords import set_password_of_secret
from metadata.postgres.driver import Connection
from runtime import secrets_manager
from runtime.secrets_manager import ReadSecret, SecretUnreadableError, put_password, read_secret
from siltstone.cli import main
from tests.fixtures.aws_secrets import TIMES_OUT, Secrets
from tests.fixtures.postgres import run_sql
from tests.fixtures.releases import next_release
from tests.fixtures.s3 import S3Server

SALT = bytes(16)
PASSING = ("ThrottlingException", "InternalServiceError", "DecryptionFailure", TIMES_OUT)
"""Errors that say nothing of the value of a secret."""


@pytest.fixture
def role(postgres_server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A role whose password is `p0`. It is dropped when the test's database is gone."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    name = f"agent_{os.urandom(4).hex()}"
    asyncio.run(run_sql(postgres_server, f"CREATE ROLE {name} LOGIN PASSWORD 'p0'"))
    yield name
    asyncio.run(run_sql(postgres_server, f"DROP ROLE {name}"))


@pytest.fixture
def database(role: str, postgres_url: str) -> str:
    """A migrated database, which is dropped before the role."""
    return postgres_url


async def works(url: str, role: str, password: str) -> bool:
    try:
        await run_sql(f"postgresql://{role}:{password}@{url.rpartition('@')[2]}", "SELECT 1")
    except InvalidPasswordError:
        return False
    return True


def migrated(url: str, *words: str) -> Result:
    return CliRunner().invoke(main, ["migrate", "--metadata", url, *words])


async def is_waited_for(session: Connection) -> bool:
    return bool(await session.fetchval("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted"))


async def test_no_run_that_fails_comes_between_the_steps_of_another(
    role: str, database: str, session: Connection, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    await secrets.put(password="p0")
    runs: list[asyncio.Task[bool]] = []

    def begin(drawn: str) -> None:
        setting = set_password_of_secret(database, role, AGENT, secrets.arn, new=True, drawn=drawn, salt=SALT)
        runs.append(asyncio.create_task(setting))

    async def read_while_the_other_waits(arn: str) -> ReadSecret:
        if len(runs) == 1:
            begin("second")
        while not runs[0].done() and not await is_waited_for(session):
            await asyncio.sleep(0.01)
        return await read_secret(arn)

    async def put_and_look(arn: str, password: str) -> None:
        await put_password(arn, password)
        kept = (await read_secret(arn)).passwords
        assert any([await works(database, role, each) for each in kept]), kept
        if password == "first":
            raise SecretUnreadableError("it does not come to its COMMIT")

    monkeypatch.setattr(role_passwords, "read_secret", read_while_the_other_waits)
    monkeypatch.setattr(role_passwords, "put_password", put_and_look)

    begin("first")
    with pytest.raises(SecretUnreadableError):
        await runs[0]
    assert await runs[1]

    assert (await read_secret(secrets.arn)).passwords == ("second", "first")
    assert await works(database, role, "second")


async def test_sessions_that_a_server_soon_ends_wait_for_secrets_manager(
    role: str, database: str, postgres_server: str, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    await secrets.put(password="p0")
    name = database.rpartition("/")[2]
    await run_sql(postgres_server, f"ALTER DATABASE {name} SET idle_session_timeout = 500")

    async def read_slowly(arn: str) -> ReadSecret:
        await asyncio.sleep(1.5)
        return await read_secret(arn)

    monkeypatch.setattr(role_passwords, "read_secret", read_slowly)
    assert await set_password_of_secret(database, role, AGENT, secrets.arn, new=True, drawn="p1", salt=SALT)
    await run_sql(postgres_server, f"ALTER DATABASE {name} RESET idle_session_timeout")
    assert await works(database, role, "p1")


async def test_a_run_says_that_another_one_keeps_it_waiting(
    role: str, database: str, session: Connection, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    await secrets.put(password="p0")
    monkeypatch.setattr(role_passwords, "WAIT_MS", 1_000)
    await session.execute(f"SELECT pg_advisory_lock({role_passwords.PASSWORDS_LOCK})")
    with pytest.raises(MetadataUnavailableError, match=r"another `siltstone migrate` .* for 1 s") as told:
        await set_password_of_secret(database, role, AGENT, secrets.arn, new=True, drawn="p1", salt=SALT)
    assert f"that of '{role}' was not changed" in told.value.message and told.value.remedy
    assert (await read_secret(secrets.arn)).passwords == ("p0",)
    assert await works(database, role, "p0")


def test_a_new_password_is_the_cure_for_a_secret_that_gives_none(
    role: str, database: str, secrets: Secrets, refused: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(secrets.make())
    monkeypatch.setenv("AGENT_PGPASSWORD_SECRET", secrets.arn)
    words = database, "--agent", role
    for value, error in (
        ("no JSON", ""),
        (json.dumps({"passwort": "p0"}), ""),
        (json.dumps({"password": ""}), ""),
        (json.dumps({"password": "p0"}), "AccessDeniedException"),
        (json.dumps({"password": "two words"}), ""),
        (json.dumps({"password": "schlüssel"}), ""),
    ):
        asyncio.run(secrets.put_text(value))
        refused["GetSecretValue"] = error
        # an upgrade does not take the place of what a person wrote or hid
        plain = migrated(*words)
        assert plain.exit_code == 1, (value, error, plain.output)
        assert asyncio.run(secrets.text()) == value
        cured = migrated(*words, "--new-passwords")
        assert cured.exit_code == 0 and "its secret, which is new" in cured.output, (value, error, cured.output)
        now = json.loads(asyncio.run(secrets.text()))["password"]
        assert asyncio.run(works(database, role, now)), (value, error)


@pytest.mark.parametrize("error", PASSING)
@pytest.mark.parametrize("words", [(), ("--new-passwords",)], ids=["an upgrade", "new passwords"])
def test_a_secret_that_cannot_be_read_now_stays_as_it_is(
    role: str, database: str, secrets: Secrets, refused: dict[str, str], monkeypatch: pytest.MonkeyPatch,
    error: str, words: tuple[str, ...],
) -> None:  # fmt: skip
    # given a run that was killed after it had changed the secret: Postgres takes the version before
    asyncio.run(secrets.put(password="p0"))
    asyncio.run(secrets.put(password="p1"))
    monkeypatch.setenv("AGENT_PGPASSWORD_SECRET", secrets.arn)
    monkeypatch.setattr(secrets_manager, "TIMEOUT_S", 0.3)
    refused["GetSecretValue"] = error
    outcome = migrated(database, "--agent", role, *words)
    assert outcome.exit_code == 1 and f"cannot use the secret {secrets.arn}" in outcome.output, outcome.output
    refused.clear()
    assert asyncio.run(read_secret(secrets.arn)).passwords == ("p1", "p0")
    assert asyncio.run(works(database, role, "p0"))


@pytest.fixture
def secrets_of_both(secrets: Secrets, moto_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> tuple[Secrets, ...]:
    """Those of agents and of compactors; both passwords are `p0`."""
    both = secrets, Secrets(moto_server)
    for kind, each in zip(("AGENT", "COMPACTOR"), both, strict=True):
        asyncio.run(each.put(password="p0"))
        monkeypatch.setenv(f"{kind}_PGPASSWORD_SECRET", each.arn)
    return both


def test_the_right_to_set_one_of_two_passwords_changes_that_one_and_says_so(
    role: str, bare_postgres_url: str, secrets_of_both: tuple[Secrets, ...]
) -> None:
    owner, compactor = (f"{kind}_{os.urandom(4).hex()}" for kind in ("owner", "compactor"))
    made = (
        f"CREATE ROLE {compactor} LOGIN PASSWORD 'p0'",
        f"CREATE ROLE {owner} CREATEROLE LOGIN PASSWORD 'x'",
        f"GRANT {role} TO {owner} WITH ADMIN OPTION",
        f"GRANT CREATE, USAGE ON SCHEMA public TO {owner}",
    )
    asyncio.run(run_sql(bare_postgres_url, *made))
    url = f"postgresql://{owner}:x@{bare_postgres_url.rpartition('@')[2]}"
    try:
        outcome = migrated(url, "--agent", role, "--compactor", compactor, "--new-passwords")
        assert outcome.exit_code == 1, outcome.output
        assert f"may not set the password of '{compactor}'; its password was not changed" in outcome.output
        of_agents, of_compactors = (asyncio.run(read_secret(each.arn)).passwords for each in secrets_of_both)
        assert of_agents[1] == "p0" and asyncio.run(works(url, role, of_agents[0]))
        assert of_compactors == ("p0",) and asyncio.run(works(url, compactor, "p0"))
    finally:
        left = f"{owner}, {compactor}"
        asyncio.run(run_sql(bare_postgres_url, f"DROP OWNED BY {left}, {role}", f"DROP ROLE {left}"))


def test_new_passwords_for_two_roles_need_two_secrets(
    role: str, bare_postgres_url: str, secrets_of_both: tuple[Secrets, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    words = bare_postgres_url, "--agent", role, "--compactor", f"{role}_c", "--new-passwords"
    arns = {kind: os.environ[f"{kind}_PGPASSWORD_SECRET"] for kind in ("AGENT", "COMPACTOR")}
    for kind, other in (("AGENT", "COMPACTOR"), ("COMPACTOR", "AGENT")):
        for arn, message in (
            ("", f"needs a secret for each role: {kind}_PGPASSWORD_SECRET is not set"),
            (arns[other], "one secret is given for two roles"),
        ):
            monkeypatch.setenv(f"{kind}_PGPASSWORD_SECRET", arn)
            outcome = migrated(*words)
            assert outcome.exit_code == 1 and f"{message}; nothing was changed" in outcome.output, outcome.output
            assert "schema:" not in outcome.output
        monkeypatch.setenv(f"{kind}_PGPASSWORD_SECRET", arns[kind])
    assert [asyncio.run(read_secret(each.arn)).passwords for each in secrets_of_both] == [("p0",), ("p0",)]


def test_the_postgres_of_dev_has_no_passwords_in_secrets(
    role: str, secrets: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(secrets.put(password="p0"))
    monkeypatch.setenv("AGENT_PGPASSWORD_SECRET", secrets.arn)
    words = ["migrate", "--data", str(tmp_path), "--agent", role, "--new-passwords"]
    outcome = CliRunner().invoke(main, words)
    assert outcome.exit_code == 1 and "--new-passwords does not go with --data; nothing was changed" in outcome.output
    assert asyncio.run(read_secret(secrets.arn)).passwords == ("p0",)


def test_databases_whose_clusters_need_the_password_too_are_named(
    role: str, database: str, bare_postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [url.rpartition("/")[2] for url in (database, bare_postgres_url)]
    monkeypatch.setenv("AGENT_PGPASSWORD", "p1")
    first = migrated(database, "--agent", role)
    assert (first.exit_code, first.stderr) == (0, ""), first.output
    second = migrated(bare_postgres_url, "--agent", role)
    assert second.exit_code == 0, second.output
    told = f"a cluster there that uses this role must get the password too: {names[0]}\n"
    assert second.stderr == f"warning: {role} has rights in other databases of this server; {told}"
    # no password, no warning
    monkeypatch.delenv("AGENT_PGPASSWORD")
    assert migrated(bare_postgres_url, "--agent", role).stderr == ""
    # nor for a role that lost its rights there
    asyncio.run(run_sql(database, f"DROP OWNED BY {role}"))
    monkeypatch.setenv("AGENT_PGPASSWORD", "p2")
    assert migrated(bare_postgres_url, "--agent", role).stderr == ""


def test_a_schema_of_a_newer_release_keeps_the_passwords(
    role: str, database: str, secrets: Secrets, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(secrets.put(password="p0"))
    monkeypatch.setenv("AGENT_PGPASSWORD_SECRET", secrets.arn)
    asyncio.run(migrate_async(database, versions=next_release(tmp_path / "next")))
    outcome = migrated(database, "--agent", role, "--new-passwords")
    assert outcome.exit_code == 1 and "a newer release has migrated the schema" in outcome.output
    assert asyncio.run(read_secret(secrets.arn)).passwords == ("p0",)
    assert asyncio.run(works(database, role, "p0"))
