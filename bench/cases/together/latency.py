"""`make bench-latency`: how soon a small record is acknowledged, and in its reader's hands, with a second store.

Idempotent writers at a modest rate, one partition each, `produce.linger.ms` 25; a consumer group of another zone reads
at the end of the log and commits once a second. The L0 files lie in a local directory, in a second store whose answers
come after a few ms (the first store is S3 30 ms away), or in that S3 itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from bench.loads.clients import create_topic, run_tail
from bench.loads.jobs import TailJob, TailResult
from bench.loads.load import OurTarget, progress, say_complaints
from bench.registry import Size
from bench.servers.s3_server import Latency
from bench.servers.stack import LATENCY, Reading, Stack, Store, store_note
from bench.table import Cell, Column, Table
from siltstone.ops.cost.formulas import requests_usd_per_month
from siltstone.ops.cost.prices import PRICES

RECORD_BYTES = 1024
RECORDS_PER_S = 20.0
LINGER_MS = 25
SECOND = Latency(put_ms=8, get_ms=5)
WARMUP_S = 1.0
SECONDS = {Size.SMALL: 2.0, Size.FULL: 20.0}
WRITERS = {Size.SMALL: (1, 12), Size.FULL: (1, 3, 6, 12)}
WRITE_ZONE, READ_ZONE = "writers", "readers"
SETTINGS: Mapping[str, str] = {"produce.linger.ms": str(LINGER_MS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where L0 files lie."""

    name: str
    store: Store
    second: Latency | None = None
    put_price: str = "s3.put.1000"
    """The name of the price of a PUT there."""


PLACES = (
    Place(name="local", store=Store.LOCAL),
    Place(
        name=f"second store, {SECOND.put_ms:.0f} ms",
        store=Store.S3_DISTANT,
        second=SECOND,
        put_price="s3.express.put.1000",
    ),
    Place(name=f"S3, {LATENCY.put_ms:.0f} ms", store=Store.S3_DISTANT),
)
COLUMNS = (
    Column("L0 files in"),
    Column("writers"),
    Column("records"),
    Column("acknowledged p50", "ms"),
    Column("p99", "ms"),
    Column("worst", "ms"),
    Column("age p50", "ms"),
    Column("p99", "ms"),
    Column("worst", "ms"),
    Column("broker CPU", "ms/s"),
    Column("Postgres CPU", "ms/s"),
    Column("PUTs", "1/s", 1),
    Column("PUTs", "$/month"),
)


def run(size: Size) -> Iterator[Table]:
    rows: list[list[Cell]] = []
    for place in PLACES:
        zones = (WRITE_ZONE, READ_ZONE)
        with Stack(place.store, agents=2, zones=zones, settings=SETTINGS, second=place.second) as stack:
            rows += [_row(place, stack, writers, SECONDS[size]) for writers in WRITERS[size]]
    yield Table(
        "Latency, with a second store for L0 files",
        f"Each writer (idempotent librdkafka, linger 5 ms) sends {RECORDS_PER_S:.0f} records of {RECORD_BYTES} B a "
        f"second to a partition of its own, through one agent with produce.linger.ms {LINGER_MS}; one group reads all "
        "partitions through another, and commits once a second. Acknowledged: from the call of `produce` to the "
        "delivery report. Age: to the record in the reader's hands. CPU is that of both agents, and of all of "
        f"Postgres, in ms a second. {store_note()} The second store is a server of its own, every PUT answered "
        f"{SECOND.put_ms:.0f} ms later and every GET {SECOND.get_ms:.0f} ms later. $/month: these PUTs around the "
        "clock, at the list price of S3 Standard, or of S3 Express One Zone for the second store.",
        COLUMNS,
        rows,
    )


def _row(place: Place, stack: Stack, writers: int, seconds: float) -> list[Cell]:
    topic = f"latency-{writers}"
    create_topic(stack.bootstrap, topic, writers)
    before = stack.read()
    result = run_tail(
        _job(stack, topic, writers, seconds, zone=WRITE_ZONE), _job(stack, topic, writers, seconds, zone=READ_ZONE)
    )
    used = stack.read() - before
    assert result.acked is not None
    progress(
        f"{place.name}: {writers} writers: acknowledged p50 {result.acked.p50_ms:.0f} ms, "
        f"p99 {result.acked.p99_ms:.0f} ms; age p50 {result.p50_ms:.0f} ms, p99 {result.p99_ms:.0f} ms"
    )
    say_complaints(OurTarget(stack))
    return cells(place, writers, result, used, load_s=WARMUP_S + seconds)


def cells(place: Place, writers: int, result: TailResult, used: Reading, *, load_s: float) -> list[Cell]:
    # Not by the time of the reading, which holds the clients' start.
    puts_per_s = used.counters.sum("object_requests_total", op="put") / load_s
    acked = result.acked
    return [
        place.name,
        writers,
        result.records,
        *((acked.p50_ms, acked.p99_ms, acked.max_ms) if acked is not None else (None, None, None)),
        result.p50_ms,
        result.p99_ms,
        result.max_ms,
        used.agents.cpu_s * 1000 / used.at_s,
        used.postgres.cpu_s * 1000 / used.at_s,
        puts_per_s,
        requests_usd_per_month(puts_per_s, usd_per_1000=PRICES[place.put_price].usd),
    ]


def _job(stack: Stack, topic: str, writers: int, seconds: float, *, zone: str) -> TailJob:
    return TailJob(
        bootstrap=stack.bootstrap,
        topic=topic,
        client_id=f"zone={zone}",
        writers=writers,
        records_per_s=RECORDS_PER_S,
        record_bytes=RECORD_BYTES,
        seconds=seconds,
        warmup_s=WARMUP_S,
        idempotent=True,
        commits=True,
    )
