"""An agent over Postgres and an S3 API, as in production: write, and read back by another that knows nothing."""

from __future__ import annotations

from collections.abc import Callable

from metadata.urls import open_metadata
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from storage.objects import ObjectStore
from storage.urls import open_store
from storage.wrappers.metered import Metered
from storage.wrappers.retrying import Retrying
from tests.fixtures.agents import Dial, StartAgent, read_all
from tests.fixtures.record_batches import some_records
from wire.codecs import Codec
from wire.records import build_batch


async def opened(url: str, metrics: Metrics) -> ObjectStore:
    """The stack of wrappers an agent process uses."""
    store = Retrying(Metered(open_store(url), metrics, SystemClock()), SystemClock(), SystemIds())
    await store.open()
    return store


async def test_records_written_through_one_agent_are_read_from_s3_by_another(
    dial: Dial, start_agent: StartAgent, s3_url: Callable[..., str], postgres_url: str
) -> None:
    url, metrics = s3_url(), Metrics()
    store = await opened(url, metrics)
    metadata = open_metadata(postgres_url)
    await metadata.open()
    try:
        first = await start_agent(store=store, metadata=metadata)
        writer = await dial.kafka(first.address)
        await writer.create_topic("t", partitions=3)
        for number in range(6):
            sent = build_batch(some_records(50, value_bytes=3_000), codec=Codec.ZSTD if number % 2 else Codec.NONE)
            assert await writer.produce("t", number % 3, sent) == 50 * (number // 3)
        stored = [stat async for stat in store.list("l0/")]
        assert len(stored) == 6
        # when: an agent with cold caches
        second = await start_agent(store=store, metadata=metadata)
        reader = await dial.kafka(second.address)
        for partition in range(3):
            assert [offset for offset, _ in await read_all(reader, "t", partition)] == list(range(100))
        assert second.metric("fetch_bytes_total", source="store") > 0
        gets = metrics.registry.get_sample_value(
            "siltstone_object_requests_total", {"op": "get_range", "outcome": "ok"}
        )
        assert gets is not None
        assert 6 <= gets <= 8, "each small file once: its one block serves every partition in it"
        await second.agent.stop()
        await first.agent.stop()
    finally:
        await metadata.close()
        await store.close()
