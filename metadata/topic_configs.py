"""Kafka's topic configs: names, types, defaults, valid values, and whether they mean anything here.

A topic stores overrides only (`Topic.configs`); `resolve` lays them over the defaults. Configs that steer broker disks
or replicas are accepted, stored and described, because tools set them, and marked `effective=False`.
Defaults and ranges are those of Kafka 4 (`org.apache.kafka.storage.internals.log.LogConfig`).
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import IntEnum

from siltstone.errors import BadInputError

INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1


class ConfigType(IntEnum):
    """Kafka's DescribeConfigs type codes (ConfigDef.Type)."""

    BOOLEAN = 1
    STRING = 2
    INT = 3
    LONG = 5
    DOUBLE = 6
    LIST = 7


class InvalidConfigError(BadInputError):
    """A topic config that does not exist or may not have this value. Nothing was changed."""

    def __init__(self, name: str, message: str) -> None:
        super().__init__(message)
        self.name = name


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    name: str
    type: ConfigType
    default: str
    doc: str
    effective: bool
    """False = kept and described for tools, but nothing here acts on it."""
    least: float | None = None
    most: float | None = None
    choices: tuple[str, ...] = ()
    """For STRING: the values allowed; for LIST: the items allowed. Empty = any."""


def _number(
    type_: ConfigType, name: str, default: float, doc: str, *, least: float, most: float | None = None, effective: bool
) -> TopicConfig:
    if most is None:
        most = INT_MAX if type_ is ConfigType.INT else LONG_MAX
    return TopicConfig(
        name=name, type=type_, default=str(default), doc=doc, effective=effective, least=least, most=most
    )


def _int(name: str, default: int, doc: str, *, least: int, most: int = INT_MAX, effective: bool = False) -> TopicConfig:
    return _number(ConfigType.INT, name, default, doc, least=least, most=most, effective=effective)


def _long(name: str, default: int, doc: str, *, least: int, effective: bool = False) -> TopicConfig:
    return _number(ConfigType.LONG, name, default, doc, least=least, effective=effective)


def _bool(name: str, default: bool, doc: str) -> TopicConfig:
    return TopicConfig(
        name=name, type=ConfigType.BOOLEAN, default="true" if default else "false", doc=doc, effective=False
    )


def _throttle(name: str) -> TopicConfig:
    doc = "Replicas whose replication traffic is throttled. There is no replication here."
    return TopicConfig(name=name, type=ConfigType.LIST, default="", doc=doc, effective=False)


_NO_REMOTE_TIER = "Steers Kafka's tiered storage. Every record is in the object store here already."
_NO_INDEX_FILE = "Steers the index files of a broker's disk. There are none here."
_NO_FLUSH = "Forces a broker to fsync. A record is durable here before it is acknowledged."

_ALL = (
    TopicConfig(
        name="cleanup.policy",
        type=ConfigType.LIST,
        default="delete",
        doc="'delete' drops old records by time and size, 'compact' keeps the latest record of every key, both do both;"
        " an empty list keeps everything. 'compact' refuses records without a key.",
        effective=True,
        choices=("compact", "delete"),
    ),
    _int("compression.gzip.level", -1, "Level when a broker recompresses; never done on produce.", least=-1, most=9),
    _int("compression.lz4.level", 9, "Level when a broker recompresses; never done on produce.", least=1, most=17),
    TopicConfig(
        name="compression.type",
        type=ConfigType.STRING,
        default="producer",
        doc="Codec a broker would recompress to. Records are kept here as the producer sent them.",
        effective=False,
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    _int(
        "compression.zstd.level", 3, "Level when a broker recompresses; never done on produce.", least=-131072, most=22
    ),
    _long(
        "delete.retention.ms",
        86_400_000,
        "How long a tombstone stays readable after the first pass that could remove it.",
        least=0,
        effective=True,
    ),
    _long("file.delete.delay.ms", 60_000, "Delay before a broker unlinks a file; here gc.grace.ms rules.", least=0),
    _long("flush.messages", LONG_MAX, _NO_FLUSH, least=1),
    _long("flush.ms", LONG_MAX, _NO_FLUSH, least=0),
    _throttle("follower.replication.throttled.replicas"),
    _int("index.interval.bytes", 4096, _NO_INDEX_FILE, least=0),
    _throttle("leader.replication.throttled.replicas"),
    _long("local.retention.bytes", -2, _NO_REMOTE_TIER, least=-2),
    _long("local.retention.ms", -2, _NO_REMOTE_TIER, least=-2),
    _long(
        "max.compaction.lag.ms",
        LONG_MAX,
        "A record of a compacted topic is compacted at the latest this long after it was written.",
        least=1,
        effective=True,
    ),
    _int(
        "max.message.bytes",
        1_048_588,
        "Largest record batch accepted, as sent (compressed, with its header).",
        least=0,
        effective=True,
    ),
    _bool("message.downconversion.enable", True, "Old message formats. Nothing is converted here."),
    _long(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far a CreateTime timestamp may lie ahead of the agent's clock.",
        least=0,
        effective=True,
    ),
    _long(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a CreateTime timestamp may lie behind the agent's clock.",
        least=0,
        effective=True,
    ),
    TopicConfig(
        name="message.timestamp.type",
        type=ConfigType.STRING,
        default="CreateTime",
        doc="Whether records carry the producer's time or the time they were appended.",
        effective=True,
        choices=("CreateTime", "LogAppendTime"),
    ),
    TopicConfig(
        name="min.cleanable.dirty.ratio",
        type=ConfigType.DOUBLE,
        default="0.5",
        doc="Share of a compacted log that must be uncompacted before a pass is forced.",
        effective=True,
        least=0.0,
        most=1.0,
    ),
    _long(
        "min.compaction.lag.ms",
        0,
        "A record of a compacted topic stays uncompacted at least this long.",
        least=0,
        effective=True,
    ),
    _int("min.insync.replicas", 1, "Replicas an acknowledgement waits for. The object store replicates.", least=1),
    _bool("preallocate", False, _NO_INDEX_FILE),
    _bool("remote.log.copy.disable", False, _NO_REMOTE_TIER),
    _bool("remote.log.delete.on.disable", False, _NO_REMOTE_TIER),
    _bool("remote.storage.enable", False, _NO_REMOTE_TIER),
    _long(
        "retention.bytes",
        -1,
        "Per partition: old extents go while what remains is at least this large; -1 = no limit.",
        least=-1,
        effective=True,
    ),
    _long(
        "retention.ms",
        604_800_000,
        "Extents whose newest record is older go; -1 = no limit.",
        least=-1,
        effective=True,
    ),
    _int(
        "segment.bytes",
        1_073_741_824,
        "Largest extent of a partition in a merged file; also the largest batch accepted.",
        least=1_048_576,
        effective=True,
    ),
    _int("segment.index.bytes", 10_485_760, _NO_INDEX_FILE, least=4),
    _long("segment.jitter.ms", 0, "Spreads segment rolls over time. Merges are spread by the planner here.", least=0),
    _long(
        "segment.ms",
        604_800_000,
        "Longest span of time an extent of a merged file may hold, so that old records can expire.",
        least=1,
        effective=True,
    ),
    _bool("unclean.leader.election.enable", False, "Elects a stale replica. There are no replicas here."),
)

TOPIC_CONFIGS: Mapping[str, TopicConfig] = {config.name: config for config in _ALL}
"""Every topic config by Kafka's name."""

_DEFAULTS = {config.name: config.default for config in _ALL}
_INTEGER = re.compile(r"[+-]?[0-9]+")


def validate_overrides(overrides: Mapping[str, str]) -> None:
    """Raises InvalidConfigError naming the first config that is unknown, malformed, out of range or contradictory."""
    for name, value in overrides.items():
        config = TOPIC_CONFIGS.get(name)
        if config is None:
            near = difflib.get_close_matches(name, TOPIC_CONFIGS, n=1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InvalidConfigError(name, f"unknown topic config {name!r}{hint}")
        _check_value(config, value)
    least_lag = as_int(resolve(overrides), "min.compaction.lag.ms")
    most_lag = as_int(resolve(overrides), "max.compaction.lag.ms")
    if least_lag > most_lag:
        raise InvalidConfigError(
            "min.compaction.lag.ms",
            f"min.compaction.lag.ms ({least_lag}) must not exceed max.compaction.lag.ms ({most_lag})",
        )


def resolve(overrides: Mapping[str, str]) -> Mapping[str, str]:
    """Every topic config with the value in force: the override, else the default."""
    return {**_DEFAULTS, **overrides}


def as_int(configs: Mapping[str, str], name: str) -> int:
    """An INT or LONG of a resolved mapping. Raises InvalidConfigError when it is none."""
    value = configs[name].strip()
    if not _INTEGER.fullmatch(value):
        raise InvalidConfigError(name, f"{name}={value!r} is not a whole number")
    return int(value)


def as_float(configs: Mapping[str, str], name: str) -> float:
    """A DOUBLE of a resolved mapping. Raises InvalidConfigError when it is none."""
    try:
        return float(configs[name])
    except ValueError as error:
        raise InvalidConfigError(name, f"{name}={configs[name]!r} is not a number") from error


def as_bool(configs: Mapping[str, str], name: str) -> bool:
    """A BOOLEAN of a resolved mapping; Kafka takes any case. Raises InvalidConfigError when it is none."""
    value = configs[name].strip().lower()
    if value not in {"true", "false"}:
        raise InvalidConfigError(name, f"{name}={configs[name]!r} is neither 'true' nor 'false'")
    return value == "true"


def as_list(configs: Mapping[str, str], name: str) -> tuple[str, ...]:
    """The items of a LIST of a resolved mapping, in order, without blanks."""
    return tuple(item.strip() for item in configs[name].split(",") if item.strip())


def _check_value(config: TopicConfig, value: str) -> None:
    """Raises InvalidConfigError when `value` is malformed or outside the config's range."""
    one = {config.name: value}
    match config.type:
        case ConfigType.BOOLEAN:
            as_bool(one, config.name)
        case ConfigType.INT | ConfigType.LONG:
            _check_range(config, as_int(one, config.name))
        case ConfigType.DOUBLE:
            _check_range(config, as_float(one, config.name))
        case ConfigType.STRING:
            _check_choice(config, value)
        case ConfigType.LIST:
            for item in as_list(one, config.name):
                _check_choice(config, item)


def _check_range(config: TopicConfig, number: float) -> None:
    above = config.least is None or number >= config.least
    below = config.most is None or number <= config.most
    if not (above and below):  # also refuses NaN
        raise InvalidConfigError(config.name, f"{config.name}={number} lies outside [{config.least}, {config.most}]")


def _check_choice(config: TopicConfig, value: str) -> None:
    if config.choices and value not in config.choices:
        allowed = ", ".join(config.choices)
        raise InvalidConfigError(config.name, f"{config.name}: {value!r} is not one of {allowed}")
