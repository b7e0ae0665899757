"""SASL out of place, delegation tokens, and client quotas until agents have any.

A handshake reaches a handler only where it is out of place: the listener has no SASL, or the client has proved itself.
Delegation tokens may not be asked for, as on a Kafka listener without them, and there are no quotas. Kafka keeps a
quota that a client sets. An agent refuses it: a quota that throttles nobody would be a promise that nobody keeps.
"""

from __future__ import annotations

from agents.broker import Broker
from agents.security.refusals import cluster_refusal
from agents.yielding import LoopYielder
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.alter_client_quotas import (
    AlterClientQuotasRequest,
    AlterClientQuotasResponse,
    AlteredEntryData,
    EntryData,
)
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
from wire.messages.describe_client_quotas import DescribeClientQuotasRequest, DescribeClientQuotasResponse
from wire.messages.sasl import (
    SaslAuthenticateRequest,
    SaslAuthenticateResponse,
    SaslHandshakeRequest,
    SaslHandshakeResponse,
)

NO_SASL = "the client has proved itself already, or its listener has no SASL (security.protocol=PLAINTEXT)"
NO_QUOTAS = "agents have no quotas: nobody is throttled"

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


def describe_quotas(
    broker: Broker, header: RequestHeader, request: DescribeClientQuotasRequest
) -> DescribeClientQuotasResponse:
    if (refused := cluster_refusal(broker.rights(), Operation.DESCRIBE_CONFIGS)) is not None:
        return DescribeClientQuotasResponse(error_code=refused.code, error_message=str(refused), entries=None)
    return DescribeClientQuotasResponse(error_message=None, entries=[])


async def alter_quotas(
    broker: Broker, header: RequestHeader, request: AlterClientQuotasRequest
) -> AlterClientQuotasResponse:
    refused = cluster_refusal(broker.rights(), Operation.ALTER_CONFIGS)
    if refused is not None:
        return AlterClientQuotasResponse(
            entries=[
                AlteredEntryData(entity=each.entity, error_code=refused.code, error_message=str(refused))
                async for each in LoopYielder().through(request.entries)
            ]
        )
    return AlterClientQuotasResponse(entries=[_altered(each) async for each in LoopYielder().through(request.entries)])


def _altered(asked: EntryData) -> AlteredEntryData:
    """The removal of a quota changes nothing, so it succeeds, as in Kafka where none is set."""
    if all(op.remove for op in asked.ops):
        return AlteredEntryData(entity=asked.entity, error_message=None)
    return AlteredEntryData(entity=asked.entity, error_code=ErrorCode.INVALID_REQUEST, error_message=NO_QUOTAS)
