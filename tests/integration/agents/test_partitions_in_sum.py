"""`cluster.partitions.max` bounds the partitions of all topics; and the creation of many holds up nobody."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from agents.topics.rules import PARTITIONS_MAX
from siltstone.kafka.client import KafkaClient
from storage.local import LocalStore
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.fleet import fleet
from tests.fixtures.loop_stalls import LoopStalls, assert_holds_up_nobody, loop_stalls
from wire.error_codes import ErrorCode
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsResponse, CreatePartitionsTopic
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse


async def created(raw: RawConnection, *, validate_only: bool = False, **topics: int) -> dict[str, tuple[int, str]]:
    """(error, its message) by topic."""
    request = CreateTopicsRequest(
        topics=[CreatableTopic(name=name, num_partitions=n, replication_factor=-1) for name, n in topics.items()],
        timeout_ms=30_000,
        validate_only=validate_only,
    )
    answer = await raw.call(request, CreateTopicsResponse, 5)
    return {each.name: (each.error_code, each.error_message or "") for each in answer.topics}


async def grown(raw: RawConnection, name: str, count: int, *, validate_only: bool = False) -> int:
    request = CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=count)], timeout_ms=30_000, validate_only=validate_only
    )
    [answer] = (await raw.call(request, CreatePartitionsResponse, 1)).results
    return answer.error_code


async def test_topics_that_would_have_too_many_partitions_together_are_refused(
    start_agent: StartAgent, dial: Dial
) -> None:
    raw = await dial.raw((await start_agent(cluster_partitions_max=10)).address)
    # when a request asks for more than there may be, then its topics succeed until no more fit
    answers = await created(raw, a=4, b=4, c=4, d=1)
    assert {name: error for name, (error, _) in answers.items()} == {"a": 0, "b": 0, "c": 44, "d": 0}
    assert answers["c"] == (
        ErrorCode.POLICY_VIOLATION,
        "all topics together have 8 partitions; 4 more would be above cluster.partitions.max (10): "
        "ask for fewer, delete topics, or raise the setting of the agents",
    )
    # and so it is for what is only asked about, and for topics that grow
    assert (await created(raw, e=2, validate_only=True))["e"][0] == ErrorCode.POLICY_VIOLATION
    assert (await created(raw, e=1, validate_only=True))["e"][0] == 0
    for validate_only in (True, False):
        assert await grown(raw, "a", 6, validate_only=validate_only) == ErrorCode.POLICY_VIOLATION
    assert await grown(raw, "a", 5) == 0
    # and a topic that would be created on the way does not exist
    wanted = MetadataRequest(topics=[MetadataRequestTopic(name="x")], allow_auto_topic_creation=True)
    [topic] = (await raw.call(wanted, MetadataResponse, 8)).topics
    assert topic.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_agents_that_create_at_the_same_time_do_not_pass_the_bound_together(
    start_agent: StartAgent, dial: Dial, tmp_path: Path
) -> None:
    async with fleet(start_agent, 3, store=LocalStore(tmp_path / "objects"), cluster_partitions_max=10) as agents:
        raws = [await dial.raw(each.address) for each in agents]
        answers = await asyncio.gather(*(created(raw, **{f"t{n}": 4}) for n, raw in enumerate(raws)))
    codes = sorted(error for answer in answers for error, _ in answer.values())
    assert codes == [0, 0, ErrorCode.POLICY_VIOLATION]


@pytest.mark.parametrize("agent_metadata_url", ["postgres"], indirect=True)
async def test_a_topic_of_very_many_partitions_holds_up_nobody(
    agent: RunningAgent, client: KafkaClient, raw: RawConnection
) -> None:

    async def whole_life() -> LoopStalls:
        with loop_stalls() as stalls:
            assert (await created(raw, large=PARTITIONS_MAX // 2))["large"][0] == 0
            assert await grown(raw, "large", PARTITIONS_MAX) == 0
            assert agent.agent._topic_cache.partitions_count == PARTITIONS_MAX
            await client.delete_topic("large")
        return stalls

    await assert_holds_up_nobody(whole_life)
