"""The client's side of SASL, over whatever sends a request and waits for its answer."""

from __future__ import annotations

import secrets
from typing import Protocol, TypeVar

from runtime.errors import BadInputError
from security.sasl import plain
from security.sasl.errors import AuthenticationFailedError
from security.sasl.scram_client import ScramClient
from security.scram import BY_SASL_NAME
from siltstone.kafka.security.values import ClientSecurity
from wire.error_codes import ErrorCode
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)
from wire.schema import Message

Response = TypeVar("Response", bound=Message)


class LoginError(BadInputError):
    """The agent did not let us in, or has not proved that it is one. Trying again does not help."""


class Ask(Protocol):
    async def __call__(self, request: Message, response: type[Response]) -> Response: ...


async def authenticate(ask: Ask, security: ClientSecurity, address: str) -> int:
    """Returns for how many ms the proof counts; 0 for ever. Raises LoginError, and what `ask` raises."""
    asked = SaslHandshakeRequest(mechanism=security.mechanism)
    answer = await ask(asked, SaslHandshakeResponse)
    if answer.error_code == int(ErrorCode.UNSUPPORTED_SASL_MECHANISM):
        raise LoginError(
            f"{address} does not take {security.mechanism}",
            remedy=f"it takes {', '.join(answer.mechanisms)}: set sasl.mechanism in {security.source}",
        )
    if answer.error_code:
        raise LoginError(
            f"{address} has no SASL on this listener",
            remedy=f"set security.protocol in {security.source} to SSL or PLAINTEXT, or use another port",
        )
    mechanism = BY_SASL_NAME.get(security.mechanism)
    if mechanism is None:
        told = await _send(ask, plain.write(security.username, security.password), security, address)
        return told.session_lifetime_ms
    scram = ScramClient(mechanism, security.username, security.password, nonce=secrets.token_urlsafe(24))
    try:
        told = await _send(ask, scram.first(), security, address)
        told = await _send(ask, scram.prove(bytes(told.auth_bytes)), security, address)
        scram.check(bytes(told.auth_bytes))
    except AuthenticationFailedError as error:
        raise LoginError(
            f"{address} is not to be trusted: {error.message}", remedy="check that it is an agent of your cluster"
        ) from error
    return told.session_lifetime_ms


async def _send(ask: Ask, token: bytes, security: ClientSecurity, address: str) -> SaslAuthenticateResponse:
    answer = await ask(SaslAuthenticateRequest(auth_bytes=token), SaslAuthenticateResponse)
    if answer.error_code:
        raise LoginError(
            f"{address} refused user {security.username!r} by {security.mechanism}: {answer.error_message}",
            remedy=f"check the user's name and password in {security.source}",
        )
    return answer
