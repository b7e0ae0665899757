"""SaslHandshake and SaslAuthenticate, keys 17 and 36 (KIP-43, KIP-152). SaslHandshake is never flexible."""

from __future__ import annotations

from wire.schema import PROOF_ELEMENTS_MAX, Message, Octets, array, field, int16, int64, message, octets, string


@message(api_key=17, kind="request", versions="0-1")
class SaslHandshakeRequest(Message):
    mechanism: str = field(string, "0+")


@message(api_key=17, kind="response", versions="0-1")
class SaslHandshakeResponse(Message):
    error_code: int = field(int16, "0+")
    mechanisms: list[str] = field(array(string), "0+")


@message(api_key=36, kind="request", versions="0-2", flexible="2+", elements_max=PROOF_ELEMENTS_MAX)
class SaslAuthenticateRequest(Message):
    auth_bytes: Octets = field(octets, "0+", secret=True)


@message(api_key=36, kind="response", versions="0-2", flexible="2+")
class SaslAuthenticateResponse(Message):
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")
    auth_bytes: Octets = field(octets, "0+", secret=True)
    session_lifetime_ms: int = field(int64, "1+", ignorable=True)
