"""`docs/configs.md`, from the tables of topic and broker configs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metadata.configs.broker import BROKER_CONFIGS, MINUTE_MS, SYNONYMS, BrokerConfig
from metadata.configs.topic import TOPIC_CONFIGS
from metadata.configs.values import INT_MAX, LONG_MAX, Config, ConfigType

_INTRODUCTION = """# Kafka's configs

Generated from `metadata/configs/topic.py` and `metadata/configs/broker.py`; do not edit by hand. The settings of our
own processes are in [settings.md](settings.md).

Every topic config of Kafka 3.9 and 4 is accepted with the values that Kafka accepts, stored, and shown by
DescribeConfigs with its source, synonyms, type and these words. Those that steer a broker's disks, replicas or threads
change nothing here: they stand under *without effect*. A name that Kafka does not know is refused (INVALID_CONFIG), and
so is a value that it would refuse.

What is in force for a topic is, in this order: what is set of the topic, the cluster-wide broker config, the agent's
setting (`message.max.bytes` alone), Kafka's default.

**Cluster-wide defaults** are broker configs that are altered for the broker with the empty name
(`kafka-configs.sh --entity-type brokers --entity-default --alter --add-config log.retention.hours=24`). They lie in the
metadata store, are in force on all agents within `tail.poll.ms` and at the compactors' next look, and need no restart.
There is no setting for them, so that no two processes can disagree about what may be deleted. Of several
broker configs for one topic config the one that stands first counts. `log.retention.hours`, `log.retention.minutes`,
`log.roll.hours` and `log.roll.jitter.hours` are live here, where Kafka reads them when it starts. The configs of one
agent alone are its settings: altering them over the protocol is refused (INVALID_REQUEST).

**Tiered storage** is true by nature: every record lies in the object store, those of compacted topics too, which Kafka
does not tier. `remote.storage.enable`, `local.retention.ms`, `local.retention.bytes` and the other `remote.*`
configs are accepted in every combination, with `cleanup.policy=compact` as well, and change nothing: there is no local
copy that could be kept longer or shorter, and `retention.ms` and `retention.bytes` alone say when records go.

**Replication factor.** CreateTopics accepts -1 and any number from 1, and answers 1. Records are replicated by the
object store, what lies where by Postgres; Metadata names one agent as the only replica, and any other would serve the
partition as well. Replicas that are assigned by hand are accepted and mean nothing; `min.insync.replicas` likewise.
"""


_TOPIC_HEAD = ("topic config", "type", "default", "allowed", "meaning")
_DEFAULT_HEAD = ("broker config", "default of", "type", "default", "allowed")
_SETTING_HEAD = ("broker config", "setting")
_FIXED_HEAD = ("broker config", "type", "value", "meaning")
_IDLE_HEAD = ("broker config", "type", "default", "altered while running", "meaning")


def render_configs_markdown() -> str:
    """`docs/configs.md`."""
    topics = sorted(TOPIC_CONFIGS.values(), key=lambda config: config.name)
    brokers = sorted(BROKER_CONFIGS.values(), key=lambda config: config.name)
    defaults = [config for group in SYNONYMS.values() for config in group]
    rows_of_topics = {acts: [_topic_row(each) for each in topics if each.effective is acts] for acts in (True, False)}
    rows_of_defaults = {
        acts: [_default_row(each) for each in defaults if each.effective is acts] for acts in (True, False)
    }
    settings = [_setting_row(each) for each in brokers if each.setting and not each.topic]
    fixed = [_fixed_row(each) for each in brokers if each.effective and not each.topic and not each.setting]
    idle = [_idle_row(each) for each in brokers if not each.effective and not each.topic]
    lines = [
        *_table("Topic configs", _TOPIC_HEAD, rows_of_topics[True]),
        *_table("Topic configs without effect", _TOPIC_HEAD, rows_of_topics[False]),
        *_table("Cluster-wide defaults of topics", _DEFAULT_HEAD, rows_of_defaults[True]),
        *_table("Cluster-wide defaults without effect", _DEFAULT_HEAD, rows_of_defaults[False]),
        *_table("Broker configs that are settings of an agent", _SETTING_HEAD, settings),
        *_table("Broker configs that are constants of an agent", _FIXED_HEAD, fixed),
        *_table("Other broker configs, without effect", _IDLE_HEAD, idle),
    ]
    return _INTRODUCTION + "\n".join(lines) + "\n"


def _table(title: str, head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    lines = ["", f"## {title}", "", f"| {' | '.join(head)} |", "|---" * len(head) + "|"]
    return lines + [f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in rows]


def _topic_row(config: Config) -> Sequence[str]:
    return f"`{config.name}`", _type(config), _default(config), _allowed(config), config.doc


def _default_row(config: BrokerConfig) -> Sequence[str]:
    setting = f" or the setting `{config.setting}`" if config.setting else ""
    return (
        f"`{config.name}`",
        f"`{config.topic}`",
        _type(config),
        f"{_default(config)}{setting}",
        _allowed(config) if config.zero else "-1, from 1",
    )


def _setting_row(config: BrokerConfig) -> Sequence[str]:
    return f"`{config.name}`", f"`{config.setting}`{' in minutes' if config.unit == MINUTE_MS else ''}"


def _fixed_row(config: BrokerConfig) -> Sequence[str]:
    return f"`{config.name}`", _type(config), _default(config), config.doc


def _idle_row(config: BrokerConfig) -> Sequence[str]:
    return f"`{config.name}`", _type(config), _default(config), "yes" if config.dynamic else "no", config.doc


def _type(config: Config) -> str:
    return config.type.name.lower()


def _default(config: Config) -> str:
    return f"`{config.default}`" if config.default else "(none)"


def _allowed(config: Config) -> str:
    if config.choices:
        return ", ".join(f"`{choice}`" for choice in config.choices)
    if config.type is ConfigType.BOOLEAN:
        return "`true`, `false`"
    if config.pattern:
        return f"`{config.pattern}`"
    if config.least is None:
        return "any"
    unbounded = {ConfigType.INT: INT_MAX, ConfigType.LONG: LONG_MAX}.get(config.type)
    if config.most is None or config.most == unbounded:
        return f"from {config.least:g}" if config.type is ConfigType.DOUBLE else f"from {int(config.least)}"
    return f"{config.least:g} to {config.most:g}"
