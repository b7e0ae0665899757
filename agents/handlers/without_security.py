"""SASL, delegation tokens, SCRAM credentials and client quotas, until agents have any of them.

The answers are those of a Kafka broker whose listener is PLAINTEXT: SASL has no place on this connection, delegation
tokens may not be asked for on it, nobody has credentials, and there are no quotas. Kafka keeps a quota or a credential
that a client sets. An agent refuses it: a quota that throttles nobody, and a password that protects nothing, would be
promises that nobody keeps.
"""

from __future__ import annotations

from collections import Counter

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
from wire.messages.scram_credentials import (
    AlterUserScramCredentialsRequest,
    AlterUserScramCredentialsResponse,
    AlterUserScramCredentialsResult,
    DescribeUserScramCredentialsRequest,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)

NO_SASL = "the client has proved itself already, or its listener has no SASL (security.protocol=PLAINTEXT)"
NO_CREDENTIALS = "agents have no SASL, so they keep no credentials"
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


async def describe_credentials(
    broker: Broker, header: RequestHeader, request: DescribeUserScramCredentialsRequest
) -> DescribeUserScramCredentialsResponse:
    """No user has any. A user who is named twice is refused, as in Kafka."""
    if (refused := cluster_refusal(broker.rights(), Operation.DESCRIBE)) is not None:
        return DescribeUserScramCredentialsResponse(error_code=refused.code, error_message=str(refused))
    named = Counter(each.name for each in request.users or [])
    results = [_described(name, count) async for name, count in LoopYielder().through(list(named.items()))]
    return DescribeUserScramCredentialsResponse(error_message=None, results=results)


def _described(name: str, count: int) -> DescribeUserScramCredentialsResult:
    if count > 1:
        error, said = ErrorCode.DUPLICATE_RESOURCE, f"user {name!r} is named more than once"
    else:
        error, said = ErrorCode.RESOURCE_NOT_FOUND, f"user {name!r} has no SCRAM credentials: {NO_CREDENTIALS}"
    return DescribeUserScramCredentialsResult(user=name, error_code=error, error_message=said)


async def alter_credentials(
    broker: Broker, header: RequestHeader, request: AlterUserScramCredentialsRequest
) -> AlterUserScramCredentialsResponse:
    """One answer for each user: there is nothing to delete, and nothing is kept."""
    refused = cluster_refusal(broker.rights(), Operation.ALTER)
    if refused is not None:
        names = [*(each.name for each in request.deletions), *(each.name for each in request.upsertions)]
        return AlterUserScramCredentialsResponse(
            results=[
                AlterUserScramCredentialsResult(user=name, error_code=refused.code, error_message=str(refused))
                async for name in LoopYielder().through(list(dict.fromkeys(names)))
            ]
        )
    answers = dict.fromkeys([each.name for each in request.deletions], ErrorCode.RESOURCE_NOT_FOUND)
    answers.update(dict.fromkeys([each.name for each in request.upsertions], ErrorCode.SECURITY_DISABLED))
    return AlterUserScramCredentialsResponse(
        results=[
            AlterUserScramCredentialsResult(user=name, error_code=error, error_message=NO_CREDENTIALS)
            async for name, error in LoopYielder().through(list(answers.items()))
        ]
    )
