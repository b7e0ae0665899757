"""Our Kafka client over TLS and SASL, against a server of the standard library's TLS and our own gate."""

from __future__ import annotations

import asyncio
import re
import ssl
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
from click.testing import CliRunner

from agents.features import Features
from agents.request_context import ClientConnection
from agents.security.gate import Authentication
from agents.security.passwords import PasswordChecks
from agents.security.session import Reply
from runtime.errors import UnavailableError
from runtime.runtime import Runtime
from security.scram import Mechanism
from siltstone.cli import main
from siltstone.kafka.client import ConnectionLostError, KafkaClient, KafkaError, connected
from siltstone.kafka.retrying import RetryingClient
from siltstone.kafka.security.authenticating import LoginError
from siltstone.kafka.security.remedies import DENIED
from siltstone.kafka.security.tls import TlsFailedError, failed
from siltstone.kafka.security.values import CLIENT_SECURITY, ClientConfigError, ClientSecurity
from tests.fixtures.certificates import PASSPHRASE, Certificates
from tests.unit.agents.security.session_client import Users, credential
from wire.api import decode_request, encode_response, read_request_header
from wire.error_codes import ErrorCode
from wire.messages.metadata import MetadataResponse, MetadataResponseBroker

MECHANISMS = ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN")


class Server:
    """Lets clients in by the gate, if there is one, and answers every later request as Metadata."""

    def __init__(self, authentication: Authentication, mechanisms: tuple[str, ...]) -> None:
        self.authentication, self.mechanisms = authentication, mechanisms
        self.principals: list[str] = []
        self.port = 0
        self.transports: list[asyncio.Transport] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.transports.append(cast("asyncio.Transport", writer.transport))
        client = ClientConnection(1, "127.0.0.1:1")
        gate = self.authentication.gate(client, self.mechanisms)
        try:
            while True:
                size = int.from_bytes(await reader.readexactly(4), "big")
                if size > 1 << 20:
                    break
                frame = memoryview(await reader.readexactly(size))
                if gate.admits(frame):
                    header, position = read_request_header(frame)
                    decode_request(header, frame, position)
                    self.principals.append(client.principal)
                    broker = MetadataResponseBroker(node_id=1, host="127.0.0.1", port=self.port)
                    writer.writelines(encode_response(header, MetadataResponse(brokers=[broker])))
                    continue
                reply = gate.receive(frame)
                reply = reply if isinstance(reply, Reply) else await reply
                writer.writelines(reply.parts)
                if reply.ends:
                    break
        except (OSError, EOFError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def serving(
    context: ssl.SSLContext | None = None, mechanisms: tuple[str, ...] = MECHANISMS
) -> AsyncIterator[Server]:
    passwords = PasswordChecks(b"k" * 32)
    users = Users(users={"ann": {each: credential("secret", each) for each in Mechanism}})
    made = Server(
        Authentication(
            known=users,
            features=Features(),
            passwords=passwords,
            runtime=Runtime(),
            refused_after_ms=0,
            receive_bytes_max=65_536,
        ),
        mechanisms,
    )
    listening = await asyncio.start_server(made.serve, "127.0.0.1", 0, ssl=context)
    made.port = listening.sockets[0].getsockname()[1]
    async with listening:
        yield made
    passwords.close()


@pytest.fixture
def tls(certificates: Certificates) -> Callable[..., ssl.SSLContext]:
    def context(*, wants_certificates: bool = False, version: ssl.TLSVersion | None = None) -> ssl.SSLContext:
        made = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        made.load_cert_chain(certificates.server.cert, certificates.server.key)
        if wants_certificates:
            made.load_verify_locations(certificates.ca)
            made.verify_mode = ssl.CERT_REQUIRED
        if version is not None:
            made.maximum_version = version
        return made

    return context


@pytest.fixture
def secure(certificates: Certificates) -> ClientSecurity:
    return ClientSecurity(
        protocol="SASL_SSL",
        mechanism="SCRAM-SHA-512",
        username="ann",
        password="secret",
        ca_file=certificates.ca,
        source="client.properties",
    )


async def test_the_client_comes_in_over_tls_by_every_mechanism(
    tls: Callable[..., ssl.SSLContext], secure: ClientSecurity
) -> None:
    async with serving(tls()) as server:
        for mechanism in MECHANISMS:
            async with connected(f"127.0.0.1:{server.port}", security=replace(secure, mechanism=mechanism)) as client:
                await client.metadata([])
    assert server.principals == ["User:ann"] * 3


async def test_a_client_does_not_wait_at_its_end_for_an_agent_that_reads_nothing_more(
    tls: Callable[..., ssl.SSLContext], secure: ClientSecurity
) -> None:
    async with serving(tls()) as server:
        client = await KafkaClient.connect(f"127.0.0.1:{server.port}", security=secure)
        await client.metadata([])
        # when the client is over its quota
        for each in server.transports:
            each.pause_reading()
        # then it ends long before the 30 s of TLS
        async with asyncio.timeout(15):
            await client.close()
        for each in server.transports:
            each.abort()


async def test_an_agent_that_is_not_trusted_gets_no_password(
    tls: Callable[..., ssl.SSLContext], secure: ClientSecurity, certificates: Certificates
) -> None:
    async with serving(tls()) as server:
        for security in (replace(secure, ca_file=certificates.other_ca), replace(secure, ca_file=None)):
            with pytest.raises(TlsFailedError, match="is not trusted"):
                await KafkaClient.connect(f"127.0.0.1:{server.port}", security=security)
    elsewhere = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    elsewhere.load_cert_chain(certificates.server_elsewhere.cert, certificates.server_elsewhere.key)
    async with serving(elsewhere) as server:
        with pytest.raises(TlsFailedError, match="is not trusted"):
            await KafkaClient.connect(f"127.0.0.1:{server.port}", security=secure)
        async with connected(f"127.0.0.1:{server.port}", security=replace(secure, checks_host=False)) as client:
            await client.metadata([])


async def test_an_agent_that_knows_no_password_is_not_believed(
    secure: ClientSecurity, monkeypatch: pytest.MonkeyPatch
) -> None:
    # given a server that lets everybody in
    monkeypatch.setattr("security.sasl.scram_messages.write_server_final", lambda signature: b"v=" + b"A" * 88)
    async with serving() as server:
        with pytest.raises(LoginError, match="not to be trusted"):
            await KafkaClient.connect(f"127.0.0.1:{server.port}", security=replace(secure, protocol="SASL_PLAINTEXT"))


async def test_a_certificate_of_ours_is_shown_and_its_lack_is_told(
    tls: Callable[..., ssl.SSLContext], secure: ClientSecurity, certificates: Certificates, tmp_path: Path
) -> None:
    both = tmp_path / "both.pem"
    both.write_bytes(certificates.client.key.read_bytes() + certificates.client.cert.read_bytes())
    for version in (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3):
        async with serving(tls(wants_certificates=True, version=version)) as server:
            address = f"127.0.0.1:{server.port}"
            for cert, key in ((certificates.client.cert, certificates.client.key), (both, both)):
                async with connected(address, security=replace(secure, certificate_file=cert, key_file=key)) as client:
                    await client.metadata([])
            # In version 1.2 the standard library's server just closes.
            with pytest.raises((TlsFailedError, UnavailableError), match=r"names none: .*certificate required|closed"):
                await KafkaClient.connect(address, security=secure)


def test_an_agent_that_does_not_trust_our_certificate_is_told_apart(secure: ClientSecurity) -> None:
    error = ssl.SSLError(1, "told below")
    error.reason = "TLSV1_ALERT_UNKNOWN_CA"
    shown = replace(secure, certificate_file=Path("ann.pem"), key_file=Path("ann.key"))
    assert "does not take our certificate" in failed("agent:1", error, shown).message
    error.reason = "TLSV13_ALERT_CERTIFICATE_REQUIRED"
    assert "wants a certificate, and client.properties names none" in failed("agent:1", error, secure).message
    error.reason = "WRONG_VERSION_NUMBER"
    assert "no TLS with agent:1" in failed("agent:1", error, secure).message


async def test_a_login_that_is_missing_is_a_guess_when_nothing_is_said(
    tls: Callable[..., ssl.SSLContext], secure: ClientSecurity
) -> None:
    async def close(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(close, "127.0.0.1", 0, ssl=tls()) as server:
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        with pytest.raises(UnavailableError) as caught:
            await KafkaClient.connect(address, security=replace(secure, protocol="SSL"))
    assert "security.protocol=SSL of client.properties" in caught.value.remedy
    assert "may want SASL: security.protocol=SASL_SSL" in caught.value.remedy


async def test_a_client_without_tls_is_told_that_the_port_may_want_it(tls: Callable[..., ssl.SSLContext]) -> None:
    async with serving(tls()) as server:
        address = f"127.0.0.1:{server.port}"
        with pytest.raises(UnavailableError, match=f"^{address} closed the connection") as caught:
            await KafkaClient.connect(address, security=ClientSecurity())
    assert caught.value.remedy.startswith("it may want TLS: give --client-config FILE; ")


async def test_a_client_without_a_user_is_told_that_the_listener_may_want_one(
    tls: Callable[..., ssl.SSLContext], secure: ClientSecurity
) -> None:
    for context, security, wanted in (
        (tls(), replace(secure, protocol="SSL"), "security.protocol=SASL_SSL, .*; client.properties has SSL"),
        (None, ClientSecurity(), "give --client-config FILE with security.protocol=SASL_SSL or SASL_PLAINTEXT"),
    ):
        async with serving(context) as server:
            client = await KafkaClient.connect(f"127.0.0.1:{server.port}", security=security)
            with pytest.raises(ConnectionLostError, match="closed the connection") as caught:
                await client.metadata([])
            await client.close()
        assert re.match(f"this listener may want a user: {wanted}", caught.value.remedy)


@pytest.mark.parametrize("name", DENIED)
def test_the_remedy_of_a_denial_knows_that_an_acl_may_deny(name: str) -> None:
    denied = KafkaError(int(ErrorCode[name]), "topic 't'")
    assert "`siltstone acls create --allow-principal" in denied.remedy
    assert denied.remedy.endswith("unless an ACL denies it: `siltstone acls list --principal User:NAME`")


async def test_files_that_are_of_no_use_are_named(
    secure: ClientSecurity, certificates: Certificates, tmp_path: Path
) -> None:
    ann = certificates.authority.client("CN=ann")
    locked = tmp_path / "locked.key"
    locked.write_bytes(ann.encrypted_key_pem)
    cert = ann.write(tmp_path / "ann").cert
    for security, named in (
        (replace(secure, ca_file=tmp_path / "none.pem"), "none.pem: No such file"),
        (replace(secure, ca_file=certificates.client.key), "client.key: is of no use"),
        (replace(secure, certificate_file=cert, key_file=locked), "locked.key: is of no use"),
        (replace(secure, certificate_file=cert, key_file=tmp_path / "none.key"), "none.key: No such file"),
        (replace(secure, certificate_file=locked, key_file=locked), "locked.key: is of no use"),
        (
            replace(secure, certificate_file=cert, key_file=certificates.client.key),
            "client.key does not belong to .*ann.cert",
        ),
    ):
        with pytest.raises(ClientConfigError, match=named):
            await KafkaClient.connect("127.0.0.1:1", security=security)
    async with serving() as server:  # the key opens with its password: then the server is what fails
        opened = replace(secure, certificate_file=cert, key_file=locked, key_password=PASSPHRASE.decode())
        with pytest.raises(UnavailableError, match=r"\(.*closed"):
            await KafkaClient.connect(f"127.0.0.1:{server.port}", security=opened)


async def test_wrong_credentials_and_mechanisms_are_told_once_and_without_the_password(secure: ClientSecurity) -> None:
    plain = replace(secure, protocol="SASL_PLAINTEXT", password="hunter2")
    async with serving(mechanisms=("SCRAM-SHA-512",)) as server:
        for security, said in ((plain, "refused user 'ann'"), (replace(plain, mechanism="PLAIN"), "it takes SCRAM")):
            before = CLIENT_SECURITY.set(security)
            try:
                # a client that repeats what passes does not repeat this
                with pytest.raises(LoginError) as caught:
                    async with RetryingClient(f"127.0.0.1:{server.port}", Runtime().clock):
                        pass
            finally:
                CLIENT_SECURITY.reset(before)
            assert said in str(caught.value) and "hunter2" not in str(caught.value)


async def test_a_command_goes_by_its_client_config(
    tls: Callable[..., ssl.SSLContext], certificates: Certificates, tmp_path: Path
) -> None:
    path = tmp_path / "client.properties"
    path.touch(mode=0o644)
    path.write_text(
        "security.protocol=SASL_SSL\nsasl.mechanism=PLAIN\nsasl.username=ann\nsasl.password=secret\n"
        f"ssl.ca.location={certificates.ca}\n"
    )
    async with serving(tls()) as server:

        def run(*words: str, **env: str) -> tuple[int, str, str]:
            result = CliRunner(env=env).invoke(
                main, ["topics", "list", "--bootstrap", f"127.0.0.1:{server.port}", *words]
            )
            return result.exit_code, result.stdout, result.stderr

        code, _, errors = await asyncio.to_thread(run, "--names", "--client-config", str(path))
        assert (code, server.principals[:1]) == (0, ["User:ann"]), errors
        assert "chmod 600" in errors and "secret\n" not in errors
        code, _, errors = await asyncio.to_thread(run, "--names", SILTSTONE_CLIENT_CONFIG=str(path))
        assert code == 0, errors
        path.write_text("security.protocol=SASL_SSL\nsasl.pasword=hunter2\n")
        code, _, errors = await asyncio.to_thread(run, "--client-config", str(path))
        assert code == 1 and "did you mean sasl.password?" in errors and "hunter2" not in errors
    assert CLIENT_SECURITY.get() == ClientSecurity()
