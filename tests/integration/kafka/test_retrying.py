"""Writing and reading by the commands while connections break: each record is stored once and shown once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from runtime.clock import ManualClock, SystemClock
from runtime.errors import UnavailableError
from siltstone.kafka.client import ConnectionLostError, KafkaClient, KafkaError
from siltstone.kafka.consuming import Reach, read
from siltstone.kafka.groups.admin import GroupClient
from siltstone.kafka.producing import BATCH_BYTES, IN_DOUBT, ProduceOptions, Refused, Stored, TopicWriter, WriteResults
from siltstone.kafka.record_format import InputRecord, OutputRecord
from siltstone.kafka.retrying import RetryingClient
from tests.fixtures.agents import RunningAgent, read_all
from wire.error_codes import ErrorCode

PRODUCE, FETCH = 0, 1


@dataclass
class Breaking:
    """A proxy before an agent. It cuts connections at some requests, before or after the agent carries them out."""

    address: str = ""
    cut: Callable[[int, int], str] = lambda _api_key, _number: ""
    """Takes an API key and the number of earlier requests of that key. Returns "before", "after" or "" for no cut."""
    seen: list[int] = field(default_factory=list[int])

    async def serve(self, host: str, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        there, to_agent = await asyncio.open_connection(host, port)
        try:
            while True:
                frame = await _frame(reader)
                api_key = int.from_bytes(frame[4:6], "big")
                fate = self.cut(api_key, self.seen.count(api_key))
                self.seen.append(api_key)
                if fate == "before":
                    return
                to_agent.write(frame)
                answer = await _frame(there)
                if fate == "after":
                    return
                writer.write(answer)
        except (EOFError, OSError):
            pass
        finally:
            writer.close()
            to_agent.close()


async def _frame(reader: asyncio.StreamReader) -> bytes:
    head = await reader.readexactly(4)
    return head + await reader.readexactly(int.from_bytes(head, "big"))


@asynccontextmanager
async def breaking(agent: RunningAgent, cut: Callable[[int, int], str]) -> AsyncIterator[Breaking]:
    found = Breaking(cut=cut)
    host, _, port = agent.address.rpartition(":")
    server = await asyncio.start_server(lambda r, w: found.serve(host, int(port), r, w), "127.0.0.1", 0)
    async with server:
        found.address = ":".join(map(str, server.sockets[0].getsockname()))
        yield found


class Told:
    def __init__(self) -> None:
        self.stored: list[Stored] = []
        self.refused: list[Refused] = []

    def writer(self, client: RetryingClient, topic: str, partitions: int, options: ProduceOptions) -> TopicWriter:
        return TopicWriter(
            client,
            topic,
            partitions,
            options,
            SystemClock(),
            WriteResults(stored=self.stored.append, refused=self.refused.append),
        )


def records(count: int, partitions: int) -> Sequence[InputRecord]:
    return [InputRecord(number + 1, None, b"%d" % number, (), number % partitions) for number in range(count)]


async def values(client: KafkaClient, topic: str, partition: int) -> list[int]:
    return [int(bytes(record.value or b"")) for _, record in await read_all(client, topic, partition)]


async def test_an_answer_that_is_lost_stores_nothing_twice_and_loses_nothing(
    agent: RunningAgent, client: KafkaClient
) -> None:
    await client.create_topic("orders", partitions=2)
    # given a network that loses answers, then requests, for three of four writes
    fates = ["after", "before", "after", ""]
    async with breaking(agent, lambda key, number: fates[number % 4] if key == PRODUCE else "") as network:
        told = Told()
        lines: list[str] = []
        async with RetryingClient(network.address, SystemClock(), told=lines.append) as steady:
            # when Metadata names the agent itself, the bootstrap still comes first
            writer = told.writer(steady, "orders", 2, ProduceOptions())
            for _ in range(3):
                await writer.write(records(20, 2))
    # then everything is stored once, in order, and its offsets are known
    assert network.seen.count(PRODUCE) > 6
    for partition in (0, 1):
        assert await values(client, "orders", partition) == list(range(partition, 20, 2)) * 3
        offsets = [each.base_offset for each in told.stored if each.partition == partition]
        assert offsets == [0, 10, 20]
    assert told.refused == []
    assert "retrying" in lines[0] and lines[1] == "an agent answers again"


async def test_a_batch_that_is_too_large_is_written_in_parts_and_in_its_order(
    agent: RunningAgent, client: KafkaClient
) -> None:
    # given: a full batch, of which an agent takes at most a fifth at once, and a small one after it
    await client.create_topic("orders", partitions=1, configs={"max.message.bytes": str(BATCH_BYTES // 5)})
    padded = [
        InputRecord(number + 1, None, b"%07d" % number * 100, (), 0) for number in range(BATCH_BYTES // 700 + 100)
    ]
    told = Told()
    async with RetryingClient(agent.address, SystemClock()) as steady:
        await told.writer(steady, "orders", 1, ProduceOptions()).write(padded)
    # then
    assert told.refused == [] and len(told.stored) > 4
    assert [each.number for part in told.stored for each in part.records] == [each.number for each in padded]
    written = [bytes(record.value or b"") for _, record in await read_all(client, "orders")]
    assert written == [each.value for each in padded]


def answering(clock: ManualClock, code: ErrorCode, until_ms: float) -> Callable[[KafkaClient], Awaitable[str]]:
    """A request that fails with `code` for this long."""
    began_ms = clock.monotonic_ms()

    async def work(_: KafkaClient) -> str:
        if clock.monotonic_ms() - began_ms < until_ms:
            raise KafkaError(code, "fetch from t-1")
        return "done"

    return work


async def test_an_error_that_an_agent_answers_is_told_once_when_it_does_not_pass_at_once(agent: RunningAgent) -> None:
    clock = ManualClock()
    lines: list[str] = []
    async with RetryingClient(agent.address, clock, told=lines.append) as steady:
        # when the error is over within a second, then nothing is printed
        assert await steady.run(answering(clock, ErrorCode.KAFKA_STORAGE_ERROR, 1_000)) == "done"
        assert lines == []
        # when the error lasts, then one line is printed, and one at its end
        assert await steady.run(answering(clock, ErrorCode.KAFKA_STORAGE_ERROR, 20_000)) == "done"
        first, last = lines
        assert first.startswith("fetch from t-1: KAFKA_STORAGE_ERROR: ")
        assert first.endswith(": retrying for up to 60 s") and last == "an agent answers again"
        # when the error does not end, then it is raised; any other error is raised at once
        for code, waited_ms in ((ErrorCode.KAFKA_STORAGE_ERROR, 50_000), (ErrorCode.TOPIC_AUTHORIZATION_FAILED, 0)):
            began_ms = clock.monotonic_ms()
            with pytest.raises(KafkaError, match=code.name):
                await steady.run(answering(clock, code, 90_000))
            assert waited_ms <= clock.monotonic_ms() - began_ms <= 60_000
    assert lines[2:] == [first]


async def test_a_coordinator_that_is_waited_for_is_told_once(agent: RunningAgent) -> None:
    clock = ManualClock()
    lines: list[str] = []
    group = GroupClient(agent.address, "readers", clock, told=lines.append)

    async def until(passes_ms: float, error: Exception) -> str:
        began_ms = clock.monotonic_ms()

        async def work(_: KafkaClient, coordinator: str) -> str:
            if clock.monotonic_ms() - began_ms < passes_ms:
                raise error
            return coordinator

        return await group.run(work)

    loading = KafkaError(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, "describe group 'readers'")
    # when it passes within a second, then nobody is told
    assert await until(900, loading) == agent.address
    assert lines == []
    # when the error lasts, or the agent is lost, then one line is printed, and one at its end
    for passes_ms, error in ((5_000, loading), (300, ConnectionLostError("agent 1 closed the connection"))):
        assert await until(passes_ms, error) == agent.address
        assert lines == [f"{error.message}: retrying for up to 15 s", "the coordinator answers again"]
        lines.clear()
    # when the error does not end, then it is raised
    with pytest.raises(KafkaError, match="COORDINATOR_LOAD_IN_PROGRESS"):
        await until(90_000, loading)
    assert len(lines) == 1


async def test_with_acks_1_nothing_is_repeated_and_doubt_is_told(agent: RunningAgent, client: KafkaClient) -> None:
    await client.create_topic("orders", partitions=1)
    told = Told()
    async with (
        breaking(agent, lambda key, _: "after" if key == PRODUCE else "") as network,
        RetryingClient(network.address, SystemClock()) as steady,
    ):
        with pytest.raises(UnavailableError):
            await told.writer(steady, "orders", 1, ProduceOptions(acks=1)).write(records(5, 1))
    assert [(len(each.records), each.remedy) for each in told.refused] == [(5, IN_DOUBT)] and not told.stored
    assert await values(client, "orders", 0) == list(range(5))


async def test_with_acks_0_where_it_went_is_not_known(agent: RunningAgent, client: KafkaClient) -> None:
    await client.create_topic("orders", partitions=1)
    told = Told()
    async with RetryingClient(agent.address, SystemClock()) as steady:
        await told.writer(steady, "orders", 1, ProduceOptions(acks=0)).write(records(5, 1))
    assert [each.base_offset for each in told.stored] == [-1]
    async with asyncio.timeout(20):
        while await values(client, "orders", 0) != list(range(5)):
            await asyncio.sleep(0.02)


async def test_a_reader_whose_connection_breaks_shows_every_record_once(
    agent: RunningAgent, client: KafkaClient
) -> None:
    await client.create_topic("orders", partitions=2)
    told = Told()
    async with RetryingClient(agent.address, SystemClock()) as steady:
        await told.writer(steady, "orders", 2, ProduceOptions()).write(records(40, 2))
    found: list[OutputRecord] = []
    async with (
        breaking(agent, lambda key, number: "after" if key == FETCH and number % 2 == 0 else "") as network,
        RetryingClient(network.address, SystemClock()) as steady,
    ):
        reaches = {("orders", partition): Reach(3, 20) for partition in (0, 1)}
        async for batch in read(steady, reaches, told=lambda _: None):
            found += batch
    assert network.seen.count(FETCH) >= 2
    for partition in (0, 1):
        assert [each.offset for each in found if each.partition == partition] == list(range(3, 20))


async def test_a_reader_that_the_log_start_overtakes_goes_on_behind_it(
    agent: RunningAgent, client: KafkaClient
) -> None:
    await client.create_topic("orders", partitions=1)
    told = Told()
    lines: list[str] = []
    async with RetryingClient(agent.address, SystemClock()) as steady:
        await told.writer(steady, "orders", 1, ProduceOptions()).write(records(10, 1))
        reach = Reach(50, 10)
        assert [each async for each in read(steady, {("orders", 0): reach}, told=lines.append) if each] == []
        # given a reader whose offset is not in the log any more (an offset above the end has the same answer)
        reach = Reach(50, 60)
        reading = read(steady, {("orders", 0): reach}, told=lines.append)
        waiting = asyncio.ensure_future(anext(each async for each in reading if each))
        async with asyncio.timeout(20):
            while not lines:
                await asyncio.sleep(0.02)
            await told.writer(steady, "orders", 1, ProduceOptions()).write(records(1, 1))
            assert [each.offset for each in await waiting] == [10]
        await reading.aclose()
    assert lines == ["orders partition 0: offset 50 is not in the log, reading on from 10"]
