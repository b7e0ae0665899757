"""Spans of a real agent and a real compactor as a collector gets them; and a collector that is slow or not there."""

from __future__ import annotations

import asyncio
import itertools
import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass

import pytest

from metadata.memory.store import MemoryDatabase, MemoryMetadata
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from runtime.tracing import NO_TRACING
from runtime.tracing_otel import CHILDREN_MAX, OtelTracing
from siltstone.kafka.client import KafkaClient
from siltstone.processes.monitoring.log_and_traces import TracingMissingError, log_and_traces
from storage.memory import MemoryStore
from storage.wrappers.traced import Traced
from tests.fixtures.agents import StartAgent
from tests.fixtures.collector import Collector, running_collector
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.log_lines import LogLines
from tests.fixtures.s3 import free_port
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from wire.records import NewRecord, build_batch

BATCH = build_batch([NewRecord(1_700_000_000_000, b"k", b"v")] * 3)
SETTINGS = {
    "metadata.url": "memory://",
    "object.store.url": "memory://",
    "listen": "127.0.0.1:0",
    "metrics.listen": "",
    "produce.linger.ms": "20",
    "group.initial.rebalance.delay.ms": "20",
    "cache.hot.bytes": "0",  # what is fetched comes from the store
    "trace.sample.ratio": "1",
}


@dataclass
class TracedAgent:
    process: asyncio.subprocess.Process
    address: str
    client: KafkaClient

    async def stop(self) -> float:
        """Seconds it took."""
        await self.client.close()
        began = time.monotonic()
        self.process.terminate()
        async with asyncio.timeout(30):
            assert await self.process.wait() == 0
        return time.monotonic() - began


@asynccontextmanager
async def traced_agent(endpoint: str, otel: dict[str, str], **settings: str) -> AsyncIterator[TracedAgent]:
    """`siltstone agent` over memory, with a topic t of one partition."""
    assignments = {**SETTINGS, **{name.replace("_", "."): value for name, value in settings.items()}}
    options = [text for name, value in assignments.items() for text in ("--set", f"{name}={value}")]
    environ = {**os.environ, "OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, **otel}
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "siltstone", "agent", *options, stdout=asyncio.subprocess.PIPE, env=environ
    )
    async with AsyncExitStack() as stack:
        stack.push_async_callback(_end, process)
        assert process.stdout is not None
        async with asyncio.timeout(60):
            address = (await process.stdout.readline()).decode().removeprefix("bootstrap: ").strip()
        client = await KafkaClient.connect(address, timeout_ms=10_000)
        stack.push_async_callback(client.close)
        await client.create_topic("t", partitions=1)
        yield TracedAgent(process, address, client)


async def _end(process: asyncio.subprocess.Process) -> None:
    if process.returncode is None:
        process.kill()
        await process.wait()


def in_order(collector: Collector, parent: str, *parts: str) -> None:
    """The parts of a span are there, each in its trace, within it in time, one after the other."""
    root = collector.one(parent)
    children = collector.children(root)
    assert set(parts) <= set(children), (parts, sorted(children))
    spans = [children[part] for part in parts]
    assert {span.trace_id for span in spans} == {root.trace_id}
    for before, after in itertools.pairwise(spans):
        assert before.end_ns <= after.start_ns, (before.name, after.name)
    assert root.start_ns <= spans[0].start_ns and spans[-1].end_ns <= root.end_ns


async def test_a_record_is_followed_from_its_request_to_its_file_and_to_its_reader() -> None:
    # given an agent that sends its spans in a minute, or when it stops
    later = {"OTEL_BSP_SCHEDULE_DELAY": "60000", "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=test"}
    async with running_collector() as collector, traced_agent(collector.endpoint, later) as agent:
        # when a record is produced, fetched from the store, and a member of a group joins and commits
        await agent.client.produce("t", 0, BATCH)
        await agent.client.fetch("t", 0, 0, max_wait_ms=1000)
        join = JoinGroupRequest(
            group_id="g", protocol_type="consumer", protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")]
        )
        join.session_timeout_ms = join.rebalance_timeout_ms = 10_000
        asked = await agent.client.call(join, JoinGroupResponse)
        join.member_id = asked.member_id
        joined = await agent.client.call(join, JoinGroupResponse)
        part = OffsetCommitRequestPartition(partition_index=0, committed_offset=1)
        commit = OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=joined.generation_id,
            member_id=joined.member_id,
            topics=[OffsetCommitRequestTopic(name="t", partitions=[part])],
        )
        assert joined.error_code == 0
        await agent.client.call(commit, OffsetCommitResponse)
        assert collector.spans == []
        await agent.stop()
    # then: the request, its parts, and where it comes from
    produce = collector.one("Produce t")
    assert produce.kind == "server" and produce.parent_id == b"" and not produce.failed
    attributes = produce.attributes
    assert attributes["messaging.system"] == "kafka"
    assert (attributes["messaging.operation.name"], attributes["messaging.operation.type"]) == ("Produce", "send")
    assert attributes["messaging.destination.name"] == "t"
    assert (attributes["messaging.destination.partition.id"], attributes["messaging.batch.message_count"]) == ("0", 3)
    assert attributes["messaging.client.id"] and attributes["client.address"] == "127.0.0.1"
    assert produce.resource["service.name"] == "siltstone-agent" and produce.resource["service.version"]
    assert produce.resource["deployment.environment.name"] == "test"
    in_order(collector, "Produce t", "read", "buffered", "answer")
    # the file, which stands alone, and is linked to what it carries, both ways
    file = collector.one("write L0 file")
    assert file.parent_id == b"" and file.trace_id != produce.trace_id
    assert file.links == {produce.span_id} and produce.links == {file.span_id}
    assert file.attributes["siltstone.file.key"] == attributes["siltstone.file.key"]
    in_order(collector, "write L0 file", "object_store put", "commit")
    assert collector.children(file)["object_store put"].attributes["siltstone.object.key"].startswith("l0/")
    # the fetch: where the records lie, and the GET that brought them
    in_order(collector, "Fetch t", "read", "index", "locate", "cache", "answer")
    fetch = collector.one("Fetch t")
    assert fetch.attributes["messaging.operation.type"] == "receive"
    assert collector.children(fetch)["cache"].attributes["siltstone.ranges.from"] == "tail"
    assert "object_store get_range" in collector.children(fetch)
    # the group
    joins = collector.named("JoinGroup")
    assert {span.attributes["messaging.consumer.group.name"] for span in joins} == {"g"}
    assert any("rebalance" in collector.children(span) for span in joins)
    refused = next(span for span in joins if span.failed)
    assert refused.attributes["error.type"] == "MEMBER_ID_REQUIRED"
    settle = collector.one("OffsetCommit")
    assert settle.attributes["messaging.operation.type"] == "settle"


async def test_a_collector_that_does_not_answer_holds_nothing_up() -> None:
    few = {"OTEL_BSP_MAX_QUEUE_SIZE": "20", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "10", "OTEL_BSP_SCHEDULE_DELAY": "10"}
    async with running_collector() as collector:
        collector.answers.clear()
        async with traced_agent(collector.endpoint, few, drain_timeout_ms="1500") as agent:
            for _ in range(10):  # many more spans than wait in the queue
                began = time.monotonic()
                await agent.client.produce("t", 0, BATCH)
                await agent.client.fetch("t", 0, 0, max_wait_ms=0)
                assert time.monotonic() - began < 5, "one export by itself would wait for 10 s"
            assert collector.requests >= 1
            assert await agent.stop() < 10, "the exporter by itself would wait for 30 s"


async def test_spans_for_a_collector_that_is_not_there_are_dropped_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{free_port()}")
    monkeypatch.setenv("OTEL_BSP_MAX_QUEUE_SIZE", "10")
    monkeypatch.setenv("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "10")
    tracing = OtelTracing(ratio=1, service_name="test", version="1", ids=SystemIds())
    began = time.monotonic()
    for _ in range(200):
        tracing.start("request").end()
    assert time.monotonic() - began < 5, "one export by itself would try for 6 s"
    began = time.monotonic()
    await asyncio.to_thread(tracing.flush, 200)
    assert time.monotonic() - began < 5


@pytest.fixture
async def collected(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[tuple[Collector, OtelTracing]]:
    """A collector, and tracing in this process that sends to it."""
    async with running_collector() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.endpoint)
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "20")
        tracing = OtelTracing(ratio=1, service_name="test", version="1", ids=SystemIds())
        try:
            yield collector, tracing
        finally:
            assert await asyncio.to_thread(tracing.flush, 10_000)


async def test_a_merge_is_a_span_with_its_claim_its_reads_its_writes_and_its_commit_and_its_lines_name_its_job(
    collected: tuple[Collector, OtelTracing],
    start_agent: StartAgent,
    start_compactor: StartCompactor,
    log_lines: LogLines,
) -> None:
    collector, tracing = collected
    database = MemoryDatabase(cluster_id="traced")
    store, services = MemoryStore(), [MemoryMetadata(database=database) for _ in range(2)]
    for service in services:
        await service.open()
    agent = await start_agent(store=store, metadata=services[0], gc_grace_ms=2_000)
    client = await KafkaClient.connect(agent.address, timeout_ms=10_000)
    await client.create_topic("t", partitions=1)
    await client.produce("t", 0, BATCH)
    await client.close()
    await start_compactor(store=Traced(store), metadata=services[1], tracing=tracing)
    await collector.until("merge level")
    (planned,), (done,) = log_lines.named("merge planned"), log_lines.named("merge done")
    assert (done["job"], done["kind"]) == (planned["job"], "level")
    (ready,) = log_lines.named("compactor ready")
    assert "job" not in ready, "a line of no merge names none"
    merge = collector.one("merge level")
    assert merge.attributes["siltstone.job.id"] == done["job"]
    assert merge.parent_id == b"" and merge.attributes["siltstone.merge.records_out"] == 3
    in_order(collector, "merge level", "claim", "wait for memory", "merge", "commit")
    work = collector.children(collector.children(merge)["merge"])
    assert {"object_store get", "object_store get_range"} & set(work), sorted(work)
    assert {"object_store multipart_write", "object_store put"} & set(work), sorted(work)


async def test_a_span_has_no_more_parts_than_can_be_looked_at(collected: tuple[Collector, OtelTracing]) -> None:
    collector, tracing = collected
    root = tracing.start("root")
    for _ in range(CHILDREN_MAX + 5):
        root.child("part").end()
    root.end()
    await collector.until("root")
    assert len(collector.named("part")) == CHILDREN_MAX
    assert collector.one("root").attributes["siltstone.spans.left_out"] == 5


async def test_only_a_share_of_the_requests_is_traced() -> None:
    class Draws(SystemIds):
        def __init__(self) -> None:
            super().__init__(seed=1)

    tracing = OtelTracing(ratio=0.25, service_name="test", version="1", ids=Draws())
    share = sum(tracing.samples() for _ in range(4_000)) / 4_000
    assert 0.2 < share < 0.3
    assert tracing.flush(5_000)


async def opened(settings: Settings) -> object:

    stopping = asyncio.Event()
    async with log_and_traces(settings, role="agent", stopping=stopping, runtime=Runtime()) as got:
        return got


async def test_tracing_is_off_unless_asked_for() -> None:
    assert await opened(Settings()) is NO_TRACING


async def test_tracing_without_the_extra_is_refused_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "runtime.tracing_otel", None)  # as where OpenTelemetry is not installed
    with pytest.raises(TracingMissingError, match="OpenTelemetry is not installed") as refused:
        await opened(Settings(trace_sample_ratio="0.1"))
    assert ".[otel]" in refused.value.remedy
