"""A store behind TLS with a private CA: every way to ask trusts it when told to, and none does otherwise."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest

from storage.objects import StoreMisconfiguredError
from storage.s3.store import S3Store
from storage.urls import open_store
from tests.fixtures.certificates import Certificates
from wire.crc import crc32c

pytestmark = pytest.mark.usefixtures("aws_environment")

BODY = b"the body"


@asynccontextmanager
async def tls_server(certificates: Certificates, heads: list[bytes]) -> AsyncIterator[str]:
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
    context.load_cert_chain(certificates.server.cert, certificates.server.key)
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
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch, client: str, gets: str
) -> None:
    monkeypatch.setenv("AWS_CA_BUNDLE", str(certificates.ca))
    heads: list[bytes] = []
    async with tls_server(certificates, heads) as url, opened(f"{url}&client={client}") as store:
        for _ in range(2):
            await store.put_if_absent("k", BODY, crc32c=crc32c(BODY))
            assert await store.get_range("k", 0, 4) == b"body"
    assert [asked_by(head) for head in heads] == ["client", gets, "direct", gets]


@pytest.mark.parametrize("client", ["aioboto3", "obstore"])
async def test_an_unknown_authority_is_a_misconfiguration_by_every_way(certificates: Certificates, client: str) -> None:
    heads: list[bytes] = []
    async with tls_server(certificates, heads) as url, opened(f"{url}&client={client}") as store:
        for _ in range(2):
            with pytest.raises(StoreMisconfiguredError, match="TLS"):
                await store.put_if_absent("k", BODY, crc32c=crc32c(BODY))
            with pytest.raises(StoreMisconfiguredError, match="TLS"):
                await store.get_range("k", 0, 4)
    assert heads == []
