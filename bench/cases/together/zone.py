"""`make bench-zone`: the GETs of new files when every agent reads what all agents write, alone and as a zone.

Each agent has a writer and readers of all partitions of its own, which talk to no other agent. So each agent needs the
files of all others: without `zone.listen` it fetches them, with it the agents of a zone share them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

from bench.loads.clients import create_topic, percentile
from bench.loads.load import OurTarget, progress, say_complaints
from bench.measures.price import GIB
from bench.registry import Size
from bench.servers.stack import Reading, Stack, Store
from bench.table import Cell, Column, Table
from siltstone.kafka.client import KafkaError, connected
from wire.batch import iter_headers
from wire.records import NewRecord, build_batch, walk

TOPIC = "zone"
PARTITIONS = 4
VALUE_BYTES = 32 << 10
BATCHES_PER_S = 16.0
"""Of each writer: a file of some 130 KiB every 250 ms, which is one block."""
SECONDS = {Size.SMALL: 3.0, Size.FULL: 15.0}
CONNECTIONS = 8
"""Of each writer. A connection takes one request at a time; with only one, each batch would wait for the one before."""
WARMUP_S = 1.0
END = b"\xff" * 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    agents: int
    zones: int
    is_on: bool
    used: Reading
    written_bytes: int
    ages_ms: Sequence[float]


def run(size: Size) -> Iterator[Table]:
    shapes = ((4, 1), (4, 2)) if size is Size.SMALL else ((2, 1), (2, 2), (4, 1), (4, 2))
    yield _table([_row(agents, zones, is_on, size) for agents, zones in shapes for is_on in (False, True)])


def _row(agents: int, zones: int, is_on: bool, size: Size) -> Measured:
    names = [f"zone-{number % zones}" for number in range(agents)]
    settings = {"zone.listen": "127.0.0.1:0"} if is_on else {}
    with Stack(Store.LOCAL, agents=agents, zones=names, settings=settings) as stack:
        create_topic(stack.bootstrap, TOPIC, PARTITIONS)
        addresses = [agent.bootstrap for agent in stack.agents]
        asyncio.run(_load(addresses, WARMUP_S))
        before = stack.read()
        written_bytes, ages_ms = asyncio.run(_load(addresses, SECONDS[size]))
        used = stack.read() - before
        say_complaints(OurTarget(stack))
    measured = Measured(
        agents=agents, zones=zones, is_on=is_on, used=used, written_bytes=written_bytes, ages_ms=ages_ms
    )
    progress(f"{agents} agents, {zones} zones, {'shared' if is_on else 'alone'}: {_gets(measured):,.0f} GETs")
    return measured


async def _load(addresses: Sequence[str], seconds: float) -> tuple[int, list[float]]:
    """The bytes written through all agents, and the age of each batch at each reader."""
    begins: dict[int, int] = {}
    for address in addresses:
        begins = await _ends(address)
    ages_ms: list[float] = []
    readers = [
        asyncio.create_task(_read(address, part, begins[part], len(addresses), ages_ms))
        for address in addresses
        for part in range(PARTITIONS)
    ]
    written = await asyncio.gather(*(_write(address, seconds) for address in addresses))
    async with asyncio.timeout(60):
        await asyncio.gather(*readers)
    return sum(written), ages_ms


async def _ends(address: str) -> dict[int, int]:
    """The ends of the partitions, once this agent has heard of the topic."""
    async with asyncio.timeout(20), connected(address) as client:
        while True:
            try:
                return await client.list_offsets(TOPIC, range(PARTITIONS))
            except KafkaError:
                await asyncio.sleep(0.05)


async def _write(address: str, seconds: float) -> int:
    """Send batches at a fixed rate, then one that marks the end to each partition."""
    count = int(seconds * BATCHES_PER_S)
    async with AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(connected(address)) for _ in range(CONNECTIONS)]

        async def send(number: int, stamp: bytes) -> None:
            value = stamp + bytes(VALUE_BYTES)
            batch = build_batch([NewRecord(int(time.time() * 1000), None, value)])
            await clients[number % CONNECTIONS].produce(TOPIC, number % PARTITIONS, batch)

        started = time.monotonic()
        sending: list[asyncio.Task[None]] = []
        for number in range(count):
            await asyncio.sleep(max(0.0, started + number / BATCHES_PER_S - time.monotonic()))
            sending.append(asyncio.create_task(send(number, time.monotonic_ns().to_bytes(8, "big"))))
        await asyncio.gather(*sending)
        await asyncio.gather(*(send(partition, END) for partition in range(PARTITIONS)))
    return (count + PARTITIONS) * VALUE_BYTES


async def _read(address: str, partition: int, offset: int, writers: int, ages_ms: list[float]) -> None:
    ended = 0
    async with connected(address) as client:
        while ended < writers:
            found = await client.fetch(TOPIC, partition, offset, max_wait_ms=500, min_bytes=1)
            now = time.monotonic_ns()
            for position, header in iter_headers(found.records):
                offset = header.next_offset
                for record in walk(found.records[position : position + header.size_bytes]):
                    stamp = bytes(record.value or b"")[:8]
                    ended += stamp == END
                    if stamp != END:
                        ages_ms.append((now - int.from_bytes(stamp, "big")) / 1e6)


def _gets(row: Measured) -> float:
    return row.used.counters.sum("object_requests_total", op="get_range")


def _table(rows: Sequence[Measured]) -> Table:
    return Table(
        "One GET per block and zone",
        f"Each agent has a writer ({BATCHES_PER_S:.0f} batches of {VALUE_BYTES // 1024} KiB a second) and a reader of "
        f"each of {PARTITIONS} partitions, and its clients talk to no other. Files have one block each. Alone: every "
        "agent fetches for itself; shared: `zone.listen` is set. CPU is that of all agents, for each MB that "
        "their readers got. Age: from the writer's call to the reader's hands; files wait up to 250 ms. Store: a local "
        "directory. Outcomes: requests to neighbours that were served, and all others.",
        (
            Column("agents"),
            Column("zones"),
            Column("agents fetch"),
            Column("files"),
            Column("GETs"),
            Column("GETs per block and zone", "", 2),
            Column("GETs", "1/GiB"),
            Column("served"),
            Column("not served"),
            Column("CPU", "ms/MB", 1),
            Column("age p50", "ms"),
            Column("p99", "ms"),
        ),
        [_cells(row) for row in rows],
    )


def _cells(row: Measured) -> list[Cell]:
    files = row.used.counters.sum("l0_files_total")
    asked = row.used.counters.sum("zone_requests_total")
    served = row.used.counters.sum("zone_requests_total", outcome="served")
    read_mb = row.written_bytes * row.agents / 1e6
    return [
        row.agents,
        row.zones,
        "shared" if row.is_on else "alone",
        files,
        _gets(row),
        _gets(row) / (files * row.zones) if files else None,
        _gets(row) * GIB / row.written_bytes,
        served,
        asked - served,
        row.used.agents.cpu_s * 1000 / read_mb,
        percentile(row.ages_ms, 0.5),
        percentile(row.ages_ms, 0.99),
    ]
