"""SASL out of place, and delegation tokens.

A handshake reaches a handler only where it is out of place: the listener has no SASL, or the client has proved itself.
Delegation tokens may not be asked for, as on a Kafka listener without them.
"""

from __future__ import annotations

from agents.broker import Broker
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.delegation_tokens import (
    CreateDelegationTokenRequest,
    CreateDelegationTokenResponse,
    DescribeDelegationTokenRequest,
    DescribeDelegationTokenResponse,
    ExpireDelegationTokenRequest,
    ExpireDelegationTokenResponse,
    RenewDelegationTokenRequest,
    RenewDelegationTokenResponse,
)
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

NO_SASL = "the client has proved itself already, or its listener has no SASL (security.protocol=PLAINTEXT)"

_TOKENS = ErrorCode.DELEGATION_TOKEN_REQUEST_NOT_ALLOWED


def sasl_handshake(broker: Broker, header: RequestHeader, request: SaslHandshakeRequest) -> SaslHandshakeResponse:
    return SaslHandshakeResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE)


def sasl_authenticate(
    broker: Broker, header: RequestHeader, request: SaslAuthenticateRequest
) -> SaslAuthenticateResponse:
    return SaslAuthenticateResponse(error_code=ErrorCode.ILLEGAL_SASL_STATE, error_message=NO_SASL)


def create_token(
    broker: Broker, header: RequestHeader, request: CreateDelegationTokenRequest
) -> CreateDelegationTokenResponse:
    return CreateDelegationTokenResponse(
        error_code=_TOKENS, issue_timestamp_ms=-1, expiry_timestamp_ms=-1, max_timestamp_ms=-1
    )


def renew_token(
    broker: Broker, header: RequestHeader, request: RenewDelegationTokenRequest
) -> RenewDelegationTokenResponse:
    return RenewDelegationTokenResponse(error_code=_TOKENS, expiry_timestamp_ms=-1)


def expire_token(
    broker: Broker, header: RequestHeader, request: ExpireDelegationTokenRequest
) -> ExpireDelegationTokenResponse:
    return ExpireDelegationTokenResponse(error_code=_TOKENS, expiry_timestamp_ms=-1)


def describe_tokens(
    broker: Broker, header: RequestHeader, request: DescribeDelegationTokenRequest
) -> DescribeDelegationTokenResponse:
    return DescribeDelegationTokenResponse(error_code=_TOKENS)
