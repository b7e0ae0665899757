"""Wrong input on the wire: a clear end or a clear error for its sender, and no harm to others."""

from __future__ import annotations

import os
import struct
import time
import tracemalloc
from collections.abc import AsyncIterator, Callable

import pytest

from runtime.errors import SiltstoneError
from tests.fixtures.agents import Dial, RawConnection, RunningAgent, StartAgent, read_all
from tests.fixtures.record_batches import with_header
from wire.api import APIS, encode_request
from wire.batch import TRANSACTIONAL_BIT
from wire.error_codes import ErrorCode
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from wire.records import NewRecord, build_batch

MIB = 1 << 20


@pytest.fixture
async def agent(dial: Dial, start_agent: StartAgent) -> AsyncIterator[RunningAgent]:
    """Input that is refused before the stores are asked needs no real stores."""
    running = await start_agent()
    yield running
    # whatever was sent, the agent is up and serves
    client = await dial.kafka(running.address)
    await client.create_topic("after", partitions=1)
    assert await client.produce("after", 0, good_batch()) == 0
    assert len(await read_all(client, "after")) == 1


def good_batch(value: bytes = b"v", key: bytes | None = b"k") -> bytes:
    return build_batch([NewRecord(int(time.time() * 1000), key, value)])


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def head(api_key: int, version: int, correlation_id: int = 1, client_id: bytes = b"x") -> bytes:
    return struct.pack(">hhih", api_key, version, correlation_id, len(client_id)) + client_id


async def produce_one(raw: RawConnection, records: bytes | None, topic: str = "t") -> PartitionProduceResponse:
    request = ProduceRequest(
        acks=-1,
        timeout_ms=5000,
        topic_data=[TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])],
    )
    response = await raw.call(request, ProduceResponse, 9)
    return response.responses[0].partition_responses[0]


NO_REQUESTS: dict[str, tuple[bytes, str]] = {
    "http": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "frame_too_large"),
    "tls": (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 64, "frame_too_large"),
    "negative length": (b"\xff\xff\xff\xff" + b"junk", "malformed_frame"),
    "largest length": (b"\x7f\xff\xff\xff", "frame_too_large"),
    "above the limit": (struct.pack(">i", 100 * MIB + 1), "frame_too_large"),
    "short header": (frame(b"\x00\x03"), "malformed_message"),
    "lying client id": (frame(head(3, 1)[:8] + b"\x7f\xff"), "malformed_message"),
    "unknown api": (frame(head(9999, 0)), "unknown_api"),
    "negative api": (frame(head(-1, 0)), "unknown_api"),
    "an api between brokers": (frame(head(4, 0)), "unknown_api"),
    "version 99": (frame(head(3, 99)), "unsupported_version"),
    "version -1": (frame(head(3, -1)), "unsupported_version"),
    "produce v2": (frame(head(0, 2) + b"\0" * 20), "unsupported_version"),
    "lying array": (frame(head(3, 1) + struct.pack(">i", 2**31 - 1)), "malformed_message"),
    "lying compact array": (frame(head(3, 12) + b"\0" + b"\xff\xff\xff\xff\x7f" + b"\0\0\0"), "malformed_message"),
    "lying string": (frame(head(3, 1) + struct.pack(">ih", 1, 500) + b"short"), "malformed_message"),
    "not utf-8": (frame(head(3, 1) + struct.pack(">ih", 1, 2) + b"\xff\xfe"), "malformed_message"),
}


@pytest.mark.parametrize("what", NO_REQUESTS)
async def test_what_is_no_request_ends_its_connection(dial: Dial, agent: RunningAgent, what: str) -> None:
    data, reason = NO_REQUESTS[what]
    raw = await dial.raw(agent.address)
    await raw.send(data)
    assert await raw.is_closed_by_peer()
    assert agent.metric("protocol_errors_total", reason=reason) == 1


async def test_random_bytes_never_bring_the_agent_down(dial: Dial, agent: RunningAgent) -> None:
    seed = os.urandom(8)
    print("seed", seed.hex())
    for number in range(60):
        raw = await dial.raw(agent.address)
        noise = os.urandom(200)
        api_key = sorted(APIS)[number % len(APIS)]
        low, high = APIS[api_key].accepted
        await raw.send(frame(head(api_key, low + number % (high - low + 1)) + noise[: number * 3]))
        raw.writer.write_eof()
        while await raw.reader.read(65536):
            pass
    assert agent.agent.ready


async def test_a_lying_length_allocates_nothing(dial: Dial, agent: RunningAgent) -> None:
    tracemalloc.start()
    try:
        connections = [await dial.raw(agent.address) for _ in range(20)]
        for raw in connections:
            await raw.send(struct.pack(">i", 100 * MIB) + head(0, 9) + b"\0" * 1000)
        probe = await dial.kafka(agent.address)
        await probe.metadata([])
        _, peak = tracemalloc.get_traced_memory()
        assert peak < 20 * MIB, f"{peak} bytes for 2 GiB of promises"
    finally:
        tracemalloc.stop()


async def test_frames_that_never_end_are_bounded_over_all_connections(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent(request_bytes_max=8 * MIB, socket_request_max_bytes=8 * MIB)
    connections = [await dial.raw(running.address) for _ in range(16)]
    for raw in connections:
        raw.writer.write(struct.pack(">i", 8 * MIB) + head(0, 9) + b"\0" * (4 * MIB))
    # then: others are served meanwhile
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1)
    assert await client.produce("t", 0, good_batch()) == 0
    server = running.agent._server
    assert server is not None
    assert server._held_bytes < 12 * MIB, "8 MiB, what was in flight when the bound was met, and one read each"
    for raw in connections:
        raw.writer.transport.abort()


async def test_unknown_tagged_fields_are_skipped(dial: Dial, agent: RunningAgent) -> None:
    raw = await dial.raw(agent.address)
    # header v2 with tag 77, Metadata v12 with null topics and tag 55 at its end
    tags = b"\x01" + bytes([77]) + b"\x03abc"
    body = b"\x00" + b"\x00\x00" + b"\x01" + bytes([55]) + b"\x02zz"
    await raw.send(frame(head(3, 12) + tags + body))
    answer = await raw.answer(MetadataResponse, 12)
    assert len(answer.brokers) == 1


async def test_api_versions_newer_than_ours_is_answered_in_v0(dial: Dial, agent: RunningAgent) -> None:
    raw = await dial.raw(agent.address)
    await raw.send(frame(head(18, 99) + b"\0whatever is in a newer body"))
    answer = await raw.answer(ApiVersionsResponse, 0)
    assert answer.error_code == ErrorCode.UNSUPPORTED_VERSION
    served = {each.api_key: (each.min_version, each.max_version) for each in answer.api_keys}
    assert served[18] == (0, 4)
    assert served[0] == (0, 13)
    assert served[24] == (0, 3), "versions 4 and 5 are between brokers"
    odd = ApiVersionsRequest(client_software_name="bad name!", client_software_version="1")
    assert (await raw.call(odd, ApiVersionsResponse, 3)).error_code == ErrorCode.INVALID_REQUEST


@pytest.fixture
async def topic(dial: Dial, agent: RunningAgent) -> AsyncIterator[RawConnection]:
    """A connection, and a topic `t` to send to."""
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1)
    raw = await dial.raw(agent.address)
    yield raw
    # nothing that was refused is stored
    assert await client.list_offsets("t", [0]) == {0: 0}


def _flip(data: bytes) -> bytes:
    return data[:-1] + bytes([data[-1] ^ 1])


# Made when the test runs: a batch carries the time.
BAD_BATCHES: dict[str, tuple[Callable[[], bytes | None], ErrorCode]] = {
    "no batch": (lambda: None, ErrorCode.INVALID_RECORD),
    "empty": (lambda: b"", ErrorCode.INVALID_RECORD),
    "five bytes": (lambda: b"\0" * 5, ErrorCode.INVALID_RECORD),
    "zeros": (lambda: b"\0" * 61, ErrorCode.CORRUPT_MESSAGE),
    "a flipped bit": (lambda: _flip(good_batch()), ErrorCode.CORRUPT_MESSAGE),
    "old magic": (lambda: with_header(good_batch(), magic=1), ErrorCode.INVALID_RECORD),
    "two batches": (lambda: good_batch() + good_batch(), ErrorCode.INVALID_RECORD),
    "an offset of its own": (lambda: with_header(good_batch(), base_offset=5), ErrorCode.INVALID_RECORD),
    "a lying count": (lambda: with_header(good_batch(), records_count=7), ErrorCode.INVALID_RECORD),
    "a huge count": (
        lambda: with_header(good_batch(), last_offset_delta=2**31 - 1, records_count=-(2**31)),
        ErrorCode.INVALID_RECORD,
    ),
    "too large": (lambda: good_batch(b"x" * 1_048_589), ErrorCode.MESSAGE_TOO_LARGE),
    "transactional without a producer": (
        lambda: with_header(good_batch(), attributes=TRANSACTIONAL_BIT),
        ErrorCode.INVALID_RECORD,
    ),
    "transactional without a transactional id": (
        lambda: with_header(
            good_batch(), attributes=TRANSACTIONAL_BIT, producer_id=7, producer_epoch=0, base_sequence=0
        ),
        ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
    ),
    "from the future": (lambda: build_batch([NewRecord(2**60, None, b"")]), ErrorCode.INVALID_TIMESTAMP),
}


@pytest.mark.parametrize("what", BAD_BATCHES)
async def test_bad_batches_are_refused_with_kafkas_error(topic: RawConnection, what: str) -> None:
    make, error = BAD_BATCHES[what]
    answer = await produce_one(topic, make())
    assert (ErrorCode(answer.error_code), answer.base_offset) == (error, -1)
    assert answer.error_message
    assert answer.log_start_offset == 0


async def test_a_transactional_id_is_refused(topic: RawConnection) -> None:
    data = [TopicProduceData(name="t", partition_data=[PartitionProduceData(index=0, records=good_batch())])]
    request = ProduceRequest(acks=2, timeout_ms=1000, topic_data=data)
    answer = await topic.call(request, ProduceResponse, 9)
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.INVALID_REQUIRED_ACKS


async def test_a_null_key_on_a_compacted_topic_is_named_record_by_record(dial: Dial, agent: RunningAgent) -> None:
    client = await dial.kafka(agent.address)
    raw = await dial.raw(agent.address)
    await client.create_topic("c", partitions=1, configs={"cleanup.policy": "compact"})
    now_ms = int(time.time() * 1000)
    mixed = build_batch([NewRecord(now_ms, b"a", b"1"), NewRecord(now_ms, None, b"2"), NewRecord(now_ms, b"c", None)])
    answer = await produce_one(raw, mixed, "c")
    assert answer.error_code == ErrorCode.INVALID_RECORD
    assert [each.batch_index for each in answer.record_errors] == [1]
    assert (await produce_one(raw, good_batch(), "c")).error_code == 0, "the next one is judged by itself"
    assert len(await read_all(client, "c")) == 1


async def test_bad_topic_names_are_not_created_on_the_way(dial: Dial, agent: RunningAgent) -> None:
    raw = await dial.raw(agent.address)
    names = ["", ".", "..", "a b", "x" * 250, "ü"]
    wanted = [MetadataRequestTopic(name=name) for name in [*names, "fine"]]
    answer = await raw.call(MetadataRequest(topics=wanted), MetadataResponse, 8)
    assert [topic.error_code for topic in answer.topics] == [ErrorCode.INVALID_TOPIC_EXCEPTION] * len(names) + [0]
    wanted = [MetadataRequestTopic(name="not-asked-for")]
    answer = await raw.call(MetadataRequest(topics=wanted, allow_auto_topic_creation=False), MetadataResponse, 8)
    assert answer.topics[0].error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


async def test_two_agents_on_one_port_the_second_says_so_and_fences_nobody(
    agent: RunningAgent, start_agent: StartAgent
) -> None:
    with pytest.raises(SiltstoneError, match=f"{agent.address} is already in use") as refused:
        await start_agent(store=agent.store, metadata=agent.metadata, listen=agent.address)
    assert "--listen" in str(refused.value)
    assert len(await agent.metadata.agents.live_agents()) == 1


async def test_a_taken_port_for_neighbours_is_named_by_its_setting(
    agent: RunningAgent, start_agent: StartAgent
) -> None:
    with pytest.raises(SiltstoneError, match=f"zone.listen: address {agent.address} is already in use") as refused:
        await start_agent(store=agent.store, metadata=agent.metadata, agent_zone="a", zone_listen=agent.address)
    assert "another port for zone.listen" in str(refused.value)


async def test_one_connection_too_many_is_closed(dial: Dial, start_agent: StartAgent) -> None:
    running = await start_agent(connections_max=2)
    kept = [await dial.raw(running.address) for _ in range(2)]
    for each in kept:
        await each.call(ApiVersionsRequest(), ApiVersionsResponse, 0)
    third = await dial.raw(running.address)
    assert await third.is_closed_by_peer()
    assert (await kept[0].call(ApiVersionsRequest(), ApiVersionsResponse, 0)).error_code == 0


async def test_good_answers_before_a_bad_request_still_go_out(dial: Dial, agent: RunningAgent) -> None:
    raw = await dial.raw(agent.address)
    good = b"".join(encode_request(18, 0, 5, "x", ApiVersionsRequest()))
    await raw.send(good + frame(head(3, 1) + b"\x7f\xff\xff\xff"))
    assert (await raw.answer(ApiVersionsResponse, 0)).error_code == 0
    assert await raw.is_closed_by_peer()
