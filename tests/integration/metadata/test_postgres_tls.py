"""A Postgres that takes connections by TLS alone, and whom its clients believe.

The Postgres of the tests is built without TLS, so a door before it speaks the protocol's start and the TLS.
"""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from metadata.contract.errors import MetadataUnavailableError
from metadata.postgres.connection import connect
from tests.fixtures.certificates import Certificates, IdentityFiles

TLS_ASKED = struct.pack(">II", 8, 80877103)
REFUSAL = b'SFATAL\0C28000\0Mno pg_hba.conf entry for host "127.0.0.1", no encryption\0\0'


async def _pass_on(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
    writer.close()


@asynccontextmanager
async def behind_tls(postgres_url: str, shown: IdentityFiles) -> AsyncIterator[str]:
    """The URL of that Postgres by TLS alone, without a word about TLS."""
    parts = urlsplit(postgres_url)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(shown.cert, shown.key)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        # Cancelled at the test's end: a handshake that the client gave up is waited for by asyncio.
        with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            if await reader.readexactly(8) != TLS_ASKED:
                writer.write(b"E" + struct.pack(">I", 4 + len(REFUSAL)) + REFUSAL)
                await writer.drain()
                writer.close()
                return
            writer.write(b"S")
            await writer.start_tls(context)
            inner = await asyncio.open_connection(parts.hostname, parts.port)
            await asyncio.gather(_pass_on(reader, inner[1]), _pass_on(inner[0], writer))

    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    yield postgres_url.replace(f":{parts.port}/", f":{port}/")
    server.close()


async def asked(url: str, ca: Path) -> object:
    connection = await connect(f"{url}?sslmode=verify-full&sslrootcert={ca}")
    try:
        return await connection.fetchval("SELECT 41 + 1")
    finally:
        await connection.close()


async def test_only_the_right_authority_and_host_are_believed(postgres_url: str, certificates: Certificates) -> None:
    async with behind_tls(postgres_url, certificates.server) as url:
        assert await asked(url, certificates.ca) == 42
        with pytest.raises(MetadataUnavailableError, match="its certificate is not trusted") as refused:
            await asked(url, certificates.other_ca)
        assert "sslrootcert" in refused.value.remedy
        with pytest.raises(MetadataUnavailableError, match="no encryption") as plain:
            await connect(f"{url}?sslmode=disable")
        assert "sslmode=verify-full" in plain.value.remedy
    async with behind_tls(postgres_url, certificates.server_elsewhere) as url:
        with pytest.raises(MetadataUnavailableError, match="its certificate is not trusted") as elsewhere:
            await asked(url, certificates.ca)
        assert "host" in elsewhere.value.remedy
