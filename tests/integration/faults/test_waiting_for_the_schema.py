"""Agents and compactors that start before `siltstone migrate` has run wait, alive and not ready, and go on after it."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path

import boto3
import pytest

from metadata.contract.errors import MetadataUnavailableError, RightsMissingError
from metadata.migrations.migrate import migrate_async, plan_migration
from metadata.postgres.store import PostgresMetadata
from metadata.postgres.tables import SCHEMA_REVISION
from runtime.clock import SystemClock
from runtime.settings.loading import load_settings
from siltstone.embedded.postgres import EmbeddedPostgres
from siltstone.processes.agent import run_agent
from siltstone.processes.compactor import run_compactor
from siltstone.processes.schema_wait import SchemaWait
from tests.fixtures.commands import runner
from tests.fixtures.compactors import CompactorProcess
from tests.fixtures.faults import POSTGRES_SETTINGS, AgentProcess, in_thread
from tests.fixtures.log_lines import LogLines
from tests.fixtures.older_program import PRESENT, migrate_by
from tests.fixtures.postgres import AGENT_ROLE, COMPACTOR_ROLE, as_role, give_roles, run_sql
from tests.fixtures.releases import make_schema, next_release, ours
from tests.fixtures.s3 import S3Server, free_port
from tests.fixtures.waiting import until, wait_until

KINDS = {"agent": AGENT_ROLE, "compactor": COMPACTOR_ROLE}
OLDER = ours() - 1
NEEDS = f"this release needs {SCHEMA_REVISION}: run `siltstone migrate` of this release first"
STOP_S_MAX = 5

Make = Callable[[str, str], "Program"]


class Program:
    """A process whose pages can be asked before it is ready."""

    def __init__(self, process: AgentProcess, pages: str) -> None:
        self.process, self._pages = process, pages

    def page(self, path: str) -> tuple[int, str]:
        """(status, text); status 0 while nobody answers."""
        try:
            with urllib.request.urlopen(f"http://{self._pages}{path}", timeout=10) as answer:
                return answer.status, answer.read().decode()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read().decode()
        except OSError:
            return 0, ""

    def until_it_waits_for(self, reason: str) -> None:
        def waits() -> bool:
            status, text = self.page("/readyz")
            assert status != 200 and self.process.is_running, self.process.log
            return status == 503 and reason in " ".join(json.loads(text)["reasons"])

        wait_until(waits, said=lambda: f"{self.page('/readyz')}\n{self.process.log}")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """Make a process of a kind on a database; it has begun to start."""
    made: list[AgentProcess] = []

    def begun(kind: str, url: str) -> Program:
        pages = f"127.0.0.1:{free_port()}"
        of = CompactorProcess if kind == "compactor" else AgentProcess
        address = {} if kind == "compactor" else {"listen": f"127.0.0.1:{free_port()}"}
        store = (tmp_path / "objects").as_uri()
        process = of(metadata_url=url, store_url=store, log=tmp_path / f"{kind}.log", metrics_listen=pages, **address)
        made.append(process)
        process.begin_start()
        return Program(process, pages)

    yield begun
    for process in made:
        process.stop()


def is_open(address: str) -> bool:
    host, _, port = address.partition(":")
    with socket.socket() as asking:
        return asking.connect_ex((host, int(port))) == 0


@pytest.mark.usefixtures("postgres_template")  # the server has the roles
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("present", ["none", "older"])
def test_a_process_without_its_schema_is_alive_and_not_ready_until_the_migration(
    bare_postgres_url: str, make: Make, kind: str, present: str
) -> None:
    url = bare_postgres_url
    if present == "older":
        in_thread(make_schema(url, OLDER))
    # roles get their rights with a schema: on that of the helper only the owner has any
    program = make(kind, as_role(url, KINDS[kind]) if present == "none" else url)
    revision = "none" if present == "none" else f"{OLDER:04d}"
    # when it waits
    program.until_it_waits_for(f"the database has schema revision {revision}, {NEEDS}")
    # then it is alive, does nothing, and says so in metrics and log
    assert program.page("/healthz") == (200, '{"alive": true}\n')
    assert f'siltstone_ready{{role="{kind}"}} 0.0' in program.page("/metrics")[1]
    assert "waiting for the schema" in program.process.log
    assert in_thread(plan_migration(url)).running == []
    if kind == "agent":
        assert program.page("/producers") == (200, "{}\n")
        assert not is_open(program.process.address)
    # and goes on by itself when the schema is there
    assert f"schema: {SCHEMA_REVISION} (" in migrate_by(PRESENT, url)
    program.process.await_ready()
    assert program.page("/readyz") == (200, '{"ready": true, "reasons": []}\n')
    assert "schema is there" in program.process.log
    assert [each.kind for each in in_thread(plan_migration(url)).running] == [kind]
    assert program.process.stop() == 0


def test_a_process_that_starts_before_its_first_password_waits_for_the_migration_that_makes_it(
    bare_postgres_url: str, make: Make, moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    # as Terraform makes them: the secret has no value, and Postgres no role
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", moto_server.endpoint)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    role = f"first_{os.urandom(4).hex()}"
    client = boto3.client("secretsmanager", region_name="eu-central-1")
    arn = str(client.create_secret(Name=role)["ARN"])
    place = bare_postgres_url.rpartition("@")[2]
    program = make("agent", f"postgresql://{role}@{place}?password_secret={arn}")
    program.until_it_waits_for(f"the secret {arn} has no value yet")
    assert program.page("/startupz")[0] == 503
    # when the migration runs, as a task beside it
    run = runner({"AGENT_PGPASSWORD_SECRET": arn})
    run("migrate", "--metadata", bare_postgres_url, "--agent", role)
    # then it goes on by itself
    try:
        program.process.await_ready()
        assert program.page("/startupz")[0] == 200
        assert program.process.stop() == 0
    finally:
        program.process.stop()
        in_thread(run_sql(bare_postgres_url, f"DROP OWNED BY {role}", f"DROP ROLE {role}"))


@pytest.mark.parametrize("kind", KINDS)
def test_a_stop_signal_ends_the_wait_at_once(bare_postgres_url: str, make: Make, kind: str) -> None:
    program = make(kind, bare_postgres_url)
    program.until_it_waits_for("revision none")
    began = time.monotonic()

    assert program.process.stop() == 0

    assert time.monotonic() - began < STOP_S_MAX
    assert "Traceback" not in program.process.log


@pytest.mark.parametrize("kind", KINDS)
def test_a_schema_that_does_not_accept_a_process_ends_it(
    postgres_url: str, tmp_path: Path, make: Make, kind: str
) -> None:
    in_thread(migrate_async(postgres_url, versions=next_release(tmp_path / "next", oldest_program=ours() + 1)))

    program = make(kind, postgres_url)

    assert program.process.await_end() == 1
    assert "error: this program is too old" in program.process.log


@pytest.mark.usefixtures("postgres_template")
@pytest.mark.parametrize("kind", KINDS)
def test_between_the_schema_and_the_rights_a_process_waits_too(bare_postgres_url: str, make: Make, kind: str) -> None:
    # given a schema whose roles have no rights yet, as in the midst of `siltstone migrate --agent ... --compactor ...`
    in_thread(migrate_async(bare_postgres_url))
    program = make(kind, as_role(bare_postgres_url, KINDS[kind]))
    program.until_it_waits_for(f"permission denied for table alembic_version: run `siltstone migrate --{kind} ROLE`")
    # when they come one after another
    some = f"GRANT SELECT ON alembic_version, schema_versions, cluster, files TO {KINDS[kind]}"
    in_thread(run_sql(bare_postgres_url, some))
    program.until_it_waits_for("this role lacks rights on ")
    in_thread(give_roles(bare_postgres_url))
    # then
    program.process.await_ready()
    assert program.process.stop() == 0


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("siltstone.processes.schema_wait.LOOK_MS", 20)
    monkeypatch.setattr("siltstone.processes.schema_wait.RIGHTS_MS_MAX", 200)


@pytest.mark.usefixtures("quick")
async def test_rights_that_do_not_come_are_the_business_of_the_process(postgres_url: str, log_lines: LogLines) -> None:
    """It can do without some, and says itself which ones it cannot do without."""
    url = as_role(postgres_url, AGENT_ROLE)
    await run_sql(postgres_url, f"REVOKE ALL ON quota_demands FROM {AGENT_ROLE}")
    service, wait = PostgresMetadata(url), SchemaWait(url, "agent", SystemClock())
    opening = asyncio.create_task(wait.open(service))
    await until(lambda: wait.reason)
    assert wait.reason.startswith("this role lacks rights on quota_demands: run `siltstone migrate --agent ROLE`")
    await opening
    assert wait.reason == ""
    [told] = log_lines.named("started without all rights")
    assert told["lacking"] == "quota_demands"
    await service.close()

    await run_sql(postgres_url, f"REVOKE ALL ON alembic_version FROM {AGENT_ROLE}")
    with pytest.raises(RightsMissingError, match="permission denied for table alembic_version"):
        await SchemaWait(url, "agent", SystemClock()).open(service)
    await service.close()


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("kind", KINDS)
async def test_a_process_that_ends_for_want_of_rights_says_who_gives_them(
    postgres_url: str, tmp_path: Path, kind: str
) -> None:
    """It ends by a right that it cannot do without, and then where it opens Postgres."""
    run = run_agent if kind == "agent" else run_compactor
    place = {"metadata.url": as_role(postgres_url, KINDS[kind]), "object.store.url": tmp_path.as_uri()}
    settings = load_settings(None, {}, {"listen": f"127.0.0.1:{free_port()}", **place})
    for lost in (f"{kind}s", "alembic_version"):
        await run_sql(postgres_url, f"REVOKE ALL ON {lost} FROM {KINDS[kind]}")
        with pytest.raises(RightsMissingError, match=f"permission denied for table {lost}") as ended:
            await asyncio.wait_for(run(settings, on_ready=lambda _: None), 60)
        assert ended.value.remedy == f"run `siltstone migrate --{kind} ROLE` of this release"


@pytest.mark.usefixtures("quick")
async def test_a_password_that_postgres_goes_on_refusing_ends_the_start(
    postgres_url: str, moto_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A moment after the first migration has filled the secret it has made the role; not so after a mistake."""
    monkeypatch.setenv("AWS_ENDPOINT_URL_SECRETS_MANAGER", moto_server.endpoint)
    monkeypatch.delenv("PGPASSWORD", raising=False)
    client = boto3.client("secretsmanager", region_name="eu-central-1")
    content = json.dumps({"password": "another"})
    arn = str(client.create_secret(Name=f"wrong-{os.urandom(4).hex()}", SecretString=content)["ARN"])
    place = f"{AGENT_ROLE}@{postgres_url.rpartition('@')[2]}"
    service = PostgresMetadata(f"postgresql://{place}?password_secret={arn}")
    wait = SchemaWait(f"postgresql://{place}?password_secret={arn}", "agent", SystemClock())
    opening = asyncio.create_task(wait.open(service))
    await until(lambda: "password authentication failed" in wait.reason)
    with pytest.raises(MetadataUnavailableError, match="password authentication failed"):
        await asyncio.wait_for(opening, 20)
    # and where no migration fills it, nothing is waited for
    wait = SchemaWait(f"postgresql://{place}", "agent", SystemClock())
    with pytest.raises(MetadataUnavailableError):
        await wait.open(PostgresMetadata(f"postgresql://{place}"))
    assert wait.reason == ""


@pytest.mark.usefixtures("quick")
async def test_a_postgres_that_is_away_ends_the_start_but_not_the_wait(tmp_path: Path) -> None:
    server = EmbeddedPostgres(tmp_path / "postgres", port=free_port(), settings=POSTGRES_SETTINGS)
    url = await asyncio.to_thread(server.start)
    try:
        service, wait = PostgresMetadata(url), SchemaWait(url, "agent", SystemClock())
        opening = asyncio.create_task(wait.open(service))
        await until(lambda: "revision none" in wait.reason)
        # when it goes away during the wait
        await asyncio.to_thread(server.stop)
        await until(lambda: "cannot connect to Postgres" in wait.reason)
        # then another process does not start, and this one goes on when Postgres is back and has the schema
        with pytest.raises(MetadataUnavailableError):
            await SchemaWait(url, "agent", SystemClock()).open(PostgresMetadata(url))
        await asyncio.to_thread(server.start)
        await until(lambda: "revision none" in wait.reason)
        await migrate_async(url)
        await opening
        assert wait.reason == ""
        await service.close()
    finally:
        await asyncio.to_thread(server.stop)
