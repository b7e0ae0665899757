"""An object store that says 503, is slow, loses requests, or stores an object and loses the answer: as a wrapper in the
process, and as a network in front of a real S3 server. A PUT in doubt is settled by HEAD; nothing is lost or doubled.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

import pytest
from click.testing import CliRunner

from metadata.urls import open_metadata
from runtime.clock import SystemClock
from runtime.ids import SystemIds
from runtime.metrics import Metrics
from runtime.settings.table import Settings
from siltstone.cli import main
from siltstone.processes.agent import serve_agent
from storage.cluster import check_cluster
from storage.memory import MemoryStore
from storage.objects import ObjectStore, PutInDoubtError, StoreMisconfiguredError, SupportsOpen
from storage.urls import open_store
from storage.wrappers.faulty import Fault, FaultPlan, FaultRule, Faulty
from storage.wrappers.metered import Metered
from storage.wrappers.retrying import Retrying
from tests.fixtures.agents import RunningAgent, StartAgent
from tests.fixtures.faults import Postgres, create_topic
from tests.fixtures.faulty_proxies import S3Proxy
from tests.fixtures.idempotent_load import LibrdkafkaWriter, Load, check_fsck, check_log, fresh_seed, read_log
from tests.fixtures.metric_values import metric_value
from tests.fixtures.s3 import BucketUrl, S3Server
from tests.fixtures.waiting import until
from wire.crc import crc32c

PARTITIONS = 4
WRITERS = (LibrdkafkaWriter, LibrdkafkaWriter)
LOST_ANSWERS = [FaultRule(fault=Fault.LOST_ANSWER, op="put", key="l0/", probability=0.3)]


def every(step: int, first: int) -> frozenset[int]:
    """More calls than any test makes."""
    return frozenset(range(first, 100_000, step))


EVERYTHING = [
    FaultRule(fault=Fault.LOST_ANSWER, op="put", calls=every(7, 1)),
    FaultRule(fault=Fault.LOST_REQUEST, op="put", calls=every(7, 3)),
    FaultRule(fault=Fault.SLOW_DOWN, op="put", calls=every(7, 5)),
    FaultRule(fault=Fault.DELAY, op="put", calls=every(14, 6), delay_ms=1_000),
    FaultRule(fault=Fault.SLOW_DOWN, op="head", calls=every(5, 1)),
    FaultRule(fault=Fault.LOST_ANSWER, op="head", calls=every(5, 3)),
    FaultRule(fault=Fault.LOST_ANSWER, op="get_range", calls=every(3, 1)),
    FaultRule(fault=Fault.SLOW_DOWN, op="get_range", calls=every(3, 2)),
]


@dataclass
class Store:
    """A store with the wrappers that agents use. Its requests are counted one by one, below the retries."""

    inner: ObjectStore
    metrics: Metrics = field(default_factory=Metrics)

    def __post_init__(self) -> None:
        clock = SystemClock()
        self.store = Retrying(Metered(self.inner, self.metrics, clock), clock, SystemIds())

    def requests(self, op: str, outcome: str) -> float:
        return metric_value(self.metrics, "object_requests_total", {"op": op, "outcome": outcome})


async def written(running: RunningAgent, plan: FaultPlan, rules: list[FaultRule], enough: Callable[[], bool]) -> None:
    """Write through an agent while `rules` cause enough faults, then let every request be answered."""
    await asyncio.to_thread(create_topic, running.address, "t", partitions=PARTITIONS)
    with Load(running.address, topic="t", partitions=PARTITIONS, writers=WRITERS) as load:
        await asyncio.to_thread(load.until_more, 20)
        plan.rules = rules
        await until(enough)
        await asyncio.to_thread(load.finish_and_check, running.address)
    assert running.metric("commits_total", outcome="given_up") == 0
    assert running.metric("produce_batches_total", outcome="refused") == 0
    assert running.metric("produce_batches_total", outcome="failed") == 0


# ---- as a wrapper


async def test_every_put_whose_answer_was_lost_is_settled_by_one_head(start_agent: StartAgent) -> None:
    plan = FaultPlan()
    store = Store(Faulty(MemoryStore(), plan, SystemIds(fresh_seed()), SystemClock()))
    running = await start_agent(store=store.store, produce_linger_ms=5)
    await written(running, plan, LOST_ANSWERS, lambda: store.requests("put", "in_doubt") >= 10)
    in_doubt = store.requests("put", "in_doubt")
    assert store.requests("head", "ok") == in_doubt
    # and no PUT was repeated, because a repeated one would have been answered with "exists"
    assert store.requests("put", "exists") == 0
    assert in_doubt + store.requests("put", "ok") == running.metric("commits_total", outcome="committed")


async def test_a_store_with_every_fault_loses_and_doubles_nothing(start_agent: StartAgent) -> None:
    plan = FaultPlan()
    store = Store(Faulty(MemoryStore(), plan, SystemIds(fresh_seed()), SystemClock()))
    running = await start_agent(store=store.store, produce_linger_ms=5)
    await written(running, plan, EVERYTHING, lambda: store.requests("put", "unavailable") >= 10)
    assert store.requests("put", "in_doubt") >= 20
    assert store.requests("head", "unavailable") > 0


# ---- as a network


async def test_a_put_that_is_cut_on_a_used_connection_is_sent_once_and_in_doubt(
    moto_server: S3Server, s3_url: BucketUrl
) -> None:
    """An HTTP client that repeats the request by itself gets 412 and takes our own file for a foreign one."""
    with S3Proxy(moto_server.endpoint) as proxy:
        store = open_store(s3_url().replace(moto_server.endpoint, proxy.endpoint))
        assert isinstance(store, SupportsOpen)
        await store.open()
        try:
            await store.put_if_absent("l0/first", b"x", crc32c=crc32c(b"x"))
            proxy.plan.rules = [FaultRule(fault=Fault.LOST_ANSWER, op="put")]
            with pytest.raises(PutInDoubtError):
                await store.put_if_absent("l0/second", b"x", crc32c=crc32c(b"x"))
        finally:
            await store.close()
    assert proxy.seen["put"] == 2
    assert proxy.fired["put", Fault.LOST_ANSWER] == 1


@dataclass
class Network:
    """Agents with a bucket in moto, behind a proxy."""

    proxy: S3Proxy
    store: Store
    url: str
    """Of the bucket itself."""
    postgres: Postgres
    start_agent: StartAgent
    services: AsyncExitStack

    async def start(self) -> RunningAgent:
        metadata = open_metadata(self.postgres.url)
        await metadata.open()
        self.services.push_async_callback(metadata.close)
        identity = await metadata.cluster_identity()
        await check_cluster(self.store.store, cluster_id=identity.cluster_id, store_bound=identity.store_bound)
        await metadata.bind_store()
        running = await self.start_agent(store=self.store.store, metadata=metadata, produce_linger_ms=5)
        self.services.push_async_callback(running.agent.stop)
        return running

    async def write_and_read(self, rules: list[FaultRule], records: int) -> None:
        """Write through one agent. After it is gone, another agent fetches everything through the same network."""
        writer = await self.start()
        await asyncio.to_thread(create_topic, writer.address, "t", partitions=PARTITIONS)
        with Load(writer.address, topic="t", partitions=PARTITIONS, writers=WRITERS) as load:
            await asyncio.to_thread(load.until_more, 20)
            self.proxy.plan.rules = rules
            await asyncio.to_thread(load.until_more, records)
            puts = [rule.fault for rule in rules if rule.op == "put"]
            await until(lambda: all(self.proxy.fired["put", fault] >= 2 for fault in puts))
            acknowledged = await asyncio.to_thread(load.finish)
        assert writer.metric("commits_total", outcome="given_up") == 0
        await writer.agent.stop()
        reader = await self.start()
        found = await asyncio.to_thread(read_log, reader.address, topic="t", partitions=PARTITIONS)
        check_log(acknowledged, found)
        assert reader.metric("fetch_bytes_total", source="store") > 0
        self.proxy.plan.rules = ()
        await asyncio.to_thread(check_fsck, metadata_url=self.postgres.url, store_url=self.url, quick=True)
        print(f"{len(acknowledged)} records", dict(self.proxy.fired))


@pytest.fixture
async def network(
    moto_server: S3Server, s3_url: BucketUrl, postgres: Postgres, start_agent: StartAgent
) -> AsyncIterator[Network]:
    url = s3_url()
    with S3Proxy(moto_server.endpoint, seed=fresh_seed()) as proxy:
        store = Store(open_store(url.replace(moto_server.endpoint, proxy.endpoint)))
        async with AsyncExitStack() as services:
            await store.store.open()
            services.push_async_callback(store.store.close)
            yield Network(proxy, store, url, postgres, start_agent, services)


async def test_every_answer_that_s3_could_not_deliver_is_settled_by_one_head(network: Network) -> None:
    await network.write_and_read(LOST_ANSWERS, 200)
    lost = network.proxy.fired["put", Fault.LOST_ANSWER]
    assert lost > 0
    assert network.store.requests("put", "in_doubt") == lost
    assert network.store.requests("head", "ok") == lost
    assert network.store.requests("put", "exists") == 0


async def bad_in_every_way(network: Network, records: int) -> None:
    await network.write_and_read(EVERYTHING, records)
    fired = network.proxy.fired
    assert all(fired[rule.op, rule.fault] > 0 for rule in EVERYTHING), fired


async def test_s3_with_every_fault_loses_and_doubles_nothing(network: Network) -> None:
    await bad_in_every_way(network, 200)


@pytest.mark.soak
async def test_s3_with_every_fault_for_long_loses_and_doubles_nothing(network: Network) -> None:
    await bad_in_every_way(network, 5_000)


# ---- a store that may not be used


async def test_a_gateway_that_drops_if_none_match_is_refused_by_agents_and_by_the_doctor(
    moto_server: S3Server, s3_url: BucketUrl, postgres: Postgres
) -> None:
    with S3Proxy(moto_server.endpoint, drop_headers=["If-None-Match"]) as proxy:
        url = s3_url().replace(moto_server.endpoint, proxy.endpoint)
        settings = Settings(listen="127.0.0.1:0", metrics_listen="", metadata_url=postgres.url, object_store_url=url)
        with pytest.raises(StoreMisconfiguredError, match="If-None-Match") as refused:
            await serve_agent(settings, on_ready=lambda _: pytest.fail("it serves"), stopping=asyncio.Event())
        assert refused.value.remedy
        words = ["doctor", "--metadata", postgres.url, "--object-store", url]
        done = await asyncio.to_thread(CliRunner().invoke, main, words)
    assert done.exit_code == 1
    [said] = [line for line in done.output.splitlines() if "store conditional create" in line]
    assert said.startswith("fail")
    assert "second PUT of a key was accepted" in said
