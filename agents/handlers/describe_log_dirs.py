"""DescribeLogDirs 1-4 (KIP-113): one "log dir", the object store, and the bytes that every partition takes in it.

Clients ask every broker and add up, so each partition is listed by one agent alone: the one that is named as its leader
to clients without a zone. A size counts the bytes of live record batches: in L0 files by this agent's index, in merged
files by the metadata store. Indexes, footers, and dead files that are not deleted yet are not counted. A merge between
the two readings may be counted twice or not at all. Volumes have no size here (-1).
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping

from agents.broker import Broker
from agents.placement import leaders
from agents.security.refusals import cluster_refusal
from agents.topics.rules import code_of
from metadata.contract.topics import Topic
from runtime.errors import SiltstoneError
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)

LOG_DIR = "object-store"
PARTITIONS_AT_ONCE = 1_000
"""Partitions looked at before the event loop gets a turn."""


async def handle(broker: Broker, header: RequestHeader, request: DescribeLogDirsRequest) -> DescribeLogDirsResponse:
    if (refused := cluster_refusal(broker.rights(), Operation.DESCRIBE)) is not None:
        # Versions below 3 cannot tell the error: there is no log dir to see.
        return DescribeLogDirsResponse(error_code=refused.code)
    result = DescribeLogDirsResult(log_dir=LOG_DIR, total_bytes=-1, usable_bytes=-1)
    try:
        # Files that other agents have just committed count too: who asks may have written through one of those.
        await broker.follower.catch_up()
        listed = await _listed(broker, request)
        leveled = await broker.metadata.agents.leveled_bytes([_id(topic, number) for topic, number in listed])
        result.topics = await _described(broker, listed, leveled)
    except SiltstoneError as error:
        result.error_code = code_of(error)
    return DescribeLogDirsResponse(results=[result])


async def _listed(broker: Broker, request: DescribeLogDirsRequest) -> list[tuple[Topic, int]]:
    """The requested partitions that this agent lists, by topic."""
    ours: list[tuple[Topic, int]] = []
    agents = broker.membership.agents  # of one instant: the same agents judge each partition
    seen = 0
    for topic, wanted in list(_asked(broker, request)):
        count = len(topic.partition_ids)
        for first in range(0, count, PARTITIONS_AT_ONCE):
            numbers = range(first, min(first + PARTITIONS_AT_ONCE, count))
            ours += [
                (topic, number)
                for number, leader in zip(numbers, leaders(topic.topic_id, numbers, agents), strict=True)
                if leader == broker.membership.node_id and (wanted is None or number in wanted)
            ]
            seen += len(numbers)
            if seen >= PARTITIONS_AT_ONCE:
                seen = 0
                await asyncio.sleep(0)
    return ours


def _asked(broker: Broker, request: DescribeLogDirsRequest) -> Iterator[tuple[Topic, set[int] | None]]:
    """Topics with the requested partitions, None = all. Partitions that do not exist are left out, as in Kafka."""
    if request.topics is None:
        yield from ((topic, None) for topic in broker.topic_cache.topics())
        return
    wanted: dict[str, set[int]] = {}
    for asked in request.topics:
        wanted.setdefault(asked.topic, set()).update(asked.partitions)
    for name, numbers in wanted.items():
        topic = broker.topic_cache.topic(name)
        if topic is not None:
            yield topic, numbers


async def _described(
    broker: Broker, listed: list[tuple[Topic, int]], leveled: Mapping[int, int]
) -> list[DescribeLogDirsTopic]:
    topics: dict[str, DescribeLogDirsTopic] = {}
    for count, (topic, number) in enumerate(listed, start=1):
        partition_id = _id(topic, number)
        log = broker.index.partition(partition_id)
        described = topics.setdefault(topic.name, DescribeLogDirsTopic(name=topic.name))
        described.partitions.append(
            DescribeLogDirsPartition(
                partition_index=number,
                partition_size=leveled.get(partition_id, 0) + (0 if log is None else log.bytes),
            )
        )
        if count % PARTITIONS_AT_ONCE == 0:
            await asyncio.sleep(0)
    return list(topics.values())


def _id(topic: Topic, number: int) -> int:
    return topic.partition_ids[number]
