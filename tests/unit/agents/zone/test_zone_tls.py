"""Agents of a zone prove to each other what they are, and whoever cannot is neither served nor asked."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from agents.zone import client
from agents.zone import server as zone_server
from agents.zone.client import Neighbours
from agents.zone.frames import Outcome, encode_request
from agents.zone.lines import Lines
from agents.zone.tls import ZoneTls
from metadata.contract.leases import AgentAddress, AgentInfo
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from runtime.tls.files import TlsFileError
from tests.fixtures.certificates import EXPIRED, Authority, Identity, IdentityFiles
from tests.fixtures.metric_values import metric_value
from tests.fixtures.waiting import until
from tests.fixtures.zone_servers import BODY, FIRST, LAST, Serving, serving

NAME = "zone.silt.internal"
AUTHORITY, OTHER = Authority(), Authority("another throwaway CA")


class Files:
    """Those of one agent, which change while it runs."""

    def __init__(self, directory: Path, identity: Identity, *authorities: Authority) -> None:
        self.directory = directory
        directory.mkdir(exist_ok=True)
        self.shown = self.show(identity)
        self.trust(*authorities or (AUTHORITY,))

    def show(self, identity: Identity) -> IdentityFiles:
        return identity.write(self.directory / "agent")

    def trust(self, *authorities: Authority) -> None:
        (self.directory / "ca.pem").write_bytes(b"".join(each.pem for each in authorities))

    def tls(self, metrics: Metrics | None = None) -> ZoneTls:
        settings = Settings(
            zone_tls_cert_file=str(self.shown.cert),
            zone_tls_key_file=str(self.shown.key),
            zone_tls_ca_file=str(self.directory / "ca.pem"),
        )
        return ZoneTls(settings, Runtime(metrics=metrics or Metrics()))


def agent(*names: str, authority: Authority = AUTHORITY) -> Identity:
    return authority.agent([NAME, *names])


@pytest.fixture
def tls(tmp_path: Path) -> ZoneTls:
    return Files(tmp_path / "server", agent("one.silt.internal")).tls()


async def test_bytes_come_over_tls_as_they_are_to_an_agent_with_another_certificate(
    tls: ZoneTls, tmp_path: Path
) -> None:
    async with serving(Serving(tls=tls)) as here:
        here.lines = Lines(Files(tmp_path / "client", agent("two.silt.internal")).tls().dial)
        whole = replace(FIRST, length=len(BODY))
        for request in (FIRST, LAST, whole):
            found = await asyncio.gather(*(here.lines.ask(here.address, request) for _ in range(5)))
            assert {bytes(body) for _, body in found} == {BODY[request.start : request.start + request.length]}
        assert await here.outcome(replace(LAST, cluster_id="d")) is Outcome.STRANGER
        await until(lambda: not here.pinned_bytes)
        assert len(here.server._connections) <= 8, "idle connections are used again"
        assert here.server._admission.unproved == 0


# ---- strangers at the port


def showing(identity: Identity | None, directory: Path) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    if identity is not None:
        files = identity.write(directory / "stranger")
        context.load_cert_chain(files.cert, files.key)
    return context


STRANGERS = {
    "no certificate": None,
    "another authority": OTHER.agent([NAME]),
    "expired": AUTHORITY.agent([NAME], validity=EXPIRED),
    "for servers alone": AUTHORITY.server([NAME]),
    "a client of the same authority": AUTHORITY.client("CN=ann,O=Siltstone"),
    "another name of the same authority": AUTHORITY.agent(["db.silt.internal", "127.0.0.1"]),
}


@pytest.mark.parametrize("name", STRANGERS)
async def test_a_certificate_that_is_no_agents_is_not_served(name: str, tls: ZoneTls, tmp_path: Path) -> None:
    async with serving(Serving(tls=tls)) as here:
        said = b""
        with suppress(OSError):
            reader, writer = await asyncio.open_connection(*here.address, ssl=showing(STRANGERS[name], tmp_path))
            writer.write(encode_request(FIRST))
            try:
                async with asyncio.timeout(20):
                    said = await reader.read()
            finally:
                writer.transport.abort()
        assert said == b""
        assert here.store.gets == 0
        await until(lambda: metric_value(here.metrics, "protocol_errors_total", {"reason": "zone"}) == 1)
        assert await here.outcome(LAST) is Outcome.SERVED


@pytest.mark.parametrize(
    "data",
    [encode_request(FIRST), b"GET / HTTP/1.1\r\n\r\n", bytes(4096), b"\x16\x03\x01\x40\x00" + b"\x01" * 20_000],
    ids=["a request in plain", "HTTP", "nothing", "no real handshake"],
)
async def test_what_is_no_tls_closes_the_connection(data: bytes, tls: ZoneTls) -> None:
    async with serving(Serving(tls=tls)) as here:
        said = await here.says(data)
        # an alert at most
        assert len(said) < 64 and not said.startswith(b"SZA")
        assert here.store.gets == 0
        assert await here.outcome(FIRST) is Outcome.SERVED


async def a_half_handshake(here: Serving) -> asyncio.StreamWriter:
    """A client's first words, and no more."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    client = context.wrap_bio(incoming, outgoing, server_hostname=NAME)
    with suppress(ssl.SSLWantReadError):
        client.do_handshake()
    _, writer = await asyncio.open_connection(*here.address)
    writer.write(outgoing.read())
    return writer


@pytest.mark.parametrize("kind", ["silent", "half a handshake"])
async def test_an_agent_is_served_among_any_number_of_sockets_that_prove_nothing(kind: str, tls: ZoneTls) -> None:
    async with serving(Serving(tls=tls)) as here:
        assert await here.outcome(FIRST) is Outcome.SERVED
        writers: list[asyncio.StreamWriter] = []
        try:
            for number in range(3 * zone_server.UNPROVED_MAX):
                if kind == "silent":
                    _, writer = await asyncio.open_connection(*here.address)
                else:
                    writer = await a_half_handshake(here)
                writers.append(writer)
                if number % 8 == 0:
                    here.lines.keep_only(set())
                    assert await here.outcome(LAST) is Outcome.SERVED
                assert here.server._admission.unproved <= zone_server.UNPROVED_MAX
            await until(lambda: len(here.server._connections) <= zone_server.UNPROVED_MAX + 8)
        finally:
            for writer in writers:
                writer.transport.abort()


@pytest.mark.parametrize("is_tls", [True, False])
async def test_who_proves_nothing_in_time_goes_and_an_idle_neighbour_stays(
    is_tls: bool, tls: ZoneTls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zone_server, "PROVE_MS", 300.0)
    monkeypatch.setattr(zone_server, "SWEEP_MS", 20.0)
    async with serving(Serving(tls=tls if is_tls else None)) as here:
        assert await here.outcome(LAST) is Outcome.SERVED
        neighbours = set(here.server._connections)
        silent = [await asyncio.open_connection(*here.address) for _ in range(5)]
        async with asyncio.timeout(60):
            for reader, writer in silent:
                with suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.transport.abort()
        await until(lambda: set(here.server._connections) == neighbours)
        assert await here.outcome(LAST) is Outcome.SERVED
        assert set(here.server._connections) == neighbours


async def test_an_answer_that_nobody_reads_is_cut(tls: ZoneTls, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zone_server, "SEND_MS_MAX", 500)
    async with serving(Serving(tls=tls)) as here:
        context = tls.current().dialing
        others = [
            await asyncio.open_connection(*here.address, limit=1, ssl=context, server_hostname="") for _ in range(4)
        ]
        for _, each in others:
            each.transport.pause_reading()  # type: ignore[attr-defined]
            each.write(encode_request(replace(FIRST, length=len(BODY))))
        await until(lambda: here.store.gets > 0 and here.server._serving == 0 and not here.pinned_bytes)
        for _, each in others:
            each.transport.abort()
        assert await here.outcome(LAST) is Outcome.SERVED


# ---- whom we ask


@asynccontextmanager
async def somebody(identity: Identity, directory: Path, heard: list[bytes]) -> AsyncIterator[AgentInfo]:
    """At the address of an agent, with this certificate."""

    async def listen(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError):
            heard.append(await reader.read(1))
        writer.transport.abort()

    files = identity.write(directory / "somebody")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(files.cert, files.key)
    server = await asyncio.start_server(listen, "127.0.0.1", 0, ssl=context)
    port = server.sockets[0].getsockname()[1]
    yield AgentInfo(writer_id=1, epoch=1, address=AgentAddress(host="127.0.0.1", port=1, zone="a", zone_port=port))
    server.close()


@pytest.mark.parametrize(
    "identity",
    [
        OTHER.agent([NAME]),
        AUTHORITY.agent([NAME], validity=EXPIRED),
        AUTHORITY.server(["localhost", "127.0.0.1"]),
        AUTHORITY.client("CN=ann"),
    ],
    ids=["another authority", "expired", "another name", "a client's"],
)
async def test_nobody_is_asked_who_is_no_agent(
    identity: Identity, tls: ZoneTls, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client, "ANSWER_MS", 30_000.0)
    heard: list[bytes] = []
    metrics = Metrics()
    neighbours = Neighbours(tls.dial, Runtime(metrics=metrics))
    async with somebody(identity, tmp_path, heard) as owner:
        assert await neighbours.ask(owner, LAST) is None
        assert metric_value(metrics, "zone_requests_total", {"outcome": "failed"}) == 1
        await asyncio.sleep(0)
    assert [each for each in heard if each] == [], "no request left"


# ---- the files


@pytest.mark.parametrize(
    ("identity", "message"),
    [
        (AUTHORITY.server([NAME]), "not for clientAuth"),
        (AUTHORITY.client("CN=ann"), "has no host name"),
        (AUTHORITY.agent(["127.0.0.1"]), "has no host name"),
    ],
)
def test_a_certificate_that_cannot_be_an_agents_is_refused_at_the_start(
    identity: Identity, message: str, tmp_path: Path
) -> None:
    with pytest.raises(TlsFileError, match=message) as refused:
        Files(tmp_path / "agent", identity).tls()
    assert "zone.tls.cert.file" in str(refused.value) and refused.value.remedy


async def test_the_authority_changes_under_load_and_no_block_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Step by step, and agent by agent: trust both, show the new certificate, trust the new authority alone."""
    monkeypatch.setattr(client, "ANSWER_MS", 30_000.0)
    metrics = [Metrics(), Metrics()]
    files = [Files(tmp_path / f"agent-{number}", agent(f"{number}.silt.internal")) for number in range(2)]
    agents = [each.tls(its) for each, its in zip(files, metrics, strict=True)]
    served = [0, 0]
    is_over = False

    async def load(asking: int, here: Serving) -> None:
        while not is_over:
            # a new connection for every second request: a handshake with what both sides know now
            lines = Lines(agents[asking].dial)
            for request in (FIRST, LAST):
                head, body = await lines.ask(here.address, request)
                assert head.outcome is Outcome.SERVED
                assert body == BODY[request.start : request.start + request.length]
                served[asking] += 1
            lines.keep_only(set())

    async def renew(number: int) -> None:
        await agents[number].certificates.check()
        before = list(served)
        await until(lambda: all(now > then + 6 for now, then in zip(served, before, strict=True)) or failed())

    def failed() -> bool:
        return any(each.done() for each in loads)

    async with AsyncExitStack() as stack:
        servers = [await stack.enter_async_context(serving(Serving(tls=each))) for each in agents]
        loads = [asyncio.create_task(load(number, servers[1 - number])) for number in range(2)]
        for number in range(2):
            files[number].trust(AUTHORITY, OTHER)
            await renew(number)
        for number in range(2):
            files[number].show(agent(f"{number}.silt.internal", authority=OTHER))
            await renew(number)
        for number in range(2):
            files[number].trust(OTHER)
            await renew(number)
        is_over = True
        await asyncio.gather(*loads)
        # the old authority is worth nothing any more
        lines = Lines(Files(tmp_path / "late", agent("late"), AUTHORITY, OTHER).tls().dial)
        with pytest.raises((OSError, ConnectionResetError)):
            await lines.ask(servers[0].address, LAST)
    for its in metrics:
        assert metric_value(its, "tls_reloads_total", {"listener": "zone.listen", "outcome": "used"}) == 3
        assert metric_value(its, "tls_reloads_total", {"listener": "zone.listen", "outcome": "refused"}) == 0
