"""The log itself, as a plain reader sees it: what clients say is held against this."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import confluent_kafka

from bench.loads.clients import QUIET
from bench.steady.account import Place

TIMEOUT_S = 60.0


def ends(bootstrap: str, topic: str, partitions: int) -> Mapping[int, int]:
    """The next offset of each partition."""
    consumer = _consumer(bootstrap)
    try:
        return _ends(consumer, topic, partitions)
    finally:
        consumer.close()


def read_all(bootstrap: str, topic: str, partitions: int) -> dict[Place, str]:
    """Every record from offset 0 to the ends as they are now. Raises RuntimeError if they cannot be read."""
    consumer = _consumer(bootstrap)
    try:
        wanted = _ends(consumer, topic, partitions)
        found: dict[Place, str] = {}
        missing = {partition for partition, end in wanted.items() if end}
        consumer.assign([confluent_kafka.TopicPartition(topic, partition, 0) for partition in missing])
        while missing:
            message = consumer.poll(TIMEOUT_S)
            if message is None:
                raise RuntimeError(f"partitions {sorted(missing)} are not read to their ends")
            if message.error() is not None:
                raise RuntimeError(f"the plain reader: {message.error()}")
            place = message.partition(), message.offset()
            if place in found:
                raise RuntimeError(f"the plain reader was given {place} twice")
            found[place] = message.value().decode()
            if place[1] >= wanted[place[0]] - 1:
                missing.discard(place[0])
        return found
    finally:
        consumer.close()


def _ends(consumer: Any, topic: str, partitions: int) -> Mapping[int, int]:
    places = [confluent_kafka.TopicPartition(topic, number) for number in range(partitions)]
    return {place.partition: consumer.get_watermark_offsets(place, timeout=TIMEOUT_S)[1] for place in places}


def _consumer(bootstrap: str) -> Any:
    return confluent_kafka.Consumer(
        {
            **QUIET,
            "bootstrap.servers": bootstrap,
            "group.id": "plain-reader",
            "enable.auto.commit": False,
            "auto.offset.reset": "error",
        }
    )
