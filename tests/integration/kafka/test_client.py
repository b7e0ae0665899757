"""Our own small client against a real agent, and against peers that are not Kafka agents."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest

from runtime.errors import BadInputError, Outcome, UnavailableError
from siltstone.kafka.client import (
    CONNECT_TIMEOUT_MS,
    EARLIEST,
    LATEST,
    ConnectionLostError,
    KafkaClient,
    KafkaError,
    connected,
)
from tests.fixtures.agents import RunningAgent, read_all
from wire.api import decode_request, encode_response, read_request_header
from wire.errors import MalformedFrameError
from wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from wire.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from wire.records import NewRecord, build_batch
from wire.schema import Message

NOW_MS = 1_700_000_000_000


def batch(*values: bytes) -> bytes:
    return build_batch([NewRecord(NOW_MS + number, b"key", value) for number, value in enumerate(values)])


def address_of(server: asyncio.Server) -> str:
    host, port = server.sockets[0].getsockname()
    return f"{host}:{port}"


@pytest.fixture
async def mute_peer() -> AsyncIterator[str]:
    """A server that accepts everything and never answers."""

    async def swallow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await reader.read(1024):
            pass
        writer.close()

    server = await asyncio.start_server(swallow, "127.0.0.1", 0)
    async with server:
        yield address_of(server)


@pytest.fixture
async def web_server() -> AsyncIterator[str]:
    """A server that speaks HTTP, as a metrics port does."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1024)
        writer.write(b"HTTP/1.1 400 Bad Request\r\n\r\n")
        await writer.drain()
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield address_of(server)


async def test_what_is_produced_is_fetched_at_its_offset(client: KafkaClient) -> None:
    await client.create_topic("orders", partitions=2)
    assert await client.produce("orders", 1, batch(b"a", b"b")) == 0
    assert await client.produce("orders", 1, batch(b"c")) == 2
    assert [(offset, bytes(record.value or b"")) for offset, record in await read_all(client, "orders", 1)] == [
        (0, b"a"),
        (1, b"b"),
        (2, b"c"),
    ]
    assert await client.list_offsets("orders", [0, 1], LATEST) == {0: 0, 1: 3}
    assert await client.list_offsets("orders", [0, 1], EARLIEST) == {0: 0, 1: 0}
    assert await client.list_offsets("orders", [1], NOW_MS + 1) == {1: 1}


async def test_a_topic_is_created_described_altered_grown_and_deleted(client: KafkaClient) -> None:
    await client.create_topic("orders", partitions=2, configs={"retention.ms": "1000"})
    assert len((await client.topic("orders")).partitions) == 2
    configs = {entry.name: entry for entry in await client.topic_configs("orders")}
    assert (configs["retention.ms"].value, configs["retention.ms"].source) == ("1000", "topic")
    assert configs["cleanup.policy"].source != "topic"
    await client.alter_configs("orders", changes={"retention.ms": None, "cleanup.policy": "compact"})
    configs = {entry.name: entry for entry in await client.topic_configs("orders")}
    assert configs["retention.ms"].source != "topic"
    assert (configs["cleanup.policy"].value, configs["cleanup.policy"].source) == ("compact", "topic")
    await client.create_partitions("orders", 5)
    assert len((await client.topic("orders")).partitions) == 5
    await client.delete_topic("orders")
    assert [topic.name for topic in (await client.metadata()).topics] == []


async def test_error_codes_become_errors_with_kafkas_names_and_a_remedy(client: KafkaClient) -> None:
    await client.create_topic("orders", partitions=1)
    with pytest.raises(KafkaError, match="create topic 'orders': TOPIC_ALREADY_EXISTS") as exists:
        await client.create_topic("orders", partitions=1)
    assert exists.value.code == 36 and "topics alter" in exists.value.remedy
    with pytest.raises(KafkaError) as unknown:
        await client.topic("nothing")
    assert unknown.value.name == "UNKNOWN_TOPIC_OR_PARTITION"
    with pytest.raises(KafkaError) as config:
        await client.alter_configs("orders", changes={"retention.ms": "soon"})
    assert config.value.name == "INVALID_CONFIG"
    with pytest.raises(KafkaError) as shrink:
        await client.create_partitions("orders", 1)
    assert shrink.value.name == "INVALID_PARTITIONS"
    with pytest.raises(KafkaError) as offset:
        await client.fetch("orders", 0, 99, max_wait_ms=0)
    assert offset.value.name == "OFFSET_OUT_OF_RANGE"


async def test_asking_about_a_topic_does_not_create_it(client: KafkaClient) -> None:
    with pytest.raises(KafkaError):
        await client.topic("typo")
    assert [topic.name for topic in (await client.metadata()).topics] == []


async def test_a_code_newer_than_the_table_still_has_a_message() -> None:
    assert KafkaError(30_000, "fetch").name == "error 30000"


async def test_requests_made_at_once_each_get_their_own_answer(client: KafkaClient) -> None:
    await client.create_topic("orders", partitions=3)
    offsets = await asyncio.gather(*(client.list_offsets("orders", [number]) for number in range(3)))
    assert offsets == [{0: 0}, {1: 0}, {2: 0}]


async def test_the_next_bootstrap_address_is_tried(agent: RunningAgent, unused_tcp_port: int) -> None:
    async with connected(f"127.0.0.1:{unused_tcp_port},{agent.address}") as client:
        assert len((await client.metadata()).brokers) == 1


async def test_nobody_there_is_told_with_every_address(unused_tcp_port_factory: object) -> None:
    ports = [unused_tcp_port_factory() for _ in range(2)]  # type: ignore[operator]
    with pytest.raises(UnavailableError) as nobody:
        await KafkaClient.connect(",".join(f"127.0.0.1:{port}" for port in ports))
    assert all(str(port) in nobody.value.message for port in ports)


async def test_a_peer_that_does_not_answer_is_given_up(mute_peer: str) -> None:
    with pytest.raises(UnavailableError, match="connected, but it did not answer in time") as hung:
        await KafkaClient.connect(mute_peer, timeout_ms=50)
    assert "accepts connections and does not answer" in hung.value.remedy


async def test_a_hung_agent_is_reported_within_ten_seconds_and_the_next_address_is_tried(
    mute_peer: str, agent: RunningAgent
) -> None:
    assert 2 * CONNECT_TIMEOUT_MS < 10_000  # to connect, and for the first answer
    async with connected(f"{mute_peer},{agent.address}", timeout_ms=5_000) as client:
        assert len((await client.metadata()).brokers) == 1


async def test_the_address_that_answered_is_tried_first_when_a_command_connects_again(agent: RunningAgent) -> None:
    met: list[str] = []

    async def hang_up(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        met.append("once more")
        writer.close()

    server = await asyncio.start_server(hang_up, "127.0.0.1", 0)
    async with server:
        for _ in range(2):
            async with connected(f"{address_of(server)},{agent.address}") as client:
                assert client.address == agent.address
    assert len(met) == 1


async def test_a_peer_that_is_no_agent_is_told_so(web_server: str) -> None:
    with pytest.raises(MalformedFrameError, match="is this a Kafka port"):
        await KafkaClient.connect(web_server)


async def test_a_topic_is_asked_for_by_name_also_from_a_server_that_knows_newer_versions() -> None:
    # given a server that also supports the versions of Fetch that know a topic only by its id
    asked: list[str] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(asyncio.IncompleteReadError):
            while True:
                frame = memoryview(await reader.readexactly(int.from_bytes(await reader.readexactly(4))))
                header, position = read_request_header(frame)
                request = decode_request(header, frame, position)
                answer: Message = ApiVersionsResponse(
                    api_keys=[
                        ApiVersion(api_key=key, max_version=max_version) for key, max_version in ((1, 18), (18, 0))
                    ]
                )
                if isinstance(request, FetchRequest):
                    asked.extend(topic.topic for topic in request.topics)
                    part = PartitionData(partition_index=0, aborted_transactions=None)
                    answer = FetchResponse(responses=[FetchableTopicResponse(topic="orders", partitions=[part])])
                writer.writelines(encode_response(header, answer))
        writer.close()

    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server, connected(address_of(server)) as client:
        # when the client fetches
        await client.fetch("orders", 0, 0, max_wait_ms=0)
    # then the request contained the name
    assert asked == ["orders"]


async def test_after_a_timeout_the_connection_is_not_used_again(client: KafkaClient) -> None:
    # given a long poll that the client does not wait for
    await client.create_topic("orders", partitions=1)
    asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1024)
    topics = [FetchTopic(topic="orders", partitions=[asked])]
    poll = FetchRequest(max_wait_ms=5_000, min_bytes=1, topics=topics)
    with pytest.raises(ConnectionLostError) as lost:
        await client.call(poll, FetchResponse, timeout_ms=30)
    # then its answer may still arrive, so this connection takes no other request
    assert lost.value.outcome is Outcome.UNKNOWN
    with pytest.raises(ConnectionLostError, match="is broken"):
        await client.metadata()


async def test_acks_0_is_refused_because_no_answer_would_come(client: KafkaClient) -> None:
    with pytest.raises(BadInputError):
        await client.produce("orders", 0, batch(b"a"), acks=0)
