"""A client connection whose bytes pass through TLS.

It differs from a plain one in what lies between the socket and the frames, and nowhere else: ciphertext lands in a
buffer that the connections of a listener share, and is decrypted, a few records at a time, into the buffer that the
frame reader offers. Answers are encrypted AHEAD_BYTES at a time, and only as fast as the socket takes them: ciphertext
cannot go back in line. Order is kept as on a plain connection: past the transport only while the transport holds
nothing.

A peer is somebody once its handshake is over. Then its certificate is held against the revocation list, and named.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque

from cryptography import x509

from agents.connections.connection import READ_BYTES_WHEN_FULL, Connection
from agents.connections.owner import ConnectionOwner
from agents.connections.sending import after, next_parts
from agents.listeners.listener_tls import ListenerTls
from agents.listeners.listening import Listening
from agents.listeners.tls import AHEAD_BYTES, RECORD_BYTES, ClientCertificateError, TlsError, TlsLayer, TlsState
from agents.read.budget import Release
from agents.security.session import Cause
from runtime.errors import SiltstoneError
from runtime.logging import get_logger, log_context
from runtime.metrics.security import CERTIFICATE
from wire.schema import Octets

_log = get_logger(__name__)

WAKE_BYTES = 64 << 10
"""The bytes of a large frame that wake us; fewer are left in the socket."""


class TlsConnection(Connection):
    def __init__(self, server: ConnectionOwner[Connection], listening: Listening, tls: ListenerTls) -> None:
        super().__init__(server, listening)
        self._listener_tls = tls
        current = tls.current()
        self._revocations = current.revocations
        self._layer = TlsLayer(current.context)
        self._was_open = False
        self._wakes_at = 1

    # ---- asyncio's callbacks

    def get_buffer(self, sizehint: int) -> memoryview:
        landing = self._listener_tls.landing
        return landing[:READ_BYTES_WHEN_FULL] if self._server.requests_are_full else landing

    def buffer_updated(self, nbytes: int) -> None:
        try:
            self._decrypt(self._listener_tls.landing[:nbytes])
        except TlsError as error:
            self._fail(error)

    def eof_received(self) -> bool:
        self._layer.feed_end()
        if self._layer.was_cut:
            with log_context(self.client):
                _log.debug("the client's stream ended without TLS's goodbye")
        return super().eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._layer.has_begun and not self._was_open and not self._ended:
            with log_context(self.client):
                _log.info(
                    "the client left in the middle of the TLS handshake",
                    hint="it may not trust our certificate, or not find its own host name in it",
                )
        super().connection_lost(exc)

    # ---- inner

    def _decrypt(self, arrived: memoryview) -> None:
        """Frames are looked for once for all that arrived, or as often as their buffer is full."""
        layer = self._layer
        room, filled = super().get_buffer(-1), 0
        while arrived:
            arrived = arrived[layer.feed(arrived) :]
            if layer.state is TlsState.OPEN and not self._was_open:
                self._was_open = True
                self._name_client()
            # Fewer bytes than there is room for are all that could be had.
            while (filled := filled + layer.read_into(room[filled:])) == len(room):
                super().buffer_updated(filled)
                if self._ended:
                    return
                room, filled = super().get_buffer(-1), 0
        self._say()
        if filled:
            super().buffer_updated(filled)
        if layer.state is TlsState.PEER_CLOSED:
            self._end("the client said goodbye")
        elif not self._ended:
            self._wake_at(max(1, min(self._reader.missing_bytes - RECORD_BYTES, WAKE_BYTES)))

    def _wake_at(self, least_bytes: int) -> None:
        """Let the kernel wake us once so much has arrived: clients write each record of TLS by itself, and some make
        one of each Kafka record. All that is missing would be too much: a part of it may lie in a record that we hold,
        whose end has not come."""
        if least_bytes != self._wakes_at and self._transport is not None:
            self._wakes_at = least_bytes
            self._transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, least_bytes)

    def _name_client(self) -> None:
        certificate = self._layer.peer_certificate
        if certificate is None:
            return
        try:
            parsed = x509.load_der_x509_certificate(certificate)
            name = self._listener_tls.principal_of(certificate)
            is_revoked = self._revocations.include(parsed)
        except SiltstoneError as error:
            raise ClientCertificateError(error.message, remedy=error.remedy) from error
        except ValueError as error:  # OpenSSL reads more kinds of certificates than cryptography does
            raise ClientCertificateError(f"the client's certificate cannot be read: {error}") from error
        if is_revoked:
            raise ClientCertificateError(f"the client's certificate was revoked: {name}")
        self.client.principal = name
        self._broker.runtime.metrics.security.authentications_total.labels(mechanism=CERTIFICATE).inc()

    def _say(self) -> None:
        """Send the bytes that TLS sends by itself."""
        said = self._layer.take_outgoing()
        if said and self._transport is not None:
            self._transport.write(said)

    def _write(self, transport: asyncio.Transport, parts: list[Octets]) -> None:
        line = deque[Octets | Release](parts)
        while line:
            pieces = self._layer.wrap(next_parts(line, AHEAD_BYTES))
            try:
                taken = os.writev(self._descriptor, pieces)
            except OSError:
                taken = 0  # full, or broken: the transport finds out at its next write
            left = after(pieces, taken)
            if left:
                transport.write(b"".join(left))
                self._unsent.extendleft(reversed(line))
                return

    def _fail(self, error: TlsError) -> None:
        metrics = self._broker.runtime.metrics
        metrics.protocol_errors_total.labels(reason="tls").inc()
        if isinstance(error, ClientCertificateError):
            refused = metrics.security.authentications_refused_total
            refused.labels(mechanism=CERTIFICATE, reason=Cause.CREDENTIALS.value).inc()
        with log_context(self.client):
            _log.warning("connection closed, TLS failed", error=str(error), fault=error.fault.value)
        self._say()  # the alert
        self._end("TLS failed")

    def _end(self, reason: str) -> None:
        if not self._ended and self._transport is not None and not self._transport.is_closing():
            goodbye = self._layer.close()
            if goodbye:
                self._transport.write(goodbye)
        super()._end(reason)
