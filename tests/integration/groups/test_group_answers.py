"""What one request about groups may make an agent answer: each group once, and no more than fits."""

from __future__ import annotations

import pytest

from agents.handlers import describe_groups, offset_fetch
from siltstone.kafka.client import KafkaClient
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.groups import GroupMember, stable_group
from wire.error_codes import ErrorCode
from wire.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)


async def described(client: KafkaClient, *group_ids: str) -> list[tuple[str, ErrorCode, int]]:
    """(id, error, members) of each."""
    answer = await client.call(DescribeGroupsRequest(groups=list(group_ids)), DescribeGroupsResponse)
    return [(group.group_id, ErrorCode(group.error_code), len(group.members)) for group in answer.groups]


async def fetched(client: KafkaClient, *asked: tuple[str, list[int] | None]) -> list[tuple[str, ErrorCode, list[int]]]:
    """(id, error, partitions) of each."""
    groups = [
        OffsetFetchRequestGroup(
            group_id=group_id,
            topics=None if wanted is None else [OffsetFetchRequestTopics(name="t", partition_indexes=wanted)],
        )
        for group_id, wanted in asked
    ]
    answer = await client.call(OffsetFetchRequest(groups=groups), OffsetFetchResponse)
    return [
        (
            group.group_id,
            ErrorCode(group.error_code),
            [part.partition_index for topic in group.topics for part in topic.partitions],
        )
        for group in answer.groups
    ]


async def test_groups_are_described_once_each_and_no_more_than_fit(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_agent(group_initial_rebalance_delay_ms=50)
    client = await dial.kafka(running.address)
    for name in ("a", "b"):
        await stable_group(dial, running.address, 1, group_id=name)
    a, b = ("a", ErrorCode.NONE, 1), ("b", ErrorCode.NONE, 1)
    assert await described(client, *["a", "b"] * 50) == [a, b]
    monkeypatch.setattr(describe_groups, "ANSWER_BYTES_MAX", 1)
    assert await described(client, "b", "a", "b") == [b, ("a", ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, 0)]
    assert await described(client, "a") == [a]


async def test_offsets_are_fetched_once_for_each_group_and_no_more_than_fit(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    running = await start_agent()
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=4)
    for name in ("a", "b"):
        await GroupMember(client, group_id=name).commit({0: 1, 1: 1})
    # what is asked for a group that is named again is added
    assert await fetched(client, ("a", [0]), ("b", [1]), ("a", [2, 0]), ("a", [0])) == [
        ("a", ErrorCode.NONE, [0, 2]),
        ("b", ErrorCode.NONE, [1]),
    ]
    assert await fetched(client, *[("a", None), ("a", [3])] * 50) == [("a", ErrorCode.NONE, [0, 1])]
    monkeypatch.setattr(offset_fetch, "ANSWER_BYTES_MAX", 1)
    late = ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert await fetched(client, ("b", None), ("a", None)) == [("b", ErrorCode.NONE, [0, 1]), ("a", late, [])]
    assert await fetched(client, ("a", None)) == [("a", ErrorCode.NONE, [0, 1])]
