"""One load on one broker: the run and the measurements of a row of the producing benchmarks.

A broker is ours or Apache Kafka; the client is librdkafka or Kafka's own tool. Every row has a topic of its own. CPU
per MB is that of the named processes over the whole run, warm-up included, divided by the record bytes stored in it.
Kafka's tool sends a number of records, not for a time: a first, shorter run warms it up and determines the number.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol

from bench.loads.clients import create_topic, run_consume, run_produce
from bench.loads.jobs import ConsumeJob, ProduceJob
from bench.measures.price import asked_of, floor_in, floor_out, no_price, price_cells
from bench.measures.usage import Usage
from bench.servers.kafka import Broker, Jars, producer_perf
from bench.servers.stack import Counters, Reading, Stack, Store, per_gib
from bench.table import Cell

LIBRDKAFKA = "librdkafka"
TOOL = "Kafka's tool"
TOOL_WARMUP_BYTES = 24 << 20
WARMUP_RECORDS = 400_000
COMPLAINT_LINES = 5
KAFKA = "Kafka"
OURS = "Siltstone"

_topics = itertools.count(1)


class Target(Protocol):
    """A broker under load."""

    name: str
    store: str

    @property
    def bootstrap(self) -> str: ...

    def read(self) -> Reading: ...

    def complaints(self) -> Sequence[str]:
        """Warnings and errors that the broker logged."""
        ...


class OurTarget:
    name = OURS

    def __init__(self, stack: Stack) -> None:
        self._stack = stack
        self.store = stack.store.value

    @property
    def bootstrap(self) -> str:
        return self._stack.bootstrap

    def read(self) -> Reading:
        return self._stack.read()

    def complaints(self) -> Sequence[str]:
        return self._stack.complaints()


class KafkaTarget:
    name = KAFKA
    store = "its own disk"

    def __init__(self, broker: Broker) -> None:
        self._broker = broker

    @property
    def bootstrap(self) -> str:
        return self._broker.bootstrap

    def read(self) -> Reading:
        return Reading(time.monotonic(), self._broker.read(), Usage(), Usage(), Counters({}))

    def complaints(self) -> Sequence[str]:
        return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A load; the defaults are those of most rows."""

    client: str = LIBRDKAFKA
    record_bytes: int = 1024
    partitions: int = 1
    idempotent: bool = False
    linger_ms: int = 50
    batch_bytes: int = 1_000_000
    in_flight: int | None = None
    rate_mb_per_s: float = 0
    topic_configs: Mapping[str, str] | None = None

    @property
    def key(self) -> tuple[object, ...]:
        """Rows with the same key may be compared between brokers."""
        return (
            self.client,
            self.record_bytes,
            self.partitions,
            self.idempotent,
            self.linger_ms,
            self.batch_bytes,
            self.in_flight,
            self.rate_mb_per_s,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    target: str
    store: str
    load: Load
    mb_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    broker_ms_per_mb: float
    postgres_ms_per_mb: float | None
    client_ms_per_mb: float | None
    requests_per_gib: float | None
    """Produce requests, by the broker's count."""
    puts_per_gib: float | None
    put_mb_mean: float | None
    price: Sequence[Cell]
    """The cells of PRICE_COLUMNS."""
    broker_peak_memory_bytes: int


def run_load(target: Target, load: Load, *, seconds: float, jars: Jars | None = None) -> Measured:
    """Run the load and print the result on stderr. Raises the client's errors."""
    progress(f"{target.name}, {target.store}: {describe(load)} ...", end=" ")
    if load.client == LIBRDKAFKA:
        measured = _run_librdkafka(target, load, seconds)
    elif jars is not None:
        measured = _run_tool(target, load, seconds, jars)
    else:
        raise RuntimeError("Kafka's tool was asked for without its jars")
    progress(f"{measured.mb_per_s:.1f} MB/s, {measured.broker_ms_per_mb:.2f} ms/MB")
    say_complaints(target)
    return measured


def warm(broker: Broker) -> KafkaTarget:
    """A Kafka that is warm and serves all rows of a benchmark."""
    kafka = KafkaTarget(broker)
    progress("warming Kafka ...", end=" ")
    topic = _new_topic(kafka, Load())
    write = ProduceJob(
        bootstrap=kafka.bootstrap, topic=topic, partitions=1, record_bytes=1024, seconds=0, records=WARMUP_RECORDS
    )
    read = ConsumeJob(bootstrap=kafka.bootstrap, topic=topic, partitions=1, record_bytes=1024, records=WARMUP_RECORDS)
    run_produce(write)
    run_consume(read)
    progress("done")
    return kafka


def say_complaints(target: Target) -> None:
    for line in target.complaints()[:COMPLAINT_LINES]:
        progress(f"  the agent says: {line[:200]}")


def _run_librdkafka(target: Target, load: Load, seconds: float) -> Measured:
    topic = _new_topic(target, load)
    before = target.read()
    result = run_produce(
        ProduceJob(
            bootstrap=target.bootstrap,
            topic=topic,
            partitions=load.partitions,
            record_bytes=load.record_bytes,
            seconds=seconds,
            idempotent=load.idempotent,
            linger_ms=load.linger_ms,
            batch_bytes=load.batch_bytes,
            in_flight=load.in_flight,
            rate_mb_per_s=load.rate_mb_per_s,
        )
    )
    return _measured(
        target,
        load,
        target.read() - before,
        _ClientSide(result.acked_bytes, result.mb_per_s, result.p50_ms, result.p99_ms, result.cpu_ms_per_mb),
    )


def _run_tool(target: Target, load: Load, seconds: float, jars: Jars) -> Measured:
    properties = {
        "linger.ms": str(load.linger_ms),
        "batch.size": str(load.batch_bytes),
        "enable.idempotence": str(load.idempotent).lower(),
    }
    if load.in_flight is not None:
        properties["max.in.flight.requests.per.connection"] = str(load.in_flight)

    def run(records: int) -> tuple[Reading, Measured]:
        topic = _new_topic(target, load)
        before = target.read()
        result = producer_perf(
            jars,
            bootstrap=target.bootstrap,
            topic=topic,
            records=records,
            record_bytes=load.record_bytes,
            properties=properties,
        )
        used = target.read() - before
        stored_bytes = result.records * load.record_bytes
        cpu_ms_per_mb = result.cpu_s * 1000 / (stored_bytes / 1e6)
        return used, _measured(
            target,
            load,
            used,
            _ClientSide(stored_bytes, result.mb_per_s, result.p50_ms, result.p99_ms, cpu_ms_per_mb),
        )

    _, warm = run(TOOL_WARMUP_BYTES // load.record_bytes)
    _, measured = run(int(max(warm.mb_per_s * seconds * 1e6, TOOL_WARMUP_BYTES)) // load.record_bytes)
    return measured


def _new_topic(target: Target, load: Load) -> str:
    topic = f"bench-{next(_topics)}"
    create_topic(target.bootstrap, topic, load.partitions, load.topic_configs)
    return topic


class _ClientSide(NamedTuple):
    """The client's own figures of one load."""

    stored_bytes: int
    mb_per_s: float
    p50_ms: float | None
    p99_ms: float | None
    cpu_ms_per_mb: float | None


def _measured(target: Target, load: Load, used: Reading, client: _ClientSide) -> Measured:
    stored_bytes = client.stored_bytes
    if not stored_bytes:
        raise RuntimeError("nothing was stored: " + "; ".join(target.complaints()[-COMPLAINT_LINES:]))
    megabytes = stored_bytes / 1e6
    ours = target.name == OURS
    puts = used.counters.sum("object_requests_total", op="put")
    return Measured(
        target=target.name,
        store=target.store,
        load=load,
        mb_per_s=client.mb_per_s,
        p50_ms=client.p50_ms,
        p99_ms=client.p99_ms,
        broker_ms_per_mb=used.agents.cpu_s * 1000 / megabytes,
        postgres_ms_per_mb=used.postgres.cpu_s * 1000 / megabytes if ours else None,
        client_ms_per_mb=client.cpu_ms_per_mb,
        requests_per_gib=per_gib(used.counters.sum("requests_total", api="Produce"), stored_bytes) if ours else None,
        puts_per_gib=per_gib(puts, stored_bytes) if ours else None,
        put_mb_mean=used.counters.sum("object_bytes_total", op="put") / 1e6 / puts if puts else None,
        price=price_in(used, stored_bytes) if ours else no_price(),
        broker_peak_memory_bytes=used.agents.peak_memory_bytes,
    )


def price_in(used: Reading, stored_bytes: float) -> list[Cell]:
    """The cells of PRICE_COLUMNS for records that were written."""
    return price_cells(
        asked_of(used.counters, used.wal_bytes), floor_in(used.counters.sum("l0_files_total")), stored_bytes
    )


def price_out(used: Reading, read_bytes: float) -> list[Cell]:
    """The cells of PRICE_COLUMNS for records that were read. No byte has to leave the store twice."""
    asked = asked_of(used.counters, used.wal_bytes)
    return price_cells(asked, floor_out(min(asked.read_bytes, read_bytes)), read_bytes)


def on_empty_stack(
    store: Store,
    load: Load,
    *,
    seconds: float,
    jars: Jars | None = None,
    settings: Mapping[str, str] | None = None,
) -> Measured:
    """Run the load on a stack of its own."""
    with Stack(store, settings=settings or {}) as stack:
        return run_load(OurTarget(stack), load, seconds=seconds, jars=jars)


def with_client(load: Load, client: str) -> Load:
    return replace(load, client=client)


def describe(load: Load) -> str:
    """A line for progress messages."""
    parts = [load.client, f"{load.record_bytes} B", f"{load.partitions} partitions"]
    parts += ["idempotent"] if load.idempotent else []
    parts += [f"linger {load.linger_ms} ms", f"batches {load.batch_bytes:,} B"]
    parts += [f"{load.in_flight} in flight"] if load.in_flight is not None else []
    parts += [f"{load.rate_mb_per_s} MB/s offered"] if load.rate_mb_per_s else []
    return ", ".join(parts)


def progress(text: str, *, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)
