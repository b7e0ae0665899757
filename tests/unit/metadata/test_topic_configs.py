"""Topic configs: every default is valid, wrong ones are named, resolved ones are read by type."""

from __future__ import annotations

import pytest

from metadata.configs.topic import (
    TOPIC_CONFIGS,
    InvalidConfigError,
    as_bool,
    as_float,
    as_int,
    as_list,
    resolve,
    validate_overrides,
)


def test_all_defaults_are_valid_and_documented() -> None:
    defaults = resolve({})

    validate_overrides(defaults)
    assert set(defaults) == set(TOPIC_CONFIGS)
    assert all(config.doc and config.name == name for name, config in TOPIC_CONFIGS.items())


def test_the_defaults_are_kafkas() -> None:
    defaults = resolve({})

    assert defaults["cleanup.policy"] == "delete"
    assert as_int(defaults, "retention.ms") == 7 * 24 * 3600 * 1000
    assert as_int(defaults, "max.message.bytes") == 1_048_588
    assert as_int(defaults, "delete.retention.ms") == 86_400_000
    assert as_float(defaults, "min.cleanable.dirty.ratio") == 0.5


def test_overrides_win_over_defaults() -> None:
    assert resolve({"retention.ms": "5"})["retention.ms"] == "5"


@pytest.mark.parametrize(
    "good",
    [
        {"cleanup.policy": "compact,delete"},
        {"cleanup.policy": " delete , compact "},
        {"cleanup.policy": ""},
        {"retention.ms": "-1"},
        {"retention.bytes": "9223372036854775807"},
        {"min.cleanable.dirty.ratio": "0"},
        {"min.cleanable.dirty.ratio": "1.0"},
        {"preallocate": "TRUE"},
        {"compression.type": "zstd"},
        {"leader.replication.throttled.replicas": "0:1,1:2"},
        {"min.compaction.lag.ms": "10", "max.compaction.lag.ms": "10"},
    ],
    ids=str,
)
def test_good_values_are_taken(good: dict[str, str]) -> None:
    validate_overrides(good)


@pytest.mark.parametrize(
    "bad",
    [
        {"cleanup.policy": "shred"},
        {"cleanup.policy": "delete,shred"},
        {"retention.ms": "-2"},
        {"retention.ms": "soon"},
        {"retention.ms": "1.5"},
        {"retention.ms": ""},
        {"retention.ms": "1_000"},
        {"retention.bytes": "9223372036854775808"},
        {"max.message.bytes": "2147483648"},
        {"segment.bytes": "1048575"},
        {"min.cleanable.dirty.ratio": "1.1"},
        {"min.cleanable.dirty.ratio": "nan"},
        {"preallocate": "yes"},
        {"message.timestamp.type": "createtime"},
        {"compression.type": "lzma"},
    ],
    ids=str,
)
def test_bad_values_are_refused_by_name(bad: dict[str, str]) -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        validate_overrides(bad)

    assert refusal.value.name == next(iter(bad))
    assert refusal.value.name in str(refusal.value)


def test_an_unknown_name_is_refused_with_the_nearest_right_one() -> None:
    with pytest.raises(InvalidConfigError, match=r"did you mean 'retention\.ms'") as refusal:
        validate_overrides({"retention.msec": "5"})

    assert refusal.value.name == "retention.msec"


def test_a_least_lag_above_the_greatest_is_refused() -> None:
    with pytest.raises(InvalidConfigError) as refusal:
        validate_overrides({"min.compaction.lag.ms": "11", "max.compaction.lag.ms": "10"})

    assert refusal.value.name == "min.compaction.lag.ms"


def test_resolved_values_are_read_by_type() -> None:
    configs = resolve({"cleanup.policy": "compact, delete", "preallocate": "True"})

    assert as_list(configs, "cleanup.policy") == ("compact", "delete")
    assert as_list(configs, "leader.replication.throttled.replicas") == ()
    assert as_bool(configs, "preallocate")
    assert not as_bool(configs, "remote.storage.enable")


def test_a_contradiction_is_told_to_whoever_alters_one_of_the_two() -> None:
    defaults, slow = {"max.compaction.lag.ms": "10"}, {"min.compaction.lag.ms": "11"}
    validate_overrides({"retention.ms": "5"}, {**defaults, **slow})
    validate_overrides({**slow, "retention.ms": "5"}, defaults, slow)
    with_a_way_out = {**slow, "max.compaction.lag.ms": "12"}
    for present in ({}, {"min.compaction.lag.ms": "10"}, with_a_way_out):
        with pytest.raises(InvalidConfigError, match="must not exceed"):
            validate_overrides(slow, defaults, present)
