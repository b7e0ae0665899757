"""An object is damaged, a merge copies the unreadable extent, and consumers read all sound records around it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest
from confluent_kafka import Consumer, KafkaError, TopicPartition

from metadata.contract.agents import each_live_file
from metadata.contract.leveled import LeveledExtent
from metadata.contract.store import MetadataStore
from metadata.rules.packed_index import iter_index
from siltstone.kafka.client import KafkaClient
from siltstone.kafka.client import KafkaError as AnsweredError
from storage.objects import ObjectStore
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.compacted_systems import LEVEL_ONLY, System, start_beside
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.fleet import code_of
from tests.fixtures.waiting import until
from wire.batch import iter_headers
from wire.crc import crc32c
from wire.error_codes import ErrorCode
from wire.records import NewRecord, build_batch

BATCHES, RECORDS = 6, 10
BAD = 3
"""The number of the damaged batch: offsets 30 to 39."""


def values_of(batches: Sequence[int]) -> list[bytes]:
    return [b"%d:%d" % (number, at) for number in batches for at in range(RECORDS)]


def batch(number: int) -> bytes:
    now_ms = int(time.time() * 1000)
    return build_batch([NewRecord(now_ms, b"k%d-%d" % (number, at), b"%d:%d" % (number, at)) for at in range(RECORDS)])


async def damage(store: ObjectStore, key: str, position: int, length: int, *, number: int, byte: int) -> None:
    """Change one byte of a batch."""
    body = bytearray(await store.get(key))
    starts = [start for start, _ in iter_headers(memoryview(body)[position : position + length])]
    body[position + starts[number] + byte] ^= 0x40
    await store.delete_many([key])
    await store.put_if_absent(key, bytes(body), crc32c=crc32c(bytes(body)))


async def extents_of(metadata: MetadataStore) -> list[LeveledExtent]:
    return list(await metadata.readers.leveled_extents(1, 0))


def consumed(address: str, offset: int) -> tuple[list[bytes], int]:
    """The values that librdkafka, which checks CRCs, gets from `offset` on, and the error that ends them."""
    group = {"group.id": "unused", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": address, "check.crcs": True, "log_level": 0, **group})
    found: list[bytes] = []
    try:
        consumer.assign([TopicPartition("t", 0, offset)])
        while True:
            message = consumer.poll(10)
            assert message is not None, f"neither a record nor an error after {found[-1:]}"
            error = message.error()
            if error is not None:
                return found, error.code()
            found.append(message.value())
            if found[-1] == values_of(range(BATCHES))[-1]:
                return found, KafkaError.NO_ERROR
    finally:
        consumer.close()


async def is_flagged(metadata: MetadataStore) -> bool:
    return [each.flagged_reason is not None for each in await extents_of(metadata)] == [True]


async def refusal(client: KafkaClient, offset: int) -> ErrorCode:
    with pytest.raises(AnsweredError) as refused:
        await client.fetch("t", 0, offset, max_wait_ms=0, min_bytes=0)
    return code_of(refused.value)


async def test_of_a_damaged_merged_file_consumers_lose_the_damaged_batch_alone(
    system: System, start_compactor: StartCompactor
) -> None:
    # given a file of six batches, one of which is changed in the store
    await system.client.create_topic("t", partitions=1)
    for number in range(BATCHES):
        await system.client.produce("t", 0, batch(number))
    first = await start_beside(system, start_compactor, **LEVEL_ONLY)
    await until(lambda: _all_in_one(system.metadata))
    await system.client.create_topic("other", partitions=1)
    await system.write("other", 3)
    await until(lambda: _has_no_l0(system))
    await first.compactor.stop()
    (before,) = await extents_of(system.metadata)
    await damage(system.store, before.key, before.position, before.length, number=BAD, byte=70)
    # when it is merged
    second = await start_beside(system, start_compactor, **{**LEVEL_ONLY, "l1_runs_min": 2})
    await until(lambda: is_flagged(system.metadata))
    await second.compactor.stop()
    # then a consumer gets the records before the damage, and its error there
    address = system.agent.address
    sound_before = values_of(range(BAD))
    assert await asyncio.to_thread(consumed, address, 0) == (sound_before, ErrorCode.CORRUPT_MESSAGE)
    assert await asyncio.to_thread(consumed, address, 25) == (sound_before[25:], ErrorCode.CORRUPT_MESSAGE)
    for offset in (30, 35, 39):
        assert await refusal(system.client, offset) is ErrorCode.CORRUPT_MESSAGE
    # and a consumer that skips it gets all the rest
    for offset in (40, 45):
        sound_behind = values_of(range(BAD + 1, BATCHES))[offset - 40 :]
        assert await asyncio.to_thread(consumed, address, offset) == (sound_behind, KafkaError.NO_ERROR)


async def test_of_a_damaged_file_of_an_agent_consumers_get_what_is_before_the_damage(
    start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial
) -> None:
    # given a file of six batches without offsets, behind another file, and one batch changed before the first merge
    agent = await start_agent(produce_linger_ms=1_000, gc_grace_ms=2_000)
    metadata: MetadataStore = agent.metadata  # type: ignore[assignment]
    clients = [await dial.kafka(agent.address) for _ in range(BATCHES)]
    await clients[0].create_topic("t", partitions=1)
    await clients[0].produce("t", 0, batch(100))
    bases = await asyncio.gather(*(each.produce("t", 0, batch(number)) for number, each in enumerate(clients)))
    written = [values_of([number]) for _, number in sorted(zip(bases, range(BATCHES), strict=True))]
    *_, file = [each async for each in each_live_file(metadata.agents)]
    (row,) = iter_index(file.index)
    assert (row.base_offset, row.last_offset) == (RECORDS, RECORDS * (BATCHES + 1) - 1), "all in one file"
    await damage(agent.store, file.key, row.position, row.length, number=BAD, byte=70)
    # when the files are merged
    options = {**LEVEL_ONLY, "l0_files_min": 2}
    compactor = await start_compactor(store=agent.store, metadata=metadata, **options)
    await until(lambda: _is_merged(metadata))
    await compactor.compactor.stop()
    # then an agent that has not seen the file before serves the records before the damage, at the right offsets
    # (the first agent may lead the partition, and it may serve the sound bytes it remembers: it is gone)
    await agent.agent.stop()
    other = await start_agent(store=agent.store, metadata=metadata, gc_grace_ms=2_000)
    there = await dial.kafka(other.address)
    sound = values_of([100]) + [value for values in written[:BAD] for value in values]
    assert await asyncio.to_thread(consumed, other.address, 0) == (sound, ErrorCode.CORRUPT_MESSAGE)
    assert await asyncio.to_thread(consumed, other.address, 33) == (sound[33:], ErrorCode.CORRUPT_MESSAGE)
    # and nothing behind it: the number of records in the damaged batch is unknown
    for offset in (RECORDS * (BAD + 1), RECORDS * (BAD + 2)):
        assert await refusal(there, offset) is ErrorCode.CORRUPT_MESSAGE


async def _all_in_one(metadata: MetadataStore) -> bool:
    ranges = [(each.base_offset, each.last_offset) for each in await extents_of(metadata)]
    return ranges == [(0, BATCHES * RECORDS - 1)]


async def _has_no_l0(system: System) -> bool:
    return 0 not in await system.levels()


async def _is_merged(metadata: MetadataStore) -> bool:
    return [each.flagged_reason is not None for each in await extents_of(metadata)] == [False, True]
