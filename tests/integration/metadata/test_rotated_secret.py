"""A Postgres password in a file or a secret that `metadata.url` names: a change reaches processes that run."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from asyncpg.exceptions import InvalidPasswordError
from click.testing import CliRunner

from metadata.contract.errors import MetadataUnavailableError
from metadata.migrations.grants import AGENT
from metadata.migrations.role_passwords import set_password, set_password_of_secret
from metadata.postgres import passwords
from metadata.postgres.driver import Connection, open_connection
from metadata.postgres.store import PostgresMetadata
from runtime.runtime import Runtime
from runtime.secrets_manager import EmptySecretError, put_password, read_secret
from siltstone.cli import main
from tests.fixtures.aws_secrets import REGION, Secrets
from tests.fixtures.postgres import AGENT_ROLE, give_roles, run_sql

ROLE = "of_a_secret"


async def lines_lost(url: str, role: str = ROLE) -> None:
    """End every connection of the role, like a failover or a restart of Postgres."""
    await run_sql(url, f"SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE usename = '{role}'")


@pytest.fixture
async def named(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Callable[[str], str]]:
    """`named("password_file=...")` is the URL of a role whose password is `first`."""
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setattr(passwords, "KEPT", {})
    await run_sql(postgres_url, f"CREATE ROLE {ROLE} SUPERUSER LOGIN PASSWORD 'first'")
    parts = urlsplit(postgres_url)
    yield lambda query: f"postgresql://{ROLE}@{parts.hostname}:{parts.port}{parts.path}?sslmode=prefer&{query}"
    await run_sql(postgres_url, f"DROP ROLE {ROLE}")


async def test_a_changed_password_in_a_file_is_taken_by_the_next_connection(
    postgres_url: str, named: Callable[[str], str], tmp_path: Path
) -> None:
    # as Kubernetes mounts a Secret: not ours, and readable by a group
    file = tmp_path / "PGPASSWORD"
    file.write_text("first\n")
    file.chmod(0o440)
    service = PostgresMetadata(named(f"password_file={file}"))
    try:
        await service.open()
        before = await service.cluster_identity()
        await run_sql(postgres_url, f"ALTER ROLE {ROLE} PASSWORD 'se cond'")
        assert await service.cluster_identity() == before
        await lines_lost(postgres_url)
        with pytest.raises(MetadataUnavailableError, match="password authentication failed"):
            await service.cluster_identity()
        file.chmod(0o640)
        file.write_text("se cond\n")
        assert await service.cluster_identity() == before
        file.unlink()
        await lines_lost(postgres_url)
        with pytest.raises(MetadataUnavailableError, match=f"cannot read {file}, which password_file") as missing:
            await service.cluster_identity()
        assert missing.value.remedy
    finally:
        await service.close()


async def test_a_secret_is_rotated_under_processes_that_run_and_that_start(
    postgres_url: str, named: Callable[[str], str], secrets: Secrets
) -> None:
    await secrets.put(password="first", username="ignored")
    url = named(f"password_secret={secrets.arn}")
    runtime = Runtime()
    service, late = PostgresMetadata(url, runtime=runtime), PostgresMetadata(url)
    try:
        await service.open()
        before = await service.cluster_identity()
        # The secret changes first. Postgres still takes the old password: lost connections come back, also those of a
        # process that has read only the new secret.
        await secrets.put(password="second")
        await lines_lost(postgres_url)
        assert await service.cluster_identity() == before
        passwords.KEPT.clear()
        await late.open()
        # Then `siltstone migrate` tells Postgres.
        await run_sql(postgres_url, f"ALTER ROLE {ROLE} PASSWORD 'second'")
        await lines_lost(postgres_url)
        assert await service.cluster_identity() == before
        assert await late.cluster_identity() == before
        age_s = runtime.metrics.security.postgres_password_age_seconds.collect()
        assert 0.0 <= next(iter(age_s)).samples[0].value < 600
    finally:
        await service.close()
        await late.close()


@pytest.mark.parametrize("content", ["no JSON", '["first"]', '{"password": 7}', '{"password": null}', '"first"'])
async def test_a_secret_without_a_password_is_refused_and_one_before_does_not_matter(
    named: Callable[[str], str], secrets: Secrets, content: str
) -> None:
    await secrets.make()
    await secrets.put_text(content)
    url = named(f"password_secret={secrets.arn}")
    with pytest.raises(MetadataUnavailableError, match="cannot use the secret") as refused:
        await PostgresMetadata(url).open()
    assert "first" not in str(refused.value)
    await secrets.put(password="first")
    service = PostgresMetadata(url)
    try:
        await service.open()
    finally:
        await service.close()


async def test_a_failover_needs_no_secrets_manager(
    postgres_url: str, named: Callable[[str], str], secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    await secrets.put(password="first")
    service = PostgresMetadata(named(f"password_secret={secrets.arn}"))
    try:
        await service.open()
        before = await service.cluster_identity()
        monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", "http://127.0.0.1:9")
        await lines_lost(postgres_url)
        assert await service.cluster_identity() == before
    finally:
        await service.close()


async def test_a_secret_that_cannot_be_read_is_named_and_never_shown(
    named: Callable[[str], str], secrets: Secrets
) -> None:
    await secrets.put(passwort="s3cret")
    gone = f"arn:aws:secretsmanager:{REGION}:123456789012:secret:gone-AbCdEf"
    for arn, why, remedy in (
        (secrets.arn, "it is not JSON with `password`", "--new-passwords"),
        (gone, "has no value yet, or is not there", "siltstone migrate"),
    ):
        with pytest.raises(MetadataUnavailableError, match=why) as refused:
            await PostgresMetadata(named(f"password_secret={arn}")).open()
        assert arn in refused.value.message and remedy in refused.value.remedy
        assert "s3cret" not in str(refused.value)


def test_migrate_gives_the_roles_passwords_and_new_ones_under_a_running_agent(
    postgres_url: str, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    monkeypatch.setattr(passwords, "KEPT", {})
    asyncio.run(secrets.make())
    monkeypatch.setenv("AGENT_PGPASSWORD_SECRET", secrets.arn)
    migrate = ["migrate", "--metadata", postgres_url, "--agent", AGENT_ROLE]

    def said(*words: str) -> str:
        outcome = CliRunner().invoke(main, [*migrate, *words])
        assert outcome.exit_code == 0, outcome.output
        return outcome.stdout

    # An agent that starts before the first migration is told that the secret has no value yet.
    parts = urlsplit(postgres_url)
    url = f"postgresql://{AGENT_ROLE}@{parts.hostname}:{parts.port}{parts.path}?password_secret={secrets.arn}"
    with pytest.raises(MetadataUnavailableError, match="has no value yet"):
        asyncio.run(PostgresMetadata(url).open())
    try:
        assert f"agent: {AGENT_ROLE} has the rights of agents, with the password of its secret, which is new" in said()
        first = asyncio.run(read_secret(secrets.arn)).passwords[0]
        assert said().endswith("with the password of its secret\n")
        assert asyncio.run(read_secret(secrets.arn)).passwords[0] == first

        async def goes_on() -> None:
            service = PostgresMetadata(url)
            try:
                await service.open()
                await service.cluster_identity()
                assert "which is new" in await asyncio.to_thread(said, "--new-passwords")
                await lines_lost(postgres_url, AGENT_ROLE)
                await service.cluster_identity()
            finally:
                await service.close()

        asyncio.run(goes_on())
        assert asyncio.run(read_secret(secrets.arn)).passwords[0] != first
    finally:
        asyncio.run(give_roles(postgres_url))  # the password that other tests know


@pytest.mark.parametrize("is_first", [False, True], ids=["a new one", "the first one"])
def test_without_the_right_to_set_a_password_the_secret_stays_as_it_is_and_the_remedy_helps(
    bare_postgres_url: str, secrets: Secrets, monkeypatch: pytest.MonkeyPatch, is_first: bool
) -> None:
    role, owner = (f"{kind}_{os.urandom(4).hex()}" for kind in ("agent", "owner"))
    asyncio.run(secrets.make() if is_first else secrets.put(password="first"))
    monkeypatch.setenv("AGENT_PGPASSWORD_SECRET", secrets.arn)
    made = [f"CREATE ROLE {role} LOGIN PASSWORD 'first'", f"CREATE ROLE {owner} LOGIN PASSWORD 'x'"]
    asyncio.run(run_sql(bare_postgres_url, *made, f"GRANT CREATE, USAGE ON SCHEMA public TO {owner}"))
    place = bare_postgres_url.rpartition("@")[2]
    words = ["migrate", "--metadata", f"postgresql://{owner}:x@{place}", "--agent", role]
    words += [] if is_first else ["--new-passwords"]
    try:
        said = [CliRunner().invoke(main, words).output for _ in range(2)]
        assert all(f"may not set the password of '{role}'; its password was not changed" in each for each in said), said
        if is_first:
            with pytest.raises(EmptySecretError):
                asyncio.run(read_secret(secrets.arn))
        else:
            assert asyncio.run(read_secret(secrets.arn)).passwords == ("first",)
        # when a superuser follows the remedy
        remedy = f"ALTER ROLE {owner} CREATEROLE", f"GRANT {role} TO {owner} WITH ADMIN OPTION"
        assert all(each in said[0] for each in remedy)
        asyncio.run(run_sql(bare_postgres_url, *remedy))
        assert "of its secret, which is new" in CliRunner().invoke(main, words).output
        now = asyncio.run(read_secret(secrets.arn)).passwords[0]
        asyncio.run(run_sql(f"postgresql://{role}:{now}@{place}", "SELECT 1"))
    finally:
        asyncio.run(run_sql(bare_postgres_url, f"DROP OWNED BY {owner}, {role}", f"DROP ROLE {owner}, {role}"))


def test_a_role_that_may_do_everything_gets_no_password(
    postgres_url: str, named: Callable[[str], str], secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    asyncio.run(secrets.put(password="first"))
    monkeypatch.setenv("AGENT_PGPASSWORD_SECRET", secrets.arn)
    words = ["migrate", "--metadata", postgres_url, "--agent", ROLE, "--new-passwords"]
    outcome = CliRunner().invoke(main, words)
    assert outcome.exit_code == 1 and "may do everything here already" in outcome.output
    assert asyncio.run(read_secret(secrets.arn)).passwords == ("first",)
    asyncio.run(run_sql(named("password=first"), "SELECT 1"))


async def test_two_runs_at_once_and_a_run_after_a_killed_one_leave_a_password_that_works(
    postgres_url: str, secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PGPASSWORD", raising=False)
    role = f"agent_{os.urandom(4).hex()}"
    place = postgres_url.rpartition("@")[2]

    async def new() -> None:
        drawn = os.urandom(9).hex()
        assert await set_password_of_secret(
            postgres_url, role, AGENT, secrets.arn, new=True, drawn=drawn, salt=bytes(16)
        )

    async def works(password: str) -> bool:
        try:
            await run_sql(f"postgresql://{role}:{password}@{place}", "SELECT 1")
        except InvalidPasswordError:
            return False
        return True

    await secrets.put(password="p0")
    await set_password(postgres_url, role, AGENT, "p0", salt=bytes(16))
    try:
        # given a run that was killed after it had changed the secret: Postgres has the password before
        await secrets.put(password="p1")
        put = put_password

        async def put_and_look(arn: str, password: str) -> None:
            # when the secret changes, then Postgres takes one of the two that it has from now on
            await put(arn, password)
            kept = await read_secret(arn)
            assert any([await works(each) for each in kept.passwords])

        monkeypatch.setattr("metadata.migrations.role_passwords.put_password", put_and_look)
        await asyncio.gather(*(new() for _ in range(4)))
        kept = await read_secret(secrets.arn)
        assert await works(kept.passwords[0])
        assert not {"p0", "p1"} & set(kept.passwords)
    finally:
        await run_sql(postgres_url, f"DROP ROLE {role}")


async def test_an_older_password_that_still_works_is_tried_first_the_next_time(
    postgres_url: str, named: Callable[[str], str], secrets: Secrets, monkeypatch: pytest.MonkeyPatch
) -> None:
    await secrets.put(password="first")
    await secrets.put(password="second")
    url = named(f"password_secret={secrets.arn}")
    tried: list[str | None] = []

    async def opened() -> list[str | None]:
        tried.clear()
        await (await passwords.log_in(url, noted(tried))).close()
        return list(tried)

    assert await opened() == ["second", "first"]
    assert await opened() == ["first"]
    # and both are kept: not even the change in Postgres needs Secrets Manager
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", "http://127.0.0.1:9")
    await run_sql(postgres_url, f"ALTER ROLE {ROLE} PASSWORD 'second'")
    assert await opened() == ["first", "second"]
    assert await opened() == ["second"]


def noted(tried: list[str | None]) -> Callable[[str, str | None], Awaitable[Connection]]:
    """Opens a connection, and notes the password."""

    def open_with(address: str, password: str | None) -> Awaitable[Connection]:
        tried.append(password)
        return open_connection(address, password=password, connect_timeout_s=10, command_timeout_s=10, settings={})

    return open_with


async def test_a_login_that_is_refused_for_another_reason_than_the_password_reads_the_secret_again(
    postgres_url: str, named: Callable[[str], str], secrets: Secrets
) -> None:
    await secrets.put(password="first")
    url = named(f"password_secret={secrets.arn}")
    tried: list[str | None] = []
    await (await passwords.log_in(url, noted(tried))).close()
    await secrets.put(password="second")
    # given a role that may not log in, which Postgres says only to those who know its password (28000)
    await run_sql(postgres_url, f"ALTER ROLE {ROLE} NOLOGIN")
    with pytest.raises(InvalidPasswordError):
        await passwords.log_in(url, noted(tried))
    assert tried == ["first", "first", "second"]


def test_new_passwords_need_a_secret_to_be_written_to(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for arn, message in (("", "has no secret to write to"), ("silt-postgres-agent", "is no ARN of a secret")):
        monkeypatch.setenv("AGENT_PGPASSWORD_SECRET", arn)
        outcome = CliRunner().invoke(
            main, ["migrate", "--metadata", postgres_url, "--agent", AGENT_ROLE, "--new-passwords"]
        )
        assert outcome.exit_code == 1 and message in outcome.output


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("postgresql://r:pw@h/d?password_file=/f", "more than one password"),
        ("postgresql://r@h/d?password=pw&password_file=/f", "more than one password"),
        ("postgresql://r@h/d?password_file=/f&password_secret=arn:aws:secretsmanager:r:1:secret:s", "more than one"),
        ("postgresql://r@h/d?password_secret=silt-postgres", "no ARN of a secret"),
    ],
)
def test_a_url_with_two_passwords_or_a_name_of_a_secret_is_refused(url: str, message: str) -> None:
    with pytest.raises(MetadataUnavailableError, match=message) as refused:
        passwords.split(url)
    assert "pw" not in refused.value.message and refused.value.remedy


def test_our_parameters_do_not_reach_the_driver() -> None:
    arn = "arn:aws:secretsmanager:eu-central-1:123456789012:secret:silt-postgres-agent-AbCdEf"
    rest = "postgresql://r@h:1/d?sslmode=verify-full&sslrootcert=/opt/siltstone/rds-ca.pem"
    assert passwords.split(f"{rest}&password_secret={arn}") == (rest, passwords.PasswordPlace(secret_arn=arn))
    assert passwords.split(rest) == (rest, passwords.PasswordPlace())
    assert passwords.split("postgresql://r@h/d?password_file=/a%20b") == (
        "postgresql://r@h/d", passwords.PasswordPlace(file="/a b"),
    )  # fmt: skip
