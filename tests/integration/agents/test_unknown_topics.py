"""No API says from memory alone that a topic or partition does not exist: not at an agent that has not heard of it yet,
and not while the store does not answer.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from uuid import UUID

import pytest

from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.tail import Cursor, Tail
from tests.fixtures.agents import Dial, RawConnection, StartAgent
from tests.fixtures.fleet import Counted, Fleet, HintsLost, fleet
from wire.error_codes import ErrorCode
from wire.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from wire.messages.alter_replica_log_dirs import (
    AlterReplicaLogDir,
    AlterReplicaLogDirsRequest,
    AlterReplicaLogDirsResponse,
    AlterReplicaLogDirTopic,
)
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResponse,
)
from wire.messages.describe_producers import DescribeProducersRequest, DescribeProducersResponse, TopicRequest
from wire.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

LAGGING = {"tail_poll_ms": 60_000}
"""Such an agent hears of nothing by itself, if hints are lost too."""
UNKNOWN = {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID}

Ask = Callable[[RawConnection, str, UUID, int], Awaitable[int]]
"""(connection, topic's name, its id, partition) -> the error code of the answer"""


async def metadata_by_name(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)], allow_auto_topic_creation=False)
    [topic] = (await raw.call(request, MetadataResponse, 9)).topics
    return topic.error_code


async def metadata_by_id(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=None, topic_id=topic_id)])
    [topic] = (await raw.call(request, MetadataResponse, 13)).topics
    return topic.error_code


async def metadata_of_all(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    answer = await raw.call(MetadataRequest(topics=None), MetadataResponse, 9)
    return 0 if name in {topic.name for topic in answer.topics} else ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def fetch(raw: RawConnection, name: str, topic_id: UUID, part: int, version: int = 11) -> int:
    asked = FetchPartition(partition=part, fetch_offset=0, partition_max_bytes=1 << 20)
    topic = FetchTopic(topic=name, topic_id=topic_id, partitions=[asked])
    answer = await raw.call(FetchRequest(max_wait_ms=0, topics=[topic]), FetchResponse, version)
    return answer.responses[0].partitions[0].error_code


async def fetch_by_id(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    return await fetch(raw, name, topic_id, part, 13)


async def produce(raw: RawConnection, name: str, topic_id: UUID, part: int, version: int = 9) -> int:
    records = build_batch([NewRecord(int(time.time() * 1000), None, b"v")])
    data = PartitionProduceData(index=part, records=records)
    topic = TopicProduceData(name=name, topic_id=topic_id, partition_data=[data])
    answer = await raw.call(ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=[topic]), ProduceResponse, version)
    return answer.responses[0].partition_responses[0].error_code


async def produce_by_id(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    return await produce(raw, name, topic_id, part, 13)


async def list_offsets(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    asked = ListOffsetsTopic(name=name, partitions=[ListOffsetsPartition(partition_index=part, timestamp=-1)])
    answer = await raw.call(ListOffsetsRequest(replica_id=-1, topics=[asked]), ListOffsetsResponse, 7)
    return answer.topics[0].partitions[0].error_code


async def offset_commit(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    asked = OffsetCommitRequestPartition(partition_index=part, committed_offset=0)
    topic = OffsetCommitRequestTopic(name=name, partitions=[asked])
    request = OffsetCommitRequest(group_id="g", generation_id_or_member_epoch=-1, topics=[topic])
    return (await raw.call(request, OffsetCommitResponse, 8)).topics[0].partitions[0].error_code


async def leader_epoch(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    asked = OffsetForLeaderPartition(partition=part, current_leader_epoch=-1, leader_epoch=0)
    request = OffsetForLeaderEpochRequest(topics=[OffsetForLeaderTopic(topic=name, partitions=[asked])])
    return (await raw.call(request, OffsetForLeaderEpochResponse, 4)).topics[0].partitions[0].error_code


async def delete_records(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    asked = DeleteRecordsTopic(name=name, partitions=[DeleteRecordsPartition(partition_index=part, offset=0)])
    answer = await raw.call(DeleteRecordsRequest(topics=[asked], timeout_ms=1000), DeleteRecordsResponse, 2)
    return answer.topics[0].partitions[0].error_code


async def describe_producers(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    request = DescribeProducersRequest(topics=[TopicRequest(name=name, partition_indexes=[part])])
    return (await raw.call(request, DescribeProducersResponse, 0)).topics[0].partitions[0].error_code


async def elect_leaders(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    request = ElectLeadersRequest(topic_partitions=[TopicPartitions(topic=name, partitions=[part])], timeout_ms=1000)
    [topic] = (await raw.call(request, ElectLeadersResponse, 2)).replica_election_results
    code = topic.partition_result[0].error_code
    return 0 if code == ErrorCode.ELECTION_NOT_NEEDED else code


async def reassign(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    topic = ReassignableTopic(name=name, partitions=[ReassignablePartition(partition_index=part)])
    answer = await raw.call(AlterPartitionReassignmentsRequest(topics=[topic]), AlterPartitionReassignmentsResponse, 1)
    code = answer.responses[0].partitions[0].error_code
    return 0 if code == ErrorCode.NO_REASSIGNMENT_IN_PROGRESS else code


async def move_log_dirs(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    topic = AlterReplicaLogDirTopic(name=name, partitions=[part])
    request = AlterReplicaLogDirsRequest(dirs=[AlterReplicaLogDir(path="object-store", topics=[topic])])
    return (await raw.call(request, AlterReplicaLogDirsResponse, 2)).results[0].partitions[0].error_code


async def describe_configs(raw: RawConnection, name: str, topic_id: UUID, part: int) -> int:
    resource = DescribeConfigsResource(resource_type=2, resource_name=name, configuration_keys=None)
    return (
        (await raw.call(DescribeConfigsRequest(resources=[resource]), DescribeConfigsResponse, 4)).results[0].error_code
    )


OF_PARTITIONS: tuple[Ask, ...] = (
    fetch,
    fetch_by_id,
    produce,
    produce_by_id,
    list_offsets,
    offset_commit,
    leader_epoch,
    delete_records,
    describe_producers,
    elect_leaders,
    reassign,
    move_log_dirs,
)
OF_TOPICS: tuple[Ask, ...] = (metadata_by_name, metadata_by_id, describe_configs)


class Cut(Counted):
    """A store whose tail can be made to fail, or to hang as a lost connection does."""

    is_away = is_silent = False

    async def tail(self, cursor: Cursor) -> Tail:
        self.calls["tail"] += 1
        if self.is_silent:
            await asyncio.Event().wait()
        if self.is_away:
            raise MetadataUnavailableError("away")
        return await self.inner.agents.tail(cursor)


async def _new_topic(agents: Fleet, dial: Dial, name: str, partitions: int = 1) -> UUID:
    """A topic that only the first agent has heard of."""
    client = await dial.kafka(agents[0].address)
    await client.create_topic(name, partitions=partitions)
    return (await client.topic(name)).topic_id


async def test_an_agent_that_has_not_heard_of_a_topic_looks_before_it_answers(
    start_agent: StartAgent, dial: Dial
) -> None:
    async with fleet(start_agent, 2, wrap=HintsLost, **LAGGING) as agents:
        await agents.know_each_other()
        for ask in (*OF_TOPICS, *OF_PARTITIONS):
            if ask is offset_commit:
                continue  # the group may belong to the other agent; see below
            topic_id = await _new_topic(agents, dial, ask.__name__)
            raw = await dial.raw(agents[1].address)
            assert agents[1].agent._topic_cache.topic(ask.__name__) is None
            assert await ask(raw, ask.__name__, topic_id, 0) == 0, ask.__name__


async def test_a_partition_that_was_added_elsewhere_is_looked_for(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 2, wrap=HintsLost, **LAGGING) as agents:
        client, raw = await dial.kafka(agents[0].address), await dial.raw(agents[1].address)
        topic_id = await _new_topic(agents, dial, "t")
        assert await metadata_by_name(raw, "t", topic_id, 0) == 0
        for count, ask in enumerate((each for each in OF_PARTITIONS if each is not offset_commit), start=2):
            await client.create_partitions("t", count)
            topic = agents[1].agent._topic_cache.topic("t")
            assert topic is not None and len(topic.partition_ids) < count
            assert await ask(raw, "t", topic_id, count - 1) == 0, ask.__name__


async def test_while_the_store_does_not_answer_nothing_is_called_unknown(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 1, wrap=Cut, **LAGGING) as agents:
        [service] = agents.services
        # made behind the agent's back, as by another agent whose announcement this one cannot hear
        made = await service.inner.agents.create_topic("t", partitions=1, configs={})
        service.is_away = True
        for ask in (*OF_TOPICS, *OF_PARTITIONS):
            raw = await dial.raw(agents[0].address)
            code = ErrorCode(await ask(raw, "t", made.topic_id, 0))
            assert code not in UNKNOWN and code.retriable, f"{ask.__name__}: {code.name}"
        # and: as soon as it answers, the topic is there for everybody
        service.is_away = False
        for ask in (*OF_TOPICS, *OF_PARTITIONS):
            assert await ask(await dial.raw(agents[0].address), "t", made.topic_id, 0) == 0, ask.__name__


async def test_an_agent_whose_tail_hangs_calls_nothing_unknown(
    start_agent: StartAgent, dial: Dial, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("agents.topics.present.LOOK_MS_MAX", 300.0)
    async with fleet(start_agent, 1, wrap=Cut, tail_poll_ms=50) as agents:
        [service] = agents.services
        service.is_silent = True
        made = await service.inner.agents.create_topic("t", partitions=1, configs={})
        asking = [
            ask(await dial.raw(agents[0].address), "t", made.topic_id, 0)
            for ask in (metadata_by_name, fetch, produce, list_offsets, offset_commit)
        ]
        codes = {ErrorCode(code) for code in await asyncio.gather(*asking)}
        assert not codes & UNKNOWN and all(code.retriable for code in codes), codes


async def test_what_does_not_exist_is_called_unknown_after_a_look(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 1, **LAGGING) as agents:
        [service] = agents.services
        topic_id = await _new_topic(agents, dial, "t")
        raw = await dial.raw(agents[0].address)
        for ask in OF_PARTITIONS:
            before = service.calls["tail"]
            assert await ask(raw, "t", topic_id, 7) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ask.__name__
            assert await ask(raw, "t", topic_id, -1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ask.__name__
            assert service.calls["tail"] > before, ask.__name__
        stranger = UUID(int=5)
        for ask in (*OF_TOPICS, *OF_PARTITIONS):
            assert ErrorCode(await ask(raw, "nope", stranger, 0)) in UNKNOWN, ask.__name__


async def test_an_agent_that_has_not_seen_the_store_for_a_while_looks_before_it_lists_all_topics(
    start_agent: StartAgent, dial: Dial
) -> None:
    async with fleet(start_agent, 1, wrap=Cut, tail_poll_ms=50) as agents:
        [service], [running] = agents.services, agents.agents
        raw = await dial.raw(running.address)
        assert await metadata_of_all(raw, "t", UUID(int=0), 0) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        service.is_away = True
        await service.inner.agents.create_topic("t", partitions=1, configs={})
        running.agent._follower._seen_ms -= 10_000.0  # as if it had been away for so long
        service.is_away = False
        assert await metadata_of_all(raw, "t", UUID(int=0), 0) == 0


async def test_a_client_with_a_wrong_name_costs_the_store_few_looks(start_agent: StartAgent, dial: Dial) -> None:
    async with fleet(start_agent, 1, **LAGGING) as agents:
        [service] = agents.services
        raws = [await dial.raw(agents[0].address) for _ in range(50)]
        service.calls.clear()
        for _ in range(4):
            codes = await asyncio.gather(*(metadata_by_name(raw, "nope", UUID(int=0), 0) for raw in raws))
            assert set(codes) == {ErrorCode.UNKNOWN_TOPIC_OR_PARTITION}
        assert service.calls["tail"] <= 20, "200 questions, a few looks for each round"
