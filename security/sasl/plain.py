"""PLAIN (RFC 4616): user and password in one message. Only under TLS, or on loopback."""

from __future__ import annotations

from dataclasses import dataclass, field

from security.sasl.errors import AuthenticationFailedError
from security.scram import NAME_BYTES_MAX, PASSWORD_BYTES_MAX


@dataclass(frozen=True, slots=True)
class PlainClaim:
    name: str
    password: str = field(repr=False)


def write(name: str, password: str) -> bytes:
    return b"\0".join((b"", name.encode(), password.encode()))


def read(token: bytes) -> PlainClaim:
    """Raises AuthenticationFailedError: no such message, too long, or the client asks to act for another user."""
    if len(token) > 2 * NAME_BYTES_MAX + PASSWORD_BYTES_MAX + 2:
        raise AuthenticationFailedError("the PLAIN message is too long")
    try:
        parts = token.decode().split("\0")
    except UnicodeDecodeError:
        # `from None`: the error holds the message, and that the password.
        raise AuthenticationFailedError("the PLAIN message is not UTF-8") from None
    if len(parts) != 3:
        raise AuthenticationFailedError("the PLAIN message has not three parts")
    authorized, name, password = parts
    if not 0 < len(name.encode()) <= NAME_BYTES_MAX:
        raise AuthenticationFailedError("the user's name is empty or too long")
    if not 0 < len(password.encode()) <= PASSWORD_BYTES_MAX:
        raise AuthenticationFailedError("the password is empty or too long")
    if authorized and authorized != name:
        raise AuthenticationFailedError("the client asks to act for another user")
    return PlainClaim(name, password)
