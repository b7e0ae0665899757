"""Kafka over TLS: real sockets, real agents, Python's and OpenSSL's own clients."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import socket
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from agents.listeners.listener_tls import ListenerTls
from agents.listeners.listening import Listening
from agents.listeners.tls import RECORD_BYTES
from agents.listeners.tls_connection import WAKE_BYTES, TlsConnection
from runtime.clock import SystemClock
from runtime.metrics import Metrics
from runtime.tls.certificates import Certificates as Renewed
from runtime.tls.contexts import ServerTls, server_tls
from runtime.tls.files import ClientAuth, ServerTlsSettings
from security.principals import PrincipalRules
from tests.fixtures.agents import RawConnection, RunningAgent, StartAgent, records_of
from tests.fixtures.certificates import Certificates
from tests.fixtures.log_lines import LogLines
from tests.fixtures.waiting import until
from wire.api import encode_request
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

FAILED = "connection closed, TLS failed"


def settings_of(certificates: Certificates) -> ServerTlsSettings:
    return ServerTlsSettings(
        listener="public",
        prefix="listener.public.tls",
        cert_file=certificates.server.cert,
        key_file=certificates.server.key,
        ca_file=certificates.ca,
        crl_file=certificates.crl,
        client_auth=ClientAuth.REQUESTED,
    )


@dataclass
class TlsPort:
    running: RunningAgent
    address: tuple[str, int]
    opened: list[TlsConnection]
    raws: list[RawConnection]

    async def raw(self, context: ssl.SSLContext | None = None) -> RawConnection:
        host, port = self.address
        name = None if context is None else "localhost"
        streams = await asyncio.open_connection(host, port, ssl=context, server_hostname=name)
        self.raws.append(RawConnection(*streams))
        return self.raws[-1]


OpenPort = Callable[[Callable[[], ServerTls]], contextlib.AbstractAsyncContextManager[TlsPort]]


@contextlib.asynccontextmanager
async def tls_port(running: RunningAgent, current: Callable[[], ServerTls]) -> AsyncIterator[TlsPort]:
    """A further port of the agent that speaks TLS."""
    owner = running.agent._server
    assert owner is not None
    shared = ListenerTls(current, PrincipalRules.of("DEFAULT").principal)
    port = TlsPort(running, ("", 0), [], [])
    bound = socket.create_server(("127.0.0.1", 0))
    listening = Listening(name="public", socket=bound, tls=shared)

    def accept() -> TlsConnection:
        port.opened.append(TlsConnection(owner, listening, shared))
        return port.opened[-1]

    server = await asyncio.get_running_loop().create_server(accept, sock=bound)
    port.address = server.sockets[0].getsockname()[:2]
    try:
        yield port
    finally:
        for raw in port.raws:
            await raw.close()
        server.close()


@pytest.fixture
async def port(start_agent: StartAgent, certificates: Certificates) -> AsyncIterator[TlsPort]:
    loaded = server_tls(settings_of(certificates), SystemClock().wall_ms())
    async with tls_port(await start_agent(), lambda: loaded) as opened:
        yield opened


async def ask(raw: RawConnection) -> int:
    return (await raw.call(ApiVersionsRequest(), ApiVersionsResponse, 0)).error_code


async def produce(raw: RawConnection, values: Sequence[bytes]) -> None:
    """Pipelined: all requests leave before the first answer is read."""
    now_ms = int(time.time() * 1000)
    for value in values:
        part = PartitionProduceData(index=0, records=build_batch([NewRecord(now_ms, None, value)]))
        topics = [TopicProduceData(name="t", partition_data=[part])]
        await raw.begin(ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=topics), 9)
    for _ in values:
        answer = await raw.answer(ProduceResponse, 9)
        assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE


def fetch(offset: int = 0) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=50_000_000)
    return FetchRequest(
        max_wait_ms=10_000, min_bytes=1, max_bytes=50_000_000, topics=[FetchTopic(topic="t", partitions=[part])]
    )


async def create_topic(raw: RawConnection) -> None:
    topic = CreatableTopic(name="t", num_partitions=1, replication_factor=1)
    answer = await raw.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), CreateTopicsResponse, 5)
    assert answer.topics[0].error_code == ErrorCode.NONE


async def test_a_large_request_in_small_records_of_tls_wakes_the_agent_a_few_times(
    port: TlsPort, certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    woken: list[int] = []
    updated = TlsConnection.buffer_updated

    def counted(self: TlsConnection, nbytes: int) -> None:
        woken.append(nbytes)
        updated(self, nbytes)

    raw = await port.raw(certificates.client_context())
    await create_topic(raw)
    part = PartitionProduceData(index=0, records=build_batch([NewRecord(0, None, random.randbytes(700_000))]))
    request = ProduceRequest(acks=-1, timeout_ms=20_000, topic_data=[TopicProduceData(name="t", partition_data=[part])])
    frame = memoryview(b"".join(encode_request(0, 9, 7, "raw", request)))
    monkeypatch.setattr(TlsConnection, "buffer_updated", counted)
    # when each record of TLS is written by itself, as librdkafka does
    for start in range(0, len(frame), 1_000):
        await raw.send(bytes(frame[start : start + 1_000]))
        await asyncio.sleep(0)
    answer = await raw.answer(ProduceResponse, 9)
    # then
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
    assert len(woken) <= len(frame) // WAKE_BYTES + RECORD_BYTES // 1_000 + 10
    # and small requests are heard at once again
    assert await ask(raw) == ErrorCode.NONE


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_records_small_and_large_come_through_in_order(
    port: TlsPort, certificates: Certificates, version: ssl.TLSVersion
) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    context = certificates.client_context()
    context.minimum_version = context.maximum_version = version
    raw = await port.raw(context)
    await create_topic(raw)
    values = [chance.randbytes(chance.choice((1, 100, 5_000, 40_000, 900_000))) for _ in range(40)]
    await produce(raw, values)
    found: list[bytes | None] = []
    while len(found) < len(values):
        answer = await raw.call(fetch(len(found)), FetchResponse, 11)
        data = answer.responses[0].partitions[0].records
        assert data is not None
        found += [None if record.value is None else bytes(record.value) for _, record in records_of(memoryview(data))]
    assert found == values


async def test_a_client_that_reads_late_gets_every_byte_in_order_and_little_is_held_for_it(
    port: TlsPort, certificates: Certificates
) -> None:
    raw = await port.raw(certificates.client_context())
    await create_topic(raw)
    values = [random.Random(number).randbytes(900_000) for number in range(12)]
    await produce(raw, values)
    slow = await port.raw(certificates.client_context())
    slow.writer.transport.pause_reading()  # type: ignore[attr-defined]
    for _ in range(3):
        await slow.begin(fetch(), 11)
    connection = port.opened[-1]
    await until(lambda: connection._write_paused)
    transport = connection._transport
    assert transport is not None
    # TLS adds 22 bytes to a record of 16 KiB
    assert transport.get_write_buffer_size() <= 70_000
    slow.writer.transport.resume_reading()  # type: ignore[attr-defined]
    for _ in range(3):
        answer = await slow.answer(FetchResponse, 11)
        data = answer.responses[0].partitions[0].records
        assert data is not None
        assert [bytes(record.value or b"") for _, record in records_of(memoryview(data))][:1] == values[:1]
    assert await ask(slow) == ErrorCode.NONE


async def test_a_client_with_a_certificate_has_its_name(port: TlsPort, certificates: Certificates) -> None:
    raw = await port.raw(certificates.client_context(certificates.client))
    assert await ask(raw) == ErrorCode.NONE
    assert port.opened[-1].client.principal == "User:CN=ann,O=Siltstone"
    anonymous = await port.raw(certificates.client_context())
    assert await ask(anonymous) == ErrorCode.NONE
    assert port.opened[-1].client.principal == "User:ANONYMOUS"


async def test_a_revoked_certificate_is_refused(port: TlsPort, certificates: Certificates, log_lines: LogLines) -> None:
    raw = await port.raw(certificates.client_context(certificates.client_revoked))
    assert await raw.is_closed_by_peer()
    (line,) = await log_lines.until(FAILED)
    assert "was revoked" in line["error"] and line["fault"] == "peer"
    assert port.running.metric("protocol_errors_total", reason="tls") == 1


async def test_what_cannot_shake_hands_is_told_in_one_line(
    port: TlsPort, certificates: Certificates, log_lines: LogLines
) -> None:
    for sent, says in (
        (b"GET / HTTP/1.1\r\n\r\n", "HTTP"),
        (bytes.fromhex("00000011001200030000000100036b6361740003000000"), "Kafka protocol without TLS"),
        (b"\xfe" * 100_000, "not TLS"),
    ):
        before = len(log_lines.named(FAILED))
        raw = await port.raw()
        with contextlib.suppress(ConnectionError):
            await raw.send(sent)
        async with asyncio.timeout(20):
            with contextlib.suppress(ConnectionError):
                await raw.reader.read()
        await until(lambda before=before: len(log_lines.named(FAILED)) == before + 1)
        assert says in log_lines.named(FAILED)[-1]["error"]


async def test_a_client_that_does_not_trust_us_is_named_whether_or_not_it_says_so(
    port: TlsPort, certificates: Certificates, log_lines: LogLines
) -> None:
    # asyncio's client leaves without a word
    with pytest.raises(ssl.SSLCertVerificationError):
        await port.raw(certificates.client_context(ca=certificates.other_ca))
    (line,) = await log_lines.until("the client left in the middle of the TLS handshake")
    assert "may not trust our certificate" in line["hint"]
    # OpenSSL's sends an alert
    client = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-connect", f"127.0.0.1:{port.address[1]}"),
        *("-CAfile", str(certificates.other_ca), "-verify_return_error"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    assert await client.wait() != 0
    (line,) = await log_lines.until(FAILED)
    assert line["fault"] == "ours" and "does not trust our certificate" in line["error"]


def tls_connections() -> list[TlsConnection]:
    return [each for each in gc.get_objects() if isinstance(each, TlsConnection)]


async def test_half_handshakes_are_seen_and_leave_nothing_behind(
    port: TlsPort, certificates: Certificates, log_lines: LogLines
) -> None:
    others = tls_connections()  # of earlier tests; held, so that they are counted again at the end
    halves = [await port.raw() for _ in range(50)]
    for half in halves[:25]:
        await half.send(b"\x16\x03\x01\x02\x00\x01")
    await until(lambda: port.running.metric("connections") == 50)
    raw = await port.raw(certificates.client_context())
    assert await ask(raw) == ErrorCode.NONE
    for half in halves:
        await half.close()
    await until(lambda: port.running.metric("connections") == 1)
    # a client that goes away in the middle is no mistake that anybody has to read about
    assert log_lines.named(FAILED) == []
    port.opened.clear()
    gc.collect()
    assert len(tls_connections()) == len(others) + 1


async def test_a_goodbye_ends_the_connection_and_ours_is_said(port: TlsPort, certificates: Certificates) -> None:
    raw = await port.raw(certificates.client_context())
    assert await ask(raw) == ErrorCode.NONE
    raw.writer.close()  # asyncio says goodbye first, and waits for ours
    async with asyncio.timeout(20):
        await raw.writer.wait_closed()
    await until(lambda: port.running.metric("connections") == 0)
    other = await port.raw(certificates.client_context())
    assert await ask(other) == ErrorCode.NONE
    port.opened[-1].close("a test")
    # Python raises an error here if the stream is cut without a goodbye
    assert await other.reader.read() == b""


async def test_a_request_that_comes_in_one_piece_with_the_goodbye_is_answered(
    port: TlsPort, certificates: Certificates
) -> None:
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = certificates.client_context().wrap_bio(incoming, outgoing, server_hostname="localhost")
    raw = await port.raw()

    async def until_done(step: Callable[[], Any]) -> Any:
        while True:
            try:
                return step()
            except ssl.SSLWantReadError:
                await raw.send(outgoing.read())
                async with asyncio.timeout(60):
                    came = await raw.reader.read(65_536)
                assert came
                incoming.write(came)

    await until_done(client.do_handshake)
    client.write(b"".join(encode_request(18, 0, 7, "x", ApiVersionsRequest())))
    with pytest.raises(ssl.SSLWantReadError):
        client.unwrap()
    await raw.send(outgoing.read())
    answer = await until_done(lambda: client.read(65_536))
    assert answer[4:8] == (7).to_bytes(4, "big")
    await until(lambda: port.running.metric("connections") == 0)


async def test_a_renewed_certificate_is_for_new_connections(
    start_agent: StartAgent, certificates: Certificates, tmp_path: Path
) -> None:
    def subject(raw: RawConnection) -> object:
        return raw.writer.get_extra_info("peercert")["serialNumber"]

    first = certificates.authority.server().write(tmp_path / "server")
    of = replace(settings_of(certificates), cert_file=first.cert, key_file=first.key)
    renewed = Renewed(of, SystemClock(), Metrics())
    async with tls_port(await start_agent(), renewed.current) as port:
        context = certificates.client_context()
        old = await port.raw(context)
        assert await ask(old) == ErrorCode.NONE
        certificates.authority.server().write(tmp_path / "server")
        await renewed.check()
        new = await port.raw(context)
        assert await ask(new) == ErrorCode.NONE and await ask(old) == ErrorCode.NONE
        assert subject(old) != subject(new)


async def test_a_renegotiation_is_refused(port: TlsPort, certificates: Certificates) -> None:
    """OpenSSL's own client asks for one when it reads a line `R`."""
    client = await asyncio.create_subprocess_exec(
        *("openssl", "s_client", "-connect", f"127.0.0.1:{port.address[1]}", "-tls1_2"),
        *("-CAfile", str(certificates.ca)),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    assert client.stdin is not None and client.stdout is not None
    async with asyncio.timeout(30):
        shown = await client.stdout.readuntil(b"Verify return code")
        client.stdin.write(b"R\n")
        shown += await client.stdout.read()
        await client.wait()
    assert b"no renegotiation" in shown.lower() or b"RENEGOTIATING" in shown
    await until(lambda: port.running.metric("connections") == 0)
