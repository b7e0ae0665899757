"""`make bench-produce`: producing through Kafka clients, beside Apache Kafka where it can be started.

Four tables: the matrix (client, record size, partitions, idempotence, store); Kafka's tool with the usual settings for
comparing such brokers; the gain and the cost of sealing files early; the effect of the client's own settings.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from bench.loads.load import LIBRDKAFKA, TOOL, KafkaTarget, Load, Measured, on_empty_stack, progress, run_load, warm
from bench.measures.limits import FILE_BYTES, file_writes, loopback
from bench.measures.price import PRICE_COLUMNS, PRICE_NOTE
from bench.measures.usage import usage
from bench.registry import Size
from bench.servers.kafka import Broker, Jars, find_jars
from bench.servers.stack import LATENCY, Store, store_note
from bench.table import Cell, Column, Table

FILES = 24
SECONDS = {Size.SMALL: 3.0, Size.FULL: 10.0}
NO_JARS = "Kafka and its tool are left out: set KAFKA_HOME or KAFKA_JARS (see bench/README.md)."
UNITS = (
    "1 MB is 1,000,000 bytes of record values. Latency is from the call to the answer under full load, so it holds the "
    "wait in the client's own queue of 32 MiB. CPU is user and system time of the process named, per MB stored; "
    f"client and broker share the machine's cores. {PRICE_NOTE}"
)

EARLY_PER_SECOND = (20, 50, 100)
EARLY_BYTES = (256 << 10, 1 << 20)
EARLY_IDLE_MS = (1, 3)


def run(size: Size) -> Iterator[Table]:
    jars = find_jars()
    if jars is None:
        progress(NO_JARS)
    limits = measure_limits()
    with ExitStack() as stack:
        kafka = warm(stack.enter_context(Broker(jars))) if jars is not None else None
        yield _matrix(size, jars, kafka, limits)
        if jars is not None and kafka is not None:
            yield _comparison(size, jars, kafka, limits)
    yield _early_seal(size)
    yield _client_settings(size)


# ---- limits


@dataclass(frozen=True, slots=True)
class Limits:
    """This machine's limits, measured in the same run."""

    socket_mb_per_s: float
    socket_ms_per_mb: float
    """The CPU of the receiving side."""
    file_ms_per_mb: float
    """The CPU of writing and syncing files of 8 MiB, which the local store must do."""

    @property
    def note(self) -> str:
        return (
            f"Limits in this run: a raw socket takes {self.socket_mb_per_s:,.0f} MB/s at {self.socket_ms_per_mb:.2f} "
            f"ms/MB of the receiver's CPU; writing and syncing files of 8 MiB costs {self.file_ms_per_mb:.2f} ms/MB."
        )


def measure_limits() -> Limits:
    socket = loopback("socket", seconds=1.0)
    with tempfile.TemporaryDirectory(prefix="siltstone-bench-") as directory:
        before = usage(os.getpid())
        file_writes(Path(directory), count=FILES)
        used = usage(os.getpid()) - before
    return Limits(socket.mb_per_s, socket.receiver_cpu_ms_per_mb, used.cpu_s * 1000 / (FILES * FILE_BYTES / 1e6))


# ---- the matrix


def matrix_loads(size: Size, *, tool: bool) -> Sequence[tuple[Load, Sequence[Store]]]:
    """The loads, and the stores on which each runs."""
    if size is Size.SMALL:
        loads = [
            (Load(partitions=1), (Store.LOCAL, Store.S3_DISTANT)),
            (Load(partitions=10, idempotent=True), (Store.LOCAL,)),
            (Load(partitions=10, record_bytes=100), (Store.LOCAL,)),
        ]
        return loads + ([(Load(client=TOOL, partitions=10, idempotent=True), (Store.LOCAL,))] if tool else [])
    clients = (LIBRDKAFKA, TOOL) if tool else (LIBRDKAFKA,)
    return [
        (
            Load(client=client, record_bytes=record_bytes, partitions=partitions, idempotent=idempotent),
            (Store.LOCAL, Store.S3_DISTANT),
        )
        for client, record_bytes, partitions, idempotent in product(clients, (1024, 100), (1, 10, 100), (False, True))
    ]


def _matrix(size: Size, jars: Jars | None, kafka: KafkaTarget | None, limits: Limits) -> Table:
    rows: list[Measured] = []
    for load, stores in matrix_loads(size, tool=jars is not None):
        if kafka is not None:
            rows.append(run_load(kafka, load, seconds=SECONDS[size], jars=jars))
        rows += [on_empty_stack(store, load, seconds=SECONDS[size], jars=jars) for store in stores]
    return Table(
        "Producing",
        f"{UNITS} Linger 50 ms, batches of at most 1 MB, acks=all, no compression. {store_note()} {limits.note} "
        "Kafka is one node on its own disk, which does not wait for the disk before it answers; one Kafka serves all "
        "its rows, so that it is warm. librdkafka spreads records over the partitions one by one, Kafka's tool batch "
        "by batch." + ("" if jars is not None else f" {NO_JARS}"),
        (
            Column("broker"),
            Column("store"),
            Column("client"),
            Column("record", "B"),
            Column("partitions"),
            Column("idempotent"),
            *MEASURED_COLUMNS,
        ),
        [_matrix_row(row, rows, limits) for row in rows],
    )


def _matrix_row(row: Measured, rows: Sequence[Measured], limits: Limits) -> list[Cell]:
    load = row.load
    return [
        row.target,
        row.store,
        load.client,
        load.record_bytes,
        load.partitions,
        "yes" if load.idempotent else "no",
        *measured_cells(row, rows, limits),
    ]


MEASURED_COLUMNS = (
    Column("rate", "MB/s", 1),
    Column("p50", "ms"),
    Column("p99", "ms"),
    Column("broker CPU", "ms/MB", 2),
    Column("Postgres CPU", "ms/MB", 2),
    Column("client CPU", "ms/MB", 2),
    Column("requests", "1/GiB"),
    Column("PUTs", "1/GiB"),
    *PRICE_COLUMNS,
    Column("memory", "MB"),
    Column("of raw socket", "", 3),
    Column("of Kafka", "", 2),
)


def measured_cells(row: Measured, rows: Sequence[Measured], limits: Limits) -> list[Cell]:
    """The cells of MEASURED_COLUMNS; `rows` holds Kafka's row of the same load."""
    kafka = next((each for each in rows if each.target == KafkaTarget.name and each.load.key == row.load.key), None)
    return [
        row.mb_per_s,
        row.p50_ms,
        row.p99_ms,
        row.broker_ms_per_mb,
        row.postgres_ms_per_mb,
        row.client_ms_per_mb,
        row.requests_per_gib,
        row.puts_per_gib,
        *row.price,
        row.broker_peak_memory_bytes / 1e6,
        row.mb_per_s / limits.socket_mb_per_s,
        row.mb_per_s / kafka.mb_per_s if kafka is not None and kafka is not row else None,
    ]


# ---- as such brokers are compared


def comparison_loads(size: Size) -> Sequence[Load]:
    one = Load(client=TOOL, partitions=1, batch_bytes=128 << 10, idempotent=True)
    return (one,) if size is Size.SMALL else (one, replace(one, partitions=12, batch_bytes=1_000_000))


def _comparison(size: Size, jars: Jars, kafka: KafkaTarget, limits: Limits) -> Table:
    stores = (Store.S3,) if size is Size.SMALL else (Store.LOCAL, Store.S3, Store.S3_DISTANT)
    rows: list[Measured] = []
    for load in comparison_loads(size):
        rows.append(run_load(kafka, load, seconds=SECONDS[size], jars=jars))
        rows += [on_empty_stack(store, load, seconds=SECONDS[size], jars=jars) for store in stores]
    return Table(
        "Producing with Kafka's own tool, settings of the usual comparison",
        f"Records of 1 KiB, acks=all, linger 50 ms, idempotent, as is the tool's default. Kafka {jars.version}. "
        "The tool itself prints MiB/s: its figures are 4.6 % lower than these.",
        (Column("broker"), Column("store"), Column("partitions"), Column("batch", "B"), *MEASURED_COLUMNS),
        [
            [
                row.target,
                row.store,
                row.load.partitions,
                row.load.batch_bytes,
                *measured_cells(row, rows, limits),
            ]
            for row in rows
        ],
    )


# ---- the early seal


def early_settings(size: Size) -> Sequence[tuple[int, int, int]]:
    """(seals per second, bytes, idle ms); 0 seals per second: never early."""
    off = (0, 256 << 10, 3)
    if size is Size.SMALL:
        return (off, (20, 256 << 10, 3), (100, 256 << 10, 3))
    return (off, *product(EARLY_PER_SECOND, EARLY_BYTES, EARLY_IDLE_MS))


def _early_seal(size: Size, settings_tried: Sequence[tuple[int, int, int]] | None = None) -> Table:
    """One blocked producer, which an early seal helps, and a steady trickle, which it only costs PUTs."""
    blocked = Load(partitions=1, idempotent=True)
    trickle = Load(partitions=10, rate_mb_per_s=5, linger_ms=5)
    seconds = SECONDS[size] * 0.75
    rows: list[list[Cell]] = []
    never: tuple[float, float] | None = None
    for per_second, early_bytes, idle_ms in settings_tried or early_settings(size):
        settings = {
            "produce.early.per.second": str(per_second),
            "produce.early.bytes": str(early_bytes),
            "produce.early.idle.ms": str(idle_ms),
        }
        near = on_empty_stack(Store.LOCAL, blocked, seconds=seconds, settings=settings)
        many = on_empty_stack(Store.LOCAL, trickle, seconds=seconds, settings=settings)
        cells: list[Cell] = [near.mb_per_s, near.p50_ms, near.broker_ms_per_mb, near.puts_per_gib, *near.price]
        if size is Size.FULL:
            far = on_empty_stack(Store.S3_DISTANT, blocked, seconds=seconds, settings=settings)
            never = never or (near.mb_per_s, far.mb_per_s)
            cells += [near.mb_per_s / never[0], far.mb_per_s, far.puts_per_gib, far.mb_per_s / never[1]]
        else:
            never = never or (near.mb_per_s, 0)
            cells += [near.mb_per_s / never[0], None, None, None]
        cells += [many.p50_ms, many.broker_ms_per_mb, many.puts_per_gib]
        rows.append([per_second or "never", early_bytes >> 10, idle_ms, *cells])
    return Table(
        "The early seal",
        "One producer: idempotent librdkafka, one partition, batches of 1 MB, one of them in flight (so it is blocked "
        "until a file is committed); far: S3 distant, else the local store. Trickle: 5 MB/s offered over 10 partitions "
        "of the local store, linger 5 ms, not idempotent, so that early seals only cost. A file is sealed early when "
        f"it holds that much and nothing arrived for that long; it waits 250 ms at most. {store_note()}",
        (
            Column("seals a second"),
            Column("bytes", "KiB"),
            Column("idle", "ms"),
            Column("one producer", "MB/s", 1),
            Column("p50", "ms"),
            Column("agent CPU", "ms/MB", 2),
            Column("PUTs", "1/GiB"),
            *PRICE_COLUMNS,
            Column("to never", "", 1),
            Column("far", "MB/s", 1),
            Column("far PUTs", "1/GiB"),
            Column("far to never", "", 1),
            Column("trickle p50", "ms"),
            Column("trickle CPU", "ms/MB", 2),
            Column("trickle PUTs", "1/GiB"),
        ),
        rows,
    )


# ---- client settings


def client_settings(size: Size) -> Sequence[Load]:
    base = Load(partitions=10, idempotent=True)
    if size is Size.SMALL:
        return (base, replace(base, batch_bytes=16 << 10))
    one = Load(partitions=1, idempotent=True)
    large: Mapping[str, str] = {"max.message.bytes": str(8 << 20)}
    return (
        base,
        replace(base, batch_bytes=16 << 10),
        replace(base, batch_bytes=128 << 10),
        replace(base, linger_ms=5),
        replace(base, linger_ms=200),
        replace(base, in_flight=1),
        replace(base, idempotent=False),
        replace(base, idempotent=False, batch_bytes=128 << 10),
        replace(base, idempotent=False, batch_bytes=16 << 10),
        replace(base, idempotent=False, in_flight=5),
        replace(base, idempotent=False, in_flight=1),
        one,
        replace(one, batch_bytes=4_000_000, topic_configs=large),
        replace(one, batch_bytes=128 << 10),
        replace(one, idempotent=False),
        replace(one, idempotent=False, in_flight=5),
        replace(one, idempotent=False, in_flight=1),
    )


def _client_settings(size: Size) -> Table:
    store = Store.LOCAL if size is Size.SMALL else Store.S3_DISTANT
    rows: list[list[Cell]] = []
    first_of: dict[int, float] = {}
    for load in client_settings(size):
        row = on_empty_stack(store, load, seconds=SECONDS[size] * 0.75)
        base = first_of.setdefault(load.partitions, row.mb_per_s)
        rows.append(
            [
                load.partitions,
                "yes" if load.idempotent else "no",
                load.batch_bytes,
                load.linger_ms,
                "default" if load.in_flight is None else str(load.in_flight),
                row.mb_per_s,
                row.p50_ms,
                row.p99_ms,
                row.broker_ms_per_mb,
                row.requests_per_gib,
                row.puts_per_gib,
                *row.price,
                row.mb_per_s / base,
            ]
        )
    return Table(
        "Client settings that matter",
        f"librdkafka, records of 1 KiB, store: {store.value} (PUT +{LATENCY.put_ms:.0f} ms where distant). In flight: "
        "max.in.flight.requests.per.connection, by default without bound, or 5 when idempotent. Batches above 1 MB "
        "need a topic whose max.message.bytes allows them. The last column compares with the first row of as many "
        "partitions.",
        (
            Column("partitions"),
            Column("idempotent"),
            Column("batch.size", "B"),
            Column("linger.ms", "ms"),
            Column("in flight"),
            Column("rate", "MB/s", 1),
            Column("p50", "ms"),
            Column("p99", "ms"),
            Column("agent CPU", "ms/MB", 2),
            Column("requests", "1/GiB"),
            Column("PUTs", "1/GiB"),
            *PRICE_COLUMNS,
            Column("to first row", "", 2),
        ),
        rows,
    )
