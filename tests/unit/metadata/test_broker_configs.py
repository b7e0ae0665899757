"""Broker configs: every row is sound, and a cluster-wide value has the meaning that it has in Kafka."""

from __future__ import annotations

from pathlib import Path

import pytest

from metadata.configs.broker import (
    BROKER_CONFIGS,
    SYNONYMS,
    StaticConfigError,
    as_topic_value,
    check_topics,
    topic_defaults,
    validate_broker_configs,
)
from metadata.configs.text import render_configs_markdown
from metadata.configs.topic import TOPIC_CONFIGS
from metadata.configs.values import InvalidConfigError, check_value
from runtime.settings.loading import declarations

ROOT = Path(__file__).parents[3]
WITHOUT_A_BROKER_CONFIG = {
    "follower.replication.throttled.replicas",
    "leader.replication.throttled.replicas",
    "remote.log.copy.disable",
    "remote.log.delete.on.disable",
    "remote.storage.enable",
}
"""Kafka's LogConfig.CONFIGS_WITH_NO_SERVER_DEFAULTS."""


def test_every_row_is_documented_has_a_valid_default_and_names_what_exists() -> None:
    settings = {name for name, _, _ in declarations()}
    for name, config in BROKER_CONFIGS.items():
        assert (config.name, bool(config.doc)) == (name, True)
        if config.default:
            check_value(config, config.default)
        assert config.topic in {"", *TOPIC_CONFIGS}
        assert config.setting in {"", *settings}
        assert config.dynamic or not config.topic


def test_every_topic_config_but_kafkas_exceptions_has_a_cluster_wide_default() -> None:
    assert TOPIC_CONFIGS.keys() - SYNONYMS.keys() == WITHOUT_A_BROKER_CONFIG


def test_the_defaults_of_synonyms_are_those_of_their_topic_config() -> None:
    for topic, brokers in SYNONYMS.items():
        last = brokers[-1]
        assert as_topic_value(last, last.default) == TOPIC_CONFIGS[topic].default, topic
        assert all(not broker.default for broker in brokers[:-1]), topic


@pytest.mark.parametrize(
    ("configs", "expected"),
    [
        ({}, {}),
        ({"log.retention.hours": "2"}, {"retention.ms": "7200000"}),
        ({"log.retention.hours": "2", "log.retention.minutes": "3"}, {"retention.ms": "180000"}),
        (
            {"log.retention.hours": "2", "log.retention.minutes": "3", "log.retention.ms": "-1"},
            {"retention.ms": "-1"},
        ),
        ({"log.retention.hours": "-1"}, {"retention.ms": "-1"}),
        (
            {"log.roll.hours": " 1 ", "log.segment.bytes": "2000000"},
            {"segment.ms": "3600000", "segment.bytes": "2000000"},
        ),
        ({"log.cleanup.policy": "", "message.max.bytes": "7"}, {"cleanup.policy": "", "max.message.bytes": "7"}),
        ({"log.cleaner.threads": "7", "from.a.newer.version": "1"}, {}),
    ],
)
def test_cluster_wide_configs_are_defaults_of_topics(configs: dict[str, str], expected: dict[str, str]) -> None:
    assert topic_defaults(configs) == expected


@pytest.mark.parametrize(
    ("name", "value", "error", "words"),
    [
        ("num.partitions", "3", StaticConfigError, "the setting num.partitions"),
        ("offsets.retention.minutes", None, StaticConfigError, "offsets.retention.ms"),
        ("log.cleaner.enable", "true", StaticConfigError, "while a broker runs"),
        ("log.retention.hour", "3", InvalidConfigError, "did you mean 'log.retention.hours'"),
        ("log.retention.hours", "2147483648", InvalidConfigError, "outside"),
        ("log.roll.hours", "0", InvalidConfigError, "outside"),
        ("log.retention.ms", "0", InvalidConfigError, "at least 1, or -1"),
        ("log.retention.minutes", " +0 ", InvalidConfigError, "at least 1, or -1"),
        ("log.retention.hours", "0", InvalidConfigError, "at least 1, or -1"),
        ("log.retention.ms", "1", None, ""),
        ("log.retention.check.interval.ms", "1", None, ""),
        ("log.retention.check.interval.ms", None, None, ""),
        ("log.retention.check.interval.ms", "0", InvalidConfigError, "outside"),
        ("log.retention.hours", "-1", None, ""),
        ("log.retention.bytes", "0", None, ""),
        ("log.cleaner.io.buffer.load.factor", "nan", InvalidConfigError, "outside"),
        ("log.message.timestamp.type", "now", InvalidConfigError, "CreateTime"),
        ("log.cleaner.min.compaction.lag.ms", "9223372036854775807", None, ""),
    ],
)
def test_what_may_not_be_altered_is_named(
    name: str, value: str | None, error: type[Exception] | None, words: str
) -> None:
    after = {} if value is None else {name: value}
    if error is None:
        validate_broker_configs({name: value}, after)
        return
    with pytest.raises(error, match=words):
        validate_broker_configs({name: value}, after)


def test_defaults_of_topics_may_not_contradict_each_other() -> None:
    lags = {"log.cleaner.min.compaction.lag.ms": "5", "log.cleaner.max.compaction.lag.ms": "4"}
    with pytest.raises(InvalidConfigError, match="must not exceed") as refused:
        validate_broker_configs({}, lags)
    assert refused.value.name == "log.cleaner.min.compaction.lag.ms"


def test_defaults_that_came_to_contradict_each_other_are_told_to_whoever_alters_one_of_them() -> None:
    least, most = "log.cleaner.min.compaction.lag.ms", "log.cleaner.max.compaction.lag.ms"
    lags = {least: "5", most: "4"}
    validate_broker_configs({"log.retention.ms": "7"}, lags | {"log.retention.ms": "7"}, lags)
    validate_broker_configs({most: None}, {least: "5"}, lags)
    for still in (lags | {most: "3"}, lags | {least: "6"}):
        with pytest.raises(InvalidConfigError, match="must not exceed"):
            validate_broker_configs({}, still, lags)


def test_defaults_may_not_contradict_what_a_topic_has_set() -> None:
    topics = [("plain", {"retention.ms": "1"}), ("slow", {"min.compaction.lag.ms": "50"})]
    fast, faster = {"log.cleaner.max.compaction.lag.ms": "50"}, {"log.cleaner.max.compaction.lag.ms": "49"}
    check_topics({}, fast, topics)
    check_topics(fast, {}, topics)
    with pytest.raises(InvalidConfigError, match="'slow'"):
        check_topics(fast, faster, topics)
    # and a caller that alters something else is not told of it
    check_topics(faster, faster | {"log.retention.ms": "7"}, topics)


def test_docs_configs_md_is_what_the_tables_say() -> None:
    command = (
        "from pathlib import Path; from metadata.configs.text import render_configs_markdown as render;"
        " Path('docs/configs.md').write_text(render())"
    )
    assert (ROOT / "docs" / "configs.md").read_text() == render_configs_markdown(), f'run python -c "{command}"'


def test_the_docs_name_every_config_and_say_what_has_no_effect() -> None:
    text = render_configs_markdown()
    effect, _, rest = text.partition("## Topic configs without effect")
    idle = rest.partition("## Cluster-wide")[0]
    for name, config in TOPIC_CONFIGS.items():
        assert f"| `{name}` |" in (effect if config.effective else idle)
    assert all(f"| `{name}` |" in rest for name in BROKER_CONFIGS)
