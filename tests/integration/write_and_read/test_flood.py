"""A flood against one agent process over Postgres and an S3 whose PUTs take seconds: 60 connections (200 in the long
proofs) that push as fast as they can, and some that ask for much and read nothing.

The process stays below the memory bound that `docs/decisions/0008-what-an-agent-may-hold.md` computes from its
settings, all other clients are served meanwhile, and every acknowledged record is where it was said to be.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import agents.server
from runtime.settings.table import Settings
from siltstone.kafka.client import KafkaClient, connected
from storage.memory import MemoryStore
from storage.objects import Body
from storage.wrappers.faulty import Fault, FaultRule
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.faults import AgentProcess
from tests.fixtures.faulty_proxies import S3Proxy
from tests.fixtures.s3 import S3Server, free_port
from tests.fixtures.waiting import until
from wire.api import decode_response, encode_request
from wire.batch import CRC_COVERS_FROM, iter_headers
from wire.crc import crc32c
from wire.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from wire.messages.produce import PartitionProduceData, ProduceRequest, ProduceResponse, TopicProduceData
from wire.records import NewRecord, build_batch

MIB = 1 << 20
PARTITIONS = 8
PUT_MS = 2_000
PATIENCE_S = 60
"""Until every kind of request was answered at least once; on an idle machine it is a few seconds."""
PRODUCE, FETCH = 0, 1
SETTINGS: dict[str, Any] = {
    "produce_buffer_bytes_max": 32 * MIB,
    "request_bytes_max": 16 * MIB,
    "socket_request_max_bytes": 8 * MIB,
    "fetch_buffer_bytes_max": 32 * MIB,
    "fetch_max_bytes": 8 * MIB,
    "cache_hot_bytes": 16 * MIB,
    "cache_cold_bytes": 8 * MIB,
    "produce_linger_ms": 250,
    # All connections come at once from one address, and the agent reads no first request while its buffer is full:
    # those above the bound would put out the first ones.
    "preauth_connections_max": 400,
}


def memory_bound(settings: Settings, connections: int, request_bytes: int) -> int:
    """Bytes; the formula of docs/decisions/0008."""
    requests = settings.request_bytes_max + connections * min(MIB, request_bytes)
    produce = 3 * (settings.produce_buffer_bytes_max + settings.socket_request_max_bytes)
    fetch = settings.fetch_buffer_bytes_max + connections * (64 << 10)
    caches = settings.cache_hot_bytes + settings.cache_cold_bytes
    return 128 * MIB + 2 * (requests + produce + fetch + caches)


# ---- those who push ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Load:
    """The request that a connection sends again and again."""

    name: str
    value_bytes: int
    batches: int
    """In a request."""

    @property
    def bytes(self) -> int:
        """Approximate bytes of a request."""
        return self.batches * (self.value_bytes + 90)


TINY, MANY = Load("tiny", 20, 1), Load("many", 20, 200)
MIDDLE, LARGE = Load("middle", 60_000, 1), Load("large", 130_000, 8)


class Batches:
    """Distinct batches of one record, made cheaply: a number goes into the value, and the CRC is made to match."""

    _numbers = itertools.count(1)

    def __init__(self, value_bytes: int) -> None:
        marker = b"MARKER00"
        value = marker + random.Random(value_bytes).randbytes(value_bytes - len(marker))
        self._batch = bytearray(build_batch([NewRecord(int(time.time() * 1000), None, value)]))
        self._at = self._batch.index(marker)

    def next(self) -> tuple[bytes, int]:
        """A batch and its CRC."""
        self._batch[self._at : self._at + 8] = next(self._numbers).to_bytes(8, "big")
        crc = crc32c(memoryview(self._batch)[CRC_COVERS_FROM:])
        self._batch[17:21] = crc.to_bytes(4, "big")
        return bytes(self._batch), crc


@dataclass(slots=True)
class Tally:
    acknowledged: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """(partition, offset) -> CRC of the batch."""
    by_load: Counter[str] = field(default_factory=Counter[str])
    errors: Counter[int] = field(default_factory=Counter[int])
    sent_bytes: int = 0


async def push(address: str, load: Load, tally: Tally) -> None:
    """One connection that never waits for an answer before it sends more; for ever."""
    reader, writer = await dial(address)
    maker, expected = Batches(load.value_bytes), deque[list[tuple[int, int]]]()
    hearing = asyncio.create_task(hear(reader, load, expected, tally))
    try:
        for correlation_id in itertools.count(1):
            parts, places = list[PartitionProduceData](), list[tuple[int, int]]()
            for number in range(load.batches):
                batch, crc = maker.next()
                partition = (correlation_id + number) % PARTITIONS
                parts.append(PartitionProduceData(index=partition, records=batch))
                places.append((partition, crc))
            topic = [TopicProduceData(name="t", partition_data=parts)]
            request = ProduceRequest(acks=-1, timeout_ms=120_000, topic_data=topic)
            frame = b"".join(encode_request(PRODUCE, 9, correlation_id, "flood", request))
            expected.append(places)
            tally.sent_bytes += len(frame)
            writer.write(frame)
            await writer.drain()
    finally:
        hearing.cancel()
        await asyncio.gather(hearing, return_exceptions=True)
        writer.transport.abort()


async def hear(reader: asyncio.StreamReader, load: Load, expected: deque[list[tuple[int, int]]], tally: Tally) -> None:
    while True:
        size = int.from_bytes(await reader.readexactly(4), "big")
        _, answer = decode_response(PRODUCE, 9, memoryview(await reader.readexactly(size)))
        assert isinstance(answer, ProduceResponse)
        for part, (partition, crc) in zip(answer.responses[0].partition_responses, expected.popleft(), strict=True):
            if part.error_code:
                tally.errors[part.error_code] += 1
            else:
                tally.by_load[load.name] += 1
                tally.acknowledged[partition, part.base_offset] = crc


async def dial(address: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Little is buffered on the client's side, so that the agent has read, or the kernel holds, everything that was
    sent."""
    host, _, port = address.rpartition(":")
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
    sock.setblocking(False)
    await asyncio.get_running_loop().sock_connect(sock, (host, int(port)))
    reader, writer = await asyncio.open_connection(sock=sock)
    writer.transport.set_write_buffer_limits(high=0)
    return reader, writer


# ---- those who ask and do not read -----------------------------------------------------------------------------------


async def ask_without_reading(address: str) -> None:
    """For ever: a client that takes nothing is cut, and comes again."""
    while True:
        with contextlib.suppress(ConnectionError):
            await _ask_until_cut(address)


async def _ask_until_cut(address: str) -> None:
    _, writer = await dial(address)
    writer.transport.pause_reading()  # type: ignore[attr-defined]
    parts = [
        FetchPartition(partition=number, fetch_offset=0, partition_max_bytes=8 * MIB) for number in range(PARTITIONS)
    ]
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=8 * MIB, topics=[FetchTopic(topic="t", partitions=parts)]
    )
    try:
        for correlation_id in itertools.count(1):
            writer.write(b"".join(encode_request(FETCH, 11, correlation_id, "mute", request)))
            await writer.drain()
            await asyncio.sleep(0.2)
    finally:
        writer.transport.abort()


# ---- the agent -----------------------------------------------------------------------------------------------------


@pytest.fixture
def slow_s3(moto_server: S3Server, s3_url: Callable[..., str]) -> Iterator[tuple[S3Proxy, str]]:
    """A proxy before a fresh bucket, and the bucket's URL through it."""
    url = s3_url()
    with S3Proxy(moto_server.endpoint) as proxy:
        yield proxy, url.replace(moto_server.endpoint, proxy.endpoint)


def peak_bytes(agent: AgentProcess) -> int:
    assert agent._process is not None
    status = Path(f"/proc/{agent._process.pid}/status").read_text()
    [peak] = [line.split()[1] for line in status.splitlines() if line.startswith("VmHWM:")]
    return int(peak) * 1024


PROBE = """
import asyncio, sys, time
from siltstone.kafka.client import connected

async def probe(address, duration_s):
    waits = []
    async with connected(address) as client:
        end = time.monotonic() + duration_s
        while time.monotonic() < end:
            began = time.monotonic()
            while not (await client.fetch("probe", 0, 0)).records:
                pass  # on its way from the store
            waits.append(time.monotonic() - began)
            await asyncio.sleep(0.1)
    print(max(waits))

asyncio.run(probe(sys.argv[1], float(sys.argv[2])))
"""


async def slowest_fetch_s(address: str, duration_s: float) -> float:
    """Fetch the present records, again and again, from a process that has nothing else to do."""
    root = str(Path(__file__).parents[3])
    probe = await asyncio.create_subprocess_exec(
        sys.executable, "-c", PROBE, address, str(duration_s), stdout=subprocess.PIPE, cwd=root
    )
    said, _ = await probe.communicate()
    assert probe.returncode == 0
    return float(said)


async def read_crcs(client: KafkaClient, partition: int) -> dict[int, int]:
    """CRC by offset of everything a partition holds; offsets are dense."""
    found: dict[int, int] = {}
    offset = 0
    while True:
        fetched = await client.fetch("t", partition, offset, max_bytes=8 * MIB, max_wait_ms=0, min_bytes=0)
        for _, header in iter_headers(fetched.records):
            assert header.base_offset == len(found)
            found[header.base_offset] = header.crc
        offset = len(found)
        if offset >= fetched.high_watermark:
            return found


async def survives(
    agent: AgentProcess,
    proxy: S3Proxy,
    *,
    pushing: Sequence[Load],
    mute: int,
    duration_s: float,
    fetch_s_max: float = 10,
) -> None:
    async with connected(agent.address) as client:
        await client.create_topic("t", partitions=PARTITIONS)
        await client.create_topic("probe", partitions=1)
        await client.produce("probe", 0, Batches(100).next()[0])
        for partition in range(PARTITIONS if mute else 0):
            await client.produce("t", partition, Batches(900_000).next()[0])
        before = {(partition, 0) for partition in range(PARTITIONS if mute else 0)}
        idle = peak_bytes(agent)
        proxy.plan.rules = [FaultRule(fault=Fault.DELAY, op="put", delay_ms=PUT_MS)]
        tally = Tally()
        floods = [asyncio.create_task(push(agent.address, load, tally)) for load in pushing]
        floods += [asyncio.create_task(ask_without_reading(agent.address)) for _ in range(mute)]
        try:
            slowest = await slowest_fetch_s(agent.address, duration_s)
            async with asyncio.timeout(PATIENCE_S):
                while set(tally.by_load) != {load.name for load in pushing}:
                    await asyncio.sleep(0.05)
            cut = [task for task in floods if task.done()]  # those without a read are back at once
            buffered = await asyncio.to_thread(agent.metric, "buffered_bytes")
        finally:
            for task in floods:
                task.cancel()
            await asyncio.gather(*floods, return_exceptions=True)
        proxy.plan.rules = []
        peak, bound = (
            peak_bytes(agent),
            memory_bound(Settings(**SETTINGS), len(floods), max(load.bytes for load in pushing)),
        )
        print(
            f"peak {peak // MIB} of {bound // MIB} MiB, idle {idle // MIB}; slowest fetch {slowest:.2f} s;"
            f" sent {tally.sent_bytes // MIB} MiB, buffered {buffered / MIB:.0f}, acknowledged {dict(tally.by_load)}"
        )
        # then: late, but right
        assert not cut, "a connection that did nothing wrong was closed"
        assert not tally.errors
        while await asyncio.to_thread(agent.metric, "buffered_bytes"):
            await asyncio.sleep(0.05)
        found = [await read_crcs(client, partition) for partition in range(PARTITIONS)]
        for (partition, offset), crc in tally.acknowledged.items():
            assert found[partition][offset] == crc
        assert before.isdisjoint(tally.acknowledged)
        assert await asyncio.to_thread(agent.metric, "lease_errors_total") == 0
        assert slowest < fetch_s_max
        assert peak < bound


@pytest.fixture
async def agent(slow_s3: tuple[S3Proxy, str], postgres_url: str, tmp_path: Path) -> Any:
    process = AgentProcess(
        listen=f"127.0.0.1:{free_port()}",
        metadata_url=postgres_url,
        store_url=slow_s3[1],
        log=tmp_path / "agent.log",
        **SETTINGS,
    )
    await asyncio.to_thread(process.start)
    yield process
    assert await asyncio.to_thread(process.stop) == 0, process.log


def connections(*counts: tuple[Load, int]) -> list[Load]:
    return [load for load, count in counts for _ in range(count)]


@pytest.mark.timeout(120)
@pytest.mark.parametrize(
    "pushing",
    [
        pytest.param(connections((TINY, 24), (MANY, 6), (MIDDLE, 30)), id="small requests"),
        pytest.param(
            connections((TINY, 80), (MANY, 20), (MIDDLE, 100)), id="very many small requests", marks=pytest.mark.soak
        ),
        pytest.param(connections((LARGE, 200)), id="large requests", marks=pytest.mark.soak),
    ],
)
async def test_a_flood_is_held_off_and_loses_nothing(
    agent: AgentProcess, slow_s3: tuple[S3Proxy, str], pushing: Sequence[Load]
) -> None:
    await survives(agent, slow_s3[0], pushing=pushing, mute=3, duration_s=3)


class HeldStore(MemoryStore):
    """PUTs wait until `gate` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = asyncio.Event()

    async def put_if_absent(self, key: str, body: Body, *, crc32c: int) -> None:
        await self.gate.wait()
        await super().put_if_absent(key, body, crc32c=crc32c)


@pytest.mark.parametrize("full", [True, False], ids=["the agent does not read", "its client is silent"])
async def test_who_is_in_the_middle_of_a_request_is_closed_for_silence_of_its_own_alone(
    dial: Dial, start_agent: StartAgent, monkeypatch: pytest.MonkeyPatch, full: bool
) -> None:
    monkeypatch.setattr(agents.server, "SWEEP_MS", 20)
    monkeypatch.setattr(agents.server, "SILENT_MS_MAX", 100)
    store = HeldStore()
    limits = {"message_max_bytes": 400_000, "socket_request_max_bytes": MIB, "request_bytes_max": MIB}
    small = {"produce_file_bytes": 400_000, "produce_early_bytes": 400_000, "produce_buffer_bytes_max": 400_000}
    running = await start_agent(store=store, **limits, **small)
    client = await dial.kafka(running.address)
    await client.create_topic("t", partitions=1)
    # given: one that has sent Produce before is in the middle of a large request
    first, second = await dial.raw(running.address), await dial.raw(running.address)
    await first.send(_frame(100))
    half, rest = (whole := _frame(300_000, 300_000, 300_000))[:700_000], whole[700_000:]
    await first.send(half)
    await until(lambda: len(running.agent._server._large) == 1)  # type: ignore[union-attr]
    # and: either the write path is full, or not; and the bound of all requests is met
    if full:
        await second.send(_frame(300_000) * 2)
        await until(lambda: running.metric("buffered_bytes") > 400_000)
    third = await dial.raw(running.address)
    await third.send(half)
    # when: time goes by
    if full:
        await asyncio.sleep(0.4)
        store.gate.set()
        await first.send(rest)
        for _ in range(2):
            assert len(await first.read_frame()) > 0
    else:
        store.gate.set()
        assert len(await first.read_frame()) > 0
        assert await first.is_closed_by_peer()
    await third.send(rest)
    assert len(await third.read_frame()) > 0


def _frame(*value_bytes: int) -> bytes:
    parts = [PartitionProduceData(index=0, records=Batches(size).next()[0]) for size in value_bytes]
    topic = [TopicProduceData(name="t", partition_data=parts)]
    return b"".join(encode_request(PRODUCE, 9, 1, "", ProduceRequest(acks=-1, timeout_ms=60_000, topic_data=topic)))


@pytest.mark.soak
@pytest.mark.timeout(600)
async def test_a_long_flood_of_everything_is_held_off(agent: AgentProcess, slow_s3: tuple[S3Proxy, str]) -> None:
    pushing = connections((TINY, 50), (MANY, 50), (MIDDLE, 50), (LARGE, 50))
    # By then the record that is fetched has left the cache, and comes from an S3 server in Python under the same flood.
    await survives(agent, slow_s3[0], pushing=pushing, mute=3, duration_s=120, fetch_s_max=15)
