"""The newest record of a key. The Kafka protocol has no lookup by key, so this reads the log backwards, in windows that
grow: a key that was written lately costs one small read, a key that is not there costs the whole partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing

from siltstone.kafka.client import KafkaClient
from siltstone.kafka.consuming import Reach, reaches, read
from siltstone.kafka.offset_spec import Anchor, OffsetRange, Place
from siltstone.kafka.record_format import OutputRecord
from siltstone.kafka.records import Isolation, TopicPartition
from siltstone.kafka.retrying import RetryingClient

FIRST_WINDOW = 1_000
"""Offsets of the first read, at the end of the log."""
GROWTH = 4
_COMMITTED = Isolation.READ_COMMITTED
_WHOLE_LOG = OffsetRange(Place(Anchor.START))


async def committed_logs(
    client: RetryingClient, places: Sequence[TopicPartition], *, told: Callable[[str], None]
) -> Mapping[TopicPartition, Reach]:
    """The whole of each log, as far as readers of committed records get it. Raises KafkaError."""

    async def find(inner: KafkaClient) -> Mapping[TopicPartition, Reach]:
        return await reaches(inner, places, _WHOLE_LOG, to_end=True, told=told, isolation=_COMMITTED)

    return await client.run(find)


async def newest_record(
    client: RetryingClient, place: TopicPartition, reach: Reach, key: bytes, *, told: Callable[[str], None]
) -> OutputRecord | None:
    """The committed record of the key with the highest offset in the partition, within `reach`, one of
    `committed_logs`.

    Raises KafkaError, DamagedBatchError."""
    start, end = reach.position, reach.until or reach.position
    window = FIRST_WINDOW
    while end > start:
        begin = max(start, end - window)
        found: OutputRecord | None = None
        async with aclosing(read(client, {place: Reach(begin, end)}, told=told, isolation=_COMMITTED)) as batches:
            async for records in batches:
                found = next((each for each in reversed(records) if each.key == key), found)
        if found is not None:
            return found
        end, window = begin, window * GROWTH
    return None
