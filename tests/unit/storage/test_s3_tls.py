"""A store behind TLS with a private CA: every way to ask trusts it when told to, and none does otherwise."""

from __future__ import annotations

import asyncio
import datetime
import ipaddress
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from storage.objects import StoreMisconfiguredError
from storage.s3.store import S3Store
from storage.urls import open_store
from wire.crc import crc32c

pytestmark = pytest.mark.usefixtures("aws_environment")

BODY = b"the body"
NAME = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "localhost")])
AUTHORITY = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a private CA")])


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with `ca.pem`, and `server.pem` with the server's key and certificate for 127.0.0.1."""
    place = tmp_path_factory.mktemp("certificates")
    ca_key, key = ec.generate_private_key(ec.SECP256R1()), ec.generate_private_key(ec.SECP256R1())
    now = datetime.datetime.now(datetime.UTC)

    def certificate(subject: x509.Name, public: ec.EllipticCurvePublicKey, *, ca: bool) -> bytes:
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(AUTHORITY)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .add_extension(x509.BasicConstraints(ca=ca, path_length=None), critical=True)
            .add_extension(
                x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))]), critical=False
            )
        )
        return builder.sign(ca_key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)

    private = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )
    (place / "ca.pem").write_bytes(certificate(AUTHORITY, ca_key.public_key(), ca=True))
    (place / "server.pem").write_bytes(private + certificate(NAME, key.public_key(), ca=False))
    return place


@asynccontextmanager
async def tls_server(certificates: Path, heads: list[bytes]) -> AsyncIterator[str]:
    """The URL of a server that takes every PUT and answers every GET with the range 0-3."""

    writers: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writers.append(writer)
        with suppress(asyncio.IncompleteReadError, OSError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).lower()
                heads.append(head)
                if head.startswith(b"put"):
                    await reader.readexactly(len(BODY))
                    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
                else:
                    writer.write(b"HTTP/1.1 206 X\r\nContent-Length: 4\r\nContent-Range: bytes 0-3/8\r\n\r\nbody")
        writer.close()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates / "server.pem")
    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"s3://bucket?endpoint=https://127.0.0.1:{server.sockets[0].getsockname()[1]}&region=us-east-1"
    finally:
        server.close()
        for writer in writers:  # obstore closes its connections some time after its store
            writer.transport.abort()
            with suppress(OSError):
                await writer.wait_closed()


@asynccontextmanager
async def opened(url: str) -> AsyncIterator[S3Store]:
    store = open_store(url)
    assert isinstance(store, S3Store)
    await store.open()
    yield store
    await store.close()


def asked_by(head: bytes) -> str:
    if b"amz-sdk-invocation-id" in head:
        return "client"
    return "direct" if b"botocore" in head else "obstore"


@pytest.mark.parametrize(("client", "gets"), [("aioboto3", "direct"), ("obstore", "obstore")])
async def test_a_private_authority_is_trusted_by_every_way(
    certificates: Path, monkeypatch: pytest.MonkeyPatch, client: str, gets: str
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates / "ca.pem"))
    heads: list[bytes] = []
    async with tls_server(certificates, heads) as url, opened(f"{url}&client={client}") as store:
        for _ in range(2):
            await store.put_if_absent("k", BODY, crc32c=crc32c(BODY))
            assert await store.get_range("k", 0, 4) == b"body"
    assert [asked_by(head) for head in heads] == ["client", gets, "direct", gets]


@pytest.mark.parametrize("client", ["aioboto3", "obstore"])
async def test_an_unknown_authority_is_a_misconfiguration_by_every_way(certificates: Path, client: str) -> None:
    heads: list[bytes] = []
    async with tls_server(certificates, heads) as url, opened(f"{url}&client={client}") as store:
        for _ in range(2):
            with pytest.raises(StoreMisconfiguredError, match="TLS"):
                await store.put_if_absent("k", BODY, crc32c=crc32c(BODY))
            with pytest.raises(StoreMisconfiguredError, match="TLS"):
                await store.get_range("k", 0, 4)
    assert heads == []
