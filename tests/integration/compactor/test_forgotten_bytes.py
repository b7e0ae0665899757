"""Bytes go without any request: merges reach L2 and compacted partitions are cleaned, under a producer that never
stops and in a topic that nobody writes to any more. In the end no object holds a key that was deleted, though its bytes
lay in files beside those of other keys.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from metadata.contract.compactors import PartitionView
from metadata.contract.files import FileState
from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from siltstone.kafka.client import KafkaClient, connected
from storage.objects import ObjectNotFoundError, ObjectStore
from storage.urls import open_store
from storage.wrappers.retrying import Retrying
from tests.fixtures.agents import Dial, StartAgent, read_all
from tests.fixtures.compactors import CompactorProcesses, StartCompactor
from tests.fixtures.faults import Processes
from tests.fixtures.idempotent_load import FLUSH_S_MAX, check_fsck
from tests.fixtures.s3 import BucketUrl
from tests.fixtures.waiting import until, wait_until
from wire.records import NewRecord, build_batch

SECRET_KEY, SECRET_VALUE = b"the-name-of-somebody", b"what-nobody-may-know"
COMPACTED = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": "500"}
QUICK = {
    "job_limit_base_ms": 2_000,
    "forced_interval_ms": 300,
    "horizon_interval_ms": 1_000,
    "mostly_dead_bytes_min": 1,
}
KEYS = 11
GRACE_MS = 4_000


def batch(*pairs: tuple[bytes, bytes | None]) -> bytes:
    now_ms = int(time.time() * 1000)
    return build_batch([NewRecord(now_ms, key, value) for key, value in pairs])


async def write(client: KafkaClient, batches: int | None = None) -> None:
    """Write to both topics, so that files hold both; for ever, if no number is given."""
    for number in itertools.count() if batches is None else range(batches):
        pairs = [(b"k%d" % (at % KEYS), b"%d:%d" % (number, at)) for at in range(20)]
        await client.produce("kv", 0, batch(*pairs))
        await client.produce("plain", 0, batch(*pairs))
        await asyncio.sleep(0.1)


async def holding(store: ObjectStore, *wanted: bytes) -> list[str]:
    """The keys of the objects that contain any of these bytes."""
    found: list[str] = []
    for key in [stat.key async for stat in store.list()]:
        with contextlib.suppress(ObjectNotFoundError):
            body = await store.get(key)
            if any(each in body for each in wanted):
                found.append(key)
    return found


async def view_of(metadata: MetadataStore, name: str) -> PartitionView:
    topics = {topic.name: topic for topic in await metadata.agents.list_topics()}
    [view] = await metadata.operators.partition_views(topics[name].topic_id)
    return view


@pytest.fixture(params=[pytest.param("s3", marks=pytest.mark.soak), "directory"])
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "s3":
        s3_url: BucketUrl = request.getfixturevalue("s3_url")
        return s3_url()
    return (tmp_path / "objects").as_uri()


@pytest.fixture
async def parts(store_url: str, postgres_url: str, tmp_path: Path) -> AsyncIterator[tuple[ObjectStore, MetadataStore]]:
    (tmp_path / "objects").mkdir()
    store = Retrying(open_store(store_url), SystemClock(), SystemIds())
    metadata = open_metadata(postgres_url)
    await store.open()
    await metadata.open()
    yield store, metadata
    await metadata.close()
    await store.close()


@pytest.mark.parametrize("writes_on", [True, False], ids=["the producer never stops", "the producer has stopped"])
async def test_a_deleted_key_is_in_the_end_in_no_object_though_nobody_asked(
    parts: tuple[ObjectStore, MetadataStore],
    start_agent: StartAgent,
    start_compactor: StartCompactor,
    dial: Dial,
    writes_on: bool,
) -> None:
    store, metadata = parts
    agent = await start_agent(store=store, metadata=metadata, gc_grace_ms=GRACE_MS)
    client = await dial.kafka(agent.address)
    await client.create_topic("kv", partitions=1, configs=COMPACTED)
    await client.create_topic("plain", partitions=1)
    compactor = await start_compactor(
        store=store, metadata=metadata, gc_grace_ms=GRACE_MS, orphan_age_ms=GRACE_MS, **QUICK
    )
    producer = asyncio.create_task(write(await dial.kafka(agent.address), None if writes_on else 10))
    try:
        await client.produce("kv", 0, batch((SECRET_KEY, SECRET_VALUE)))
        assert await holding(store, SECRET_VALUE), "else this test looks for what was never there"
        if not writes_on:
            await producer
        # given a tombstone: without a producer the last record of its partition, so that no newer one stirs it
        await client.produce("kv", 0, batch((SECRET_KEY, None)))
        deleted_at = (await view_of(metadata, "kv")).high_watermark

        async def is_forgotten() -> bool:
            view = await view_of(metadata, "kv")
            if view.cleaned_through_offset < deleted_at:
                return False
            await asyncio.sleep(0.5)  # reading the whole bucket is expensive
            return not await holding(store, SECRET_KEY, SECRET_VALUE)

        await until(is_forgotten, timeout_s=100)
        levels = {file.level for file in await metadata.operators.files(limit=100_000) if file.state is FileState.LIVE}
        assert 2 in levels
    finally:
        producer.cancel()
        await asyncio.gather(producer, return_exceptions=True)
    # and nothing else is lost: the newest value of each key, and all of the other topic
    kept = {bytes(record.key or b"") for _, record in await read_all(client, "kv")}
    assert kept == {b"k%d" % number for number in range(KEYS)}
    plain = await read_all(client, "plain")
    assert [offset for offset, _ in plain] == list(range(len(plain))) and len(plain) > 100
    assert compactor.merges("failed") == 0


# ---- the same in whole processes, for minutes, with the rules of the defaults ---------------------------------------

SOAK_S_MAX = 300
PARTITIONS = 2
DEFAULTS_SCALED: dict[str, Any] = {
    "plan_interval_ms": 250,
    "l0_files_min": 8,
    "l0_bytes_min": 8 << 20,
    "l0_wait_ms": 500,
    "compaction_l0_wait_max_ms": 2_000,
    "l0_job_files_max": 256,
    "l1_runs_min": 8,
    "l2_runs_min": 5,
    "output_bytes": 16 << 20,
    "mostly_dead_bytes_min": 1 << 20,
    "forced_interval_ms": 15_000,
    "forced_dirty_bytes_min": 1 << 20,
    "forced_dirty_wait_ms": 60_000,
    "gc_grace_ms": 15_000,
    "retention_check_interval_ms": 5_000,
    "janitor_interval_ms": 1_000,
    "orphan_check_interval_ms": 15_000,
    "orphan_age_ms": 60_000,
    "job_limit_base_ms": 5_000,
    "dedupe_keys_max": 200_000,
}
"""The defaults, scaled: a minute becomes a second or a few, a GiB some MiB. The dirty ratio is the default."""


class NeverStops:
    """librdkafka, writing the same keyed records to both topics, without a pause, until it is told to end."""

    def __init__(self, bootstrap: str) -> None:
        self._bootstrap = bootstrap
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.newest: dict[tuple[int, bytes], tuple[int, bytes]] = {}
        """The records of topic "kv": (partition, key) -> (offset, value)."""
        self.plain: dict[tuple[int, int], bytes] = {}
        """(partition, offset) -> value."""
        self.failed: list[str] = []

    def start(self) -> None:
        self._thread.start()

    def end(self) -> None:
        self._stopping.set()
        self._thread.join(FLUSH_S_MAX + 10)
        assert not self._thread.is_alive() and not self.failed, self.failed[:3]

    def _run(self) -> None:
        from confluent_kafka import Producer

        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 50, "log_level": 0}
        )
        for number in itertools.count():
            if self._stopping.is_set():
                break
            partition, key = number % PARTITIONS, b"k%d" % (number % KEYS)
            value = b"%08d" % number + b"." * 400
            for topic in ("kv", "plain"):
                producer.produce(topic, key=key, value=value, partition=partition, on_delivery=self._delivered)
            producer.poll(0)
            self._stopping.wait(0.002)
        if left := producer.flush(FLUSH_S_MAX):
            self.failed.append(f"{left} records were never answered")

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self.failed.append(str(error))
        elif message.topic() == "plain":
            self.plain[message.partition(), message.offset()] = message.value()
        else:
            place = message.partition(), message.key()
            self.newest[place] = max(self.newest.get(place, (-1, b"")), (message.offset(), message.value()))


SOAK_COMPACTED = {"cleanup.policy": "compact", "delete.retention.ms": "10000"}


async def forget_by_hand(bootstrap: str) -> None:
    """Create both topics; write a key and its tombstone."""
    async with connected(bootstrap) as client:
        await client.create_topic("kv", partitions=PARTITIONS, configs=SOAK_COMPACTED)
        await client.create_topic("plain", partitions=PARTITIONS)
        await client.produce("kv", 0, batch((SECRET_KEY, SECRET_VALUE)))
        await client.produce("kv", 0, batch((SECRET_KEY, None)))


async def look(metadata_url: str, store_url: str, *, read: bool) -> tuple[int, set[int], list[str]]:
    """(cleaned-through offset of kv-0, levels of live files, objects that hold the secret, if they are read)."""
    store, metadata = Retrying(open_store(store_url), SystemClock(), SystemIds()), open_metadata(metadata_url)
    await store.open()
    await metadata.open()
    try:
        topics = {topic.name: topic for topic in await metadata.agents.list_topics()}
        view = (await metadata.operators.partition_views(topics["kv"].topic_id))[0]
        levels = {file.level for file in await metadata.operators.files(limit=100_000) if file.state is FileState.LIVE}
        return view.cleaned_through_offset, levels, await holding(store, SECRET_KEY, SECRET_VALUE) if read else []
    finally:
        await metadata.close()
        await store.close()


async def read_both(bootstrap: str) -> tuple[dict[tuple[int, bytes], tuple[int, bytes]], dict[tuple[int, int], bytes]]:
    """The records, in the form in which `NeverStops` remembers them."""
    newest: dict[tuple[int, bytes], tuple[int, bytes]] = {}
    plain: dict[tuple[int, int], bytes] = {}
    async with connected(bootstrap) as client:
        for partition in range(PARTITIONS):
            for offset, record in await read_all(client, "kv", partition):
                newest[partition, bytes(record.key or b"")] = offset, bytes(record.value or b"")
            for offset, record in await read_all(client, "plain", partition):
                plain[partition, offset] = bytes(record.value or b"")
    return newest, plain


@pytest.mark.soak
@pytest.mark.timeout(2 * SOAK_S_MAX)
def test_for_minutes_under_a_producer_that_never_stops_levels_cleaning_and_forgetting_go_on_by_themselves(
    processes: Processes, compactors: CompactorProcesses, s3_url: BucketUrl
) -> None:
    processes.store_url = store_url = s3_url()
    metadata_url = processes.postgres.url
    processes.start(1, gc_grace_ms=DEFAULTS_SCALED["gc_grace_ms"], produce_linger_ms=250)
    asyncio.run(forget_by_hand(processes.bootstrap))
    assert asyncio.run(look(metadata_url, store_url, read=True))[2], "else this looks for what was never there"
    [compactor] = compactors.start(1, **DEFAULTS_SCALED)
    writer = NeverStops(processes.bootstrap)
    writer.start()
    began = time.monotonic()
    seen: dict[int, float] = {}
    levels: set[int] = set()

    def is_forgotten() -> bool:
        time.sleep(2)  # reading the whole bucket is expensive
        cleaned_through, present, held = asyncio.run(look(metadata_url, store_url, read=len(seen) > 2))
        seen.setdefault(cleaned_through, time.monotonic() - began)
        levels.update(present)
        return len(seen) > 3 and 2 in present and not held

    wait_until(is_forgotten, SOAK_S_MAX, lambda: f"cleaned through {seen}, levels {levels}")
    print(f"forgotten after {time.monotonic() - began:.0f} s; cleaned through (offset: seconds) {seen}")
    print(f"{len(writer.plain)} records in each topic, {compactor.metric('merges_total', outcome='done')} merges")
    assert list(seen) == sorted(seen)
    writer.end()
    newest, plain = asyncio.run(read_both(processes.bootstrap))
    assert (newest, plain) == (writer.newest, writer.plain)
    assert compactor.metric("merges_total", outcome="failed") == compactor.metric("compactor_errors_total") == 0
    check_fsck(metadata_url=metadata_url, store_url=store_url)
