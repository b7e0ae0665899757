"""OffsetForLeaderEpoch: the answers to a consumer that checks its position for truncation (KIP-320)."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from metadata.contract.errors import MetadataUnavailableError
from siltstone.kafka.client import KafkaClient
from storage.local import LocalStore
from tests.fixtures.agents import Dial, RawConnection, StartAgent
from tests.fixtures.fleet import Counted, fleet
from wire.error_codes import ErrorCode
from wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.records import NewRecord, build_batch


def asks(leader_epoch: int, *, current: int = -1, topic: str = "t", partition: int = 0) -> OffsetForLeaderEpochRequest:
    part = OffsetForLeaderPartition(partition=partition, current_leader_epoch=current, leader_epoch=leader_epoch)
    return OffsetForLeaderEpochRequest(replica_id=-1, topics=[OffsetForLeaderTopic(topic=topic, partitions=[part])])


async def end(raw: RawConnection, request: OffsetForLeaderEpochRequest, version: int = 4) -> EpochEndOffset:
    [topic] = (await raw.call(request, OffsetForLeaderEpochResponse, version)).topics
    [part] = topic.partitions
    assert topic.topic == request.topics[0].topic
    assert part.partition == request.topics[0].partitions[0].partition
    return part


class Away(Counted):
    """Hints are lost, and the watermarks cannot be read while it is away."""

    away = False

    async def notify(self) -> None:
        return None

    async def watermarks(self, partition_ids: Sequence[int]) -> Any:
        if self.away:
            raise MetadataUnavailableError("away")
        return await self.inner.agents.watermarks(partition_ids)


def batch() -> bytes:
    return build_batch([NewRecord(int(time.time() * 1000), None, b"v")])


@pytest.mark.parametrize("version", [2, 3, 4])
async def test_epoch_0_ends_where_the_log_does_and_no_other_is_known(
    client: KafkaClient, raw: RawConnection, version: int
) -> None:
    await client.create_topic("t", partitions=1)
    for expected in (0, 1, 2):
        found = await end(raw, asks(0, current=0), version)
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, 0, expected)
        await client.produce("t", 0, batch())
    for leader_epoch in (1, 7, -1):
        found = await end(raw, asks(leader_epoch), version)
        assert (found.error_code, found.leader_epoch, found.end_offset) == (0, -1, -1)


@pytest.mark.parametrize(
    ("request_", "error"),
    [
        (asks(0, topic="nope"), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (asks(0, partition=7), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (asks(0, partition=-1), ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (asks(0, current=1), ErrorCode.UNKNOWN_LEADER_EPOCH),
    ],
    ids=["topic", "partition", "negative partition", "an epoch of the future"],
)
async def test_what_is_not_there_is_refused(
    client: KafkaClient, raw: RawConnection, request_: OffsetForLeaderEpochRequest, error: ErrorCode
) -> None:
    await client.create_topic("t", partitions=1)
    found = await end(raw, request_)
    assert (found.error_code, found.leader_epoch, found.end_offset) == (error, -1, -1)


async def test_an_agent_that_lags_takes_no_record_for_lost(start_agent: StartAgent, tmp_path: Path, dial: Dial) -> None:
    """An end below the client's position would make it jump back or stop."""
    async with fleet(start_agent, 2, store=LocalStore(tmp_path / "objects"), tail_poll_ms=60_000, wrap=Away) as agents:
        client, raw = await dial.kafka(agents[0].address), await dial.raw(agents[1].address)
        await client.create_topic("t", partitions=1)
        await (await dial.kafka(agents[1].address)).topic("t")  # it looks for what it has not heard of
        for _ in range(3):
            await client.produce("t", 0, batch())
        log = agents[1].agent._index.partition(1)
        assert log is not None and log.end == 0, "it has seen none of them"
        assert (await end(raw, asks(0))).end_offset == 3
        # and: when nobody can say, the client asks again
        agents.services[1].away = True
        assert (await end(raw, asks(0))).error_code == ErrorCode.LEADER_NOT_AVAILABLE
        agents.services[1].away = False
        assert (await end(raw, asks(0))).end_offset == 3
