"""Kafka's topic configs: names, types, defaults, valid values, and whether they have an effect here.

A topic stores only overrides (`Topic.configs`). `resolve` lays them over Kafka's defaults; a caller that has the
cluster-wide defaults of `metadata/configs/broker.py` lays the overrides over these first. Configs that steer a broker's
disks or replicas are accepted, stored and described, because tools set them; they are marked `effective=False`.

Defaults and ranges are those of Kafka 4 (`org.apache.kafka.storage.internals.log.LogConfig`). The table also has the
names that Kafka 3.9 had and Kafka 4 dropped.
"""

from __future__ import annotations

from collections.abc import Mapping

from metadata.configs.values import (
    INT_MAX,
    LONG_MAX,
    Config,
    ConfigType,
    InvalidConfigError,
    as_bool,
    as_float,
    as_int,
    as_list,
    check_value,
    unknown_config,
)

__all__ = [
    "LAGS",
    "TOPIC_CONFIGS",
    "Config",
    "ConfigType",
    "InvalidConfigError",
    "as_bool",
    "as_float",
    "as_int",
    "as_list",
    "check_lags",
    "lags_of",
    "resolve",
    "validate_overrides",
]


def _int(name: str, default: int, doc: str, *, least: int, most: int = INT_MAX, effective: bool = False) -> Config:
    return Config(
        name=name, type=ConfigType.INT, default=str(default), doc=doc, effective=effective, least=least, most=most
    )


def _long(name: str, default: int, doc: str, *, least: int, effective: bool = False) -> Config:
    return Config(
        name=name, type=ConfigType.LONG, default=str(default), doc=doc, effective=effective, least=least, most=LONG_MAX
    )


def _forced(name: str, setting: str, *, least: int) -> Config:
    doc = f"{setting} for this topic; -1 = as the compactors' setting says."
    return _long(name, -1, doc, least=least, effective=True)


def _bool(name: str, default: bool, doc: str) -> Config:
    return Config(name=name, type=ConfigType.BOOLEAN, default="true" if default else "false", doc=doc, effective=False)


def _throttle(name: str) -> Config:
    doc = "Replicas whose replication traffic is throttled, as `partition:broker`, or `*`. Nothing is replicated here."
    pattern = r"\*|[0-9]+:[0-9]+"
    return Config(name=name, type=ConfigType.LIST, default="", doc=doc, effective=False, pattern=pattern)


_NO_REMOTE_TIER = "Steers Kafka's tiered storage. Here every record is in the object store anyway."
_NO_LOCAL_TIER = "How much of a tiered topic a broker keeps on its disk. Agents have no disks, only caches."
_OLD_FORMATS = "Concerns old message formats, which Kafka 4 dropped. Agents convert nothing."
_NO_INDEX_FILE = "Steers index files on a broker's disk. Agents have no such files."
_NO_FLUSH = "Forces a broker to fsync. Here every record is durable before it is acknowledged."

_ALL = (
    Config(
        name="cleanup.policy",
        type=ConfigType.LIST,
        default="delete",
        doc="'delete' drops old records by time and size. 'compact' keeps the latest record of every key, and refuses"
        " records without a key. A topic may have both. An empty list keeps everything.",
        effective=True,
        choices=("compact", "delete"),
    ),
    _int("compression.gzip.level", -1, "Level when a broker recompresses. Agents never do.", least=-1, most=9),
    _int("compression.lz4.level", 9, "Level when a broker recompresses. Agents never do.", least=1, most=17),
    Config(
        name="compression.type",
        type=ConfigType.STRING,
        default="producer",
        doc="Codec to which a broker recompresses. Here records stay as the producer sent them.",
        effective=False,
        choices=("uncompressed", "zstd", "lz4", "snappy", "gzip", "producer"),
    ),
    _int("compression.zstd.level", 3, "Level when a broker recompresses. Agents never do.", least=-131072, most=22),
    _long(
        "delete.retention.ms",
        86_400_000,
        "How long a tombstone stays readable after the first dedupe pass that could remove it.",
        least=0,
        effective=True,
    ),
    _long("file.delete.delay.ms", 60_000, "Delay before a broker deletes a file. Here gc.grace.ms decides.", least=0),
    _long("flush.messages", LONG_MAX, _NO_FLUSH, least=1),
    _long("flush.ms", LONG_MAX, _NO_FLUSH, least=0),
    _throttle("follower.replication.throttled.replicas"),
    _int("index.interval.bytes", 4096, _NO_INDEX_FILE, least=0),
    _throttle("leader.replication.throttled.replicas"),
    _long("local.retention.bytes", -2, _NO_LOCAL_TIER, least=-2),
    _long("local.retention.ms", -2, _NO_LOCAL_TIER, least=-2),
    _long(
        "max.compaction.lag.ms",
        LONG_MAX,
        "When a record of a compacted topic was committed this long ago and no pass has taken it, a pass begins,"
        " whatever the dirty ratio and forced.interval.ms say.",
        least=1,
        effective=True,
    ),
    _int(
        "max.message.bytes",
        1_048_588,
        "The largest record batch that is accepted, as sent (compressed, with its header).",
        least=0,
        effective=True,
    ),
    _bool("message.downconversion.enable", True, _OLD_FORMATS),
    Config(
        name="message.format.version",
        type=ConfigType.STRING,
        default="3.0-IV1",
        doc=_OLD_FORMATS,
        effective=False,
        pattern=r"[0-9]+(\.[0-9]+){1,3}(-IV[0-9]+)?",
    ),
    _long(
        "message.timestamp.after.max.ms",
        3_600_000,
        "How far a CreateTime timestamp may be ahead of the agent's clock.",
        least=0,
        effective=True,
    ),
    _long(
        "message.timestamp.before.max.ms",
        LONG_MAX,
        "How far a CreateTime timestamp may be behind the agent's clock.",
        least=0,
        effective=True,
    ),
    _long(
        "message.timestamp.difference.max.ms",
        LONG_MAX,
        "Kafka 4 dropped it. Set message.timestamp.before.max.ms and message.timestamp.after.max.ms.",
        least=0,
    ),
    Config(
        name="message.timestamp.type",
        type=ConfigType.STRING,
        default="CreateTime",
        doc="Whether records carry the producer's time or the time of the append.",
        effective=True,
        choices=("CreateTime", "LogAppendTime"),
    ),
    Config(
        name="min.cleanable.dirty.ratio",
        type=ConfigType.DOUBLE,
        default="0.5",
        doc="The share of a compacted log that must be uncompacted before a dedupe pass is forced.",
        effective=True,
        least=0.0,
        most=1.0,
    ),
    _long(
        "min.compaction.lag.ms",
        0,
        "The shortest time that a record of a compacted topic stays uncompacted.",
        least=0,
        effective=True,
    ),
    _int("min.insync.replicas", 1, "Replicas that an acknowledgement waits for. The object store replicates.", least=1),
    _bool("preallocate", False, _NO_INDEX_FILE),
    _bool("remote.log.copy.disable", False, _NO_REMOTE_TIER),
    _bool("remote.log.delete.on.disable", False, _NO_REMOTE_TIER),
    _bool(
        "remote.storage.enable",
        False,
        "Whether a topic's records are moved to the object store. Here all records are there, of every topic.",
    ),
    _long(
        "retention.bytes",
        -1,
        "Per partition: the oldest extents are deleted while the rest is at least this large; -1 = no limit.",
        least=-1,
        effective=True,
    ),
    _long(
        "retention.ms",
        604_800_000,
        "Extents whose newest record is older than this are deleted; -1 = no limit.",
        least=-1,
        effective=True,
    ),
    _int(
        "segment.bytes",
        1_073_741_824,
        "The largest extent of a partition in a merged file; also the largest batch that is accepted.",
        least=1_048_576,
        effective=True,
    ),
    _int("segment.index.bytes", 10_485_760, _NO_INDEX_FILE, least=4),
    _long("segment.jitter.ms", 0, "Spreads segment rolls over time. Here the planner spreads merges.", least=0),
    _long(
        "segment.ms",
        604_800_000,
        "The longest span of time in an extent of a merged file, so that old records can expire.",
        least=1,
        effective=True,
    ),
    _forced("siltstone.forced.dirty.bytes.min", "forced.dirty.bytes.min", least=-1),
    _forced("siltstone.forced.dirty.wait.ms", "forced.dirty.wait.ms", least=-1),
    _forced("siltstone.forced.interval.ms", "forced.interval.ms", least=-1),
    Config(
        name="siltstone.metrics.partitions",
        type=ConfigType.BOOLEAN,
        default="false",
        doc="Whether the compactor shows dirty ratio, extents and last pass of each partition as metrics.",
        effective=True,
    ),
    _bool("unclean.leader.election.enable", False, "Elects a stale replica. There are no replicas here."),
)

TOPIC_CONFIGS: Mapping[str, Config] = {config.name: config for config in _ALL}
"""Every topic config by Kafka's name."""

LAGS = ("min.compaction.lag.ms", "max.compaction.lag.ms")
"""The least and the greatest compaction lag: the only configs that can contradict each other."""

_DEFAULTS = {config.name: config.default for config in _ALL}


def validate_overrides(
    overrides: Mapping[str, str],
    defaults: Mapping[str, str] | None = None,
    present: Mapping[str, str] | None = None,
) -> None:
    """Raises InvalidConfigError naming the first config that is unknown, malformed, out of range or contradictory.

    `defaults`: the cluster-wide defaults, by topic config; they replace Kafka's. `present`: the topic's overrides
    before the change. Two alterations at the same time may leave configs that contradict each other. Only a change of
    one of these configs raises then; otherwise no other config of the topic could be altered either.
    """
    for name, value in overrides.items():
        config = TOPIC_CONFIGS.get(name)
        if config is None:
            raise unknown_config("topic", name, TOPIC_CONFIGS)
        check_value(config, value)
    before = present or {}
    # Only a change of the lags is judged: an old contradiction must not block the change of another config.
    if any(overrides.get(name) != before.get(name) for name in LAGS):
        check_lags({**(defaults or {}), **overrides})


def lags_of(configs: Mapping[str, str]) -> tuple[int, int]:
    """The least and the greatest compaction lag in force, in ms."""
    in_force = resolve(configs)
    least_lag, most_lag = (as_int(in_force, name) for name in LAGS)
    return least_lag, most_lag


def check_lags(configs: Mapping[str, str]) -> None:
    """Raises InvalidConfigError when no record can satisfy both compaction lags."""
    least_lag, most_lag = lags_of(configs)
    if least_lag > most_lag:
        raise InvalidConfigError(
            "min.compaction.lag.ms",
            f"min.compaction.lag.ms ({least_lag}) must not exceed max.compaction.lag.ms ({most_lag})",
        )


def resolve(overrides: Mapping[str, str]) -> Mapping[str, str]:
    """Every topic config with its value in force: the override, else Kafka's default."""
    return {**_DEFAULTS, **overrides}
