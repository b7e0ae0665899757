"""UpdateFeatures, key 57 (KIP-584): the kind of upgrade from v1 (KIP-778); one error for all features from v2."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    boolean,
    field,
    int8,
    int16,
    int32,
    message,
    string,
    struct,
)


@struct
class FeatureUpdateKey(Struct):
    feature: str = field(string, "0+")
    max_version_level: int = field(int16, "0+")
    allow_downgrade: bool = field(boolean, "0")
    upgrade_type: int = field(int8, "1+", default=1)


@message(api_key=57, kind="request", versions="0-2", flexible="0+", elements_max=PARTITIONS_ELEMENTS_MAX)
class UpdateFeaturesRequest(Message):
    timeout_ms: int = field(int32, "0+", default=60_000)
    feature_updates: list[FeatureUpdateKey] = field(array(FeatureUpdateKey), "0+")
    validate_only: bool = field(boolean, "1+")


@struct
class UpdatableFeatureResult(Struct):
    feature: str = field(string, "0-1")
    error_code: int = field(int16, "0-1")
    error_message: str | None = field(string, "0-1", nullable="0-1")


@message(api_key=57, kind="response", versions="0-2", flexible="0+")
class UpdateFeaturesResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "0+")
    error_message: str | None = field(string, "0+", nullable="0+")
    results: list[UpdatableFeatureResult] = field(array(UpdatableFeatureResult), "0-1", ignorable=True)
