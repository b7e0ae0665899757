"""Passwords, keys and tokens that went through a whole system are found in no log, trace, command line, object, change,
page of metrics, error, or table that a reader may see.

At the end another canary is put on purpose where people's words may stand, and the same search finds it everywhere.
"""

from __future__ import annotations

import asyncio
import re
import stat
import subprocess
import sys
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import aiohttp
import asyncpg
import pytest

from metadata.postgres.connection import connect
from siltstone.kafka.client import connected
from siltstone.kafka.security.properties import read_client_config
from storage.local import LocalStore
from tests.fixtures.canaries import Processes, descendants, environment, opened_objects
from tests.fixtures.certificates import Certificates
from tests.fixtures.collector import running_collector
from tests.fixtures.dev import running_dev
from tests.fixtures.token_issuer import TokenIssuer
from tests.fixtures.waiting import until
from tests.integration.siltstone.canaries.flow import (
    READER_ROLE,
    clients_come_in_and_do_not,
    given_secrets_of_the_system,
    people_do_their_work,
    postgres_is_asked_in_wrong_ways,
    roles_are_made,
    salted_passwords_are_sent_and_refused,
    users_come_and_change,
    with_derived_keys,
)
from tests.integration.siltstone.canaries.world import World
from wire.records import NewRecord, build_batch

PRIVATE_FILES = {
    "certificates/ca.key": {"ca_key"},
    "certificates/server.key": {"server_key"},
    "clients/admin.properties": {"admin"},
    "clients/admin.java.properties": {"admin"},
    "postgres/password": {"postgres"},
    "run.json": {"postgres"},
}
"""The files of a data directory that hold secrets, and which; those of Postgres itself apart."""
FLOW_S_MAX = 300


# ---- where it is looked for


async def places(world: World, *, rebuilt_url: str) -> Mapping[str, Iterable[bytes]]:
    data = world.dev.data
    world.processes.look()
    found: dict[str, Iterable[bytes]] = {
        "log": [(data.parent / f"{data.name}.log").read_bytes()],
        "Postgres's log": [(data / "postgres" / "postgres.log").read_bytes()],
        "commands": world.said,
        "traces": world.collector.bodies,
        "command lines": sorted(world.processes.command_lines),
        "bucket": [each async for each in opened_objects(LocalStore(data / "objects"))],
        "changes": await rows(world.url, "SELECT c::text FROM changes c"),
        "rebuilt system": await all_rows(rebuilt_url),
        "reader's role": await seen_by_reader(world.url),
        "metrics": await pages(world),
        "statements": await rows(world.url, "SELECT query FROM pg_stat_activity"),
    }
    return found


async def rows(url: str, query: str) -> Sequence[bytes]:
    connection = await connect(url)
    try:
        return [str(row[0]).encode() for row in await connection.fetch(query)]
    finally:
        await connection.close()


async def all_rows(url: str) -> Sequence[bytes]:
    tables = await rows(url, "SELECT table_name FROM information_schema.tables WHERE table_schema = 'public'")
    return [row for table in map(bytes.decode, tables) for row in await rows(url, f"SELECT t::text FROM {table} t")]


async def seen_by_reader(url: str) -> Sequence[bytes]:
    """Every value that the role may read, in every table."""
    connection = await connect(url)
    try:
        await connection.execute(f"SET ROLE {READER_ROLE}")
        columns: dict[str, list[str]] = {}
        listed = "SELECT table_name, column_name FROM information_schema.columns WHERE table_schema = 'public'"
        for table, column in await connection.fetch(listed):  # those of which the role may use anything
            columns.setdefault(table, []).append(column)
        assert "topics" in columns
        for table in ("scram_users", "secrets"):
            with pytest.raises(asyncpg.InsufficientPrivilegeError):
                await connection.fetch(f"SELECT count(*) FROM {table}")
        queries = [f"SELECT {', '.join(names)} FROM {table}" for table, names in columns.items()]
        return [str(tuple(row)).encode() for query in queries for row in await connection.fetch(query)]
    finally:
        await connection.close()


async def pages(world: World) -> Sequence[bytes]:
    run = world.dev.run
    found: list[bytes] = []
    async with aiohttp.ClientSession() as session:
        for url in (*run["metrics_urls"], *run["compactor_metrics_urls"]):
            for page in ("metrics", "producers", "healthz", "readyz"):
                async with session.get(url.replace("metrics", page)) as answer:
                    found.append(await answer.read())
    return found


def check_files(world: World) -> None:
    """Nothing in the directory of the data holds a secret but what is there for it, and nobody else reads that."""
    held = {
        str(path.relative_to(world.dev.data)): names
        for path in world.dev.data.rglob("*")
        if path.is_file() and world.dev.data / "postgres" / "data" not in path.parents
        if (names := world.canaries.found_in(path.read_bytes()))
    }
    assert held == PRIVATE_FILES
    for name in held:
        assert stat.S_IMODE((world.dev.data / name).stat().st_mode) == 0o600, name
    assert any("stored_key" in name for name in world.canaries.found_in((world.folder / "users.jsonl").read_bytes()))


def check_environments(world: World) -> None:
    """The environment of a process holds only what its documentation says. (Only its owner can read it.)"""
    held = {
        name: found
        for pid in descendants(world.dev.process.pid)
        for name, value in environment(pid).items()
        if (found := world.canaries.found_in(value))
    }
    assert held == {"SILTSTONE_METADATA_URL": {"postgres"}}


@asynccontextmanager
async def shown_on_purpose(world: World) -> AsyncIterator[None]:
    """A canary where names, words and statements may stand, while the block runs."""
    word = world.secret("shown")
    await world.command("topics", "create", word, *world.data)
    admin = read_client_config(world.dev.data / "clients" / "admin.properties").security
    async with connected(world.dev.bootstrap, security=admin, client_id=word) as client:
        await client.produce(word, 0, build_batch([NewRecord(1, b"k", b"v")]))
    await world.command("users", "create", word, *world.data, stdin="its password")
    await world.command("topics", "list", *world.data)
    await until(lambda: world.collector.named(f"Produce {word}"))
    await until(lambda: holds(world, word.encode()))
    connection = await connect(world.url)
    with pytest.raises(asyncpg.PostgresError):
        await connection.execute(f"SELECT 1/0, '{word}'")
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", word]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as waiting:
        await until(Path(f"/proc/{waiting.pid}/cmdline").read_bytes)  # empty for a moment, in which it becomes python
        yield
        waiting.communicate()
    await connection.close()


async def holds(world: World, word: bytes) -> bool:
    """Whether the backup in the bucket tells it."""
    return any([word in each async for each in opened_objects(LocalStore(world.dev.data / "objects"), "catalog/")])


@pytest.fixture
async def world(tmp_path: Path, certificates: Certificates, issuer: TokenIssuer) -> AsyncIterator[World]:
    config = tmp_path / "agent.toml"
    config.write_text(
        f"""
        log.level = "debug"
        trace.sample.ratio = "1"
        produce.linger.ms = 5
        drain.notice.ms = 1_000
        catalog.interval.ms = 2_000
        catalog.increment.interval.ms = 200
        [listener.tokens]
        address = "127.0.0.1:0"
        protocol = "SASL_SSL"
        tls.cert.file = "{tmp_path}/data/certificates/server.pem"
        tls.key.file = "{tmp_path}/data/certificates/server.key"
        sasl.mechanisms = "PLAIN,OAUTHBEARER"
        sasl.oauthbearer.jwks.endpoint.url = "{issuer.keys_url}"
        sasl.oauthbearer.jwks.ca.file = "{certificates.ca}"
        sasl.oauthbearer.expected.issuer = "https://issuer"
        sasl.oauthbearer.expected.audience = "siltstone"
        """
    )
    async with running_collector() as collector:
        environ = {"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        started = running_dev(tmp_path / "data", "--secure", "--config", str(config), environ=environ)
        with Processes() as processes:
            dev = await asyncio.to_thread(started.__enter__)
            try:
                log = (tmp_path / "data.log").read_text()
                (tokens,) = re.findall(r"\btokens=([\d.:]+)", log)
                yield World(dev, collector, tmp_path, processes, tokens)
            finally:
                await asyncio.to_thread(started.__exit__, None, None, None)


@pytest.mark.timeout(FLOW_S_MAX)
async def test_no_secret_is_found_where_others_look(world: World, issuer: TokenIssuer, bare_postgres_url: str) -> None:
    # given all that people and clients do, right and wrong
    await given_secrets_of_the_system(world)
    await users_come_and_change(world)
    second = (world.folder / "second").read_text()
    await with_derived_keys(world, "ann", second)
    await clients_come_in_and_do_not(world, second, issuer)
    await salted_passwords_are_sent_and_refused(world)
    await people_do_their_work(world, second)
    await postgres_is_asked_in_wrong_ways(world)
    await roles_are_made(world)
    await until(lambda: world.collector.named("Produce orders"))
    await until(lambda: holds(world, b"producer_byte_rate"))
    await world.command(
        "rebuild",
        "--force",
        code=None,
        SILTSTONE_METADATA_URL=bare_postgres_url,
        SILTSTONE_OBJECT_STORE_URL=world.dev.run["object_store_url"],
    )
    # when it is looked for, then nothing is found
    looked = await places(world, rebuilt_url=bare_postgres_url)
    assert {place for place, parts in looked.items() if len(b"".join(parts)) < 100} == set(), "there is enough to see"
    assert world.canaries.found(looked) == {}
    check_files(world)
    check_environments(world)
    # and what is shown on purpose is found wherever names are told
    async with shown_on_purpose(world):
        looked = await places(world, rebuilt_url=bare_postgres_url)
    tells_no_names = {"metrics", "rebuilt system"}
    assert world.canaries.found(looked) == {place: {"shown"} for place in looked.keys() - tells_no_names}
