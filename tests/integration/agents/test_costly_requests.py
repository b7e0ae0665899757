"""One request of about 1 MiB, made to be costly: its longest turn of the event loop, from the frame to the answer."""

from __future__ import annotations

import pytest

from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.loop_stalls import assert_holds_up_nobody, stalls_of_frame
from wire.api import encode_request
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest
from wire.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.offset_fetch import OffsetFetchRequest, OffsetFetchRequestGroup
from wire.schema import Message, message_table

COSTLY: dict[str, tuple[int, Message]] = {
    "topics to validate": (
        7,
        CreateTopicsRequest(
            topics=[CreatableTopic(name=f"n{n}", num_partitions=1, replication_factor=1) for n in range(3_000)],
            validate_only=True,
        ),
    ),
    "topics that do not exist": (
        12,
        MetadataRequest(
            topics=[MetadataRequestTopic(name=f"not a name {n}") for n in range(35_000)],
            allow_auto_topic_creation=False,
        ),
    ),
    "configs": (
        4,
        DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=2, resource_name=f"u{n}") for n in range(50_000)]
        ),
    ),
    "partitions to read": (
        12,
        FetchRequest(
            max_wait_ms=0,
            topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=n % 1_000) for n in range(30_000)])],
        ),
    ),
    "times": (
        9,
        ListOffsetsRequest(
            topics=[
                ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=n % 1_000, timestamp=5)])
                for n in range(40_000)
            ]
        ),
    ),
    "groups": (
        8,
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=f"g{n}", topics=None) for n in range(40_000)]),
    ),
}


@pytest.mark.parametrize("name", COSTLY)
async def test_a_costly_request_holds_up_nobody(start_agent: StartAgent, dial: Dial, name: str) -> None:
    running = await start_agent()
    await (await dial.kafka(running.address)).create_topic("t", partitions=1_000)
    version, request = COSTLY[name]
    frame = b"".join(
        bytes(part) for part in encode_request(message_table(type(request)).api_key, version, 1, "c", request)
    )
    await assert_holds_up_nobody(lambda: stalls_of_frame(running.address, frame))
