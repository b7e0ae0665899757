"""One client's large request: others have their turns meanwhile; and groups by the thousand."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from agents.dispatch import HANDLERS
from agents.handlers import delete_groups
from agents.yielding import PARTS_PER_TURN, LoopYielder, chunks_with_yields
from metadata.contract.errors import MetadataUnavailableError
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.fleet import fleet
from tests.fixtures.groups import GroupMember
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from wire.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wire.messages.delete_topics import DeleteTopicsRequest
from wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from wire.messages.describe_producers import DescribeProducersRequest, TopicRequest
from wire.messages.describe_transactions import DescribeTransactionsRequest
from wire.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.offset_commit import OffsetCommitRequest, OffsetCommitRequestPartition, OffsetCommitRequestTopic
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.messages.write_txn_markers import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from wire.schema import Message, message_table

PARTS = range(15 * PARTS_PER_TURN)
TURNS = 14

LARGE: list[tuple[int, Message]] = [
    (
        8,
        OffsetFetchRequest(
            groups=[
                OffsetFetchRequestGroup(
                    group_id="g", topics=[OffsetFetchRequestTopics(name="t", partition_indexes=list(PARTS))]
                )
            ]
        ),
    ),
    (
        8,
        OffsetCommitRequest(
            group_id="g",
            topics=[
                OffsetCommitRequestTopic(
                    name="t", partitions=[OffsetCommitRequestPartition(partition_index=n) for n in PARTS]
                )
            ],
        ),
    ),
    (12, FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=n) for n in PARTS])])),
    (
        0,
        OffsetDeleteRequest(
            group_id="g",
            topics=[
                OffsetDeleteRequestTopic(
                    name="t", partitions=[OffsetDeleteRequestPartition(partition_index=n) for n in PARTS]
                )
            ],
        ),
    ),
    (
        9,
        ListOffsetsRequest(
            topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=n) for n in PARTS])]
        ),
    ),
    (
        4,
        OffsetForLeaderEpochRequest(
            topics=[OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition(partition=n) for n in PARTS])]
        ),
    ),
    (2, ElectLeadersRequest(topic_partitions=[TopicPartitions(topic="t", partitions=list(PARTS))])),
    (
        2,
        DeleteRecordsRequest(
            topics=[DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=n) for n in PARTS])]
        ),
    ),
    (0, DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=list(PARTS))])),
    (5, DeleteTopicsRequest(topic_names=[f"t{n}" for n in PARTS])),
    (4, FindCoordinatorRequest(coordinator_keys=[f"g{n}" for n in PARTS])),
    (
        3,
        AddPartitionsToTxnRequest(
            v3_and_below_transactional_id="tx",
            v3_and_below_topics=[AddPartitionsToTxnTopic(name="t", partitions=list(PARTS))],
        ),
    ),
    (
        2,
        WriteTxnMarkersRequest(
            markers=[
                WritableTxnMarker(topics=[WritableTxnMarkerTopic(name="t", partition_indexes=list(PARTS))]),
                *(WritableTxnMarker(producer_id=n) for n in PARTS),
            ]
        ),
    ),
    (0, DescribeTransactionsRequest(transactional_ids=[f"tx{n}" for n in PARTS])),
    (2, DeleteGroupsRequest(groups_names=[f"g{n}" for n in PARTS])),
    (5, DescribeGroupsRequest(groups=[f"g{n}" for n in PARTS])),
]


@pytest.mark.parametrize(("version", "request_"), LARGE, ids=lambda value: type(value).__name__)
async def test_others_have_their_turns_while_a_large_request_is_answered(
    start_agent: StartAgent, dial: Dial, version: int, request_: Message
) -> None:
    running = await start_agent()
    assert await GroupMember(await dial.kafka(running.address)).commit({}) == {}  # there is a group "g"
    broker = running.agent._server.broker  # type: ignore[union-attr]
    api_key = message_table(type(request_)).api_key
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(others())
    header = RequestHeader(api_key=api_key, api_version=version, correlation_id=1, client_id="c")
    answer: Any = HANDLERS[api_key].handle(broker, header, request_)
    answer = await answer
    ticking.cancel()
    assert turns >= TURNS


async def test_parts_of_parts_count_together_and_few_parts_take_no_turn() -> None:
    parts = list(range(2 * PARTS_PER_TURN + 1))
    assert [len(some) async for some in chunks_with_yields(parts)] == [PARTS_PER_TURN, PARTS_PER_TURN, 1]
    assert [some async for some in chunks_with_yields(parts[:5])] == [parts[:5]]
    slept = 0

    async def others() -> None:
        nonlocal slept
        while True:
            slept += 1
            await asyncio.sleep(0)

    ticking = asyncio.create_task(others())
    yielder = LoopYielder()
    seen = [(one, part) async for one in yielder.through(range(100)) async for part in yielder.through(range(99))]
    ticking.cancel()
    assert seen == [(one, part) for one in range(100) for part in range(99)]
    assert slept == 100 * 100 // PARTS_PER_TURN - 1


# ---- groups by the thousand ------------------------------------------------------------------------------------------


async def test_of_many_groups_to_delete_only_those_that_exist_cost_anything(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(start_agent, 1) as agents:
        client, service = await dial.kafka(agents[0].address), agents.services[0]
        for name in ("a", "b", "c"):
            assert await GroupMember(client, group_id=name).commit({}) == {}
        takes = service.calls["take_group"]
        names = [f"x{number}" for number in range(5_000)]
        monkeypatch.setattr(delete_groups, "DELETED_MAX", 2)

        request = DeleteGroupsRequest(groups_names=["a", "g" * 3_000, *names, "b", "c"])
        results = (await client.call(request, DeleteGroupsResponse)).results

        told = {result.group_id: ErrorCode(result.error_code) for result in results}
        assert {told.pop(name) for name in names} == {ErrorCode.GROUP_ID_NOT_FOUND}
        assert told == {
            "a": ErrorCode.NONE,
            "b": ErrorCode.NONE,
            "g" * 3_000: ErrorCode.INVALID_GROUP_ID,
            "c": ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        }
        assert service.calls["take_group"] == takes
        assert service.calls["known_groups"] == 3
        assert [group.group_id for group in await service.groups.list_groups()] == ["c"]


async def test_of_many_groups_to_describe_only_those_that_exist_are_read(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 1) as agents:
        client, service = await dial.kafka(agents[0].address), agents.services[0]
        assert await GroupMember(client, group_id="a").commit({}) == {}
        agents[0].agent._groups._forget_idle(0)  # type: ignore[union-attr]

        request = DescribeGroupsRequest(groups=["a", *(f"x{number}" for number in range(1_000))])
        groups = (await client.call(request, DescribeGroupsResponse)).groups

        assert groups[0].group_state == "Empty"
        assert {(group.group_state, group.error_code) for group in groups[1:]} == {
            ("Dead", ErrorCode.GROUP_ID_NOT_FOUND)
        }
        assert service.calls["group"] == 1


async def test_that_groups_do_not_exist_is_not_said_while_the_store_is_silent(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with fleet(start_agent, 1) as agents:
        client = await dial.kafka(agents[0].address)

        async def away(group_ids: object) -> None:
            raise MetadataUnavailableError("away")

        monkeypatch.setattr(agents.services[0].inner.groups, "known_groups", away)
        names = [f"x{number}" for number in range(100)]

        deleted = await client.call(DeleteGroupsRequest(groups_names=names), DeleteGroupsResponse)
        described = await client.call(DescribeGroupsRequest(groups=names), DescribeGroupsResponse)

        for answers in (deleted.results, described.groups):
            assert [each.error_code for each in answers] == [ErrorCode.COORDINATOR_NOT_AVAILABLE] * 100
