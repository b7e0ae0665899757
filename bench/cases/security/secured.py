"""One agent with a listener of each kind; and a user, whom every listener with SASL lets in."""

from __future__ import annotations

import asyncio
import datetime
import os
import ssl
import tempfile
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, load_pem_private_key
from cryptography.x509.oid import NameOID

from bench.servers.s3_server import free_port
from bench.servers.stack import Reading, Stack, Store
from metadata.security.contract import UserChange
from metadata.urls import open_metadata
from security.scram import SALT_BYTES, Mechanism, credential_of
from siltstone.embedded.certificates import CertificateFiles, keep_certificates

USER: Final = "bench"
PASSWORD: Final = "a password of the benchmark"
TLS_RECORD_BYTES: Final = 16 << 10
"""The most that TLS puts into one of its records."""
ALONE_BYTES: Final = 64 << 20
CACHED_BYTES: Final = 2 << 30
"""All that is read is in the agent's memory: the store's part would hide what TLS costs."""


class SecuredStack:
    """Started by `with`. The listeners `tls` and `sasl` have the same certificate; `mtls` asks for one, too."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="siltstone-bench-")
        self._files = CertificateFiles(Path(self._folder.name) / "certificates")
        self._client = Path(self._folder.name) / "client.pem"
        self._ports = {name: free_port() for name in ("tls", "mtls", "sasl")}
        self._running = ExitStack()
        self._stack = Stack(Store.LOCAL, settings=self._settings())

    def __enter__(self) -> SecuredStack:
        self._running.enter_context(self._folder)
        keep_certificates(self._files, ("localhost", "127.0.0.1"), datetime.datetime.now(datetime.UTC))
        self._make_client()
        self._running.enter_context(self._stack)
        asyncio.run(_make_user(self._stack.metadata_url))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._running.close()

    @property
    def plain(self) -> str:
        """The address of the listener without TLS."""
        return self._stack.bootstrap

    def address(self, listener: str) -> str:
        return f"127.0.0.1:{self._ports[listener]}"

    @property
    def librdkafka(self) -> Mapping[str, str]:
        """How librdkafka comes in by the listener `tls`."""
        return {"security.protocol": "SSL", "ssl.ca.location": str(self._files.ca)}

    @property
    def java(self) -> Mapping[str, str]:
        """The same for Kafka's own clients."""
        return {
            "security.protocol": "SSL",
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(self._files.ca),
        }

    def context(self, *, with_certificate: bool = False) -> ssl.SSLContext:
        context = ssl.create_default_context(cafile=self._files.ca)
        if with_certificate:
            context.load_cert_chain(self._client)
        return context

    def openssl_ms_per_mb(self, *, decrypt: bool) -> float:
        """The limit: CPU of OpenSSL alone for the server's side, in records that are full."""
        server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        server.load_cert_chain(self._files.server, self._files.server_key)
        to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
        theirs = self.context().wrap_bio(to_client, to_server, server_hostname="localhost")
        ours = server.wrap_bio(to_server, to_client, server_side=True)
        _shake_hands(theirs, ours)
        sender, receiver = (theirs, ours) if decrypt else (ours, theirs)
        data, room = bytes(TLS_RECORD_BYTES), bytearray(TLS_RECORD_BYTES)
        spent_s = 0.0
        for _ in range(ALONE_BYTES // TLS_RECORD_BYTES):
            began = time.process_time()
            sender.write(data)
            between = time.process_time()
            receiver.read(TLS_RECORD_BYTES, room)
            spent_s += time.process_time() - between if decrypt else between - began
        return spent_s * 1000 / (ALONE_BYTES / 1e6)

    def read(self) -> Reading:
        return self._stack.read()

    def complaints(self) -> list[str]:
        return self._stack.complaints()

    def _make_client(self) -> None:
        """A certificate for `mtls`, and its key, in one file."""
        issuer = x509.load_pem_x509_certificate(self._files.ca.read_bytes())
        issuer_key = load_pem_private_key(self._files.ca_key.read_bytes(), password=None)
        assert isinstance(issuer_key, ec.EllipticCurvePrivateKey)
        key, now = ec.generate_private_key(ec.SECP256R1()), datetime.datetime.now(datetime.UTC)
        certificate = (
            x509.CertificateBuilder()
            .subject_name(x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, USER)]))
            .issuer_name(issuer.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(hours=1))
            .not_valid_after(now + datetime.timedelta(days=1))
            .sign(issuer_key, hashes.SHA256())
        )
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        self._client.write_bytes(key_pem + certificate.public_bytes(Encoding.PEM))

    def _settings(self) -> Mapping[str, str]:
        settings = {
            "acl.mode": "off",
            "cache.hot.bytes": str(CACHED_BYTES),
            # Else the pace of the client decides how many files a MB makes, and hides what TLS costs.
            "produce.early.per.second": "0",
            # Connections come one after another here, as fast as they can.
            "connection.creation.rate": "1000000",
            "connections.max": "10000",
            "listener.sasl.sasl.mechanisms": "SCRAM-SHA-512,SCRAM-SHA-256,PLAIN",
            "listener.mtls.tls.client.auth": "required",
            "listener.mtls.tls.ca.file": str(self._files.ca),
        }
        for name in self._ports:
            settings |= {
                f"listener.{name}.address": self.address(name),
                f"listener.{name}.protocol": "SASL_SSL" if name == "sasl" else "SSL",
                f"listener.{name}.tls.cert.file": str(self._files.server),
                f"listener.{name}.tls.key.file": str(self._files.server_key),
            }
        return settings


def _shake_hands(*sides: ssl.SSLObject) -> None:
    left = list(sides)
    while left:
        for side in list(left):
            try:
                side.do_handshake()
                left.remove(side)
            except ssl.SSLWantReadError:
                continue


async def _make_user(metadata_url: str) -> None:
    metadata = open_metadata(metadata_url)
    await metadata.open()
    try:
        await metadata.security.alter_users(
            [
                UserChange(
                    name=USER,
                    mechanism=each,
                    credential=credential_of(each, PASSWORD, salt=os.urandom(SALT_BYTES)),
                )
                for each in Mechanism
            ]
        )
    finally:
        await metadata.close()
