"""Tombstones of erased keys at a real agent, while a producer writes the same keys."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import pytest

from runtime.clock import SystemClock
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.record_format import InputRecord
from siltstone.kafka.records import batches_of, fetch_partitions
from siltstone.kafka.retrying import RetryingClient
from siltstone.ops.erasure.request import Newest, PartitionKey
from siltstone.ops.erasure.tombstones import (
    ROUNDS_MAX,
    BusyKeyError,
    KeyLog,
    TombstonesRefusedError,
    ValueNotRestoredError,
)
from tests.fixtures.agents import Dial, RunningAgent, StartAgent, read_all
from wire.codecs import Codec
from wire.records import NewRecord, build_batch

Value = tuple[bytes, bytes | None]


class RacedLog(KeyLog):
    """A producer's records come right before each write."""

    def __init__(self, raced: Sequence[Sequence[NewRecord]], producer: KafkaClient, client: RetryingClient) -> None:
        super().__init__(client, "t", 1, SystemClock(), lambda _line: None)
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
    written = await RacedLog([], producer, asking).delete([(0, b"b"), (0, b"a")], {0: 2}, restores=False)
    assert written == {(0, b"b"): 2, (0, b"a"): 3}
    assert (await log_of(producer))[2:] == [(b"b", None), (b"a", None)]


async def test_without_before_a_value_below_the_tombstone_stays_below_it(
    producer: KafkaClient, asking: RetryingClient
) -> None:
    log = RacedLog([[at(5, b"a", b"new")]], producer, asking)
    assert await log.delete([(0, b"a")], {0: 2}, restores=False) == {(0, b"a"): 3}
    assert (await log_of(producer))[2:] == [(b"a", b"new"), (b"a", None)]


async def test_a_value_that_a_tombstone_hid_is_written_again_and_so_is_the_one_that_its_copy_hid(
    producer: KafkaClient, asking: RetryingClient
) -> None:
    # given a producer that writes a value before the tombstone, and a newer one before the copy
    raced = [[at(5, b"a", b"1"), at(6, b"a", b"2"), at(6, b"c", b"other")], [at(7, b"a", b"3")]]
    # when
    written = await RacedLog(raced, producer, asking).delete([(0, b"a"), (0, b"b")], {0: 2}, restores=True)
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
    await Raced([[at(5, b"a", large)]], producer, asking).delete([(0, b"a")], {0: 2}, restores=True)
    assert (await log_of(producer))[2:] == [(b"a", large), (b"a", None), (b"a", large)]


async def test_a_value_that_cannot_be_written_again_is_named(producer: KafkaClient, asking: RetryingClient) -> None:
    class Full(RacedLog):
        async def _write(self, records: Mapping[PartitionKey, InputRecord]) -> Mapping[PartitionKey, int]:
            written = await super()._write(records)
            # from now on no batch is small enough
            await self._producer.alter_configs("t", changes={"max.message.bytes": "1"})
            return written

    with pytest.raises(ValueNotRestoredError, match=r"was not written again: .* Keys: 'a'") as refused:
        await Full([[at(5, b"a", b"1")]], producer, asking).delete([(0, b"a")], {0: 2}, restores=True)
    assert refused.value.remedy
    assert (await log_of(producer))[2:] == [(b"a", b"1"), (b"a", None)]


async def test_a_tombstone_of_the_producer_is_not_undone(producer: KafkaClient, asking: RetryingClient) -> None:
    raced = [[at(5, b"a", b"1"), at(6, b"a", None)], []]
    await RacedLog(raced, producer, asking).delete([(0, b"a")], {0: 2}, restores=True)
    assert (await log_of(producer))[2:] == [(b"a", b"1"), (b"a", None), (b"a", None)]
    # and one that came between the tombstone and the copy of a value comes back too
    raced = [[at(7, b"b", b"1")], [at(8, b"b", None)]]
    await RacedLog(raced, producer, asking).delete([(0, b"b")], {0: 5}, restores=True)
    assert (await log_of(producer))[5:] == [(b"b", b"1"), (b"b", None), (b"b", None), (b"b", b"1"), (b"b", None)]


async def test_a_key_that_is_written_all_the_time_is_an_error(producer: KafkaClient, asking: RetryingClient) -> None:
    raced = [[at(5 + number, b"a", b"%d" % number)] for number in range(ROUNDS_MAX + 1)]
    with pytest.raises(BusyKeyError, match="key 'a' in partition 0"):
        await RacedLog(raced, producer, asking).delete([(0, b"a")], {0: 2}, restores=True)
    # and one time less is none
    raced = [[at(50 + number, b"b", b"%d" % number)] for number in range(ROUNDS_MAX)]
    end = await producer.list_offsets("t", [0])
    await RacedLog(raced, producer, asking).delete([(0, b"b")], end, restores=True)
    assert (await log_of(producer))[-1] == (b"b", b"%d" % (ROUNDS_MAX - 1))


async def test_a_refused_tombstone_ends_the_request(producer: KafkaClient, asking: RetryingClient) -> None:
    class TooFew(RacedLog):
        def __init__(self) -> None:
            super().__init__([], producer, asking)
            self._partitions = 2  # the topic was made again with fewer

    with pytest.raises(TombstonesRefusedError, match="a tombstone was not written"):
        await TooFew().delete([(1, b"a")], {1: 0}, restores=False)
