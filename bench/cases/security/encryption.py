"""TLS's cost in producing and consuming: the same load by a listener with it and by one without, in turns."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from bench.cases.security.secured import CACHED_BYTES, TLS_RECORD_BYTES, SecuredStack
from bench.loads.clients import create_topic, run_consume, run_produce
from bench.loads.jobs import ConsumeJob, ProduceJob
from bench.loads.load import COMPLAINT_LINES, LIBRDKAFKA, TOOL, progress
from bench.loads.raw_produce import produce_at
from bench.registry import Size
from bench.servers.kafka import find_jars, producer_perf
from bench.table import Cell, Column, Table

RECORD_BYTES = 1024
PARTITIONS = 12
ROUNDS = {Size.SMALL: 2, Size.FULL: 6}
PRODUCE_S = {Size.SMALL: 4.0, Size.FULL: 15.0}
PRODUCE_MB_PER_S = 20.0
"""Offered by both: at another rate a file holds more, and a MB costs less."""
TOOL_MB_PER_S = 8.0
"""Kafka's tool reaches it with TLS, too."""
FULL_MB_PER_S = 60.0
FULL = "a socket"
READ_BYTES = {Size.SMALL: 256 << 20, Size.FULL: 1 << 30}
PLAIN, TLS = "without", "with TLS"
COLUMNS = (
    Column("listener"),
    Column("agent CPU", "ms/MB", 2),
    Column("of without", "", 2),
    Column("TLS adds", "ms/MB", 2),
    Column("OpenSSL alone", "ms/MB", 2),
    Column("rate", "MB/s", 0),
    Column("client CPU", "ms/MB", 2),
)


class _Once(NamedTuple):
    megabytes: float
    rate: float
    """MB/s."""
    client_ms_per_mb: float


@dataclass(slots=True)
class _Sum:
    """All rounds of one listener."""

    megabytes: float = 0.0
    agent_ms: float = 0.0
    client_ms: float = 0.0
    rates: list[float] = field(default_factory=list[float])

    @property
    def per_mb(self) -> float:
        return self.agent_ms / self.megabytes


def produce(stack: SecuredStack, size: Size) -> Iterator[Table]:
    """A table for each kind of client; Kafka's own tool where that is at hand."""
    jars = find_jars()
    records_per_s = int(TOOL_MB_PER_S * 1e6) // RECORD_BYTES

    def librdkafka(topic: str, listener: str) -> _Once:
        result = run_produce(
            ProduceJob(
                bootstrap=stack.plain if listener == PLAIN else stack.address("tls"),
                security={} if listener == PLAIN else stack.librdkafka,
                topic=topic,
                partitions=PARTITIONS,
                record_bytes=RECORD_BYTES,
                seconds=PRODUCE_S[size],
                rate_mb_per_s=PRODUCE_MB_PER_S,
            )
        )
        return _Once(result.acked_bytes / 1e6, result.mb_per_s, result.cpu_ms_per_mb or 0.0)

    def tool(topic: str, listener: str) -> _Once:
        assert jars is not None
        result = producer_perf(
            jars,
            bootstrap=stack.plain if listener == PLAIN else stack.address("tls"),
            topic=topic,
            records=int(records_per_s * PRODUCE_S[size]),
            records_per_s=records_per_s,
            record_bytes=RECORD_BYTES,
            properties={"linger.ms": "50", "batch.size": "1000000", **({} if listener == PLAIN else stack.java)},
        )
        megabytes = result.records * RECORD_BYTES / 1e6
        return _Once(megabytes, result.mb_per_s, result.cpu_s * 1000 / megabytes)

    def socket(topic: str, listener: str) -> _Once:
        sent = produce_at(
            stack.plain if listener == PLAIN else stack.address("tls"),
            topic,
            partitions=PARTITIONS,
            record_bytes=RECORD_BYTES,
            rate_mb_per_s=FULL_MB_PER_S,
            seconds=PRODUCE_S[size],
            context=None if listener == PLAIN else stack.context(),
        )
        return _Once(sent.value_bytes / 1e6, sent.value_bytes / 1e6 / sent.seconds, 0.0)

    kinds: list[tuple[str, float, str, Callable[[str, str], _Once]]] = [
        (FULL, FULL_MB_PER_S, "Requests of 1 MB that were made before: records of TLS are full.", socket),
        (LIBRDKAFKA, PRODUCE_MB_PER_S, "Without compression it makes records of TLS as small as Kafka's.", librdkafka),
    ]
    if jars is not None:
        kinds.append((TOOL, TOOL_MB_PER_S, "Its records of TLS are full, but the agent sleeps between them.", tool))
    for client, rate, note, load in kinds:

        def once(number: int, listener: str, load: Callable[[str, str], _Once] = load, client: str = client) -> _Once:
            topic = f"written-{client.split()[-1]}-{number}-{'plain' if listener == PLAIN else 'tls'}"
            create_topic(stack.plain, topic, PARTITIONS)
            return load(topic, listener)

        yield _table(
            f"Producing with TLS, {client}",
            f"Records of {RECORD_BYTES} B at {rate:.0f} MB/s to {PARTITIONS} partitions of the local store. {note}",
            _rounds(stack, "producing", size, once),
            stack.openssl_ms_per_mb(decrypt=True),
        )


def consume(stack: SecuredStack, size: Size) -> Table:
    topic, records = "read", min(READ_BYTES[size], CACHED_BYTES // 2) // RECORD_BYTES
    create_topic(stack.plain, topic, PARTITIONS)
    progress(f"writing {records:,} records to read ...")
    run_produce(
        ProduceJob(
            bootstrap=stack.plain,
            topic=topic,
            partitions=PARTITIONS,
            record_bytes=RECORD_BYTES,
            seconds=0,
            records=records,
        )
    )

    def once(_: int, listener: str) -> _Once:
        result = run_consume(
            ConsumeJob(
                bootstrap=stack.plain if listener == PLAIN else stack.address("tls"),
                security={} if listener == PLAIN else stack.librdkafka,
                topic=topic,
                partitions=PARTITIONS,
                record_bytes=RECORD_BYTES,
                records=records,
            )
        )
        return _Once(result.read_bytes / 1e6, result.mb_per_s, result.cpu_ms_per_mb)

    return _table(
        "Consuming with TLS",
        f"librdkafka reads {records * RECORD_BYTES >> 20} MiB from the agent's memory, {PARTITIONS} partitions.",
        _rounds(stack, "consuming", size, once),
        stack.openssl_ms_per_mb(decrypt=False),
    )


def _rounds(stack: SecuredStack, verb: str, size: Size, once: Callable[[int, str], _Once]) -> tuple[_Sum, _Sum]:
    """The first round of each only warms up."""
    sums = {PLAIN: _Sum(), TLS: _Sum()}
    for number in range(ROUNDS[size] + 1):
        # Neither is always the first: what was before leaves work behind.
        for listener in (PLAIN, TLS) if number % 2 else (TLS, PLAIN):
            before = stack.read()
            run = once(number, listener)
            agent_ms = (stack.read() - before).agents.cpu_s * 1000
            progress(f"{verb} {listener}: {run.rate:.0f} MB/s, {agent_ms / run.megabytes:.2f} ms/MB")
            if number:
                total = sums[listener]
                total.megabytes += run.megabytes
                total.agent_ms += agent_ms
                total.client_ms += run.client_ms_per_mb * run.megabytes
                total.rates.append(run.rate)
    for line in stack.complaints()[:COMPLAINT_LINES]:
        progress(f"  the agent says: {line[:200]}")
    return sums[PLAIN], sums[TLS]


def _table(title: str, note: str, sums: tuple[_Sum, _Sum], alone: float) -> Table:
    without, encrypted = sums
    rows: list[Sequence[Cell]] = []
    for name, total in ((PLAIN, without), (TLS, encrypted)):
        is_tls = total is encrypted
        rows.append(
            [
                name,
                total.per_mb,
                total.per_mb / without.per_mb if is_tls else None,
                total.per_mb - without.per_mb if is_tls else None,
                alone if is_tls else None,
                sum(total.rates) / len(total.rates),
                total.client_ms / total.megabytes if total.client_ms else None,
            ]
        )
    return Table(
        title,
        f"{note} One agent, one listener with TLS 1.3 and one without, {len(without.rates)} rounds in turns; 1 MB is"
        " 1,000,000 bytes of record values. OpenSSL alone: the same cipher over the same bytes in one process, in"
        f" records of {TLS_RECORD_BYTES >> 10} KiB, without a socket.",
        COLUMNS,
        rows,
    )
