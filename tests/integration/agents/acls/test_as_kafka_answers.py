"""Answers that a client without a right gets, in what they tell and what they leave out: as Kafka 4.1.1 gives them."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from agents.request_context import ANONYMOUS
from security.acls.values import CLUSTER_NAME, Operation, Permission, ResourceType
from tests.fixtures.acls import allow
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from wire.error_codes import ErrorCode
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse
from wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestTopic, OffsetFetchResponse
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)

NOT_ASKED = -0x80000000


@pytest.fixture
async def running(start_agent: StartAgent) -> AsyncIterator[RunningAgent]:
    yield await start_agent(acl_mode="on")


@pytest.fixture
async def raw(running: RunningAgent, dial: Dial) -> RawConnection:
    return await dial.raw(running.address)


async def test_offsets_of_a_refused_group_are_refused_without_naming_a_topic(raw: RawConnection) -> None:
    for version in range(1, 8):
        topics = [OffsetFetchRequestTopic(name="t", partition_indexes=[0])]
        answer = await raw.call(OffsetFetchRequest(group_id="g", topics=topics), OffsetFetchResponse, version)
        if version >= 2:
            assert (answer.error_code, answer.topics) == (ErrorCode.GROUP_AUTHORIZATION_FAILED, [])
        else:  # there is no other place for the error
            codes = [part.error_code for topic in answer.topics for part in topic.partitions]
            assert codes == [ErrorCode.GROUP_AUTHORIZATION_FAILED]


async def test_the_operations_of_a_group_are_those_on_its_configs_too(
    running: RunningAgent, raw: RawConnection
) -> None:
    operations = (Operation.DESCRIBE, Operation.DESCRIBE_CONFIGS, Operation.ALTER_CONFIGS)
    for operation in operations:
        acl = allow(operation, "g", to=ANONYMOUS, resource_type=ResourceType.GROUP)
        running.agent.authorizer.change(added=[acl])
    request = DescribeGroupsRequest(groups=["g"], include_authorized_operations=True)
    answer = await raw.call(request, DescribeGroupsResponse, 5)
    assert answer.groups[0].authorized_operations == sum(1 << each for each in operations)


async def test_a_client_is_told_what_it_may_do_with_a_topic_that_is_not_there(
    running: RunningAgent, raw: RawConnection
) -> None:
    running.agent.authorizer.change(added=[allow(Operation.WRITE, "absent", to=ANONYMOUS)])
    for is_asked in (True, False):
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=name) for name in ("absent", "hidden")],
            allow_auto_topic_creation=False,
            include_topic_authorized_operations=is_asked,
        )
        answer = await raw.call(request, MetadataResponse, 9)
        told = {topic.name: (topic.error_code, topic.topic_authorized_operations) for topic in answer.topics}
        mask = 1 << Operation.WRITE | 1 << Operation.DESCRIBE
        assert told == {
            "absent": (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, mask if is_asked else NOT_ASKED),
            "hidden": (ErrorCode.TOPIC_AUTHORIZATION_FAILED, NOT_ASKED),
        }


async def test_who_may_describe_a_topic_hears_that_there_is_none_to_delete(
    running: RunningAgent, raw: RawConnection
) -> None:
    def told(answer: DeleteTopicsResponse) -> dict[str | None, int]:
        return {each.name: each.error_code for each in answer.responses}

    for name in ("seen", "kept"):
        await running.metadata.agents.create_topic(name, partitions=1, configs={})
    describe = [allow(Operation.DESCRIBE, name, to=ANONYMOUS) for name in ("seen", "absent")]
    denied = allow(Operation.DESCRIBE, "kept", to=ANONYMOUS, permission=Permission.DENY)
    running.agent.authorizer.change(added=[*describe, allow(Operation.DELETE, "kept", to=ANONYMOUS), denied])
    refused = ErrorCode.TOPIC_AUTHORIZATION_FAILED
    answer = await raw.call(
        DeleteTopicsRequest(topic_names=["seen", "absent", "kept", "hidden"], timeout_ms=1_000), DeleteTopicsResponse, 5
    )
    assert told(answer) == {
        "seen": refused,
        "absent": ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        "kept": refused,
        "hidden": refused,
    }


async def test_the_right_of_a_broker_is_enough_to_ask_where_epochs_end(
    running: RunningAgent, raw: RawConnection
) -> None:
    acl = allow(Operation.CLUSTER_ACTION, CLUSTER_NAME, to=ANONYMOUS, resource_type=ResourceType.CLUSTER)
    parts = [OffsetForLeaderPartition(partition=0, leader_epoch=0)]
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic="absent", partitions=parts)])
    codes: list[int] = []
    for added in ([], [acl]):
        running.agent.authorizer.change(added=added)
        answer = await raw.call(request, OffsetForLeaderEpochResponse, 4)
        codes.append(answer.topics[0].partitions[0].error_code)
    assert codes == [ErrorCode.TOPIC_AUTHORIZATION_FAILED, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
