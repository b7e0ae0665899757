"""CreateDelegationToken, RenewDelegationToken, ExpireDelegationToken and DescribeDelegationToken, keys 38 to 41
(KIP-48); tokens for somebody else from v3 of the first and the last (KIP-373)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Octets,
    Struct,
    array,
    field,
    int16,
    int32,
    int64,
    message,
    octets,
    string,
    struct,
)


@struct
class CreatableRenewers(Struct):
    principal_type: str = field(string, "1+")
    principal_name: str = field(string, "1+")


@message(api_key=38, kind="request", versions="1-3", flexible="2+", elements_max=PARTITIONS_ELEMENTS_MAX)
class CreateDelegationTokenRequest(Message):
    owner_principal_type: str | None = field(string, "3+", nullable="3+")
    owner_principal_name: str | None = field(string, "3+", nullable="3+")
    renewers: list[CreatableRenewers] = field(array(CreatableRenewers), "1+")
    max_lifetime_ms: int = field(int64, "1+")


@message(api_key=38, kind="response", versions="1-3", flexible="2+")
class CreateDelegationTokenResponse(Message):
    error_code: int = field(int16, "1+")
    principal_type: str = field(string, "1+")
    principal_name: str = field(string, "1+")
    token_requester_principal_type: str = field(string, "3+")
    token_requester_principal_name: str = field(string, "3+")
    issue_timestamp_ms: int = field(int64, "1+")
    expiry_timestamp_ms: int = field(int64, "1+")
    max_timestamp_ms: int = field(int64, "1+")
    token_id: str = field(string, "1+")
    hmac: Octets = field(octets, "1+")
    throttle_time_ms: int = field(int32, "1+")


@message(api_key=39, kind="request", versions="1-2", flexible="2+")
class RenewDelegationTokenRequest(Message):
    hmac: Octets = field(octets, "1+")
    renew_period_ms: int = field(int64, "1+")


@message(api_key=39, kind="response", versions="1-2", flexible="2+")
class RenewDelegationTokenResponse(Message):
    error_code: int = field(int16, "1+")
    expiry_timestamp_ms: int = field(int64, "1+")
    throttle_time_ms: int = field(int32, "1+")


@message(api_key=40, kind="request", versions="1-2", flexible="2+")
class ExpireDelegationTokenRequest(Message):
    hmac: Octets = field(octets, "1+")
    expiry_time_period_ms: int = field(int64, "1+")


@message(api_key=40, kind="response", versions="1-2", flexible="2+")
class ExpireDelegationTokenResponse(Message):
    error_code: int = field(int16, "1+")
    expiry_timestamp_ms: int = field(int64, "1+")
    throttle_time_ms: int = field(int32, "1+")


@struct
class DescribeDelegationTokenOwner(Struct):
    principal_type: str = field(string, "1+")
    principal_name: str = field(string, "1+")


@message(api_key=41, kind="request", versions="1-3", flexible="2+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DescribeDelegationTokenRequest(Message):
    owners: list[DescribeDelegationTokenOwner] | None = field(array(DescribeDelegationTokenOwner), "1+", nullable="1+")


@struct
class DescribedDelegationTokenRenewer(Struct):
    principal_type: str = field(string, "1+")
    principal_name: str = field(string, "1+")


@struct
class DescribedDelegationToken(Struct):
    principal_type: str = field(string, "1+")
    principal_name: str = field(string, "1+")
    token_requester_principal_type: str = field(string, "3+")
    token_requester_principal_name: str = field(string, "3+")
    issue_timestamp: int = field(int64, "1+")
    expiry_timestamp: int = field(int64, "1+")
    max_timestamp: int = field(int64, "1+")
    token_id: str = field(string, "1+")
    hmac: Octets = field(octets, "1+")
    renewers: list[DescribedDelegationTokenRenewer] = field(array(DescribedDelegationTokenRenewer), "1+")


@message(api_key=41, kind="response", versions="1-3", flexible="2+")
class DescribeDelegationTokenResponse(Message):
    error_code: int = field(int16, "1+")
    tokens: list[DescribedDelegationToken] = field(array(DescribedDelegationToken), "1+")
    throttle_time_ms: int = field(int32, "1+")
