"""TLS for one connection, without I/O: ciphertext in, plaintext out, and back.

    feed(ciphertext) ─► read_into(room) ─► plaintext      `feed` takes a part; read all before the rest
    wrap(parts) ─► ciphertext                             records of 16 KiB; parts under 4 KiB share one
    take_outgoing() ─► ciphertext                         what TLS itself wants to say: handshake, alerts, key updates

What a peer can make us hold is bounded before it has proved anything, and afterwards:

- A handshake takes at most HANDSHAKE_BYTES_MAX from the peer, and OpenSSL bounds each message of it.
- After it, at most SILENT_BYTES_MAX may come without a byte of plaintext: key updates, empty records, alerts.
- Ciphertext is fed by FEED_BYTES. OpenSSL's buffers in memory never shrink, and so stay as small as that.

Python's `ssl` says by an exception that OpenSSL holds no whole record, which costs as much as decrypting one. So
`feed` cuts the ciphertext where records of TLS end, and `read_into` asks only for those whose end has come.

There is no early data, no renegotiation and no session ticket (`runtime/tls/contexts.py`). A stream that ends without
TLS's own goodbye may have been cut by somebody in between. Kafka's frames carry their length, so a cut shows there.
"""

from __future__ import annotations

import ssl
import struct
from collections.abc import Callable, Sequence
from contextlib import suppress
from enum import Enum
from typing import Any

from runtime.errors import SiltstoneError
from wire.framing import FRAME_BYTES_MAX, HTTP_STARTS
from wire.schema import Octets

RECORD_BYTES = 16 << 10
"""The most plaintext that a record of TLS holds."""
FEED_BYTES = RECORD_BYTES + 2048 + 5
"""The most ciphertext of a record, by RFC 5246, 6.2.3, and its header. RFC 8446 allows less."""
_HEADER_BYTES = 5
_LENGTH_AT = 3
_Length = struct.Struct(">H")
JOINED_BYTES = 4 << 10
"""Parts below this size are copied together: a record costs more than copying them."""
AHEAD_BYTES = 64 << 10
"""The most plaintext that a caller should encrypt beyond what its socket took."""
HANDSHAKE_BYTES_MAX = 128 << 10
"""A client's certificates and those of its issuers: OpenSSL allows 100 KiB of them."""
SILENT_BYTES_MAX = 64 << 10
_START_BYTES = 8
_HANDSHAKE_RECORD = 0x16
_FRAME_START_MAX = FRAME_BYTES_MAX >> 24
"""The first byte of a frame's length. The next field is an API key, two bytes of which the first is 0."""


class TlsState(Enum):
    HANDSHAKE = "handshake"
    OPEN = "open"
    PEER_CLOSED = "peer closed"
    """The peer will send no more; answers may still leave."""
    CLOSED = "closed"
    """We will send no more."""
    FAILED = "failed"


class Fault(Enum):
    """The side that has to change something."""

    PEER = "peer"
    OURS = "ours"


class TlsError(SiltstoneError):
    """The connection cannot go on. `take_outgoing` may hold an alert that tells the peer why."""

    def __init__(self, message: str, *, fault: Fault = Fault.PEER, remedy: str = "") -> None:
        super().__init__(message, remedy=remedy)
        self.fault = fault


class ClientCertificateError(TlsError):
    """The client's certificate is not good, or missing: it has not proved who it is."""


_REFUSED_CERTIFICATE = "give the client the CA file of this listener's certificate"
_OUR_FAULTS = {
    "ALERT_UNKNOWN_CA": ("the client does not trust our certificate", _REFUSED_CERTIFICATE),
    "ALERT_BAD_CERTIFICATE": (
        "the client refuses our certificate",
        "the certificate must name the host that the client connects to, and be signed by a CA that it trusts",
    ),
    "ALERT_CERTIFICATE_EXPIRED": ("the client says that our certificate has expired", "renew it, or mend the clock"),
    "ALERT_CERTIFICATE_REVOKED": ("the client says that our certificate was revoked", "get a new one"),
    "ALERT_CERTIFICATE_UNKNOWN": ("the client does not accept our certificate", _REFUSED_CERTIFICATE),
}
"""By the end of OpenSSL's name for the alert that the peer sent."""
_NO_CERTIFICATE = "PEER_DID_NOT_RETURN_A_CERTIFICATE"
_PEER_FAULTS = {
    "NO_SHARED_CIPHER": ("no cipher in common with the client", ""),
    "UNSUPPORTED_PROTOCOL": ("the client's versions of TLS are too old", "let it speak TLS 1.2 or 1.3"),
    "VERSION_TOO_LOW": ("the client's versions of TLS are too old", "let it speak TLS 1.2 or 1.3"),
    "ALERT_PROTOCOL_VERSION": ("the client does not accept our versions of TLS", "let it speak TLS 1.2 or 1.3"),
    "DECRYPTION_FAILED_OR_BAD_RECORD_MAC": ("a record was damaged on its way, or forged", ""),
    "NO_RENEGOTIATION": ("the client asks for a renegotiation", ""),
}
_UNENCRYPTED = "set security.protocol at the client to SSL or SASL_SSL"


class TlsLayer:
    """The server's side of one connection."""

    __slots__ = (
        "_fed_bytes",
        "_header",
        "_incoming",
        "_missing_bytes",
        "_object",
        "_outgoing",
        "_start",
        "state",
        "was_cut",
    )

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming = ssl.MemoryBIO()
        self._outgoing = ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._fed_bytes = 0
        """Since the connection began, and once it is open: since its last plaintext."""
        self._start = b""
        self._header = b""
        """The start of a record that was cut within its header."""
        self._missing_bytes = 0
        """The end of a record that was cut behind its header."""
        self.state = TlsState.HANDSHAKE
        self.was_cut = False
        """The stream ended without TLS's goodbye."""

    # ---- from the peer

    def feed(self, ciphertext: memoryview) -> int:
        """Take whole records, or a part of one, at most FEED_BYTES; returns the bytes taken: some, if any are there.

        Takes the handshake as far as it goes. Read all that it made before the next. Raises TlsError; the
        connection is over then.
        """
        if self.state in (TlsState.PEER_CLOSED, TlsState.CLOSED, TlsState.FAILED):
            return len(ciphertext)  # what comes after the end means nothing
        taken = self._cut(ciphertext[:FEED_BYTES])
        ciphertext = ciphertext[:taken]
        self._fed_bytes += taken
        self._incoming.write(ciphertext)
        if self.state is TlsState.HANDSHAKE:
            if len(self._start) < _START_BYTES:
                self._start += bytes(ciphertext[: _START_BYTES - len(self._start)])
            self._shake_hands()
        elif self._fed_bytes > SILENT_BYTES_MAX + FEED_BYTES:
            raise self._failed(TlsError(f"the client sent {self._fed_bytes} bytes of TLS that carry no data"))
        return taken

    def feed_end(self) -> None:
        """The peer's stream has ended. Never raises: there is nobody left to tell."""
        if self.state in (TlsState.HANDSHAKE, TlsState.OPEN):
            self.was_cut = True
            self.state = TlsState.PEER_CLOSED

    def read_into(self, room: memoryview) -> int:
        """Fill `room` with plaintext as far as it goes; returns the bytes. Fewer than `room` has: feed more ciphertext.

        Raises TlsError.
        """
        if self.state is not TlsState.OPEN or self._missing_bytes or self._header:
            return 0
        # Once for each record of TLS, and librdkafka makes one of each Kafka record: no step more than it needs.
        read: Callable[[int, Any], Any] = self._object.read
        incoming, filled, room_bytes = self._incoming, 0, len(room)
        try:
            # A record of which only a part found room is not in `incoming` any more.
            while filled < room_bytes and (incoming.pending or self._object.pending()):
                taken = read(room_bytes - filled, room[filled:])
                if not taken:
                    self.state = TlsState.PEER_CLOSED
                    break
                filled += int(taken)
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError as error:
            raise self._failed(self._explained(error)) from error
        if filled:
            self._fed_bytes = 0
        return filled

    # ---- to the peer

    def wrap(self, parts: Sequence[Octets]) -> list[bytes]:
        """The ciphertext of all parts together, in pieces that are to be sent in this order. Raises TlsError."""
        pieces: list[bytes] = []
        small: list[Octets] = []
        small_bytes = 0
        for part in parts:
            if len(part) < JOINED_BYTES:
                if small_bytes + len(part) > RECORD_BYTES:
                    self._encrypt(b"".join(small), pieces)
                    small, small_bytes = [], 0
                small.append(part)
                small_bytes += len(part)
                continue
            if small:
                self._encrypt(b"".join(small), pieces)
                small, small_bytes = [], 0
            self._encrypt(part, pieces)
        if small_bytes:
            self._encrypt(b"".join(small), pieces)
        return pieces

    def take_outgoing(self) -> bytes:
        """The bytes that TLS sends by itself; empty if there are none."""
        return self._outgoing.read() if self._outgoing.pending else b""

    def close(self) -> bytes:
        """Our goodbye. The peer's is not waited for. Nothing is wrapped after that."""
        before, self.state = self.state, TlsState.CLOSED
        if before in (TlsState.OPEN, TlsState.PEER_CLOSED):
            # It writes ours, and then complains that the peer's is not there.
            with suppress(ssl.SSLError):
                self._object.unwrap()
        return self.take_outgoing()

    # ---- about the peer

    @property
    def has_begun(self) -> bool:
        """Some bytes came, of whatever kind."""
        return bool(self._start)

    @property
    def peer_certificate(self) -> bytes | None:
        """DER; None if the client showed none. Like all below, it is known once the handshake is over."""
        return self._object.getpeercert(binary_form=True)

    @property
    def version(self) -> str:
        return self._object.version() or ""

    @property
    def cipher(self) -> str:
        cipher = self._object.cipher()
        return cipher[0] if cipher else ""

    # ---- inner

    def _cut(self, arrived: memoryview) -> int:
        """The bytes of the whole records at the start, or of what is there of the first."""
        arrived_bytes = len(arrived)
        if self._missing_bytes:
            taken = min(self._missing_bytes, arrived_bytes)
            self._missing_bytes -= taken
            return taken
        if self._header:
            taken = min(_HEADER_BYTES - len(self._header), arrived_bytes)
            self._header += arrived[:taken]
            if len(self._header) == _HEADER_BYTES:
                self._begin(int(_Length.unpack_from(self._header, _LENGTH_AT)[0]))
            return taken
        length_at: Callable[[memoryview, int], tuple[int]] = _Length.unpack_from
        begins = ends = 0
        while ends <= arrived_bytes - _HEADER_BYTES:
            begins = ends
            ends += _HEADER_BYTES + length_at(arrived, begins + _LENGTH_AT)[0]
        if ends <= arrived_bytes and ends:
            return ends
        if begins:
            return begins
        if arrived_bytes < _HEADER_BYTES:
            self._header = bytes(arrived)
        else:
            self._begin(ends - arrived_bytes)
        return arrived_bytes

    def _begin(self, missing_bytes: int) -> None:
        """A record whose header has come, and this much of it has not."""
        self._header = b""
        # OpenSSL is to refuse a record that is too long at once, by its header.
        self._missing_bytes = missing_bytes if missing_bytes <= FEED_BYTES else 0

    def _shake_hands(self) -> None:
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            if self._fed_bytes > HANDSHAKE_BYTES_MAX:
                raise self._failed(TlsError(f"a handshake of more than {HANDSHAKE_BYTES_MAX} bytes")) from None
            return
        except ssl.SSLError as error:
            raise self._failed(self._explained(error)) from error
        self.state = TlsState.OPEN
        self._fed_bytes = 0

    def _encrypt(self, part: Octets, pieces: list[bytes]) -> None:
        """OpenSSL makes one record at a time. Each is taken away at once: the buffer that it goes to never shrinks."""
        if self.state not in (TlsState.OPEN, TlsState.PEER_CLOSED):
            raise TlsError(f"nothing can be sent over TLS that is {self.state.value}", fault=Fault.OURS)
        view = memoryview(part)
        try:
            while view:
                # typeshed knows only bytes as data
                written = self._object.write(view[:RECORD_BYTES])  # type: ignore[arg-type]
                pieces.append(self._outgoing.read())
                view = view[written:]
        except ssl.SSLError as error:
            raise self._failed(self._explained(error)) from error

    def _failed(self, error: TlsError) -> TlsError:
        self.state = TlsState.FAILED
        return error

    def _explained(self, error: ssl.SSLError) -> TlsError:
        if self.state is TlsState.HANDSHAKE and (unencrypted := _not_tls(self._start)):
            return TlsError(unencrypted, remedy=_UNENCRYPTED)
        if isinstance(error, ssl.SSLCertVerificationError):
            return ClientCertificateError(
                f"the client's certificate is refused: {error.verify_message}",
                remedy="its issuer must be in the CA file of this listener, and its time must not be over",
            )
        reason = error.reason or str(error)
        if reason.endswith(_NO_CERTIFICATE):
            return ClientCertificateError(
                "the client shows no certificate, and this listener needs one",
                remedy="give the client a certificate (ssl.keystore.location, ssl.certificate.location)",
            )
        for end, (message, remedy) in _OUR_FAULTS.items():
            if reason.endswith(end):
                return TlsError(message, fault=Fault.OURS, remedy=remedy)
        for end, (message, remedy) in _PEER_FAULTS.items():
            if reason.endswith(end):
                return TlsError(message, remedy=remedy)
        return TlsError(f"TLS says {reason.lower().replace('_', ' ')}")


def _not_tls(start: bytes) -> str:
    """A name for the first bytes of a connection that are no TLS; empty if they may be TLS."""
    if not start or start[0] == _HANDSHAKE_RECORD:
        return ""
    if start.startswith(HTTP_STARTS):
        return "this looks like HTTP without TLS; this port speaks the Kafka protocol over TLS"
    if start[0] <= _FRAME_START_MAX and start[4:5] in (b"", b"\x00"):
        return "this looks like the Kafka protocol without TLS; this port needs TLS"
    return f"this is not TLS: it begins with {start!r}"
