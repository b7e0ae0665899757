"""The limits of rights to records: sessions, waiting fetches, producers without acks, and lists of topics."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass

import pytest

from agents.request_context import ANONYMOUS
from security.acls.values import Acl, Operation, PatternType, Permission, ResourceType
from tests.fixtures.acls import allow, an_acl
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.waiting import until
from wire.error_codes import ErrorCode
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

READ, WRITE, DESCRIBE, CREATE = Operation.READ, Operation.WRITE, Operation.DESCRIBE, Operation.CREATE
DENIED = ErrorCode.TOPIC_AUTHORIZATION_FAILED


@dataclass
class Served:
    running: RunningAgent
    raw: RawConnection

    def change(self, *added: Acl, removed: tuple[Acl, ...] = ()) -> None:
        self.running.agent.authorizer.change(added=added, removed=removed)

    async def produce(self, *topics: str, acks: int = -1) -> list[int]:
        batch = build_batch([NewRecord(1, b"k", b"v")])
        data = [
            TopicProduceData(name=name, partition_data=[PartitionProduceData(index=0, records=batch)])
            for name in topics
        ]
        request = ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=data)
        if not acks:
            await self.raw.begin(request, 9)
            return []
        answer = await self.raw.call(request, ProduceResponse, 9)
        return [part.error_code for topic in answer.responses for part in topic.partition_responses]


def may(operation: Operation, name: str, **changes: object) -> Acl:
    return allow(operation, name, to=ANONYMOUS, **changes)


@pytest.fixture
async def served(start_agent: StartAgent, dial: Dial) -> AsyncIterator[Served]:
    running = await start_agent(acl_mode="on")
    for name in ("a", "b", "c"):
        await running.metadata.agents.create_topic(name, partitions=1, configs={})
    await until(lambda: running.agent._topic_cache.topic("c"))
    yield Served(running, await dial.raw(running.address))


def fetch(*topics: str, session: int = 0, epoch: int = 0, wait_ms: int = 0, min_bytes: int = 0) -> FetchRequest:
    parts = [FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1_000_000)]
    return FetchRequest(
        max_wait_ms=wait_ms,
        min_bytes=min_bytes,
        session_id=session,
        session_epoch=epoch,
        topics=[FetchTopic(topic=name, partitions=parts) for name in topics],
    )


def told(answer: FetchResponse) -> dict[str, int]:
    return {topic.topic: part.error_code for topic in answer.responses for part in topic.partitions}


async def test_each_topic_of_a_produce_request_stands_by_itself(served: Served) -> None:
    served.change(may(WRITE, "a"))
    assert await served.produce("a", "b", "nope") == [0, DENIED, DENIED]


async def test_a_refusal_without_acks_ends_the_connection(served: Served) -> None:
    await served.produce("a", acks=0)
    assert await served.raw.is_closed_by_peer()


async def test_a_session_is_judged_by_the_present_acls_at_each_fetch(served: Served) -> None:
    # given a session over two topics, of which one may be read
    served.change(may(READ, "a"), may(WRITE, "a"))
    first = await served.raw.call(fetch("a", "b"), FetchResponse, 11)
    assert told(first) == {"a": 0, "b": DENIED}
    session = first.session_id
    assert session
    # when nothing changes, the error is told again, and the readable one is silent
    assert told(await served.raw.call(fetch(session=session, epoch=1), FetchResponse, 11)) == {"b": DENIED}
    # when the rights change, each partition follows
    served.change(may(READ, "b"), removed=(may(READ, "a"),))
    assert told(await served.raw.call(fetch(session=session, epoch=2), FetchResponse, 11)) == {"a": DENIED, "b": 0}
    assert told(await served.raw.call(fetch(session=session, epoch=3), FetchResponse, 11)) == {"a": DENIED}


async def test_another_client_does_not_inherit_the_rights_of_a_session(served: Served, dial: Dial) -> None:
    # given a session of a client that may read
    served.change(may(READ, "a"))
    first = await served.raw.call(fetch("a"), FetchResponse, 11)
    assert told(first) == {"a": 0}
    # when another principal goes on with it
    other = await dial.raw(served.running.address)
    await other.call(MetadataRequest(topics=[]), MetadataResponse, 9)
    server = served.running.agent._server
    assert server is not None
    list(server._connections)[-1].client.principal = "User:eve"
    # then it is refused
    answer = await other.call(fetch(session=first.session_id, epoch=1), FetchResponse, 11)
    assert told(answer) == {"a": DENIED}


async def test_a_fetch_that_waits_loses_its_right_before_it_is_answered(served: Served) -> None:
    # given a fetch that waits for records
    served.change(may(READ, "a"), may(WRITE, "a"))
    await served.raw.call(fetch("a"), FetchResponse, 11)
    await served.raw.begin(fetch("a", epoch=-1, wait_ms=30_000, min_bytes=1), 11)
    await until(lambda: served.running.agent._parked_readers._waiting)
    # when the right goes and then records come
    served.change(removed=(may(READ, "a"),))
    other = Served(served.running, await RawConnection.connect(served.running.address))
    assert await other.produce("a") == [0]
    await other.raw.close()
    # then the records are not told
    [topic] = (await served.raw.answer(FetchResponse, 11)).responses
    [part] = topic.partitions
    assert (part.error_code, bool(part.records), part.high_watermark) == (DENIED, False, -1)


async def test_a_list_of_topics_leaves_out_what_may_not_be_described(served: Served) -> None:
    served.change(may(READ, "a"), may(DESCRIBE, "b", pattern_type=PatternType.PREFIXED))
    every = await served.raw.call(MetadataRequest(topics=None), MetadataResponse, 9)
    assert {topic.name for topic in every.topics} == {"a", "b"}
    served.change(an_acl(resource_name="a", principal=ANONYMOUS, operation=DESCRIBE, permission=Permission.DENY))
    every = await served.raw.call(MetadataRequest(topics=None), MetadataResponse, 9)
    assert {topic.name for topic in every.topics} == {"b"}


async def test_a_topic_is_made_by_asking_only_with_the_right_to_create(served: Served) -> None:
    wanted = [MetadataRequestTopic(name=name) for name in ("seen", "unseen", "made")]
    served.change(may(DESCRIBE, "seen"), may(DESCRIBE, "made"), may(CREATE, "made"), may(CREATE, "unseen"))
    answer = await served.raw.call(MetadataRequest(topics=wanted), MetadataResponse, 9)
    assert {topic.name: topic.error_code for topic in answer.topics} == {"seen": DENIED, "unseen": DENIED, "made": 0}
    names = {topic.name for topic in await served.running.metadata.agents.list_topics()}
    assert names == {"a", "b", "c", "made"}


async def test_who_may_write_to_any_topic_may_be_an_idempotent_producer(served: Served) -> None:
    async def code() -> int:
        return (
            await served.raw.call(InitProducerIdRequest(transactional_id=None), InitProducerIdResponse, 4)
        ).error_code

    assert await code() == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    served.change(may(WRITE, "x", pattern_type=PatternType.PREFIXED))
    assert await code() == 0
    everywhere = an_acl(resource_name="*", principal=ANONYMOUS, operation=WRITE, permission=Permission.DENY)
    served.change(everywhere)
    assert await code() == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    served.change(
        an_acl(
            resource_type=ResourceType.CLUSTER,
            resource_name="kafka-cluster",
            principal=ANONYMOUS,
            operation=Operation.IDEMPOTENT_WRITE,
        )
    )
    assert await code() == 0
