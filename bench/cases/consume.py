"""`make bench-consume`: reading back written records, from memory and from the store, beside Apache Kafka.

librdkafka writes a row's records, and one librdkafka consumer with assigned partitions reads them from the beginning.
*Memory*: the agent that wrote them still holds them (the cache is made large enough). *Store*: the agent was started
again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product

from agents.dispatch import HANDLERS
from bench.cases.produce import NO_JARS
from bench.loads.clients import create_topic, run_consume, run_produce
from bench.loads.jobs import ConsumeJob, ProduceJob
from bench.loads.load import LIBRDKAFKA, TOOL, KafkaTarget, OurTarget, Target, price_out, progress, say_complaints, warm
from bench.measures.limits import loopback
from bench.measures.price import PRICE_COLUMNS, PRICE_NOTE, no_price
from bench.registry import Size
from bench.servers.kafka import Broker, Jars, consumer_perf, find_jars
from bench.servers.stack import Reading, Stack, Store, per_gib, store_note
from bench.table import Cell, Column, Table

RECORD_BYTES = 1024
DATA_BYTES = {Size.SMALL: 256 << 20, Size.FULL: 1 << 30}
CACHE: Mapping[str, str] = {"cache.hot.bytes": str(2 << 30)}
JOIN_GROUP = 11
MEMORY, STORE = "memory", "store"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """The records of a row, and the way to read them."""

    partitions: int
    batch_bytes: int
    client: str = LIBRDKAFKA


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    target: str
    store: str
    source: str
    reads: Reads
    mb_per_s: float
    first_ms: float | None
    broker_ms_per_mb: float
    client_ms_per_mb: float
    used: Reading
    read_bytes: int


def run(size: Size) -> Iterator[Table]:
    jars = find_jars()
    if jars is None:
        progress(NO_JARS)
    echo_mb_per_s = loopback("socket", seconds=1.0).mb_per_s
    rows: list[Measured] = []
    with ExitStack() as stack:
        if jars is not None:
            kafka = warm(stack.enter_context(Broker(jars)))
            for reads in rows_of(size):
                rows += on_kafka(kafka, reads, size, jars)
    for store, reads in product(stores_of(size), rows_of(size)):
        rows += on_ours(store, reads, size, jars)
    yield table("Consuming", rows, echo_mb_per_s, jars)


def stores_of(size: Size) -> Sequence[Store]:
    return (Store.LOCAL,) if size is Size.SMALL else (Store.LOCAL, Store.S3, Store.S3_DISTANT)


def rows_of(size: Size) -> Sequence[Reads]:
    if size is Size.SMALL:
        return (Reads(partitions=1, batch_bytes=1_000_000), Reads(partitions=12, batch_bytes=128 << 10))
    return [
        Reads(partitions=partitions, batch_bytes=batch_bytes)
        for partitions, batch_bytes in product((1, 12), (128 << 10, 1_000_000))
    ]


# ---- rows


def on_kafka(kafka: KafkaTarget, reads: Reads, size: Size, jars: Jars) -> list[Measured]:
    topic, records = _write(kafka, reads, size)
    source = "page cache"
    return [
        _read(kafka, reads, topic, records, source),
        _read_by_tool(kafka, replace(reads, client=TOOL), topic, records, source, jars),
    ]


def on_ours(
    store: Store, reads: Reads, size: Size, jars: Jars | None, *, sources: Sequence[str] = (MEMORY, STORE)
) -> list[Measured]:
    rows: list[Measured] = []
    with Stack(store, settings=CACHE) as stack:
        target = OurTarget(stack)
        topic, records = _write(target, reads, size)
        if MEMORY in sources:
            rows.append(_read(target, reads, topic, records, MEMORY))
            if jars is not None and JOIN_GROUP in HANDLERS:
                rows.append(_read_by_tool(target, replace(reads, client=TOOL), topic, records, MEMORY, jars))
        stack.restart_agents()
        rows.append(_read(target, reads, topic, records, STORE))
        say_complaints(target)
    return rows


def _write(target: Target, reads: Reads, size: Size) -> tuple[str, int]:
    """Write the records; returns the topic and their number."""
    records = DATA_BYTES[size] // RECORD_BYTES
    topic = f"reads-{reads.partitions}-{reads.batch_bytes}"
    create_topic(target.bootstrap, topic, reads.partitions)
    progress(f"{target.name}, {target.store}: writing {records:,} records ...", end=" ")
    written = run_produce(
        ProduceJob(
            bootstrap=target.bootstrap,
            topic=topic,
            partitions=reads.partitions,
            record_bytes=RECORD_BYTES,
            seconds=0,
            records=records,
            batch_bytes=reads.batch_bytes,
        )
    )
    progress(f"{written.mb_per_s:.1f} MB/s")
    return topic, records


def _read(target: Target, reads: Reads, topic: str, records: int, source: str) -> Measured:
    before = target.read()
    result = run_consume(
        ConsumeJob(
            bootstrap=target.bootstrap,
            topic=topic,
            partitions=reads.partitions,
            record_bytes=RECORD_BYTES,
            records=records,
        )
    )
    used = target.read() - before
    return _said(
        Measured(
            target=target.name,
            store=target.store,
            source=source,
            reads=reads,
            mb_per_s=result.mb_per_s,
            first_ms=result.first_ms,
            broker_ms_per_mb=used.agents.cpu_s * 1000 / (result.read_bytes / 1e6),
            client_ms_per_mb=result.cpu_ms_per_mb,
            used=used,
            read_bytes=result.read_bytes,
        )
    )


def _read_by_tool(target: Target, reads: Reads, topic: str, records: int, source: str, jars: Jars) -> Measured:
    before = target.read()
    result = consumer_perf(jars, bootstrap=target.bootstrap, topic=topic, records=records)
    used = target.read() - before
    megabytes = result.records * RECORD_BYTES / 1e6
    return _said(
        Measured(
            target=target.name,
            store=target.store,
            source=source,
            reads=reads,
            mb_per_s=result.mb_per_s,
            first_ms=None,
            broker_ms_per_mb=used.agents.cpu_s * 1000 / megabytes,
            client_ms_per_mb=result.cpu_s * 1000 / megabytes,
            used=used,
            read_bytes=result.records * RECORD_BYTES,
        )
    )


def _said(row: Measured) -> Measured:
    progress(
        f"{row.target}, {row.store}, {row.source}: {row.reads.client}, {row.reads.partitions} partitions, batches "
        f"{row.reads.batch_bytes:,} B: {row.mb_per_s:.1f} MB/s, {row.broker_ms_per_mb:.2f} ms/MB"
    )
    return row


# ---- the table


def table(title: str, rows: Sequence[Measured], echo_mb_per_s: float, jars: Jars | None) -> Table:
    groups = (
        "" if JOIN_GROUP in HANDLERS else " Kafka's consuming tool joins a group, and is run against Kafka alone here."
    )
    beside = f"Kafka {jars.version} reads from the page cache." + groups if jars is not None else NO_JARS
    return Table(
        title,
        f"1 MB is 1,000,000 bytes of record values; records of {RECORD_BYTES} B, written before the measurement. Rate: "
        "from the first record to the last. First record: from `assign` on. CPU: user and system time per MB read. "
        f"GETs: of the object store, by 1 GiB read. {PRICE_NOTE} {store_note()} {beside}",
        (
            Column("broker"),
            Column("store"),
            Column("read from"),
            Column("client"),
            Column("partitions"),
            Column("batch", "B"),
            Column("rate", "MB/s", 1),
            Column("first record", "ms"),
            Column("broker CPU", "ms/MB", 2),
            Column("client CPU", "ms/MB", 2),
            Column("requests", "1/GiB"),
            Column("GETs", "1/GiB"),
            *PRICE_COLUMNS,
            Column("from memory", "%"),
            Column("memory", "MB"),
            Column("of raw socket", "", 3),
            Column("of Kafka", "", 2),
        ),
        [_cells(row, rows, echo_mb_per_s) for row in rows],
    )


def _cells(row: Measured, rows: Sequence[Measured], echo_mb_per_s: float) -> list[Cell]:
    kafka = next((each for each in rows if each.target == KafkaTarget.name and each.reads == row.reads), None)
    ours = row.target != KafkaTarget.name
    counters = row.used.counters
    fetched = counters.sum("fetch_bytes_total")
    return [
        row.target,
        row.store,
        row.source,
        row.reads.client,
        row.reads.partitions,
        row.reads.batch_bytes,
        row.mb_per_s,
        row.first_ms,
        row.broker_ms_per_mb,
        row.client_ms_per_mb,
        per_gib(counters.sum("requests_total", api="Fetch"), row.read_bytes) if ours else None,
        per_gib(counters.sum("object_requests_total", op="get_range"), row.read_bytes) if ours else None,
        *(price_out(row.used, row.read_bytes) if ours else no_price()),
        counters.sum("fetch_bytes_total", source="memory") / fetched * 100 if ours and fetched else None,
        row.used.agents.peak_memory_bytes / 1e6,
        row.mb_per_s / echo_mb_per_s,
        row.mb_per_s / kafka.mb_per_s if kafka is not None and kafka is not row else None,
    ]
