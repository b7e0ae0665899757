"""The topics that this agent knows: names, ids, partitions, configs, log starts. Pure; fed by the snapshot and the
changes.

Topics and changes are values, so a handler that holds a `Topic` keeps a consistent view while a change is applied.
`version` grows with every change that the Metadata answer can show (it does not show configs); encoded answers are
cached under it. A partition whose topic is gone answers UNKNOWN_TOPIC_OR_PARTITION at once; the janitor deletes its
bytes.
"""

from __future__ import annotations

import uuid
from bisect import bisect_left, insort
from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import repeat
from typing import Any, NamedTuple

from agents.write.validation import TopicRules
from metadata.configs.broker import topic_defaults
from metadata.configs.topic import as_int, as_list, resolve
from metadata.contract.tail import Change, ChangeKind
from metadata.contract.topics import Topic


class PartitionRef(NamedTuple):
    topic: Topic
    number: int


class TopicCache:
    def __init__(self, *, broker_defaults: Mapping[str, str] | None = None) -> None:
        self._broker_defaults = dict(broker_defaults or {})
        self._by_name: dict[str, Topic] = {}
        self._names: list[str] = []
        """The values of `_by_name`, sorted."""
        self._by_id: dict[uuid.UUID, Topic] = {}
        self._partitions: dict[int, PartitionRef] = {}
        self._rules: dict[uuid.UUID, TopicRules] = {}
        self.broker_configs: Mapping[str, str] = {}
        """The cluster-wide configs that are set, by Kafka's names."""
        self._topic_defaults: Mapping[str, str] = {}
        self.version = 0

    def load(self, topics: Iterable[Topic], broker_configs: Mapping[str, str] | None = None) -> None:
        """Start again from a snapshot."""
        made = self.empty(broker_configs or {})
        for topic in sorted(topics, key=lambda topic: topic.name):
            made.add(topic)
        self.become(made)

    def empty(self, broker_configs: Mapping[str, str]) -> TopicCache:
        """A new cache without topics. A caller fills it by `add`, in slices, and gives it to `become`."""
        made = TopicCache(broker_defaults=self._broker_defaults)
        made._set_broker_configs(broker_configs)
        return made

    def add(self, topic: Topic) -> None:
        self._put(topic)

    def become(self, other: TopicCache) -> None:
        """Hold what `other` holds, from one moment to the next. `other` must not be used any more."""
        self._by_name, self._names, self._by_id = other._by_name, other._names, other._by_id
        self._partitions, self._rules = other._partitions, other._rules
        self.broker_configs, self._topic_defaults = other.broker_configs, other._topic_defaults
        self.version += 1

    def topic(self, name: str) -> Topic | None:
        return self._by_name.get(name)

    def topic_by_id(self, topic_id: uuid.UUID) -> Topic | None:
        return self._by_id.get(topic_id)

    def topics(self) -> list[Topic]:
        """By name."""
        return [self._by_name[name] for name in self._names]

    def partition(self, partition_id: int) -> PartitionRef | None:
        return self._partitions.get(partition_id)

    @property
    def partitions_count(self) -> int:
        """The sum over all topics."""
        return len(self._partitions)

    def configs(self, topic: Topic) -> Mapping[str, str]:
        """Every config of the topic as it is in force: override, else the cluster-wide default, else our setting, else
        Kafka's default."""
        return resolve({**self._broker_defaults, **self._topic_defaults, **topic.configs})

    def rules(self, topic: Topic) -> TopicRules:
        """The rules for produced batches; computed once per change of configs."""
        known = self._rules.get(topic.topic_id)
        if known is None:
            known = self._rules[topic.topic_id] = rules_of(self.configs(topic))
        return known

    def apply(self, change: Change) -> None:
        """Take in one change."""
        if change.kind is ChangeKind.BROKER_CONFIGS_CHANGED:
            self._set_broker_configs(change.detail["configs"])
            return
        topic_id, detail = change.topic_id, change.detail
        if topic_id is None:
            return
        known = self._by_id.get(topic_id)
        match change.kind:
            case ChangeKind.TOPIC_CREATED if known is None:
                self._put(_created(topic_id, detail))
            case ChangeKind.TOPIC_DELETED if known is not None:
                self._remove(known)
            case ChangeKind.CONFIGS_CHANGED if known is not None:
                self._put(replace(known, configs=dict(detail["configs"])))
                return
            case ChangeKind.PARTITIONS_ADDED if known is not None:
                self._put(replace(known, partition_ids=tuple(detail["partition_ids"])))
            case _:
                return
        self.version += 1

    def _set_broker_configs(self, configs: Mapping[str, str]) -> None:
        self.broker_configs = dict(configs)
        self._topic_defaults = topic_defaults(configs)
        self._rules.clear()

    def _put(self, topic: Topic) -> None:
        if topic.name not in self._by_name:
            insort(self._names, topic.name)
        self._by_name[topic.name] = topic
        self._by_id[topic.topic_id] = topic
        self._rules.pop(topic.topic_id, None)
        # By C code: a topic may have 100,000, and this is one turn of the event loop.
        refs = map(PartitionRef, repeat(topic), range(len(topic.partition_ids)))
        self._partitions.update(zip(topic.partition_ids, refs, strict=True))

    def _remove(self, topic: Topic) -> None:
        del self._by_id[topic.topic_id]
        self._rules.pop(topic.topic_id, None)
        # The name may belong to a successor already, if a re-creation was seen first.
        if self._by_name.get(topic.name) is topic:
            del self._by_name[topic.name]
            del self._names[bisect_left(self._names, topic.name)]
        for partition_id in topic.partition_ids:
            self._partitions.pop(partition_id, None)


def _created(topic_id: uuid.UUID, detail: Mapping[str, Any]) -> Topic:
    return Topic(
        topic_id=topic_id,
        name=detail["name"],
        partition_ids=tuple(detail["partition_ids"]),
        configs=dict(detail["configs"]),
        created_ms=detail["created_ms"],
        # A change that was written before the upgrade to 0.3.0 does not say it.
        replication_factor=detail.get("replication_factor", 1),
    )


def rules_of(configs: Mapping[str, str]) -> TopicRules:
    """The produce rules that follow from a topic's configs in force."""
    return TopicRules(
        compacted="compact" in as_list(configs, "cleanup.policy"),
        message_bytes_max=as_int(configs, "max.message.bytes"),
        log_append_time=configs["message.timestamp.type"] == "LogAppendTime",
        timestamp_before_ms_max=as_int(configs, "message.timestamp.before.max.ms"),
        timestamp_after_ms_max=as_int(configs, "message.timestamp.after.max.ms"),
        segment_bytes=as_int(configs, "segment.bytes"),
    )
