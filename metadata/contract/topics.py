"""Topics and the offsets that bound their partitions."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from dataclasses import dataclass

from runtime.errors import BadInputError


@dataclass(frozen=True, slots=True, kw_only=True)
class Topic:
    topic_id: uuid.UUID
    name: str
    partition_ids: tuple[int, ...]
    """The store's ids of the partitions, by partition number: `partition_ids[3]` is the id of partition 3."""
    configs: Mapping[str, str]
    """Only the overrides, by Kafka's names; defaults are in `metadata/configs/topic.py`."""
    created_ms: int
    replication_factor: int = 1
    """The number of replicas that the creator asked for. It only says how many agents are shown as replicas."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watermarks:
    """The offsets that bound a partition. `high_watermark` is the next offset to be given; `last_stable_offset` is the
    first offset of the oldest open transaction (at least the log start), or equals it."""

    partition_id: int
    log_start_offset: int
    last_stable_offset: int
    high_watermark: int


class TopicExistsError(BadInputError):
    pass


class UnknownTopicError(BadInputError):
    pass


class InvalidPartitionsError(BadInputError):
    """`create_partitions` with a count that is not above the present one."""


class TooManyPartitionsError(BadInputError):
    """The partitions of all topics together would be more than the caller allows."""


class InvalidOffsetError(BadInputError):
    """DeleteRecords with an offset above the high watermark or below zero."""


class NotCompactedError(BadInputError):
    """A request to compact a topic without `compact` in its cleanup.policy."""
