"""The two servers side by side: the same users, topics, groups and records on both, and a connection to each in any
user's name."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar
from uuid import UUID

from siltstone.kafka.security.authenticating import authenticate
from siltstone.kafka.security.values import ClientSecurity
from tests.fixtures.agents import RawConnection
from wire.api import API_VERSIONS, APIS
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.create_topics import CreatableTopic, CreateTopicsRequest, CreateTopicsResponse
from wire.messages.delete_topics import DeleteTopicsRequest, DeleteTopicsResponse, DeleteTopicState
from wire.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse, MetadataResponseTopic
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch
from wire.schema import Message, message_table

ADMIN, ANONYMOUS = "admin", "ANONYMOUS"
PASSWORDS = {ADMIN: "admin's", "ann": "ann's", "bob": "bob's", "probe": "probe's"}
TOPICS = ("t1", "t2", "team-a")
DOOMED_TOPICS = ("doomed", "t-doomed")
"""They are deleted, and made again."""
GROUPS = ("g1", "g2")
DOOMED_GROUPS = ("g-doomed",)
_GROUP, _TRANSACTION = 0, 1
"""The answer of FindCoordinator."""
WAIT_S_MAX = 60.0
POLL_S = 0.01
Response = TypeVar("Response", bound=Message)


@dataclass(eq=False)
class Side:
    """One server. `ids` and `node_id` are the only things in requests that differ."""

    name: str
    sasl: str
    anonymous: str
    ids: dict[str, UUID] = field(default_factory=dict[str, UUID])
    node_id: int = 0
    versions: Mapping[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    _admin: RawConnection | None = None

    async def open(self) -> None:
        """Wait until it serves, and make all topics, records and offsets."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        self._admin = await self.connect(ADMIN)
        told = await self._admin.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
        self.versions = {each.api_key: (each.min_version, each.max_version) for each in told.api_keys}
        while not (brokers := (await self.metadata(None)).brokers) and time.monotonic() < deadline_s:
            await asyncio.sleep(POLL_S)
        self.node_id = brokers[0].node_id
        await self.make_topics((*TOPICS, *DOOMED_TOPICS))
        for topic in TOPICS:
            await self._write(topic)
        for key_type, key in ((_GROUP, GROUPS[0]), (_TRANSACTION, "tx1")):
            await self._find_coordinator(key_type, key)
        await self._make_producer_id()
        await self.commit_offsets()

    async def close(self) -> None:
        if self._admin is not None:
            await self._admin.close()

    async def connect(self, user: str) -> RawConnection:
        if user == ANONYMOUS:
            return await RawConnection.connect(self.anonymous)
        raw = await RawConnection.connect(self.sasl)

        async def ask(request: Message, response: type[Response]) -> Response:
            return await raw.call(request, response, message_table(type(request)).versions.high)

        security = ClientSecurity(
            protocol="SASL_PLAINTEXT", mechanism="PLAIN", username=user, password=PASSWORDS[user], source="the test"
        )
        await authenticate(ask, security, self.sasl)
        return raw

    async def call(self, request: Message, response: type[Response]) -> Response:
        """As the super user."""
        assert self._admin is not None
        key = message_table(type(request)).api_key
        return await self._admin.call(request, response, min(APIS[key].advertised[1], self.versions[key][1]))

    async def metadata(self, topics: Sequence[str] | None) -> MetadataResponse:
        """Makes no topic."""
        named = None if topics is None else [MetadataRequestTopic(name=name) for name in topics]
        return await self.call(MetadataRequest(topics=named, allow_auto_topic_creation=False), MetadataResponse)

    async def topic(self, name: str) -> MetadataResponseTopic:
        return (await self.metadata([name])).topics[0]

    async def make_topics(self, names: Sequence[str]) -> None:
        """Make those that are absent, and wait until each can be written to."""
        made = [CreatableTopic(name=name, num_partitions=2, replication_factor=1) for name in names]
        answer = await self.call(CreateTopicsRequest(topics=made, timeout_ms=10_000), CreateTopicsResponse)
        for topic in answer.topics:
            if topic.error_code == ErrorCode.NONE:
                self.ids[topic.name] = topic.topic_id
                await self.until(topic.name, exists=True)

    async def delete_topic(self, name: str) -> None:
        state = [DeleteTopicState(name=name)]
        await self.call(DeleteTopicsRequest(topics=state, timeout_ms=10_000), DeleteTopicsResponse)
        await self.until(name, exists=False)

    async def until(self, topic: str, *, exists: bool) -> None:
        deadline_s = time.monotonic() + WAIT_S_MAX
        while time.monotonic() < deadline_s:
            found = await self.topic(topic)
            # Kafka's broker may still name a topic that was deleted.
            is_it = found.topic_id == self.ids.get(topic, found.topic_id)
            leads = all(each.leader_id >= 0 for each in found.partitions)
            if exists and found.error_code == ErrorCode.NONE and is_it and leads:
                return
            if not exists and found.error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION:
                return
            await asyncio.sleep(POLL_S)
        raise AssertionError(f"{self.name}: topic {topic} is {'not ' if exists else ''}there")

    async def commit_offsets(self) -> None:
        """Those of all groups. A group without any would be no group."""
        parts = [OffsetCommitRequestPartition(partition_index=0, committed_offset=0, committed_metadata="")]
        topics = [OffsetCommitRequestTopic(name=name, partitions=parts) for name in TOPICS]
        for group in (*GROUPS, *DOOMED_GROUPS):
            await self._commit(OffsetCommitRequest(group_id=group, topics=topics))

    async def _write(self, topic: str) -> None:
        records = build_batch([NewRecord(int(time.time() * 1000), b"k", b"v")])
        data = TopicProduceData(
            name=topic, topic_id=self.ids[topic], partition_data=[PartitionProduceData(index=0, records=records)]
        )

        async def error() -> int:
            answer = await self.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[data]), ProduceResponse)
            return answer.responses[0].partition_responses[0].error_code

        await self._until_none(error, f"records for {topic}")

    async def _find_coordinator(self, key_type: int, key: str) -> None:
        """Kafka makes its topics of offsets and of transactions when it is first asked."""

        async def error() -> int:
            request = FindCoordinatorRequest(key_type=key_type, coordinator_keys=[key])
            answer = await self.call(request, FindCoordinatorResponse)
            code = answer.coordinators[0].error_code
            return code if code == ErrorCode.COORDINATOR_NOT_AVAILABLE else ErrorCode.NONE

        await self._until_none(error, f"coordination of {key}")

    async def _make_producer_id(self) -> None:
        """Kafka's broker has to get a block of ids first."""

        async def error() -> int:
            code = (await self.call(InitProducerIdRequest(transactional_id=None), InitProducerIdResponse)).error_code
            return code if code == ErrorCode.COORDINATOR_LOAD_IN_PROGRESS else ErrorCode.NONE

        await self._until_none(error, "request for a producer id")

    async def _commit(self, request: OffsetCommitRequest) -> None:
        async def error() -> int:
            answer = await self.call(request, OffsetCommitResponse)
            return max((abs(part.error_code) for topic in answer.topics for part in topic.partitions), default=0)

        await self._until_none(error, f"offsets of {request.group_id}")

    async def _until_none(self, error: Callable[[], Awaitable[int]], what: str) -> None:
        """Kafka needs a while to make its own topics, and logs for ours."""
        deadline_s = time.monotonic() + WAIT_S_MAX
        while (code := await error()) != ErrorCode.NONE:
            assert time.monotonic() < deadline_s, f"{self.name} takes no {what}: error {code}"
            await asyncio.sleep(POLL_S)


def versions_in_common(sides: Sequence[Side]) -> Mapping[int, range]:
    """By API key; what Kafka alone has is not in it."""
    found: dict[int, range] = {}
    for key, api in APIS.items():
        ranges = [api.accepted, *(each.versions[key] for each in sides if key in each.versions)]
        if len(ranges) == len(sides) + 1:
            found[key] = range(max(low for low, _ in ranges), min(high for _, high in ranges) + 1)
    assert API_VERSIONS in found
    return found
