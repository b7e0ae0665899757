"""Fetch sessions over the wire: what a client of one sees of an agent, beside what full fetches see."""

from __future__ import annotations

import asyncio
import random
import time
from uuid import UUID

import pytest

from siltstone.kafka.client import KafkaClient
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent, records_of
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from wire.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)
from wire.records import NewRecord, build_batch
from wire.schema import ZERO_UUID

VERSION = 12


def batch(value: bytes) -> bytes:
    return build_batch([NewRecord(int(time.time() * 1000), None, value)])


def asks(
    *places: tuple[int, int],
    session_id: int = 0,
    epoch: int = 0,
    forgets: tuple[int, ...] = (),
    wait_ms: int = 0,
    topic: str = "t",
    topic_id: UUID = ZERO_UUID,
) -> FetchRequest:
    """`places`: partitions, and the offsets to read from."""
    parts = [FetchPartition(partition=at, fetch_offset=offset, partition_max_bytes=1 << 20) for at, offset in places]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=1,
        session_id=session_id,
        session_epoch=epoch,
        topics=[FetchTopic(topic=topic, topic_id=topic_id, partitions=parts)] if parts else [],
        forgotten_topics_data=[ForgottenTopic(topic=topic, topic_id=topic_id, partitions=list(forgets))],
        rack_id="elsewhere",
    )


def told(answer: FetchResponse) -> dict[int, PartitionData]:
    assert answer.error_code == 0
    return {part.partition_index: part for topic in answer.responses for part in topic.partitions}


async def test_an_incremental_fetch_is_told_what_is_new_over_any_connection(
    dial: Dial, agent: RunningAgent, client: KafkaClient
) -> None:
    await client.create_topic("t", partitions=3)
    one, other = await dial.raw(agent.address), await dial.raw(agent.address)
    first = await one.call(asks((0, 0), (1, 0), (2, 0)), FetchResponse, VERSION)
    assert first.session_id > 0 and sorted(told(first)) == [0, 1, 2]
    assert agent.metric("fetch_sessions") == 1 and agent.metric("fetch_session_partitions") == 3
    assert told(await other.call(asks(session_id=first.session_id, epoch=1), FetchResponse, VERSION)) == {}
    await client.produce("t", 1, batch(b"v"))
    answer = await one.call(asks(session_id=first.session_id, epoch=2), FetchResponse, VERSION)
    [(partition, part)] = told(answer).items()
    assert (partition, part.high_watermark, part.preferred_read_replica) == (1, 1, -1)
    assert len(records_of(memoryview(part.records))) == 1  # type: ignore[arg-type]
    # when: the client has read on, partition 0 is not wanted any more
    answer = await one.call(asks((1, 1), session_id=first.session_id, epoch=3, forgets=(0,)), FetchResponse, VERSION)
    assert told(answer) == {}
    await client.produce("t", 0, batch(b"nobody asks"))
    answer = await one.call(asks(session_id=first.session_id, epoch=4), FetchResponse, VERSION)
    assert (answer.session_id, told(answer)) == (first.session_id, {})


async def test_a_parked_incremental_fetch_wakes_for_a_partition_it_does_not_name(
    dial: Dial, agent: RunningAgent, client: KafkaClient
) -> None:
    await client.create_topic("t", partitions=2)
    raw = await dial.raw(agent.address)
    session_id = (await raw.call(asks((0, 0), (1, 0)), FetchResponse, VERSION)).session_id
    await raw.begin(asks(session_id=session_id, epoch=1, wait_ms=30_000), VERSION)
    await until(lambda: agent.agent._parked_readers._waiting)
    started = time.monotonic()
    await client.produce("t", 1, batch(b"v"))
    assert list(told(await raw.answer(FetchResponse, VERSION))) == [1]
    assert time.monotonic() - started < 10


async def test_a_session_goes_wrong_as_in_kafka(dial: Dial, agent: RunningAgent, client: KafkaClient) -> None:
    await client.create_topic("t", partitions=1)
    topic_id = (await client.topic("t")).topic_id
    raw = await dial.raw(agent.address)
    session_id = (await raw.call(asks((0, 0)), FetchResponse, VERSION)).session_id
    by_id = (await raw.call(asks((0, 0), topic_id=topic_id), FetchResponse, 13)).session_id
    assert session_id and by_id and session_id != by_id
    for asked, version, error in (
        (asks(session_id=session_id, epoch=2), VERSION, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (asks(session_id=session_id, epoch=1), 13, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        (asks(session_id=by_id, epoch=1), 7, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR),
        (asks(session_id=12345, epoch=1), VERSION, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
    ):
        answer = await raw.call(asked, FetchResponse, version)
        assert (answer.error_code, answer.session_id, answer.responses) == (error, 0, [])
    # then: both stand, until they are closed
    for each, version in ((session_id, 7), (by_id, 16)):
        assert told(await raw.call(asks(session_id=each, epoch=1), FetchResponse, version)) == {}
        closed = await raw.call(asks(session_id=each, epoch=-1), FetchResponse, version)
        assert (closed.error_code, closed.session_id) == (0, 0)
        again = await raw.call(asks(session_id=each, epoch=2), FetchResponse, version)
        assert again.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert agent.metric("fetch_sessions") == 0


async def test_a_client_that_takes_part_in_no_session_leaves_no_trace(
    agent: RunningAgent, client: KafkaClient, raw: RawConnection
) -> None:
    await client.create_topic("t", partitions=1)
    for epoch in (-1, -1):
        answer = await raw.call(asks((0, 0), epoch=epoch), FetchResponse, VERSION)
        assert (answer.session_id, list(told(answer))) == (0, [0])
    assert agent.metric("fetch_sessions") == 0


async def test_a_session_ends_with_its_agent_and_the_client_begins_anew(start_agent: StartAgent, dial: Dial) -> None:
    running = await start_agent()
    await (await dial.kafka(running.address)).create_topic("t", partitions=1)
    session_id = (await (await dial.raw(running.address)).call(asks((0, 0)), FetchResponse, VERSION)).session_id
    await running.agent.stop()
    successor = await start_agent(metadata=running.metadata, store=running.store)
    raw = await dial.raw(successor.address)
    answer = await raw.call(asks(session_id=session_id, epoch=1), FetchResponse, VERSION)
    assert answer.error_code == ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    anew = await raw.call(asks((0, 0)), FetchResponse, VERSION)
    assert anew.session_id not in (0, session_id) and list(told(anew)) == [0]


@pytest.mark.parametrize(
    ("version", "error"),
    [(VERSION, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION), (16, ErrorCode.UNKNOWN_TOPIC_ID)],
    ids=["by name", "by id"],
)
async def test_a_topic_that_is_deleted_is_told_to_who_waits_and_every_time_after(
    client: KafkaClient, raw: RawConnection, agent: RunningAgent, version: int, error: ErrorCode
) -> None:
    await client.create_topic("t", partitions=1)
    await client.create_topic("other", partitions=1)
    topic_id = (await client.topic("t")).topic_id
    session_id = (await raw.call(asks((0, 0), topic_id=topic_id), FetchResponse, version)).session_id
    await raw.begin(asks(session_id=session_id, epoch=1, wait_ms=30_000), version)
    await until(lambda: agent.agent._parked_readers._waiting)
    await client.delete_topic("t")
    assert told(await raw.answer(FetchResponse, version))[0].error_code == error
    again = await raw.call(asks(session_id=session_id, epoch=2), FetchResponse, version)
    assert told(again)[0].error_code == error
    # and: under the name there may be a new one; the id is gone for good
    await client.create_topic("t", partitions=1)
    anew = told(await raw.call(asks(session_id=session_id, epoch=3), FetchResponse, version))
    assert anew[0].error_code == (0 if version == VERSION else error)


async def test_partitions_that_are_added_later_are_found_by_a_session_that_asked_too_early(
    client: KafkaClient, raw: RawConnection, agent: RunningAgent
) -> None:
    await client.create_topic("t", partitions=1)
    first = await raw.call(asks((0, 0), (1, 0)), FetchResponse, VERSION)
    assert [part.error_code for part in told(first).values()] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    await client.create_partitions("t", 2)
    await until(lambda: len(agent.agent._topic_cache.topics()[0].partition_ids) == 2)
    answer = told(await raw.call(asks(session_id=first.session_id, epoch=1), FetchResponse, VERSION))
    assert {at: part.error_code for at, part in answer.items()} == {1: 0}


async def test_a_session_and_full_fetches_tell_the_same_story(
    agent: RunningAgent, client: KafkaClient, dial: Dial
) -> None:
    chance = random.Random(5)
    partitions = 4
    await client.create_topic("t", partitions=partitions)
    topic_id = (await client.topic("t")).topic_id
    session, full, admin = [await dial.raw(agent.address) for _ in range(3)]
    positions, sent = dict.fromkeys(range(partitions), 0), dict[int, int]()
    known: dict[int, PartitionData] = {}
    session_id = epoch = skipped = 0
    for _ in range(60):
        what, at = chance.choice(["write", "write", "read on", "read on", "delete", "begin anew"]), chance.randrange(4)
        if what == "write":
            await client.produce("t", at, batch(b"v"))
        elif what == "read on" and at in known:
            positions[at] = max(known[at].high_watermark, positions[at])
        elif what == "delete":
            gone = DeleteRecordsPartition(partition_index=at, offset=-1)
            request = DeleteRecordsRequest(topics=[DeleteRecordsTopic(name="t", partitions=[gone])], timeout_ms=5_000)
            await admin.call(request, DeleteRecordsResponse, 2)
        elif what == "begin anew":
            epoch, sent = 0, {}
        changed = [(each, offset) for each, offset in positions.items() if sent.get(each) != offset]
        sent = dict(positions)
        answer = await session.call(
            asks(*changed, session_id=session_id, epoch=epoch, topic_id=topic_id), FetchResponse, 16
        )
        news = told(answer)
        session_id, epoch = answer.session_id, epoch + 1
        assert session_id
        whole = told(await full.call(asks(*positions.items(), epoch=-1, topic_id=topic_id), FetchResponse, 16))
        assert len(whole) == partitions
        for each, expected in whole.items():
            found = news.get(each)
            if found is None:
                skipped += 1
                assert not expected.records and not expected.error_code
                found = known[each]
                assert (found.high_watermark, found.log_start_offset) == (
                    expected.high_watermark,
                    expected.log_start_offset,
                )
            else:
                assert found == expected
            if expected.error_code == ErrorCode.OFFSET_OUT_OF_RANGE:
                positions[each] = (await client.list_offsets("t", [each]))[each]
            known[each] = found
    assert skipped > 60


async def test_two_requests_of_one_session_at_once_do_not_mix(
    client: KafkaClient, agent: RunningAgent, dial: Dial
) -> None:
    await client.create_topic("t", partitions=2)
    slow, quick = await dial.raw(agent.address), await dial.raw(agent.address)
    session_id = (await slow.call(asks((0, 0), (1, 0)), FetchResponse, VERSION)).session_id
    await slow.begin(asks(session_id=session_id, epoch=1, wait_ms=30_000), VERSION)
    await until(lambda: agent.agent._parked_readers._waiting)
    parked = asyncio.create_task(slow.answer(FetchResponse, VERSION))
    assert told(await quick.call(asks(session_id=session_id, epoch=2), FetchResponse, VERSION)) == {}
    await client.produce("t", 0, batch(b"v"))
    assert (await parked).error_code == ErrorCode.INVALID_FETCH_SESSION_EPOCH
    assert list(told(await quick.call(asks(session_id=session_id, epoch=3), FetchResponse, VERSION))) == [0]
