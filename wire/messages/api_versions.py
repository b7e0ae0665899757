"""ApiVersions, key 18. Its response header never has tagged fields (KIP-511); features from v3 (KIP-584)."""

from __future__ import annotations

from wire.schema import (
    PROOF_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    boolean,
    field,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@message(api_key=18, kind="request", versions="0-4", flexible="3+", elements_max=PROOF_ELEMENTS_MAX)
class ApiVersionsRequest(Message):
    client_software_name: str = field(string, "3+", ignorable=True)
    client_software_version: str = field(string, "3+", ignorable=True)


@struct
class ApiVersion(Struct):
    api_key: int = field(int16, "0+")
    min_version: int = field(int16, "0+")
    max_version: int = field(int16, "0+")


@struct
class SupportedFeatureKey(Struct):
    name: str = field(string, "3+")
    min_version: int = field(int16, "3+")
    max_version: int = field(int16, "3+")


@struct
class FinalizedFeatureKey(Struct):
    name: str = field(string, "3+")
    max_version_level: int = field(int16, "3+")
    min_version_level: int = field(int16, "3+")


@message(api_key=18, kind="response", versions="0-4", flexible="3+")
class ApiVersionsResponse(Message):
    error_code: int = field(int16, "0+")
    api_keys: list[ApiVersion] = field(array(ApiVersion), "0+")
    throttle_time_ms: int = field(int32, "1+", ignorable=True)
    supported_features: list[SupportedFeatureKey] = field(array(SupportedFeatureKey), "3+", tag=0, ignorable=True)
    finalized_features_epoch: int = field(int64, "3+", default=-1, tag=1, ignorable=True)
    finalized_features: list[FinalizedFeatureKey] = field(array(FinalizedFeatureKey), "3+", tag=2, ignorable=True)
    zk_migration_ready: bool = field(boolean, "3+", tag=3, ignorable=True)
