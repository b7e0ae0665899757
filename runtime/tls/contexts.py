"""`ssl.SSLContext`s for servers and clients, from files that were judged first.

Servers resume no sessions: a ticket would let a client in without its certificate being looked at again, and saves a
P-256 server only a fifth of the work. They allow no renegotiation and no compression.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from runtime.tls.files import ClientAuth, ClientTlsSettings, PemFile, ServerTlsSettings, TlsFileError, read_file
from runtime.tls.judging import (
    NO_REVOCATIONS,
    Revocations,
    judge_authorities,
    judge_both_ways,
    judge_identity,
    judge_revocations,
)

_VERIFY = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


@dataclass(frozen=True, slots=True)
class ServerTls:
    """New connections of a listener use this. Old connections keep theirs."""

    context: ssl.SSLContext
    subject: str
    expires_ms: int
    revocations: Revocations = NO_REVOCATIONS
    warnings: Sequence[str] = ()
    dialing: ssl.SSLContext | None = None
    """For the other direction, if the settings ask for it. It does not compare the peer's name with its address."""
    names: frozenset[str] = frozenset()
    """The host names of the certificate, in lower case, if it dials too."""


def server_tls(settings: ServerTlsSettings, now_ms: int) -> ServerTls:
    """Read the files, judge them and make a context. Raises TlsFileError. Slow (files, keys): not on the event loop."""
    cert = read_file(f"{settings.prefix}.cert.file", settings.cert_file)
    key = read_file(f"{settings.prefix}.key.file", settings.key_file)
    judged = judge_identity(cert, key, now_ms)
    warnings: list[str] = []
    if key.is_world_readable:
        warnings.append(f"{key.name}: everybody on this machine may read the key; chmod o-r {key.path}")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION | ssl.OP_NO_TICKET
    context.num_tickets = 0
    context.minimum_version = settings.version_min
    _load_identity(context, cert, key)
    context.verify_mode = _VERIFY[settings.client_auth]
    revocations = NO_REVOCATIONS
    dialing: ssl.SSLContext | None = None
    names: frozenset[str] = frozenset()
    if settings.ca_file is not None:
        ca = read_file(f"{settings.prefix}.ca.file", settings.ca_file)
        authorities = judge_authorities(ca, now_ms)
        _load_authorities(context, ca)
        if settings.dials:
            names = judge_both_ways(cert)
            dialing = _dialing_context(settings, cert, key, ca)
        if settings.crl_file is not None:
            crl = read_file(f"{settings.prefix}.crl.file", settings.crl_file)
            revocations = judge_revocations(crl, authorities)
    elif settings.client_auth is not ClientAuth.NONE or settings.crl_file is not None:
        asked = "crl.file" if settings.client_auth is ClientAuth.NONE else f"client.auth={settings.client_auth}"
        raise TlsFileError(
            f"'{settings.prefix}.{asked}' without authorities of clients' certificates",
            remedy=f"set '{settings.prefix}.ca.file'",
        )
    return ServerTls(context, judged.subject, judged.expires_ms, revocations, warnings, dialing, names)


def _dialing_context(settings: ServerTlsSettings, cert: PemFile, key: PemFile, ca: PemFile) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.minimum_version = settings.version_min
    context.check_hostname = False
    _load_identity(context, cert, key)
    _load_authorities(context, ca)
    return context


def client_context(settings: ClientTlsSettings, now_ms: int) -> ssl.SSLContext:
    """For a client that checks the server's certificate and name, and shows its own if it has one. Raises
    TlsFileError.
    """
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.options |= ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if settings.ca_file is None:
        context.load_default_certs(ssl.Purpose.SERVER_AUTH)
    else:
        ca = read_file(f"{settings.prefix}.ca.file", settings.ca_file)
        judge_authorities(ca, now_ms)
        _load_authorities(context, ca)
    if settings.cert_file is not None and settings.key_file is not None:
        cert = read_file(f"{settings.prefix}.cert.file", settings.cert_file)
        key = read_file(f"{settings.prefix}.key.file", settings.key_file)
        judge_identity(cert, key, now_ms)
        _load_identity(context, cert, key)
    elif settings.cert_file is not None or settings.key_file is not None:
        given, missing = ("cert", "key") if settings.cert_file is not None else ("key", "cert")
        raise TlsFileError(
            f"'{settings.prefix}.{given}.file' without '{settings.prefix}.{missing}.file'", remedy="set both or none"
        )
    return context


def _load_identity(context: ssl.SSLContext, cert: PemFile, key: PemFile) -> None:
    try:
        with _in_memory(cert.data) as cert_path, _in_memory(key.data) as key_path:
            context.load_cert_chain(cert_path, key_path)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise cert.error(
            f"OpenSSL refuses the certificate or its key: {reason}",
            "use a certificate for an ECDSA key (P-256) or an RSA key of 2048 bits at least",
        ) from error


def _load_authorities(context: ssl.SSLContext, ca: PemFile) -> None:
    try:
        with _in_memory(ca.data) as path:
            context.load_verify_locations(cafile=path)
    except (ssl.SSLError, OSError) as error:
        reason = getattr(error, "reason", None) or str(error)
        raise ca.error(f"OpenSSL refuses these authorities: {reason}", "copy them from the authority again") from error


@contextmanager
def _in_memory(data: bytes) -> Generator[Path]:
    """A file that OpenSSL can open, with exactly the bytes that were judged: those on disk may change meanwhile."""
    descriptor = os.memfd_create("pem", os.MFD_CLOEXEC)
    try:
        with os.fdopen(descriptor, "wb", closefd=False) as file:
            file.write(data)
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)
