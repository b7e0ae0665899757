"""Configs as Kafka's admin APIs show them: name, value in force, where it comes from, type. Pure.

Topic configs are the table in `metadata/topic_configs.py`. Broker configs are those of our settings that Kafka has a
name for; they are read-only here, because settings are read when an agent starts.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from metadata.topic_configs import TOPIC_CONFIGS, ConfigType
from siltstone.settings import Settings

TOPIC_OVERRIDE = 1
STATIC_BROKER = 4
DEFAULT = 5
"""DescribeConfigsResponse.ConfigSource."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str
    source: int
    type: ConfigType
    doc: str
    read_only: bool
    synonyms: tuple[tuple[str, str, int], ...]
    """(name, value, source), the one in force first."""


_BROKER_NAMES = {"max.message.bytes": "message.max.bytes"}
"""Topic config -> the broker config that gives its default, where ours can be set."""


def broker_defaults(settings: Settings) -> dict[str, str]:
    """Topic configs whose default this agent's settings give."""
    return {"max.message.bytes": str(settings.message_max_bytes)}


def topic_entries(overrides: Mapping[str, str], settings: Settings) -> list[ConfigEntry]:
    """Every topic config, by name."""
    defaults = broker_defaults(settings)
    entries: list[ConfigEntry] = []
    for config in sorted(TOPIC_CONFIGS.values(), key=lambda each: each.name):
        synonyms: list[tuple[str, str, int]] = []
        if config.name in overrides:
            synonyms.append((config.name, overrides[config.name], TOPIC_OVERRIDE))
        static = defaults.get(config.name, config.default)
        broker_name = _BROKER_NAMES.get(config.name, config.name)
        if static != config.default:
            synonyms.append((broker_name, static, STATIC_BROKER))
        synonyms.append((broker_name, config.default, DEFAULT))
        _, value, source = synonyms[0]
        doc = config.doc if config.effective else f"{config.doc} (accepted, without effect)"
        entries.append(ConfigEntry(config.name, value, source, config.type, doc, False, tuple(synonyms)))
    return entries


def broker_entries(settings: Settings) -> list[ConfigEntry]:
    """The broker configs by Kafka's names, read-only."""
    rows = [
        ("auto.create.topics.enable", settings.auto_create_topics_enable, ConfigType.BOOLEAN),
        ("default.replication.factor", settings.default_replication_factor, ConfigType.INT),
        ("fetch.max.bytes", settings.fetch_max_bytes, ConfigType.INT),
        ("message.max.bytes", settings.message_max_bytes, ConfigType.INT),
        ("num.partitions", settings.num_partitions, ConfigType.INT),
        ("producer.id.expiration.ms", settings.producer_id_expiration_ms, ConfigType.INT),
        ("socket.request.max.bytes", settings.socket_request_max_bytes, ConfigType.INT),
    ]
    return [
        ConfigEntry(
            name, text, STATIC_BROKER, type_, f"the agent's setting {name}", True, ((name, text, STATIC_BROKER),)
        )
        for name, value, type_ in rows
        for text in [str(value).lower()]
    ]
