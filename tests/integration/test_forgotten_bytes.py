"""Without anybody asking for it: under a producer that never stops, merges reach L2, compacted partitions are cleaned,
and a key that was deleted is in the end in no object at all, though its bytes lay in files beside those of others."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from metadata.compaction import Metadata, PartitionView
from metadata.service import FileState
from metadata.urls import open_metadata
from siltstone.client import KafkaClient
from siltstone.clock import SystemClock
from siltstone.ids import SystemIds
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.retrying import Retrying
from storage.urls import open_store
from tests.fixtures.agents import Dial, StartAgent, read_all
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.fleet import until
from tests.fixtures.s3 import BucketUrl
from wire.records import NewRecord, build_batch

SECRET_KEY, SECRET_VALUE = b"the-name-of-somebody", b"what-nobody-may-know"
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "500"}
QUICK = {"job_limit_base_ms": 2_000, "forced_interval_ms": 300, "compaction_dead_bytes_min": 1}
KEYS = 11
GRACE_MS = 4_000


def batch(*pairs: tuple[bytes, bytes | None]) -> bytes:
    now_ms = int(time.time() * 1000)
    return build_batch([NewRecord(now_ms, key, value) for key, value in pairs])


async def write_for_ever(client: KafkaClient) -> None:
    """To both topics, so that files hold both."""
    for number in itertools.count():
        pairs = [(b"k%d" % (at % KEYS), b"%d:%d" % (number, at)) for at in range(20)]
        await client.produce("kv", 0, batch(*pairs))
        await client.produce("plain", 0, batch(*pairs))
        await asyncio.sleep(0.1)


async def holding(store: ObjectStore, *wanted: bytes) -> list[str]:
    """Keys of the objects in which any of these bytes stand."""
    found: list[str] = []
    for key in [stat.key async for stat in store.list()]:
        with contextlib.suppress(ObjectNotFoundError):
            body = await store.get(key)
            if any(each in body for each in wanted):
                found.append(key)
    return found


async def view_of(metadata: Metadata, name: str) -> PartitionView:
    topics = {topic.name: topic for topic in await metadata.topics()}
    [view] = await metadata.partition_views(topics[name].topic_id)
    return view


@pytest.fixture(params=["s3", "directory"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        s3_url: BucketUrl = request.getfixturevalue("s3_url")
        return s3_url()
    return (tmp_path / "objects").as_uri()


@pytest.fixture
async def parts(store_url: str, postgres_url: str, tmp_path: Path) -> AsyncIterator[tuple[ObjectStore, Metadata]]:
    (tmp_path / "objects").mkdir()
    store = Retrying(open_store(store_url), SystemClock(), SystemIds())
    metadata = open_metadata(postgres_url)
    await store.open()
    await metadata.open()
    yield store, metadata
    await metadata.close()
    await store.close()


async def test_a_deleted_key_is_in_the_end_in_no_object_though_nobody_asked_and_the_producer_never_stops(
    parts: tuple[ObjectStore, Metadata], start_agent: StartAgent, start_compactor: StartCompactor, dial: Dial
) -> None:
    store, metadata = parts
    agent = await start_agent(store=store, metadata=metadata, gc_grace_ms=GRACE_MS)
    client = await dial.kafka(agent.address)
    await client.create_topic("kv", partitions=1, configs=COMPACTED)
    await client.create_topic("plain", partitions=1)
    compactor = await start_compactor(
        store=store, metadata=metadata, gc_grace_ms=GRACE_MS, orphan_age_ms=GRACE_MS, **QUICK
    )
    producer = asyncio.create_task(write_for_ever(await dial.kafka(agent.address)))
    try:
        await client.produce("kv", 0, batch((SECRET_KEY, SECRET_VALUE)))
        assert await holding(store, SECRET_VALUE), "else this test looks for what was never there"
        await client.produce("kv", 0, batch((SECRET_KEY, None)))
        deleted_at = (await view_of(metadata, "kv")).high_watermark

        async def is_forgotten() -> bool:
            view = await view_of(metadata, "kv")
            if view.cleaned_through_offset <= deleted_at:
                return False
            await asyncio.sleep(0.5)  # reading the whole bucket is dear
            return not await holding(store, SECRET_KEY, SECRET_VALUE)

        await until(is_forgotten, timeout_s=100)
        levels = {file.level for file in await metadata.files(limit=100_000) if file.state is FileState.LIVE}
        assert 2 in levels
    finally:
        producer.cancel()
        await asyncio.gather(producer, return_exceptions=True)
    # and nothing else is lost: the newest value of each key, all of the other topic
    kept = {bytes(record.key or b"") for _, record in await read_all(client, "kv")}
    assert kept == {b"k%d" % number for number in range(KEYS)}
    plain = await read_all(client, "plain")
    assert [offset for offset, _ in plain] == list(range(len(plain))) and len(plain) > 100
    assert compactor.merges("failed") == 0
