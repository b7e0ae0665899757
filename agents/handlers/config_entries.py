"""Configs as Kafka's admin APIs show them: name, value in force, source, type. Pure.

Topic configs are the table in `metadata/configs/topic.py`, broker configs the one in `metadata/configs/broker.py`. A
broker config takes its value from the cluster-wide configs, else from the agent's setting of the same meaning, else
from Kafka's default.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from agents.topics.other_resources import LEVELS, ROOT
from metadata.configs.broker import BROKER_CONFIGS, SYNONYMS, BrokerConfig, as_topic_value
from metadata.configs.topic import TOPIC_CONFIGS, Config, ConfigType
from runtime.settings.loading import declarations
from runtime.settings.table import Settings

TOPIC_OVERRIDE = 1
CLUSTER_WIDE = 3
STATIC_BROKER = 4
DEFAULT = 5
BROKER_LOGGER_LEVEL = 6
"""DescribeConfigsResponse.ConfigSource."""

Synonym = tuple[str, str, int]
"""(name, value, source)."""


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    name: str
    value: str | None
    """None: not set, and without a default."""
    source: int
    type: ConfigType
    doc: str
    read_only: bool
    synonyms: tuple[Synonym, ...]
    """The one in force first."""


_SETTING_DEFAULTS = {name: default for name, _, default in declarations()}


def broker_defaults(settings: Settings) -> dict[str, str]:
    """Topic configs that take their default from this agent's settings."""
    return {"max.message.bytes": str(settings.message_max_bytes)}


def topic_entries(
    overrides: Mapping[str, str], broker_configs: Mapping[str, str], settings: Settings
) -> list[ConfigEntry]:
    """Every topic config, by name. `broker_configs`: the cluster-wide ones that are set."""
    return [
        _topic_entry(TOPIC_CONFIGS[name], overrides.get(name), broker_configs, settings)
        for name in sorted(TOPIC_CONFIGS)
    ]


def _topic_entry(
    config: Config, override: str | None, broker_configs: Mapping[str, str], settings: Settings
) -> ConfigEntry:
    found: list[tuple[Synonym, str]] = []  # in the topic config's unit
    if override is not None:
        found.append(((config.name, override, TOPIC_OVERRIDE), override))
    brokers = SYNONYMS.get(config.name, ())
    by_source: list[tuple[int, list[tuple[BrokerConfig, str]]]] = [
        (CLUSTER_WIDE, [(each, broker_configs[each.name]) for each in brokers if each.name in broker_configs]),
        (STATIC_BROKER, [(each, _set_value(each, settings)) for each in brokers if _is_set(each, settings)]),
        (DEFAULT, [(each, each.default) for each in brokers if _has_default(each)]),
    ]
    found += [
        ((each.name, value, source), as_topic_value(each, value))
        for source, group in by_source
        for each, value in group
    ]
    if not brokers:
        found.append(((config.name, config.default, DEFAULT), config.default))
    (_, _, source), value = found[0]
    return ConfigEntry(
        config.name, value, source, config.type, _words(config), False, tuple(synonym for synonym, _ in found)
    )


def broker_entries(broker_configs: Mapping[str, str], settings: Settings) -> list[ConfigEntry]:
    """Every broker config as this agent has it, by name."""
    return [
        _broker_entry(config, list(_broker_synonyms(config, broker_configs, settings)))
        for _, config in sorted(BROKER_CONFIGS.items())
    ]


def cluster_entries(broker_configs: Mapping[str, str]) -> list[ConfigEntry]:
    """The cluster-wide broker configs that are set, by name, as Kafka shows those of the broker without a name."""
    return [
        _broker_entry(BROKER_CONFIGS[name], [(name, value, CLUSTER_WIDE)])
        for name, value in sorted(broker_configs.items())
        if name in BROKER_CONFIGS
    ]


def logger_entries(settings: Settings) -> list[ConfigEntry]:
    """The one logger of this agent, with its level in Kafka's words."""
    doc = "The least level that this agent logs: its setting log.level."
    level = LEVELS[settings.log_level]
    return [ConfigEntry(ROOT, level, BROKER_LOGGER_LEVEL, ConfigType.STRING, doc, True, ())]


def _broker_synonyms(config: BrokerConfig, broker_configs: Mapping[str, str], settings: Settings) -> Iterator[Synonym]:
    if config.name in broker_configs:
        yield config.name, broker_configs[config.name], CLUSTER_WIDE
    if _is_set(config, settings):
        yield config.name, _set_value(config, settings), STATIC_BROKER
    if config.setting:
        yield config.name, _shown(_SETTING_DEFAULTS[config.setting], config), DEFAULT
    elif _has_default(config):
        yield config.name, config.default, DEFAULT


def _broker_entry(config: BrokerConfig, synonyms: list[Synonym]) -> ConfigEntry:
    _, value, source = synonyms[0] if synonyms else ("", None, DEFAULT)
    return ConfigEntry(config.name, value, source, config.type, _words(config), not config.dynamic, tuple(synonyms))


def _is_set(config: BrokerConfig, settings: Settings) -> bool:
    return bool(config.setting) and _value_of(config, settings) != _SETTING_DEFAULTS[config.setting]


def _set_value(config: BrokerConfig, settings: Settings) -> str:
    return _shown(_value_of(config, settings), config)


def _value_of(config: BrokerConfig, settings: Settings) -> str | int | bool:
    return getattr(settings, config.setting.replace(".", "_"))


def _shown(value: str | int | bool, config: BrokerConfig) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return str(value // config.unit if isinstance(value, int) else value)


def _has_default(config: BrokerConfig) -> bool:
    return config.default != "" or config.type in (ConfigType.STRING, ConfigType.LIST)


def _words(config: Config) -> str:
    return config.doc if config.effective else f"{config.doc} (accepted, without effect)"
