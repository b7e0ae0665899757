"""`docs/configs.md`, generated from the tables of topic and broker configs.

After a change of the tables, write the result of `render_configs_markdown` to the file; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from metadata.configs.broker import BROKER_CONFIGS, MINUTE_MS, SYNONYMS, BrokerConfig
from metadata.configs.topic import TOPIC_CONFIGS
from metadata.configs.values import INT_MAX, LONG_MAX, Config, ConfigType

_INTRODUCTION = """# Kafka's configs

Generated from `metadata/configs/topic.py` and `metadata/configs/broker.py`; do not edit by hand. The settings of
Siltstone's own processes are in [settings.md](settings.md).

Siltstone accepts every topic config of Kafka 3.9 and 4 with the values that Kafka accepts. It stores the config, and
DescribeConfigs shows it with its source, synonyms, type and the text on this page. Configs that steer a broker's disks,
replicas or threads change nothing here; they are listed under *without effect*. An unknown name and a value that Kafka
would refuse are refused (INVALID_CONFIG).

The value in force for a topic is the first of these that is set: the topic's own config, the cluster-wide broker
config, the agent's setting (only for `message.max.bytes`), Kafka's default.

**Cluster-wide defaults** are broker configs that are altered for the broker with the empty name
(`kafka-configs.sh --entity-type brokers --entity-default --alter --add-config log.retention.hours=24`). The metadata
store keeps them. They are in force on all agents in a second at most, and in compactors when they next plan; no
process needs a restart. No process has a setting for them, so that no two processes can disagree about which records
may be deleted. If several broker configs set one topic config, the first one in the table counts.
`log.retention.hours`, `log.retention.minutes`, `log.roll.hours` and `log.roll.jitter.hours` can be altered at any time
here; Kafka reads them only at start. Configs of a single agent are its settings: altering them over the protocol is
refused (INVALID_REQUEST). Only `log.retention.check.interval.ms` can be set for the cluster while it runs, and then
goes before the setting of every process.

**Tiered storage** needs no config: every record is in the object store, also the records of compacted topics, which
Kafka does not tier. `remote.storage.enable`, `local.retention.ms`, `local.retention.bytes` and the other `remote.*`
configs are accepted in every combination, also with `cleanup.policy=compact`, and change nothing. There is no local
copy to keep for a longer or shorter time. Only `retention.ms` and `retention.bytes` decide when records are deleted.

**Replication factor.** CreateTopics accepts -1 and any number from 1, and keeps it. Metadata shows that many live
agents as replicas, all in sync; fewer agents, fewer replicas. The number decides nothing else: any agent can serve any
partition, and the object store and Postgres keep the records. `min.insync.replicas` refuses no write.
"""


_TOPIC_HEAD = ("topic config", "type", "default", "allowed", "meaning")
_DEFAULT_HEAD = ("broker config", "default of", "type", "default", "allowed")
_SETTING_HEAD = ("broker config", "setting", "altered while running")
_FIXED_HEAD = ("broker config", "type", "value", "meaning")
_IDLE_HEAD = ("broker config", "type", "default", "altered while running", "meaning")


def render_configs_markdown() -> str:
    """The text of `docs/configs.md`."""
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
    altered = config.doc if config.dynamic else "no"
    return f"`{config.name}`", f"`{config.setting}`{' in minutes' if config.unit == MINUTE_MS else ''}", altered


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
