"""ListOffsets of an agent that lags behind the store, and the lists of its oldest version."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agents.agent import Agent
from siltstone.kafka.admin import delete_records_before
from siltstone.kafka.client import KafkaClient
from storage.local import LocalStore
from tests.fixtures.agents import Dial, RawConnection, StartAgent
from tests.fixtures.fleet import HintsLost, fleet
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.records import NewRecord, build_batch

LATEST, EARLIEST, MAX_TIMESTAMP = -1, -2, -3


async def ask(
    raw: RawConnection, timestamp: int, version: int = 7, *, max_num_offsets: int = 1
) -> ListOffsetsPartitionResponse:
    part = ListOffsetsPartition(partition_index=0, timestamp=timestamp, max_num_offsets=max_num_offsets)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[part])])
    [topic] = (await raw.call(request, ListOffsetsResponse, version)).topics
    [answer] = topic.partitions
    return answer


def batch(timestamp_ms: int) -> bytes:
    return build_batch([NewRecord(timestamp_ms, None, b"v")])


async def test_a_timestamp_is_looked_up_by_an_agent_that_has_seen_all_that_is_committed(
    start_agent: StartAgent, tmp_path: Path, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Looked up before, the newest records would not be found: a consumer that begins there would miss them."""
    async with fleet(
        start_agent, 2, store=LocalStore(tmp_path / "objects"), tail_poll_ms=60_000, wrap=HintsLost
    ) as agents:
        writer, lagging = await dial.kafka(agents[0].address), agents[1].agent
        await writer.create_topic("t", partitions=1)
        await (await dial.kafka(agents[1].address)).topic("t")  # it looks for what it has not heard of
        for number, timestamp in enumerate((500, MAX_TIMESTAMP)):
            await writer.produce("t", 0, batch(1_000 + number))
            assert end_seen(lagging) == number, "it has not seen the newest record"
            # when: it is asked, then its answer waits until it has seen the record
            asking = asyncio.create_task(ask(await dial.raw(agents[1].address), timestamp))
            await until(lambda asking=asking: asking.done() or bool(lagging._parked_readers._waiting))
            assert not asking.done()
            await lagging._follower.catch_up()
            answer = await asking
            assert (answer.error_code, answer.offset, answer.timestamp) == (0, number, 1_000 + number)
        # and: when it does not see them in time, the client asks again
        await writer.produce("t", 0, batch(3_000))
        monkeypatch.setattr("agents.handlers.list_offsets.SEE_PRESENT_MS", 20.0)
        late = await ask(await dial.raw(agents[1].address), 2_500)
        assert (late.error_code, late.offset) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)


def end_seen(agent: Agent) -> int:
    log = agent._index.partition(1)
    assert log is not None
    return log.end


async def test_version_0_lists_the_starts_of_segments_newest_first(client: KafkaClient, raw: RawConnection) -> None:
    async def listed(timestamp: int, at_most: int) -> list[int]:
        return list((await ask(raw, timestamp, 0, max_num_offsets=at_most)).old_style_offsets)

    # given an empty log, then it has one place, and not the same place twice
    await client.create_topic("t", partitions=1)
    assert await listed(LATEST, 10) == [0] == await listed(EARLIEST, 10)
    # given records, then there is an end and a start
    for timestamp_ms in (1_000, 2_000, 3_000):
        await client.produce("t", 0, batch(timestamp_ms))
    assert await listed(LATEST, 10) == [3, 0]
    assert await listed(LATEST, 1) == [3] and await listed(LATEST, 0) == []
    assert await listed(EARLIEST, 10) == [0]
    # given a log that was emptied, then it has one place again
    await delete_records_before(client, {("t", 0): 3})
    assert await listed(LATEST, 10) == [3] == await listed(EARLIEST, 10)
