"""Log lines name the request, file or merge that they belong to; and slow requests are logged."""

from __future__ import annotations

import asyncio
from typing import Any

from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.l0_commit import CommitInDoubtError, CommitL0, Committed
from metadata.groups.contract import GroupLease, GroupRecord
from metadata.memory.store import MemoryMetadata
from runtime.logging import LOG_CONTEXT, About, configure, log_context, tell_left_out
from siltstone.kafka.client import KafkaClient
from storage.memory import MemoryStore
from storage.objects import Body, StoreUnavailableError
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent
from tests.fixtures.log_lines import LogLines
from tests.fixtures.metadata_parts import Part
from wire.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from wire.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from wire.records import NewRecord, build_batch
from wire.schema import Message

BATCH = build_batch([NewRecord(1_700_000_000_000, b"k", b"v")])
REQUEST_FACTS = {"api", "client_id", "correlation_id", "connection", "peer"}


def produce() -> ProduceRequest:
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=BATCH)])]
    return ProduceRequest(acks=-1, timeout_ms=10_000, topic_data=data)


def fetch(offset: int, *, max_wait_ms: int = 0) -> FetchRequest:
    part = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=max_wait_ms, min_bytes=1, max_bytes=1 << 20, topics=[FetchTopic(topic="t", partitions=[part])]
    )


async def with_topic(dial: Dial, running: RunningAgent) -> tuple[KafkaClient, RawConnection]:
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1)
    return client, await dial.raw(running.address)


class LosesAnswers(Part):
    """The first calls do not reach Postgres. Then commits are done and the first answers lost."""

    calls_to_lose = 0
    answers_to_lose = 0

    async def commit_l0(self, request: CommitL0) -> Committed:
        if self.calls_to_lose:
            self.calls_to_lose -= 1
            raise MetadataUnavailableError("no connection")
        committed = await self.inner.commit_l0(request)
        if self.answers_to_lose:
            self.answers_to_lose -= 1
            raise CommitInDoubtError("the connection was lost")
        return committed


class LosesSaves(Part):
    """The group's save has an unknown outcome."""

    loses = False

    async def save_group(self, lease: GroupLease, record: GroupRecord) -> None:
        if self.loses:
            raise MetadataUnavailableError("the connection was lost")
        await self.inner.save_group(lease, record)


class SlowStore(MemoryStore):
    def __init__(self) -> None:
        super().__init__()
        self.put_s = 0.0
        self.away = False

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await asyncio.sleep(self.put_s)
        if self.away:
            raise StoreUnavailableError("away")
        await super().put_if_absent(key, body, crc32c=crc32c)

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        if self.away:
            raise StoreUnavailableError("away")
        return await super().get_range(key, start, length)


async def test_the_correlation_id_of_a_produce_leads_to_its_file_and_the_key_of_the_file_to_its_life(
    log_lines: LogLines, dial: Dial, start_agent: StartAgent
) -> None:
    metadata = MemoryMetadata()
    metadata.agents = losing = LosesAnswers(metadata.agents)  # type: ignore[assignment]
    losing.calls_to_lose = losing.answers_to_lose = 1
    await metadata.open()
    running = await start_agent(metadata=metadata)
    client, raw = await with_topic(dial, running)
    other = await dial.raw(running.address)
    # when two requests of one connection and one of another go into the same file, whose commit is in doubt at first
    for each in (raw, raw, other):
        await each.begin(produce(), 9)
    for each in (raw, raw, other):
        assert (await each.answer(ProduceResponse, 9)).responses[0].partition_responses[0].error_code == 0
    # then each has a line of its own that names the file
    sealed = log_lines.named("records sealed")
    assert [(line["correlation_id"], line["api"], line["client_id"]) for line in sealed] == [
        (1, "Produce", "raw"),
        (2, "Produce", "raw"),
        (1, "Produce", "raw"),
    ]
    assert sealed[0]["connection"] == sealed[1]["connection"] != sealed[2]["connection"]
    assert sealed[0]["peer"] == "{}:{}".format(*raw.writer.get_extra_info("sockname"))
    (key,) = {line["key"] for line in sealed}
    # and the file's own lines tell its life, on behalf of nobody in particular
    life = [line for line in log_lines.all() if line.get("key") == key and line["event"] != "records sealed"]
    assert [line["event"] for line in life] == [
        "file sealed",
        "file put",
        "commit did not reach Postgres, repeating it",
        "commit in doubt, repeating it",
        "file committed",
    ]
    assert not [line for line in life if REQUEST_FACTS & set(line)]
    assert life[0]["requests"] == 3 and life[-1]["file_id"] > 0
    await client.close()


async def test_what_is_written_for_a_request_names_it(log_lines: LogLines, dial: Dial, start_agent: StartAgent) -> None:
    store = SlowStore()
    running = await start_agent(store=store, cache_hot_bytes=0)
    _, raw = await with_topic(dial, running)
    await raw.call(produce(), ProduceResponse, 9)
    # when the same connection deletes records, and fetches where nothing can be read
    topic = DeleteRecordsTopic(name="t", partitions=[DeleteRecordsPartition(partition_index=0, offset=0)])
    await raw.call(DeleteRecordsRequest(topics=[topic], timeout_ms=1000), DeleteRecordsResponse, 2)
    store.away = True
    await raw.call(fetch(0), FetchResponse, 12)
    # then both lines name their own request
    (deleted,) = log_lines.named("records deleted")
    assert (deleted["api"], deleted["correlation_id"]) == ("DeleteRecords", 2) and set(deleted) >= REQUEST_FACTS
    unreadable = [
        line for line in log_lines.all() if line["module"].startswith("agents.read") and line["level"] == "error"
    ]
    assert unreadable and all((line["api"], line["correlation_id"]) == ("Fetch", 3) for line in unreadable)
    # and the end of a connection is not logged as part of its last request
    await raw.send(b"\x7f\xff\xff\xff")
    assert await raw.is_closed_by_peer()
    (closed,) = await log_lines.until("connection closed, protocol error")
    assert closed["connection"] == deleted["connection"] and not {"api", "correlation_id"} & set(closed)


async def test_a_request_that_is_begun_in_the_midst_of_other_work_leaves_nothing_behind(
    dial: Dial, start_agent: StartAgent
) -> None:
    # given a produce that has to wait for room
    running = await start_agent()
    _, raw = await with_topic(dial, running)
    server = running.agent._server
    assert server is not None
    server.produce_is_full = True
    await raw.begin(produce(), 9)
    async with asyncio.timeout(10):
        while not any(connection._frames for connection in server._connections):
            await asyncio.sleep(0.005)
    # when another request makes room and so begins it, its lines still name itself
    with log_context(About(key="a file")):
        before = LOG_CONTEXT.get()
        server.produce_bytes_changed()
        assert LOG_CONTEXT.get() is before
    assert (await raw.answer(ProduceResponse, 9)).responses[0].partition_responses[0].error_code == 0


async def test_a_group_is_stored_on_behalf_of_nobody_in_particular(
    log_lines: LogLines, dial: Dial, start_agent: StartAgent
) -> None:
    metadata = MemoryMetadata()
    metadata.groups = losing = LosesSaves(metadata.groups)  # type: ignore[assignment]
    await metadata.open()
    running = await start_agent(metadata=metadata, group_initial_rebalance_delay_ms=0)
    raw = await dial.raw(running.address)
    join = JoinGroupRequest(group_id="g", protocol_type="consumer", session_timeout_ms=10_000)
    join.rebalance_timeout_ms = 10_000
    join.protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]
    joined = await raw.call(join, JoinGroupResponse, 3)
    assert joined.error_code == 0
    # when a request, and no timer, begins a save
    losing.loses = True
    sync = SyncGroupRequest(group_id="g", generation_id=joined.generation_id, member_id=joined.member_id)
    sync.assignments = [SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")]
    await raw.call(sync, SyncGroupResponse, 3)
    (line,) = await log_lines.until("group may not be stored")
    assert line["group"] == "g" and not REQUEST_FACTS & set(line)


async def test_a_file_that_is_given_up_names_the_requests_that_fail_with_it(
    log_lines: LogLines, dial: Dial, start_agent: StartAgent
) -> None:
    store = SlowStore()
    running = await start_agent(store=store)
    _, raw = await with_topic(dial, running)
    store.away = True
    failed = await raw.call(produce(), ProduceResponse, 9)
    assert failed.responses[0].partition_responses[0].error_code == 56
    (given_up,) = log_lines.named("file given up")
    (sealed,) = log_lines.named("records sealed")
    assert given_up["key"] == sealed["key"] and given_up["error"] == "KAFKA_STORAGE_ERROR"
    assert given_up["requests"] == [f"{sealed['connection']}:{sealed['correlation_id']}"]


async def test_a_slow_request_is_told_of_and_one_that_waits_as_it_was_asked_to_is_not(
    log_lines: LogLines, dial: Dial, start_agent: StartAgent
) -> None:
    # given
    store = SlowStore()
    running = await start_agent(store=store, log_slow_request_ms=1_000, group_initial_rebalance_delay_ms=2_000)
    _, raw = await with_topic(dial, running)
    join = JoinGroupRequest(group_id="g", protocol_type="consumer", session_timeout_ms=10_000)
    join.rebalance_timeout_ms = 10_000
    join.protocols = [JoinGroupRequestProtocol(name="range", metadata=b"")]

    async def timed(request: Message, response: type[Any], version: int) -> Any:
        began = asyncio.get_running_loop().time()
        answer = await raw.call(request, response, version)
        assert asyncio.get_running_loop().time() - began > 1.5, "or this shows nothing"
        return answer

    # when a fetch waits for records and a member for its group
    await timed(fetch(0, max_wait_ms=2_000), FetchResponse, 12)
    assert (await timed(join, JoinGroupResponse, 3)).error_code == 0
    # then neither counts as slow
    assert log_lines.named("slow request") == []
    # when the store is slow, then the request does, and its line names the file
    store.put_s = 2
    await timed(produce(), ProduceResponse, 9)
    (slow,) = log_lines.named("slow request")
    (sealed,) = log_lines.named("records sealed")
    assert (slow["api"], slow["correlation_id"], slow["key"]) == ("Produce", sealed["correlation_id"], sealed["key"])
    assert slow["elapsed_ms"] >= 1_500 and slow["waited_ms"] == 0 and slow["level"] == "info"


async def test_a_storm_of_bad_connections_does_not_fill_the_log(
    log_lines: LogLines, dial: Dial, start_agent: StartAgent
) -> None:
    running = await start_agent()
    configure("info", "json", burst_lines=3)
    for _ in range(8):
        raw = await dial.raw(running.address)
        await raw.send(b"\x00\x00\x00\x04\xff\xff\xff\xff")
        assert await raw.is_closed_by_peer()
    tell_left_out(all_of_them=True)
    assert len(log_lines.named("connection closed, protocol error")) == 3
    (told,) = log_lines.named("lines left out")
    assert (told["of"], told["left_out"]) == ("connection closed, protocol error", 5)
