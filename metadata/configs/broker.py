"""Kafka's broker configs: one table from Kafka's name to the role that the config has here. Pure.

A broker config has one of three roles:

1. the cluster-wide default of a topic config (`topic`). AlterConfigs or IncrementalAlterConfigs set it on the broker
   with the empty name, and it is in force at once, without a restart. The metadata store keeps it, so that all agents
   and compactors read the same value. No process has a setting for it: if two compactors disagreed about retention, one
   would delete records that the other keeps. `log.retention.hours`, `log.retention.minutes`, `log.roll.hours` and
   `log.roll.jitter.hours` can be altered too, although Kafka reads them only at start;
2. a setting of an agent (`setting`) or a constant of every agent. It is only shown; a setting is altered where the
   agent is started. One of them can be altered cluster-wide like a config of role 1, and then goes before the settings
   of all processes: `log.retention.check.interval.ms`;
3. a config that steers disks, replicas, threads or tiering (neither `topic` nor `setting`). It is shown with Kafka's
   default. If Kafka can alter it while a broker runs, it is accepted and stored, because tools set it. It is marked
   `effective=False`.

The value in force for a topic is its override, else the cluster-wide default, else the agent's setting (only for
`message.max.bytes`), else Kafka's default. If several broker configs set one topic config, the first in this table
wins, as in Kafka (`ServerTopicConfigSynonyms`): milliseconds before minutes before hours.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from metadata.configs.topic import LAGS, TOPIC_CONFIGS, check_lags, lags_of, validate_overrides
from metadata.configs.values import (
    INT_MAX,
    LONG_MAX,
    Config,
    ConfigType,
    InvalidConfigError,
    check_value,
    unknown_config,
)

HOUR_MS, MINUTE_MS = 3_600_000, 60_000
RETENTION_CHECK = "log.retention.check.interval.ms"
_DOUBLE_MAX = 1.7976931348623157e308


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig(Config):
    topic: str = ""
    """The topic config whose default this config gives."""
    setting: str = ""
    """The dotted name of Siltstone's setting that gives the value."""
    unit: int = 1
    """The size of this config's unit in units of the topic config or the setting: MINUTE_MS for minutes."""
    dynamic: bool = True
    """Whether it may be altered while the cluster runs."""
    zero: bool = True
    """Whether 0 is allowed if `least` allows it."""


def _of_topic(
    name: str,
    topic: str,
    *,
    unit: int = 1,
    setting: str = "",
    default: str | None = None,
    zero: bool = True,
) -> BrokerConfig:
    """The cluster-wide default of a topic config. `default` "" = none: the default of the next synonym counts."""
    of = TOPIC_CONFIGS[topic]
    in_other_unit = unit != 1
    return BrokerConfig(
        name=name,
        type=ConfigType.INT if in_other_unit else of.type,
        default=of.default if default is None else default,
        doc=f"Default of the topic config {topic}. {of.doc}",
        effective=of.effective,
        least=of.least,
        most=INT_MAX if in_other_unit else of.most,
        choices=of.choices,
        pattern=of.pattern,
        topic=topic,
        setting=setting,
        unit=unit,
        zero=zero,
    )


def _setting(name: str, type_: ConfigType, setting: str = "", *, unit: int = 1) -> BrokerConfig:
    setting = setting or name
    doc = f"The agent's setting {setting}."
    return BrokerConfig(
        name=name, type=type_, default="", doc=doc, effective=True, setting=setting, unit=unit, dynamic=False
    )


def _fixed(name: str, type_: ConfigType, value: int, doc: str) -> BrokerConfig:
    """A constant of every agent."""
    return BrokerConfig(name=name, type=type_, default=str(value), doc=doc, effective=True, dynamic=False)


def _idle(
    name: str,
    type_: ConfigType,
    default: float | str,
    doc: str,
    *,
    least: float | None = None,
    dynamic: bool = True,
) -> BrokerConfig:
    """A config that has no effect here."""
    most: float | None = {ConfigType.INT: INT_MAX, ConfigType.LONG: LONG_MAX, ConfigType.DOUBLE: _DOUBLE_MAX}.get(type_)
    if isinstance(default, bool):
        default = "true" if default else "false"
    return BrokerConfig(
        name=name,
        type=type_,
        default=str(default),
        doc=doc,
        effective=False,
        least=least,
        most=None if least is None else most,
        dynamic=dynamic,
    )


_BOOLEAN, _STRING, _INT = ConfigType.BOOLEAN, ConfigType.STRING, ConfigType.INT
_LONG, _DOUBLE = ConfigType.LONG, ConfigType.DOUBLE
_THREADS = "Threads of a broker. Agents and compactors have settings of their own."
_CLEANER = "Steers the cleaner of a broker. Compactors have settings of their own"
_REMOTE = "Steers Kafka's tiered storage. Here every record is in the object store anyway."
_NO_REPLICAS = "Steers replication between brokers. Agents do not replicate."
_NO_DISK = "Steers files on a broker's disk. Agents have no such files."

_DEFAULTS_OF_TOPICS = (
    _of_topic("compression.gzip.level", "compression.gzip.level"),
    _of_topic("compression.lz4.level", "compression.lz4.level"),
    _of_topic("compression.type", "compression.type"),
    _of_topic("compression.zstd.level", "compression.zstd.level"),
    _of_topic("log.cleaner.delete.retention.ms", "delete.retention.ms"),
    _of_topic("log.cleaner.max.compaction.lag.ms", "max.compaction.lag.ms"),
    _of_topic("log.cleaner.min.cleanable.ratio", "min.cleanable.dirty.ratio"),
    _of_topic("log.cleaner.min.compaction.lag.ms", "min.compaction.lag.ms"),
    _of_topic("log.cleanup.policy", "cleanup.policy"),
    _of_topic("log.flush.interval.messages", "flush.messages"),
    _of_topic("log.flush.interval.ms", "flush.ms", default=""),
    _of_topic("log.flush.scheduler.interval.ms", "flush.ms"),
    _of_topic("log.index.interval.bytes", "index.interval.bytes"),
    _of_topic("log.index.size.max.bytes", "segment.index.bytes"),
    _of_topic("log.local.retention.bytes", "local.retention.bytes"),
    _of_topic("log.local.retention.ms", "local.retention.ms"),
    _of_topic("log.message.downconversion.enable", "message.downconversion.enable"),
    _of_topic("log.message.format.version", "message.format.version"),
    _of_topic("log.message.timestamp.after.max.ms", "message.timestamp.after.max.ms"),
    _of_topic("log.message.timestamp.before.max.ms", "message.timestamp.before.max.ms"),
    _of_topic("log.message.timestamp.difference.max.ms", "message.timestamp.difference.max.ms"),
    _of_topic("log.message.timestamp.type", "message.timestamp.type"),
    _of_topic("log.preallocate", "preallocate"),
    _of_topic("log.retention.bytes", "retention.bytes"),
    # 0 would soon empty every topic. Kafka refuses it for a broker (KafkaConfig.validateValues) but not for a topic.
    _of_topic("log.retention.ms", "retention.ms", default="", zero=False),
    _of_topic("log.retention.minutes", "retention.ms", unit=MINUTE_MS, default="", zero=False),
    _of_topic("log.retention.hours", "retention.ms", unit=HOUR_MS, default="168", zero=False),
    _of_topic("log.roll.ms", "segment.ms", default=""),
    _of_topic("log.roll.hours", "segment.ms", unit=HOUR_MS, default="168"),
    _of_topic("log.roll.jitter.ms", "segment.jitter.ms", default=""),
    _of_topic("log.roll.jitter.hours", "segment.jitter.ms", unit=HOUR_MS, default="0"),
    _of_topic("log.segment.bytes", "segment.bytes"),
    _of_topic("log.segment.delete.delay.ms", "file.delete.delay.ms"),
    _of_topic("message.max.bytes", "max.message.bytes", setting="message.max.bytes"),
    _of_topic("min.insync.replicas", "min.insync.replicas"),
    _of_topic("siltstone.forced.dirty.bytes.min", "siltstone.forced.dirty.bytes.min"),
    _of_topic("siltstone.forced.dirty.wait.ms", "siltstone.forced.dirty.wait.ms"),
    _of_topic("siltstone.forced.interval.ms", "siltstone.forced.interval.ms"),
    _of_topic("siltstone.metrics.partitions", "siltstone.metrics.partitions"),
    _of_topic("unclean.leader.election.enable", "unclean.leader.election.enable"),
)

_SETTINGS = (
    _setting("auto.create.topics.enable", _BOOLEAN),
    _setting("broker.rack", _STRING, "agent.zone"),
    _setting("fetch.max.bytes", _INT),
    _setting("group.initial.rebalance.delay.ms", _INT),
    _setting("group.max.session.timeout.ms", _INT),
    _setting("group.max.size", _INT),
    _setting("group.min.session.timeout.ms", _INT),
    BrokerConfig(
        name=RETENTION_CHECK,
        type=_LONG,
        default="",
        doc="How often retention is applied. Unset, each compactor's setting retention.check.interval.ms counts. "
        "Compactors look for a new value every 5 s, and a shorter interval counts as 5 s.",
        effective=True,
        least=1,
        most=LONG_MAX,
        setting="retention.check.interval.ms",
    ),
    _setting("max.connections", _INT, "connections.max"),
    _setting("num.partitions", _INT),
    _setting("offsets.retention.minutes", _INT, "offsets.retention.ms", unit=MINUTE_MS),
    _setting("producer.id.expiration.ms", _INT),
    _setting("socket.request.max.bytes", _INT),
    _setting("transaction.max.timeout.ms", _INT),
    _setting("transactional.id.expiration.ms", _INT),
)

_FIXED = (
    _fixed(
        "default.replication.factor",
        _INT,
        1,
        "Replicas of a topic that is created without a number. The object store makes records durable.",
    ),
    _fixed("max.incremental.fetch.session.cache.slots", _INT, 1_000, "The number of fetch sessions of one agent."),
    _fixed("offset.metadata.max.bytes", _INT, 4_096, "The longest metadata text of a committed offset."),
    _fixed("offsets.retention.check.interval.ms", _LONG, 600_000, "How often an agent deletes expired offsets."),
)

_IDLE = (
    _idle("background.threads", _INT, 10, _THREADS, least=1),
    _idle(
        "log.cleaner.backoff.ms", _LONG, 15_000, f"{_CLEANER}; an idle compactor looks for work every second.", least=0
    ),
    _idle("log.cleaner.dedupe.buffer.size", _LONG, 134_217_728, f"{_CLEANER}: dedupe.keys.max.", least=0),
    _idle("log.cleaner.enable", _BOOLEAN, True, f"{_CLEANER}; they always compact.", dynamic=False),
    _idle("log.cleaner.io.buffer.load.factor", _DOUBLE, 0.9, f"{_CLEANER}.", least=0),
    _idle("log.cleaner.io.buffer.size", _INT, 524_288, f"{_CLEANER}: compactor.memory.bytes.", least=0),
    _idle("log.cleaner.io.max.bytes.per.second", _DOUBLE, _DOUBLE_MAX, f"{_CLEANER}.", least=0),
    _idle("log.cleaner.threads", _INT, 1, f"{_CLEANER}: compactor.jobs.max.", least=0),
    _idle("log.flush.offset.checkpoint.interval.ms", _INT, 60_000, _NO_DISK, least=0, dynamic=False),
    _idle("log.flush.start.offset.checkpoint.interval.ms", _INT, 60_000, _NO_DISK, least=0, dynamic=False),
    _idle("num.io.threads", _INT, 8, _THREADS, least=1),
    _idle("num.network.threads", _INT, 3, _THREADS, least=1),
    _idle("num.recovery.threads.per.data.dir", _INT, 2, _THREADS, least=1),
    _idle("num.replica.fetchers", _INT, 1, _NO_REPLICAS, least=0),
    _idle("remote.fetch.max.wait.ms", _INT, 500, _REMOTE, least=1),
    _idle("remote.list.offsets.request.timeout.ms", _LONG, 30_000, _REMOTE, least=1),
    _idle("remote.log.index.file.cache.total.size.bytes", _LONG, 1_073_741_824, _REMOTE, least=1),
    _idle("remote.log.manager.copier.thread.pool.size", _INT, 10, _REMOTE, least=-1),
    _idle("remote.log.manager.copy.max.bytes.per.second", _LONG, LONG_MAX, _REMOTE, least=1),
    _idle("remote.log.manager.copy.quota.window.num", _INT, 11, _REMOTE, least=1, dynamic=False),
    _idle("remote.log.manager.copy.quota.window.size.seconds", _INT, 1, _REMOTE, least=1, dynamic=False),
    _idle("remote.log.manager.expiration.thread.pool.size", _INT, 10, _REMOTE, least=-1),
    _idle("remote.log.manager.fetch.max.bytes.per.second", _LONG, LONG_MAX, _REMOTE, least=1),
    _idle("remote.log.manager.fetch.quota.window.num", _INT, 11, _REMOTE, least=1, dynamic=False),
    _idle("remote.log.manager.fetch.quota.window.size.seconds", _INT, 1, _REMOTE, least=1, dynamic=False),
    _idle("remote.log.manager.follower.thread.pool.size", _INT, 2, _REMOTE, least=1),
    _idle("remote.log.manager.task.interval.ms", _LONG, 30_000, _REMOTE, least=1, dynamic=False),
    _idle("remote.log.manager.task.retry.backoff.max.ms", _LONG, 30_000, _REMOTE, least=1, dynamic=False),
    _idle("remote.log.manager.task.retry.backoff.ms", _LONG, 500, _REMOTE, least=1, dynamic=False),
    _idle("remote.log.manager.task.retry.jitter", _DOUBLE, 0.2, _REMOTE, least=0, dynamic=False),
    _idle("remote.log.manager.thread.pool.size", _INT, 2, _REMOTE, least=1),
    _idle("remote.log.metadata.custom.metadata.max.bytes", _INT, 128, _REMOTE, least=0, dynamic=False),
    _idle("remote.log.metadata.manager.class.name", _STRING, "", _REMOTE, dynamic=False),
    _idle("remote.log.metadata.manager.class.path", _STRING, "", _REMOTE, dynamic=False),
    _idle("remote.log.metadata.manager.impl.prefix", _STRING, "rlmm.config.", _REMOTE, dynamic=False),
    _idle("remote.log.metadata.manager.listener.name", _STRING, "", _REMOTE, dynamic=False),
    _idle("remote.log.reader.max.pending.tasks", _INT, 100, _REMOTE, least=1, dynamic=False),
    _idle("remote.log.reader.threads", _INT, 10, _REMOTE, least=1),
    _idle("remote.log.storage.manager.class.name", _STRING, "", _REMOTE, dynamic=False),
    _idle("remote.log.storage.manager.class.path", _STRING, "", _REMOTE, dynamic=False),
    _idle("remote.log.storage.manager.impl.prefix", _STRING, "rsm.config.", _REMOTE, dynamic=False),
    _idle("remote.log.storage.system.enable", _BOOLEAN, False, _REMOTE, dynamic=False),
)

BROKER_CONFIGS: Mapping[str, BrokerConfig] = {
    config.name: config for config in (*_DEFAULTS_OF_TOPICS, *_SETTINGS, *_FIXED, *_IDLE)
}
"""Every broker config by Kafka's name. The synonyms of one topic config are in order of precedence."""


def _synonyms() -> dict[str, tuple[BrokerConfig, ...]]:
    found: dict[str, tuple[BrokerConfig, ...]] = {}
    for config in _DEFAULTS_OF_TOPICS:
        found[config.topic] = (*found.get(config.topic, ()), config)
    return found


SYNONYMS: Mapping[str, tuple[BrokerConfig, ...]] = _synonyms()
"""Topic config -> the broker configs that give its default, in order of precedence."""


def topic_defaults(broker_configs: Mapping[str, str]) -> dict[str, str]:
    """The topic defaults that follow from checked cluster-wide broker configs, by topic config."""
    found: dict[str, str] = {}
    for config in _DEFAULTS_OF_TOPICS:
        # The first synonym that is set wins: the table is in order of precedence.
        if config.topic not in found and (value := broker_configs.get(config.name)) is not None:
            found[config.topic] = as_topic_value(config, value)
    return found


def retention_check_ms(broker_configs: Mapping[str, str]) -> int | None:
    """How often retention is applied, by checked cluster-wide broker configs; None = as each compactor is set."""
    value = broker_configs.get(RETENTION_CHECK)
    return None if value is None else int(value)


def as_topic_value(config: BrokerConfig, value: str) -> str:
    """The value in the topic config's unit. A negative number means no limit in every unit, so it becomes -1."""
    if config.unit == 1:
        return value
    number = int(value)
    return str(number * config.unit if number >= 0 else -1)


class StaticConfigError(InvalidConfigError):
    """The broker config cannot be altered while the processes run. Nothing was changed."""


def validate_broker_configs(
    changed: Mapping[str, str | None], configs: Mapping[str, str], present: Mapping[str, str] | None = None
) -> None:
    """Check an alteration of the cluster-wide broker configs.

    Args:
        changed: the new values by name; None = back to the default.
        configs: all configs that are set after the change.
        present: all configs that are set now. If these contradict each other already, only a change of one of them
            raises.

    Raises StaticConfigError, and InvalidConfigError for a config that is unknown, malformed, out of range or
    contradictory.
    """
    for name in changed:
        config = BROKER_CONFIGS.get(name)
        if config is None:
            raise unknown_config("broker", name, BROKER_CONFIGS)
        if not config.dynamic:
            if config.setting:
                why = f"it is the setting {config.setting}, which an agent reads when it starts"
            else:
                why = "it cannot be changed while a broker runs"
            raise StaticConfigError(name, f"cannot alter broker config {name!r}: {why}")
    for name, value in configs.items():
        config = BROKER_CONFIGS[name]
        check_value(config, value)
        if not config.zero and int(value) == 0:
            raise InvalidConfigError(name, f"{name} must be at least 1, or -1 for no limit")
    try:
        validate_overrides(topic_defaults(configs), present=topic_defaults(present or {}))
    except InvalidConfigError as error:
        raise InvalidConfigError(SYNONYMS[error.name][0].name, f"invalid as defaults of topics: {error}") from error


def check_topics(
    present: Mapping[str, str], configs: Mapping[str, str], overrides: Iterable[tuple[str, Mapping[str, str]]]
) -> None:
    """Check that cluster-wide configs contradict the overrides of no topic. The configs themselves were checked before.

    Args:
        present: the configs that are set now.
        configs: the configs that will be set.
        overrides: the name and the overrides of every topic.

    Raises InvalidConfigError naming the first topic whose configs in force would contradict each other.
    """
    before, after = topic_defaults(present), topic_defaults(configs)
    if lags_of(before) == lags_of(after):
        return  # a contradiction that exists already is not this change's fault
    for topic, of_topic in overrides:
        # A topic without an override of its own follows the defaults, which were checked together.
        lags = {name: value for name, value in of_topic.items() if name in LAGS}
        if not lags:
            continue
        try:
            check_lags({**after, **lags})
        except InvalidConfigError as error:
            name = SYNONYMS[error.name][0].name
            raise InvalidConfigError(
                name, f"the overrides of topic {topic!r} contradict this default: {error}"
            ) from error
