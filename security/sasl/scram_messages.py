"""The four messages of SCRAM (RFC 5802, section 7), written and read.

Both ends bind the whole exchange by the exact text of its messages, so a message keeps the text that it was read from.
Every length is bounded. No error quotes what the peer sent.
"""

from __future__ import annotations

import binascii
import re
from base64 import b64decode, b64encode
from dataclasses import dataclass, field
from typing import Final

from security.sasl.errors import AuthenticationFailedError
from security.scram import ITERATIONS_MAX, ITERATIONS_MIN, NAME_BYTES_MAX, SALT_BYTES_MAX, Mechanism

NONCE_CHARS_MAX: Final = 256
"""The nonce of one end. Clients send 24 to 64."""
MESSAGE_BYTES_MAX: Final = 8_192

_NONCE: Final = r"[\x21-\x2b\x2d-\x7e]+"
_FIRST: Final = re.compile(
    rf"(?P<header>(?P<binding>[^,]*),(?:a=(?P<authorized>[^,]*))?,)"
    rf"(?P<bare>n=(?P<name>[^,]+),r=(?P<nonce>{_NONCE})(?P<extensions>(?:,[A-Za-z]+=[^,]*)*))"
)
_NAME: Final = re.compile(r"(?:[^=]|=2C|=3D)*", re.DOTALL)
_ESCAPE: Final = re.compile(r"=2C|=3D")
_EXTENSION: Final = re.compile(r",([A-Za-z]+)=")
_FINAL: Final = re.compile(
    rf"(?P<unproved>c=(?P<header>[A-Za-z0-9+/=]+),r=(?P<nonce>{_NONCE})(?:,(?!p=)[A-Za-z]+=[^,]*)*)"
    r",p=(?P<proof>[A-Za-z0-9+/=]+)"
)
_SERVER_FIRST: Final = re.compile(
    rf"r=(?P<nonce>{_NONCE}),s=(?P<salt>[A-Za-z0-9+/=]+),i=(?P<iterations>[1-9][0-9]{{0,8}})(?:,[A-Za-z]+=[^,]*)*"
)
_SERVER_FINAL: Final = re.compile(r"(?:v=(?P<signature>[A-Za-z0-9+/=]+)|e=[^,]*)(?:,[A-Za-z]+=[^,]*)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFirst:
    name: str
    nonce: str
    header: str
    """The part about channel binding, which the last message must repeat."""
    bare: str
    """The rest, which the proof covers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerFirst:
    nonce: str
    salt: bytes = field(repr=False)
    iterations: int
    text: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientFinal:
    header: bytes
    nonce: str
    proof: bytes = field(repr=False)
    unproved: str
    """Everything before the proof, which the proof covers."""


def write_client_first(name: str, nonce: str) -> tuple[str, str]:
    """Returns the header and the rest."""
    return "n,,", f"n={escaped(name)},r={nonce}"


def read_client_first(token: bytes) -> ClientFirst:
    """Raises AuthenticationFailedError: channel binding asked for, another user to act for, a delegation token, a
    mandatory extension, or no such message at all."""
    found = _FIRST.fullmatch(_text(token))
    if found is None:
        raise AuthenticationFailedError("the first SCRAM message is malformed")
    if found["binding"] not in ("n", "y"):
        # A mechanism whose name does not end in -PLUS has none.
        raise AuthenticationFailedError("the client asks for channel binding, which this mechanism does not have")
    if len(found["nonce"]) > NONCE_CHARS_MAX:
        raise AuthenticationFailedError("the client's nonce is too long")
    if "tokenauth" in _EXTENSION.findall(found["extensions"]):
        raise AuthenticationFailedError("the client has a delegation token, and agents keep none")
    name = unescaped(found["name"])
    if found["authorized"] and unescaped(found["authorized"]) != name:
        raise AuthenticationFailedError("the client asks to act for another user")
    return ClientFirst(name=name, nonce=found["nonce"], header=found["header"], bare=found["bare"])


def write_server_first(nonce: str, salt: bytes, iterations: int) -> str:
    return f"r={nonce},s={b64encode(salt).decode()},i={iterations}"


def read_server_first(token: bytes) -> ServerFirst:
    """Raises AuthenticationFailedError. Too few iterations would let the server guess the password from the proof, too
    many would keep the client busy."""
    text = _text(token)
    found = _SERVER_FIRST.fullmatch(text)
    if found is None:
        raise AuthenticationFailedError("the server's first SCRAM message is malformed")
    salt, iterations = _decoded(found["salt"]), int(found["iterations"])
    if not 0 < len(salt) <= SALT_BYTES_MAX:
        raise AuthenticationFailedError("the server's salt is too long")
    if not ITERATIONS_MIN <= iterations <= ITERATIONS_MAX:
        raise AuthenticationFailedError(
            f"the server asks for {iterations:,} iterations, outside {ITERATIONS_MIN:,} to {ITERATIONS_MAX:,}"
        )
    return ServerFirst(nonce=found["nonce"], salt=salt, iterations=iterations, text=text)


def write_client_final(header: str, nonce: str) -> str:
    """Without the proof."""
    return f"c={b64encode(header.encode()).decode()},r={nonce}"


def with_proof(unproved: str, proof: bytes) -> bytes:
    return f"{unproved},p={b64encode(proof).decode()}".encode()


def read_client_final(token: bytes, mechanism: Mechanism) -> ClientFinal:
    """Raises AuthenticationFailedError."""
    found = _FINAL.fullmatch(_text(token))
    if found is None:
        raise AuthenticationFailedError("the last SCRAM message is malformed")
    proof = _decoded(found["proof"])
    if len(proof) != mechanism.key_bytes:
        raise AuthenticationFailedError("the client's proof has a wrong length")
    return ClientFinal(header=_decoded(found["header"]), nonce=found["nonce"], proof=proof, unproved=found["unproved"])


def write_server_final(signature: bytes) -> bytes:
    return b"v=" + b64encode(signature)


def read_server_final(token: bytes) -> bytes:
    """The server's signature. Raises AuthenticationFailedError."""
    found = _SERVER_FINAL.fullmatch(_text(token))
    if found is None:
        raise AuthenticationFailedError("the server's last SCRAM message is malformed")
    if found["signature"] is None:
        raise AuthenticationFailedError("the server refused the proof")
    return _decoded(found["signature"])


def escaped(name: str) -> str:
    return name.replace("=", "=3D").replace(",", "=2C")


def unescaped(text: str) -> str:
    """Raises AuthenticationFailedError: an "=" that begins neither escape, or a name that no user can have."""
    # In one pass: what an escape leaves behind is no part of another.
    if _NAME.fullmatch(text) is None:
        raise AuthenticationFailedError("the user's name holds an unknown escape")
    name = _ESCAPE.sub(lambda found: "," if found[0] == "=2C" else "=", text)
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX or "\0" in name:
        raise AuthenticationFailedError("the user's name is empty, too long, or holds a NUL")
    return name


def _text(token: bytes) -> str:
    if len(token) > MESSAGE_BYTES_MAX:
        raise AuthenticationFailedError("a SCRAM message is too long")
    try:
        return token.decode()
    except UnicodeDecodeError:
        raise AuthenticationFailedError("a SCRAM message is not UTF-8") from None


def _decoded(text: str) -> bytes:
    try:
        return b64decode(text, validate=True)
    except binascii.Error:
        raise AuthenticationFailedError("a SCRAM message holds broken Base64") from None
