"""The search of a bucket while its objects come and go, and where it cannot be read."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import cast

import pytest

from metadata.contract.files import FileInfo
from metadata.contract.store import MetadataStore
from metadata.erasures.contract import KeyMark
from metadata.memory.store import MemoryMetadata
from siltstone.kafka.client import KafkaClient
from siltstone.ops.erasure import verify
from siltstone.ops.erasure.request import hash_of
from siltstone.ops.erasure.verify import NO_OFFSET, KeySearch, MarkSearch, verify_bucket
from storage.keys import file_key
from storage.memory import MemoryStore
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.wrappers.wrapper import WrappedStore
from tests.fixtures.agents import Dial, RunningAgent, StartAgent
from tests.fixtures.merge_inputs import MergeWorld, keyed
from wire.crc import crc32c
from wire.records import build_batch

ADA = KeySearch([b"ada"])


@pytest.fixture
async def agent(start_agent: StartAgent) -> RunningAgent:
    return await start_agent()


@pytest.fixture
async def client(agent: RunningAgent, dial: Dial) -> KafkaClient:
    client = await dial.kafka(agent.address)
    await client.create_topic("t", partitions=1)
    await client.produce("t", 0, build_batch([keyed("bob", b"1"), keyed("ada", b"1")]))
    return client


async def topic_id(agent: RunningAgent) -> uuid.UUID:
    return (await agent.metadata.agents.list_topics())[0].topic_id


async def only_key(agent: RunningAgent) -> str:
    (key,) = [stat.key async for stat in agent.store.list("l0/")]
    return key


class Merging(WrappedStore):
    """When the first object is read, it has just been rewritten under another key and deleted."""

    def __init__(self, inner: ObjectStore, new_key: str) -> None:
        super().__init__(inner)
        self._new_key = new_key

    async def get(self, key: str) -> bytes:
        body = await super().get(key)
        if key != self._new_key:
            await self._inner.put_if_absent(self._new_key, body, crc32c=crc32c(body))
            await self._inner.delete_many([key])
            raise ObjectNotFoundError(key)
        return body


async def test_a_record_that_moves_to_a_new_object_during_the_search_is_found(
    agent: RunningAgent, client: KafkaClient
) -> None:
    new = file_key(level=0, writer_id=9, epoch=1, file_uuid=uuid.UUID(int=7 << 76 | 2 << 62), created_ms=0)
    found = await verify_bucket(agent.metadata, Merging(agent.store, new), await topic_id(agent), ADA)
    assert [(each.object_key, each.state) for each in found.found] == [(new, "no row")]
    assert (found.objects, found.records) == (1, 2)


class _LateFiles:
    """Rows that appear after the first look: the commit was on its way."""

    def __init__(self, inner: MetadataStore) -> None:
        self._inner, self._looks = inner, 0
        self.agents = inner.agents

    @property
    def operators(self) -> _LateFiles:
        return self

    async def files(self, *, after_file_id: int = 0, limit: int = 100) -> Sequence[FileInfo]:
        self._looks += 1
        return [] if self._looks == 1 else await self._inner.operators.files(after_file_id=after_file_id, limit=limit)


async def test_a_record_of_l0_has_its_offset_once_it_is_committed(agent: RunningAgent, client: KafkaClient) -> None:
    topic = await topic_id(agent)
    # an upload whose commit comes between the two looks
    late = cast("MetadataStore", _LateFiles(agent.metadata))
    found = await verify_bucket(late, agent.store, topic, ADA)
    assert [(each.state, each.partition, each.offset) for each in found.found] == [("live", 0, 1)]
    # so a record behind the mark is none of the erasure's
    late = cast("MetadataStore", _LateFiles(agent.metadata))
    behind = await verify_bucket(late, agent.store, topic, MarkSearch({0: [KeyMark(hash_of(b"ada"), 1)]}))
    assert behind.is_clean and (behind.objects, behind.records) == (1, 2)
    # and one that never gets an offset is found
    nowhere = MemoryMetadata()
    await nowhere.open()
    stray = await verify_bucket(nowhere, agent.store, topic, MarkSearch({0: [KeyMark(hash_of(b"ada"), 1)]}))
    assert [(each.state, each.offset) for each in stray.found] == [("no row", NO_OFFSET)]
    await nowhere.close()


async def test_bytes_that_cannot_be_read_are_named_and_the_rest_is_searched(
    agent: RunningAgent, client: KafkaClient
) -> None:
    # given an object that is no file of ours, and one with a changed record
    key = await only_key(agent)
    body = bytearray(await agent.store.get(key))
    at = bytes(body).index(b"ada")
    body[at : at + 3] = b"eve"
    for number, content in enumerate((b"no file at all", bytes(body)), start=1):
        other = file_key(
            level=0, writer_id=9, epoch=1, file_uuid=uuid.UUID(int=7 << 76 | 2 << 62 | number), created_ms=0
        )
        await agent.store.put_if_absent(other, content, crc32c=crc32c(content))
    # when
    found = await verify_bucket(agent.metadata, agent.store, await topic_id(agent), ADA)
    # then
    assert [each.object_key for each in found.found] == [key]
    assert len(found.unread) == 2 and not found.is_clean
    assert any("CRC-32C" in each.why for each in found.unread)
    # and of a key that is not found it is not said that it is in no object
    other_key = await verify_bucket(agent.metadata, agent.store, await topic_id(agent), KeySearch([b"nobody"]))
    assert other_key.found == [] and not other_key.is_clean


async def test_large_objects_are_searched_window_by_window(monkeypatch: pytest.MonkeyPatch) -> None:
    # given a file of L1 that is larger than a window, with two partitions
    world = MergeWorld(MemoryStore())
    world.add_partition(1, partition=0)
    world.add_partition(2, partition=1)
    batches = [build_batch([keyed(f"k{number}", b"x" * 50), keyed("ada", None)]) for number in range(20)]
    await world.add_leveled({1: batches, 2: batches[:2]})
    monkeypatch.setattr(verify, "WINDOW_BYTES", 100)
    metadata = MemoryMetadata()
    await metadata.open()
    # when
    topic = world.partitions[1].info.topic_id
    found = await verify_bucket(metadata, world.inner, topic, ADA)
    await metadata.close()
    # then
    assert [(each.partition, each.offset) for each in found.found] == [
        *((0, offset) for offset in range(1, 40, 2)),
        *((1, offset) for offset in range(1, 4, 2)),
    ]
    assert all(each.is_tombstone for each in found.found) and found.records == 44
