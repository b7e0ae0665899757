"""Topics and their configs over the protocol: CreateTopics, DeleteTopics, CreatePartitions, configs, Metadata."""

from __future__ import annotations

import time
from typing import Any
from uuid import UUID

import pytest

from siltstone.kafka.client import KafkaClient, KafkaError
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent, read_all
from wire.error_codes import ErrorCode
from wire.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsResponse,
    CreatePartitionsTopic,
)
from wire.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreatableTopicConfig,
    CreatableTopicResult,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from wire.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
    IncrementalAlterConfigsResponse,
)
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.records import NewRecord, build_batch
from wire.schema import ZERO_UUID

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = 2, 4


def batch() -> bytes:
    return build_batch([NewRecord(int(time.time() * 1000), b"k", b"v")])


async def create(
    raw: RawConnection, *topics: CreatableTopic, validate_only: bool = False
) -> list[CreatableTopicResult]:
    request = CreateTopicsRequest(topics=list(topics), timeout_ms=1000, validate_only=validate_only)
    return (await raw.call(request, CreateTopicsResponse, 7)).topics


def topic(name: str, partitions: int = 1, replicas: int = -1, **configs: str) -> CreatableTopic:
    return CreatableTopic(
        name=name,
        num_partitions=partitions,
        replication_factor=replicas,
        configs=[CreatableTopicConfig(name=key.replace("_", "."), value=value) for key, value in configs.items()],
    )


async def describe(raw: RawConnection, resource: int, name: str, *keys: str) -> DescribeConfigsResult:
    asked = DescribeConfigsResource(resource_type=resource, resource_name=name, configuration_keys=list(keys) or None)
    request = DescribeConfigsRequest(resources=[asked], include_synonyms=True, include_documentation=True)
    [result] = (await raw.call(request, DescribeConfigsResponse, 4)).results
    return result


async def alter(raw: RawConnection, *changes: tuple[str, int, str | None], name: str = "t", **more: Any) -> int:
    configs = [AlterableConfig(name=key, config_operation=operation, value=value) for key, operation, value in changes]
    resource = AlterConfigsResource(resource_type=more.pop("resource", TOPIC), resource_name=name, configs=configs)
    request = IncrementalAlterConfigsRequest(resources=[resource], **more)
    [answer] = (await raw.call(request, IncrementalAlterConfigsResponse, 1)).responses
    assert bool(answer.error_message) == bool(answer.error_code)
    return answer.error_code


async def test_a_created_topic_is_there_at_once_with_its_id(raw: RawConnection, client: KafkaClient) -> None:
    [made] = await create(raw, topic("t", 3, retention_ms="1000"))
    assert (made.error_code, made.num_partitions, made.replication_factor) == (0, 3, 1)
    assert made.topic_id != ZERO_UUID
    [seen] = (await client.metadata(["t"])).topics
    assert (seen.topic_id, len(seen.partitions), seen.error_code) == (made.topic_id, 3, 0)
    overrides = {each.name: each.value for each in made.configs or [] if each.config_source == 1}
    assert overrides == {"retention.ms": "1000"}


async def test_the_replication_factor_is_kept_as_it_was_asked_for(raw: RawConnection, agent: RunningAgent) -> None:
    by_hand = topic("by-hand", -1)
    by_hand.assignments = [CreatableReplicaAssignment(partition_index=n, broker_ids=[7, 8 + n]) for n in (0, 1)]
    made = await create(raw, topic("three", 1, 3), topic("default"), by_hand)
    assert [(each.error_code, each.replication_factor) for each in made] == [(0, 3), (0, 1), (0, 2)]
    [checked] = await create(raw, topic("checked", 1, 5), validate_only=True)
    assert checked.replication_factor == 5
    stored = {each.name: each.replication_factor for each in await agent.metadata.agents.list_topics()}
    assert stored == {"three": 3, "default": 1, "by-hand": 2}


async def test_assignments_that_kafka_refuses_are_refused(raw: RawConnection) -> None:
    await create(raw, topic("t", 1))
    for broker_ids in ([[]], [[1, 1]], [[-1]], [[1, 2], [1]]):
        assigned = topic("assigned", -1)
        assigned.assignments = [
            CreatableReplicaAssignment(partition_index=n, broker_ids=each) for n, each in enumerate(broker_ids)
        ]
        [refused] = await create(raw, assigned)
        assert refused.error_code == ErrorCode.INVALID_REPLICA_ASSIGNMENT, refused.error_message
        parts = [CreatePartitionsAssignment(broker_ids=each) for each in broker_ids]
        wanted = CreatePartitionsTopic(name="t", count=1 + len(parts), assignments=parts)
        assert await _grown(raw, wanted) == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    # one too few, and as many as there are new partitions
    parts = [CreatePartitionsAssignment(broker_ids=[n]) for n in (1, 2)]
    assert (
        await _grown(raw, CreatePartitionsTopic(name="t", count=4, assignments=parts))
        == ErrorCode.INVALID_REPLICA_ASSIGNMENT
    )
    assert await _grown(raw, CreatePartitionsTopic(name="t", count=3, assignments=parts)) == 0


async def _grown(raw: RawConnection, wanted: CreatePartitionsTopic) -> int:
    request = CreatePartitionsRequest(topics=[wanted], timeout_ms=1000)
    return (await raw.call(request, CreatePartitionsResponse, 3)).results[0].error_code


async def test_wrong_topics_are_refused_one_by_one_with_kafkas_errors(raw: RawConnection) -> None:
    await create(raw, topic("there"))
    assigned = topic("assigned", -1)
    assigned.assignments = [CreatableReplicaAssignment(partition_index=n, broker_ids=[7]) for n in (0, 2)]
    both = topic("both", 2)
    both.assignments = [CreatableReplicaAssignment(partition_index=0, broker_ids=[1])]
    results = await create(
        raw,
        topic("good"),
        topic("there"),
        topic("bad name"),
        topic("__consumer_offsets", 50),
        topic("zero", 0),
        topic("many", 2_000_000),
        topic("no-replicas", 1, 0),
        topic("unknown-config", retention_hours="3"),
        topic("bad-value", retention_ms="soon"),
        topic("lags", min_compaction_lag_ms="5", max_compaction_lag_ms="4"),
        topic("twice"),
        topic("twice"),
        assigned,
        both,
    )
    assert {result.name: ErrorCode(result.error_code).name for result in results} == {
        "good": "NONE",
        "there": "TOPIC_ALREADY_EXISTS",
        "bad name": "INVALID_TOPIC_EXCEPTION",
        "__consumer_offsets": "INVALID_TOPIC_EXCEPTION",
        "zero": "INVALID_PARTITIONS",
        "many": "INVALID_PARTITIONS",
        "no-replicas": "INVALID_REPLICATION_FACTOR",
        "unknown-config": "INVALID_CONFIG",
        "bad-value": "INVALID_CONFIG",
        "lags": "INVALID_CONFIG",
        "twice": "INVALID_REQUEST",
        "assigned": "INVALID_REPLICA_ASSIGNMENT",
        "both": "INVALID_REQUEST",
    }
    assert all(bool(result.error_message) == bool(result.error_code) for result in results)


async def test_validate_only_changes_nothing(raw: RawConnection, client: KafkaClient) -> None:
    [made] = await create(raw, topic("t", -1, 3), validate_only=True)
    assert (made.error_code, made.num_partitions) == (0, 1)
    assert (await client.metadata()).topics == []


async def test_a_deleted_name_may_be_used_again_under_a_new_id(raw: RawConnection, client: KafkaClient) -> None:
    [first] = await create(raw, topic("t", 2))
    await client.produce("t", 0, batch())
    by_id = DeleteTopicState(name=None, topic_id=first.topic_id)
    unknown = DeleteTopicState(name="nope")
    request = DeleteTopicsRequest(topics=[by_id, unknown], timeout_ms=1000)
    answers = (await raw.call(request, DeleteTopicsResponse, 6)).responses
    assert [answer.error_code for answer in answers] == [0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION]
    with pytest.raises(KafkaError, match="UNKNOWN_TOPIC_OR_PARTITION"):
        await client.fetch("t", 0, 0)
    [second] = await create(raw, topic("t", 1))
    assert second.topic_id != first.topic_id
    assert await client.produce("t", 0, batch()) == 0, "offsets begin anew"
    assert len(await read_all(client, "t")) == 1
    old = DeleteTopicsRequest(topic_names=["t"], timeout_ms=1000)
    assert (await raw.call(old, DeleteTopicsResponse, 1)).responses[0].error_code == 0


async def test_a_name_that_another_agent_deleted_a_moment_ago_may_be_used_again(
    start_agent: StartAgent, dial: Dial
) -> None:
    running = await start_agent(tail_poll_ms=60_000)
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1)
    # when: it is deleted without a hint to this agent
    [deleted] = (await running.metadata.agents.snapshot()).topics
    await running.metadata.agents.delete_topic(deleted.topic_id)
    # then
    await client.create_topic("t", partitions=2)
    assert [each.name for each in (await running.metadata.agents.snapshot()).topics] == ["t"]


async def test_partitions_are_added_and_never_taken_away(raw: RawConnection, client: KafkaClient) -> None:
    await create(raw, topic("t", 2))
    await client.produce("t", 1, batch())

    async def grow(count: int, *, name: str = "t", validate_only: bool = False) -> int:
        wanted = CreatePartitionsTopic(name=name, count=count, assignments=None)
        request = CreatePartitionsRequest(topics=[wanted], timeout_ms=1000, validate_only=validate_only)
        return (await raw.call(request, CreatePartitionsResponse, 3)).results[0].error_code

    assert await grow(5, validate_only=True) == 0
    assert len((await client.topic("t")).partitions) == 2
    assert await grow(4) == 0
    assert len((await client.topic("t")).partitions) == 4
    assert await client.produce("t", 3, batch()) == 0
    assert await client.produce("t", 1, batch()) == 1, "what was there goes on"
    for count in (4, 3, 0, -1):
        assert await grow(count) == ErrorCode.INVALID_PARTITIONS
    assert await grow(4, name="nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_configs_are_described_with_source_synonyms_and_words(raw: RawConnection, agent: RunningAgent) -> None:
    await create(raw, topic("t", retention_ms="5000"))
    result = await describe(raw, TOPIC, "t")
    assert result.error_code == 0
    rows = {row.name: row for row in result.configs}
    assert len(rows) > 25
    assert (rows["retention.ms"].value, rows["retention.ms"].config_source) == ("5000", 1)
    assert [(each.value, each.source) for each in rows["retention.ms"].synonyms] == [("5000", 1), ("168", 5)]
    assert (rows["cleanup.policy"].value, rows["cleanup.policy"].config_type) == ("delete", 7)
    assert all(row.documentation for row in rows.values())
    few = await describe(raw, TOPIC, "t", "segment.bytes", "no.such.config")
    assert [row.name for row in few.configs] == ["segment.bytes"]
    assert (await describe(raw, TOPIC, "nope")).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await describe(raw, 99, "t")).error_code == ErrorCode.INVALID_REQUEST
    ours = await describe(raw, BROKER, str((await agent.metadata.agents.live_agents())[0].writer_id))
    assert {row.name: row.value for row in ours.configs}["auto.create.topics.enable"] == "true"
    assert {row.name: row.read_only for row in ours.configs}["auto.create.topics.enable"]


async def test_configs_are_set_deleted_appended_and_subtracted(raw: RawConnection, client: KafkaClient) -> None:
    await create(raw, topic("t", retention_ms="5000"))
    assert await alter(raw, ("cleanup.policy", APPEND, "compact"), ("retention.ms", DELETE, None)) == 0

    async def value_of(name: str) -> str | None:
        return {each.name: each.value for each in await client.topic_configs("t")}[name]

    assert (await value_of("cleanup.policy"), await value_of("retention.ms")) == ("delete,compact", "604800000")
    assert await alter(raw, ("cleanup.policy", SUBTRACT, "delete"), ("max.message.bytes", SET, "200")) == 0
    assert await value_of("cleanup.policy") == "compact"
    # then: the new rules are in force at once
    with pytest.raises(KafkaError, match="MESSAGE_TOO_LARGE"):
        await client.produce("t", 0, build_batch([NewRecord(1, b"k", b"x" * 300)]))
    assert await client.produce("t", 0, build_batch([NewRecord(1, b"k", b"x")])) == 0


async def test_wrong_changes_of_configs_change_nothing(raw: RawConnection, client: KafkaClient) -> None:
    await create(raw, topic("t"))
    before = await client.topic_configs("t")
    invalid, request = ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST
    assert await alter(raw, ("retention.ms", SET, "60000"), ("retenton.ms", SET, "1")) == invalid, "all or nothing"
    assert await alter(raw, ("retention.ms", APPEND, "1")) == invalid
    assert await alter(raw, ("retention.ms", SET, None)) == request
    assert await alter(raw, ("cleanup.policy", APPEND, "burn")) == invalid
    assert await alter(raw, ("retention.ms", 9, "1")) == request
    assert await alter(raw, ("retention.ms", SET, "1"), ("retention.ms", SET, "2")) == request
    assert await alter(raw, ("x", SET, "1"), name="nope") == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert await alter(raw, ("num.partitions", SET, "5"), name="1", resource=BROKER) == request
    assert await alter(raw, ("retention.ms", SET, "7"), validate_only=True) == 0
    assert await client.topic_configs("t") == before


async def test_topics_are_created_on_the_way_as_kafkas_two_flags_say(dial: Dial, start_agent: StartAgent) -> None:
    def asked(allow: bool) -> MetadataRequest:
        return MetadataRequest(topics=[MetadataRequestTopic(name="new")], allow_auto_topic_creation=allow)

    closed = await dial.raw((await start_agent(auto_create_topics_enable=False)).address)
    unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert (await closed.call(asked(True), MetadataResponse, 8)).topics[0].error_code == unknown
    opened = await dial.raw((await start_agent(num_partitions=4)).address)
    assert (await opened.call(asked(False), MetadataResponse, 8)).topics[0].error_code == unknown
    [made] = (await opened.call(asked(True), MetadataResponse, 8)).topics
    assert (made.error_code, len(made.partitions)) == (0, 4)


async def test_topics_with_the_names_of_kafkas_internal_ones_are_never_made_on_the_way(raw: RawConnection) -> None:
    names = ["__consumer_offsets", "__transaction_state"]
    asked = MetadataRequest(topics=[MetadataRequestTopic(name=name) for name in names], allow_auto_topic_creation=True)
    for _ in range(2):
        answer = await raw.call(asked, MetadataResponse, 8)
        assert [each.error_code for each in answer.topics] == [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 2


async def test_one_request_makes_no_more_than_a_hundred_topics(dial: Dial, start_agent: StartAgent) -> None:
    raw = await dial.raw((await start_agent()).address)
    wanted = [MetadataRequestTopic(name=f"t-{number:04}") for number in range(300)]
    answer = await raw.call(MetadataRequest(topics=wanted), MetadataResponse, 8)
    codes = [topic.error_code for topic in answer.topics]
    assert codes == [0] * 100 + [ErrorCode.UNKNOWN_TOPIC_OR_PARTITION] * 200
    again = await raw.call(MetadataRequest(topics=wanted), MetadataResponse, 8)
    assert [topic.error_code for topic in again.topics].count(0) == 200, "asking again goes on"


@pytest.mark.parametrize("version", [10, 11, 12])
async def test_a_topic_without_a_name_is_answered_in_every_version(raw: RawConnection, version: int) -> None:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=UUID(int=5))])
    [answer] = (await raw.call(request, MetadataResponse, version)).topics
    assert answer.error_code == ErrorCode.UNKNOWN_TOPIC_ID


async def test_metadata_names_one_live_agent_for_everything(raw: RawConnection, agent: RunningAgent) -> None:
    [made] = await create(raw, topic("a", 3))
    await create(raw, topic("b"))
    answer = await raw.call(MetadataRequest(topics=None), MetadataResponse, 12)
    [broker] = answer.brokers
    assert f"{broker.host}:{broker.port}" == agent.address
    assert answer.controller_id == broker.node_id
    assert answer.cluster_id
    assert [seen.name for seen in answer.topics] == ["a", "b"]
    for part in answer.topics[0].partitions:
        assert (part.leader_id, part.leader_epoch) == (broker.node_id, 0)
        assert part.replica_nodes == part.isr_nodes == [broker.node_id]
        assert part.offline_replicas == []
    by_id = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=made.topic_id)])
    assert (await raw.call(by_id, MetadataResponse, 12)).topics[0].name == "a"
    assert len((await raw.call(MetadataRequest(topics=[]), MetadataResponse, 0)).topics) == 2, "v0: empty means all"
    assert (await raw.call(MetadataRequest(topics=[]), MetadataResponse, 1)).topics == []
    cluster = await raw.call(DescribeClusterRequest(), DescribeClusterResponse, 1)
    assert (cluster.cluster_id, [each.broker_id for each in cluster.brokers]) == (answer.cluster_id, [broker.node_id])
