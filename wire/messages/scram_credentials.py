"""DescribeUserScramCredentials and AlterUserScramCredentials, keys 50 and 51 (KIP-554)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Octets,
    Struct,
    array,
    field,
    int8,
    int16,
    int32,
    message,
    octets,
    string,
    struct,
)


@struct
class UserName(Struct):
    name: str = field(string, "0+")


@message(api_key=50, kind="request", versions="0", flexible="0+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DescribeUserScramCredentialsRequest(Message):
    users: list[UserName] | None = field(array(UserName), "0+", nullable="0+")


@struct
class CredentialInfo(Struct):
    mechanism: int = field(int8, "0+")
    iterations: int = field(int32, "0+")


@struct
class DescribeUserScramCredentialsResult(Struct):
    user: str = field(string, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")
    credential_infos: list[CredentialInfo] = field(array(CredentialInfo), "0+")


@message(api_key=50, kind="response", versions="0", flexible="0+")
class DescribeUserScramCredentialsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")
    results: list[DescribeUserScramCredentialsResult] = field(array(DescribeUserScramCredentialsResult), "0+")


@struct
class ScramCredentialDeletion(Struct):
    name: str = field(string, "0+")
    mechanism: int = field(int8, "0+")


@struct
class ScramCredentialUpsertion(Struct):
    name: str = field(string, "0+")
    mechanism: int = field(int8, "0+")
    iterations: int = field(int32, "0+")
    salt: Octets = field(octets, "0+")
    salted_password: Octets = field(octets, "0+", secret=True)


@message(api_key=51, kind="request", versions="0", flexible="0+", elements_max=PARTITIONS_ELEMENTS_MAX)
class AlterUserScramCredentialsRequest(Message):
    deletions: list[ScramCredentialDeletion] = field(array(ScramCredentialDeletion), "0+")
    upsertions: list[ScramCredentialUpsertion] = field(array(ScramCredentialUpsertion), "0+")


@struct
class AlterUserScramCredentialsResult(Struct):
    user: str = field(string, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")


@message(api_key=51, kind="response", versions="0", flexible="0+")
class AlterUserScramCredentialsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    results: list[AlterUserScramCredentialsResult] = field(array(AlterUserScramCredentialsResult), "0+")
