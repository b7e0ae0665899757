"""`make bench-stock`: producers as they come, with nothing set but the address, beside Apache Kafka.

Two tables: records of 1 KiB as fast as the client takes them; and a newcomer's program, which writes 100,000 small
records and waits for all of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from bench.loads.clients import create_topic
from bench.loads.load import KafkaTarget, OurTarget, Target, price_in, progress, say_complaints, warm
from bench.loads.stock import CLIENTS, StockJob, run_stock
from bench.measures.price import PRICE_COLUMNS, PRICE_NOTE, no_price
from bench.registry import Size
from bench.servers.kafka import Broker, Jars, find_jars, producer_perf
from bench.servers.stack import Reading, Stack, Store, per_gib, store_note
from bench.table import Cell, Column, Table

RECORD_BYTES = 1024
SECONDS = {Size.SMALL: 3.0, Size.FULL: 8.0}
JAVA = "Java, Kafka's tool"
JAVA_WARMUP_RECORDS = 4_000
SMALL_RECORD_BYTES = 20
SMALL_RECORDS = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    target: str
    store: str
    client: str
    partitions: int
    mb_per_s: float
    seconds: float
    stored_bytes: int
    error: str
    used: Reading


def run(size: Size) -> Iterator[Table]:
    jars = find_jars()
    if jars is None:
        progress("Kafka and its tool are left out: set KAFKA_HOME or KAFKA_JARS (see bench/README.md).")
    stores = (Store.LOCAL,) if size is Size.SMALL else (Store.LOCAL, Store.S3_DISTANT)
    rows: list[Measured] = []
    programs: list[Measured] = []
    with ExitStack() as stack:
        if jars is not None:
            _measure(warm(stack.enter_context(Broker(jars))), size, jars, rows, programs)
        for store in stores:
            with Stack(store) as running:
                _measure(OurTarget(running), size, jars, rows, programs)
    yield _rates(rows)
    yield _programs(programs)


def clients(size: Size, *, java: bool) -> Sequence[tuple[str, int]]:
    """(client, partitions)"""
    names = [*CLIENTS, *([JAVA] if java else [])]
    if size is Size.SMALL:
        names = [name for name in names if "idempotent" not in name]
    return [(name, partitions) for name in names for partitions in ((1, 6) if size is Size.FULL else (1,))]


def _measure(target: Target, size: Size, jars: Jars | None, rows: list[Measured], programs: list[Measured]) -> None:
    for number, (client, partitions) in enumerate(clients(size, java=jars is not None)):
        topic = f"stock-{number}"
        create_topic(target.bootstrap, topic, partitions)
        progress(f"{target.name}, {target.store}: {client}, {partitions} partitions ...", end=" ")
        if client == JAVA:
            assert jars is not None
            row = _java(target, topic, partitions, SECONDS[size], jars)
        else:
            job = StockJob(
                client=client,
                bootstrap=target.bootstrap,
                topic=topic,
                record_bytes=RECORD_BYTES,
                seconds=SECONDS[size],
            )
            row = _run(target, job, partitions)
        progress(f"{row.mb_per_s:.2f} MB/s")
        rows.append(row)
    for number, client in enumerate(("kafka-python", "aiokafka")):
        topic = f"program-{number}"
        create_topic(target.bootstrap, topic, 1)
        progress(f"{target.name}, {target.store}: {client}, {SMALL_RECORDS:,} records and a flush ...", end=" ")
        job = StockJob(
            client=client,
            bootstrap=target.bootstrap,
            topic=topic,
            record_bytes=SMALL_RECORD_BYTES,
            records=SMALL_RECORDS,
        )
        row = _run(target, job, 1)
        progress(f"{row.seconds:.1f} s")
        programs.append(row)
    say_complaints(target)


def _run(target: Target, job: StockJob, partitions: int) -> Measured:
    before = target.read()
    result = run_stock(job)
    stored_bytes = result.acked * job.record_bytes
    return Measured(
        target=target.name,
        store=target.store,
        client=job.client,
        partitions=partitions,
        mb_per_s=stored_bytes / 1e6 / result.seconds,
        seconds=result.seconds,
        stored_bytes=stored_bytes,
        error=result.error,
        used=target.read() - before,
    )


def _java(target: Target, topic: str, partitions: int, seconds: float, jars: Jars) -> Measured:
    """The tool sends a number of records, not for a time: a first, short run determines the number."""

    def run(records: int) -> tuple[Reading, float]:
        before = target.read()
        result = producer_perf(
            jars, bootstrap=target.bootstrap, topic=topic, records=records, record_bytes=RECORD_BYTES, properties={}
        )
        return target.read() - before, result.mb_per_s

    _, mb_per_s = run(JAVA_WARMUP_RECORDS)
    records = max(int(mb_per_s * seconds * 1e6 / RECORD_BYTES), JAVA_WARMUP_RECORDS)
    used, mb_per_s = run(records)
    return Measured(
        target=target.name,
        store=target.store,
        client=JAVA,
        partitions=partitions,
        mb_per_s=mb_per_s,
        seconds=records * RECORD_BYTES / 1e6 / mb_per_s,
        stored_bytes=records * RECORD_BYTES,
        error="",
        used=used,
    )


def _files_per_s(row: Measured) -> float | None:
    return row.used.counters.sum("l0_files_total") / row.used.at_s if row.target == OurTarget.name else None


def _puts_per_gib(row: Measured) -> float | None:
    if row.target != OurTarget.name:
        return None
    stored_bytes = row.used.counters.sum("produce_bytes_total")
    return per_gib(row.used.counters.sum("object_requests_total", op="put"), stored_bytes)


def _price(row: Measured) -> list[Cell]:
    if row.target != OurTarget.name:
        return no_price()
    return price_in(row.used, row.used.counters.sum("produce_bytes_total"))


def _of_kafka(row: Measured, rows: Sequence[Measured], *, time: bool = False) -> float | None:
    for other in rows:
        if (other.target, other.client, other.partitions) == (KafkaTarget.name, row.client, row.partitions):
            return None if other is row else (other.seconds / row.seconds if time else row.mb_per_s / other.mb_per_s)
    return None


def _rates(rows: Sequence[Measured]) -> Table:
    cells: list[list[Cell]] = [
        [
            row.target,
            row.store,
            row.client,
            row.partitions,
            row.mb_per_s,
            _of_kafka(row, rows),
            _files_per_s(row),
            _puts_per_gib(row),
            *_price(row),
            row.error or None,
        ]
        for row in rows
    ]
    return Table(
        "Producers as they come",
        "Nothing is set but the address. Records of 1 KiB, as fast as the client takes them; acknowledged MB/s "
        f"(1,000,000 bytes) after the first 2 s. {store_note()} Client and broker share the machine's cores. Kafka is "
        f"one node on its own disk, which does not wait for the disk before it answers. {PRICE_NOTE}",
        (
            Column("broker"),
            Column("store"),
            Column("client"),
            Column("partitions"),
            Column("rate", "MB/s", 2),
            Column("of Kafka", "", 2),
            Column("files", "1/s", 1),
            Column("PUTs", "1/GiB"),
            *PRICE_COLUMNS,
            Column("the client's error"),
        ),
        cells,
    )


def _programs(rows: Sequence[Measured]) -> Table:
    cells: list[list[Cell]] = [
        [row.target, row.store, row.client, row.seconds, _of_kafka(row, rows, time=True), row.error or None]
        for row in rows
    ]
    return Table(
        "A newcomer's program",
        f"{SMALL_RECORDS:,} records of {SMALL_RECORD_BYTES} B to one partition, one call each, then a flush; "
        "kafka-python's flush waits 60 s at most.",
        (
            Column("broker"),
            Column("store"),
            Column("client"),
            Column("time", "s", 1),
            Column("of Kafka", "", 2),
            Column("the client's error"),
        ),
        cells,
    )
