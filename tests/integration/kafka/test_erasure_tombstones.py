"""Tombstones of erased keys at a real agent, while a producer writes the same keys."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence

import pytest

from runtime.clock import SystemClock
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.record_format import InputRecord
from siltstone.kafka.records import batches_of, fetch_partitions
from siltstone.kafka.retrying import RetryingClient
from siltstone.ops.erasure.request import Newest, PartitionKey, draft
from siltstone.ops.erasure.tombstones import (
    ROUNDS_MAX,
    BusyKeyError,
    KeyLog,
    TombstonesRefusedError,
    ValueNotRestoredError,
)
from tests.fixtures.agents import Dial, RunningAgent, StartAgent, read_all
from tests.fixtures.transactional_log import TransactionalWriter, Write
from tests.fixtures.waiting import until
from wire.codecs import Codec
from wire.records import NewRecord, build_batch

Value = tuple[bytes, bytes | None]


class RacedLog(KeyLog):
    """A producer's records come right before each write."""

    def __init__(
        self,
        raced: Sequence[Sequence[NewRecord]],
        producer: KafkaClient,
        client: RetryingClient,
        *,
        restores: bool = False,
        told: Callable[[str], None] = lambda _line: None,
    ) -> None:
        super().__init__(client, "t", 1, SystemClock(), told, restores=restores)
        self._raced, self._producer = list(raced), producer

    async def _write(self, records: Mapping[PartitionKey, InputRecord]) -> Mapping[PartitionKey, int]:
        if self._raced and (now := self._raced.pop(0)):
            await self._producer.produce("t", 0, build_batch(now))
        return await super()._write(records)


@pytest.fixture
async def agent(start_agent: StartAgent) -> AsyncIterator[RunningAgent]:
    agent = await start_agent(produce_linger_ms=5)
    yield agent
    await agent.agent.stop()


@pytest.fixture
async def producer(agent: RunningAgent, dial: Dial) -> KafkaClient:
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1, configs={"cleanup.policy": "compact"})
    await client.produce("t", 0, build_batch([at(1, b"a", b"old"), at(2, b"b", b"old")]))
    return client


@pytest.fixture
async def asking(agent: RunningAgent) -> AsyncIterator[RetryingClient]:
    async with RetryingClient(agent.address, SystemClock()) as client:
        yield client


def at(time_ms: int, key: bytes, value: bytes | None) -> NewRecord:
    return NewRecord(1_700_000_000_000 + time_ms, key, value, (("h", b"1"),))


async def log_of(client: KafkaClient) -> list[Value]:
    return [
        (bytes(each.key or b""), None if each.value is None else bytes(each.value))
        for _, each in await read_all(client, "t")
    ]


async def test_the_newest_record_of_each_key_is_found_once_and_again_from_where_the_look_ended(
    producer: KafkaClient, asking: RetryingClient
) -> None:
    log = RacedLog([], producer, asking)
    newest: dict[PartitionKey, Newest] = {}
    reads: list[tuple[int, int]] = []
    ends = await log.look({b"a", b"b", b"none"}, newest, on_read=lambda done, whole: reads.append((done, whole)))
    assert (ends, newest) == ({0: 2}, {(0, b"a"): Newest(0, False), (0, b"b"): Newest(1, False)})
    assert reads[-1] == (2, 2)
    # when a key is deleted after the look
    await producer.produce("t", 0, build_batch([at(3, b"a", None)]))
    assert await log.look({b"a"}, newest, ends) == {0: 3}
    assert newest[0, b"a"] == Newest(2, True)


async def test_each_key_gets_a_tombstone_and_its_offset_is_known(producer: KafkaClient, asking: RetryingClient) -> None:
    written = await RacedLog([], producer, asking).delete([(0, b"b"), (0, b"a")], {0: 2})
    assert written == {(0, b"b"): 2, (0, b"a"): 3}
    assert (await log_of(producer))[2:] == [(b"b", None), (b"a", None)]


async def test_without_before_a_value_below_the_tombstone_stays_below_it(
    producer: KafkaClient, asking: RetryingClient
) -> None:
    log = RacedLog([[at(5, b"a", b"new")]], producer, asking)
    assert await log.delete([(0, b"a")], {0: 2}) == {(0, b"a"): 3}
    assert (await log_of(producer))[2:] == [(b"a", b"new"), (b"a", None)]


async def test_a_value_that_a_tombstone_hid_is_written_again_and_so_is_the_one_that_its_copy_hid(
    producer: KafkaClient, asking: RetryingClient
) -> None:
    # given a producer that writes a value before the tombstone, and a newer one before the copy
    raced = [[at(5, b"a", b"1"), at(6, b"a", b"2"), at(6, b"c", b"other")], [at(7, b"a", b"3")]]
    # when
    written = await RacedLog(raced, producer, asking, restores=True).delete([(0, b"a"), (0, b"b")], {0: 2})
    # then the mark is the first tombstone, and the newest value is the newest record again
    assert written == {(0, b"a"): 5, (0, b"b"): 6}
    assert (await log_of(producer))[5:] == [(b"a", None), (b"b", None), (b"a", b"3"), (b"a", b"2"), (b"a", b"3")]
    # with its headers and its time
    (fetched,) = await fetch_partitions(producer, {("t", 0): 9}, max_wait_ms=0)
    (copy,) = [each for records, _ in batches_of(fetched, 9) for each in records]
    assert (copy.headers, copy.timestamp_ms) == ((("h", b"1"),), 1_700_000_000_007)


async def test_a_value_that_only_compression_lets_in_is_written_again(
    producer: KafkaClient, asking: RetryingClient
) -> None:
    class Raced(RacedLog):
        async def _write(self, records: Mapping[PartitionKey, InputRecord]) -> Mapping[PartitionKey, int]:
            if self._raced and (now := self._raced.pop(0)):
                await self._producer.produce("t", 0, build_batch(now, codec=Codec.ZSTD))
            return await KeyLog._write(self, records)

    large = b"x" * 2_000_000  # the topic's max.message.bytes is about half of it
    await Raced([[at(5, b"a", large)]], producer, asking, restores=True).delete([(0, b"a")], {0: 2})
    assert (await log_of(producer))[2:] == [(b"a", large), (b"a", None), (b"a", large)]


async def test_a_value_that_cannot_be_written_again_is_named(producer: KafkaClient, asking: RetryingClient) -> None:
    class Full(RacedLog):
        async def _write(self, records: Mapping[PartitionKey, InputRecord]) -> Mapping[PartitionKey, int]:
            written = await super()._write(records)
            # from now on no batch is small enough
            await self._producer.alter_configs("t", changes={"max.message.bytes": "1"})
            return written

    with pytest.raises(ValueNotRestoredError, match=r"was not written again: .* Keys: 'a'") as refused:
        await Full([[at(5, b"a", b"1")]], producer, asking, restores=True).delete([(0, b"a")], {0: 2})
    assert refused.value.remedy
    assert (await log_of(producer))[2:] == [(b"a", b"1"), (b"a", None)]


async def test_a_tombstone_of_the_producer_is_not_undone(producer: KafkaClient, asking: RetryingClient) -> None:
    raced = [[at(5, b"a", b"1"), at(6, b"a", None)], []]
    await RacedLog(raced, producer, asking, restores=True).delete([(0, b"a")], {0: 2})
    assert (await log_of(producer))[2:] == [(b"a", b"1"), (b"a", None), (b"a", None)]
    # and one that came between the tombstone and the copy of a value comes back too
    raced = [[at(7, b"b", b"1")], [at(8, b"b", None)]]
    await RacedLog(raced, producer, asking, restores=True).delete([(0, b"b")], {0: 5})
    assert (await log_of(producer))[5:] == [(b"b", b"1"), (b"b", None), (b"b", None), (b"b", b"1"), (b"b", None)]


async def test_a_key_that_is_written_all_the_time_is_an_error(producer: KafkaClient, asking: RetryingClient) -> None:
    raced = [[at(5 + number, b"a", b"%d" % number)] for number in range(ROUNDS_MAX + 1)]
    with pytest.raises(BusyKeyError, match="key 'a' in partition 0"):
        await RacedLog(raced, producer, asking, restores=True).delete([(0, b"a")], {0: 2})
    # and one time less is none
    raced = [[at(50 + number, b"b", b"%d" % number)] for number in range(ROUNDS_MAX)]
    end = await producer.list_offsets("t", [0])
    await RacedLog(raced, producer, asking, restores=True).delete([(0, b"b")], end)
    assert (await log_of(producer))[-1] == (b"b", b"%d" % (ROUNDS_MAX - 1))


async def test_a_refused_tombstone_ends_the_request(producer: KafkaClient, asking: RetryingClient) -> None:
    class TooFew(RacedLog):
        def __init__(self) -> None:
            super().__init__([], producer, asking)
            self._partitions = 2  # the topic was made again with fewer

    with pytest.raises(TombstonesRefusedError, match="a tombstone was not written"):
        await TooFew().delete([(1, b"a")], {1: 0})


# ---- transactions


async def writer_beside(agent: RunningAgent) -> TransactionalWriter:
    """Another agent, which no client is sent to."""
    (topic,) = await agent.metadata.agents.list_topics()
    return await TransactionalWriter.start(agent.metadata, agent.store, topic)


async def heard(agent: RunningAgent) -> None:
    await agent.agent._follower.catch_up()


async def test_an_aborted_record_is_no_newest_one_and_its_key_gets_a_tombstone_behind_it(
    agent: RunningAgent, producer: KafkaClient, asking: RetryingClient
) -> None:
    # given, behind a value (a at 0) and a tombstone (b at 2): an aborted tombstone, aborted values, a committed value
    await producer.produce("t", 0, build_batch([at(3, b"b", None)]))
    writer = await writer_beside(agent)
    good, bad = await writer.producer("good"), await writer.producer("bad")
    await writer.leave()
    aborted = [at(4, b"a", None), at(5, b"b", b"bad"), at(6, b"c", b"bad"), at(7, b"d", b"bad")]
    await writer.write([Write(0, aborted, bad), Write(0, [at(8, b"d", b"good")], good)])
    await writer.end([(bad, False), (good, True)])
    await heard(agent)
    # when
    newest: dict[PartitionKey, Newest] = {}
    ends = await RacedLog([], producer, asking).look({b"a", b"b", b"c", b"d"}, newest)
    # then a's newest is the value, b's the tombstone, c has none
    assert ends == {0: 10}
    assert newest == {
        (0, b"a"): Newest(0, False, 3),
        (0, b"b"): Newest(2, True, 4),
        (0, b"c"): Newest(-1, False, 5),
        (0, b"d"): Newest(7, False, 6),
    }
    plan = draft([b"a", b"b", b"c", b"d"], newest, ends, None)
    assert plan.to_delete == [(0, b"a"), (0, b"b"), (0, b"c"), (0, b"d")]


async def test_what_a_transaction_wrote_is_not_known_while_it_is_open(
    agent: RunningAgent, producer: KafkaClient, asking: RetryingClient
) -> None:
    writer = await writer_beside(agent)
    slow = await writer.producer("slow")
    await writer.leave()
    await writer.write([Write(0, [at(4, b"a", None)], slow)])
    await heard(agent)
    await producer.produce("t", 0, build_batch([at(5, b"b", None)]))
    newest: dict[PartitionKey, Newest] = {}
    await RacedLog([], producer, asking).look({b"a", b"b"}, newest)
    # then the tombstone of no transaction counts, though readers of committed records do not see it yet
    assert newest == {(0, b"a"): Newest(0, False, 2), (0, b"b"): Newest(3, True)}
    # and where newer values stay, the look waits for the end, and says for what
    told: list[str] = []
    log = RacedLog([], producer, asking, restores=True, told=told.append)
    newest.clear()
    looking = asyncio.create_task(log.look({b"a", b"b"}, newest))
    await until(lambda: bool(told))
    assert told == ["waiting on a transaction that is open since offset 2 of partition 0"] and not looking.done()
    await writer.end([(slow, True)])
    await heard(agent)
    assert await looking == {0: 4}
    assert newest == {(0, b"a"): Newest(2, True), (0, b"b"): Newest(3, True)}


@pytest.mark.parametrize("commits", [True, False])
async def test_a_value_that_a_tombstone_hid_comes_back_if_its_transaction_committed_it(
    agent: RunningAgent, producer: KafkaClient, asking: RetryingClient, commits: bool
) -> None:
    writer = await writer_beside(agent)
    slow = await writer.producer("slow")
    await writer.leave()

    class Raced(RacedLog):
        async def _write(self, records: Mapping[PartitionKey, InputRecord]) -> Mapping[PartitionKey, int]:
            if not written:
                written.append(await writer.write([Write(0, [at(5, b"a", b"new")], slow)]))
                await heard(agent)
            return await KeyLog._write(self, records)

    written: list[object] = []
    told: list[str] = []
    deleting = asyncio.create_task(
        Raced([], producer, asking, restores=True, told=told.append).delete([(0, b"a")], {0: 2})
    )
    await until(lambda: bool(told))
    await writer.end([(slow, commits)])
    await heard(agent)
    assert await deleting == {(0, b"a"): 3}
    (fetched,) = await fetch_partitions(producer, {("t", 0): 3}, max_wait_ms=0)
    values = [(each.key, each.value) for records, _ in batches_of(fetched, 3) for each in records]
    assert values == [(b"a", None), *([(b"a", b"new")] if commits else [])]
