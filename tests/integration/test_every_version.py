"""Every API in every version that is accepted gives an answer that its client can read, for good input and for bad."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from uuid import UUID

import pytest

from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from wire.api import APIS
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest
from wire.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from wire.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from wire.messages.delete_records import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from wire.messages.describe_cluster import DescribeClusterRequest
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from wire.messages.init_producer_id import InitProducerIdRequest
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.records import NewRecord, build_batch
from wire.schema import Message

STRANGER = UUID(int=12345)


@pytest.fixture
async def raw(dial: Dial, start_agent: StartAgent) -> AsyncIterator[RawConnection]:
    running: RunningAgent = await start_agent()
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=2)
    yield await dial.raw(running.address)


def _produce(version: int) -> Message:
    good = build_batch([NewRecord(int(time.time() * 1000), b"k", b"v")])
    parts = [
        PartitionProduceData(index=index, records=records) for index, records in ((0, good), (1, b"junk"), (7, good))
    ]
    unknown = TopicProduceData(name="nope", partition_data=[PartitionProduceData(index=0, records=good)])
    topics = [TopicProduceData(name="t", partition_data=parts), unknown]
    return ProduceRequest(acks=-1, timeout_ms=5000, topic_data=topics)


def _fetch(version: int) -> Message:
    asked = [(0, 0), (1, 999), (7, 0)]
    parts = [FetchPartition(partition=n, fetch_offset=offset, partition_max_bytes=1000) for n, offset in asked]
    unknown = FetchTopic(topic="nope", partitions=[FetchPartition(partition=0, partition_max_bytes=1)])
    return FetchRequest(
        max_wait_ms=1, min_bytes=0, isolation_level=1, topics=[FetchTopic(topic="t", partitions=parts), unknown]
    )


def _list_offsets(version: int) -> Message:
    parts = [
        ListOffsetsPartition(partition_index=index, timestamp=timestamp)
        for index, timestamp in ((0, -1), (1, -2), (7, -1))
    ]
    unknown = ListOffsetsTopic(name="nope", partitions=[ListOffsetsPartition(partition_index=0, timestamp=5)])
    by_time = ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=0, timestamp=5)])
    topics = [ListOffsetsTopic(name="t", partitions=parts), unknown]
    return ListOffsetsRequest(replica_id=-1, topics=[by_time] if version % 2 else topics)


def _metadata(version: int) -> Message:
    wanted = [MetadataRequestTopic(name="t"), MetadataRequestTopic(name="bad name")]
    if version >= 12:
        wanted.append(MetadataRequestTopic(name=None, topic_id=STRANGER))
    return MetadataRequest(
        topics=wanted,
        include_topic_authorized_operations=version >= 8,
        include_cluster_authorized_operations=8 <= version <= 10,
    )


def _create_topics(version: int) -> Message:
    topics = [
        CreatableTopic(
            name=name,
            num_partitions=1,
            replication_factor=1,
            configs=[CreatableTopicConfig(name="retention.ms", value="5")],
        )
        for name in ("t", f"new-{version}", "bad name")
    ]
    return CreateTopicsRequest(topics=topics, timeout_ms=1000)


def _delete_topics(version: int) -> Message:
    if version < 6:
        return DeleteTopicsRequest(topic_names=["nope", "t"], timeout_ms=1000)
    states = [DeleteTopicState(name="t"), DeleteTopicState(name=None, topic_id=STRANGER)]
    return DeleteTopicsRequest(topics=states, timeout_ms=1000)


def _delete_records(version: int) -> Message:
    parts = [
        DeleteRecordsPartition(partition_index=index, offset=offset) for index, offset in ((0, -1), (1, 9), (7, 0))
    ]
    return DeleteRecordsRequest(
        topics=[DeleteRecordsTopic(name=name, partitions=parts) for name in ("t", "nope")], timeout_ms=1000
    )


def _find_coordinator(version: int) -> Message:
    return FindCoordinatorRequest(coordinator_keys=["g", "h"]) if version >= 4 else FindCoordinatorRequest(key="g")


def _describe_configs(version: int) -> Message:
    resources = [
        DescribeConfigsResource(resource_type=kind, resource_name=name, configuration_keys=None)
        for kind, name in ((2, "t"), (2, "nope"), (4, "1"), (4, ""), (77, "x"))
    ]
    return DescribeConfigsRequest(
        resources=resources, include_synonyms=version >= 1, include_documentation=version >= 3
    )


def _alter_configs(version: int) -> Message:
    resources = [
        AlterConfigsResource(
            resource_type=2, resource_name=name, configs=[AlterableConfig(name="retention.ms", value="7")]
        )
        for name in ("t", "nope")
    ]
    return IncrementalAlterConfigsRequest(resources=resources)


def _create_partitions(version: int) -> Message:
    return CreatePartitionsRequest(
        topics=[CreatePartitionsTopic(name=name, count=3, assignments=None) for name in ("t", "nope")], timeout_ms=1000
    )


REQUESTS: dict[int, Callable[[int], Message]] = {
    0: _produce,
    1: _fetch,
    2: _list_offsets,
    3: _metadata,
    10: _find_coordinator,
    18: lambda version: (
        ApiVersionsRequest(client_software_name="x", client_software_version="1")
        if version >= 3
        else ApiVersionsRequest()
    ),
    19: _create_topics,
    20: _delete_topics,
    21: _delete_records,
    22: lambda version: InitProducerIdRequest(transactional_id="tx" if version % 2 else None),
    32: _describe_configs,
    37: _create_partitions,
    44: _alter_configs,
    60: lambda version: DescribeClusterRequest(endpoint_type=2 if version else 1),
}


def test_no_api_is_forgotten_here() -> None:
    assert REQUESTS.keys() == APIS.keys()


@pytest.mark.parametrize(
    ("key", "version"),
    [(key, version) for key, api in APIS.items() for version in range(api.accepted[0], api.accepted[1] + 1)],
)
async def test_every_accepted_version_is_answered(raw: RawConnection, key: int, version: int) -> None:
    answer = await raw.call(REQUESTS[key](version), APIS[key].response, version)
    codes = _error_codes(answer)
    assert all(code in ErrorCode._value2member_map_ for code in codes)
    assert ErrorCode.UNKNOWN_SERVER_ERROR not in codes


def _error_codes(value: object) -> set[int]:
    """Every error code anywhere in a message."""
    found: set[int] = set()
    for name in getattr(value, "__slots__", ()):
        inner = getattr(value, name)
        if name == "error_code":
            found.add(inner)
        elif isinstance(inner, list):
            for each in inner:
                found |= _error_codes(each)
    return found
