"""`make bench-tail`: the age of a record when the reader at the end of the log gets it, and the cost of waiting.

Two agents in two zones. The client.id sends 1 to 12 writers to one of them and the reader to the other. So every record
goes through the object store or the other agent's memory, never through a shared one. The first row has a reader and no
writers: the cost of a caught-up reader to the database.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from bench.cases.produce import NO_JARS
from bench.loads.clients import create_topic, run_idle, run_tail
from bench.loads.jobs import TailJob, TailResult
from bench.loads.load import OURS, OurTarget, Target, progress, say_complaints, warm
from bench.measures.price import MIB, PRICE_COLUMNS, PRICE_NOTE, Floor, asked_of, no_price, price_cells
from bench.registry import Size
from bench.servers.kafka import Broker, find_jars
from bench.servers.stack import Reading, Stack, Store, store_note
from bench.table import Cell, Column, Table
from metadata.postgres.connection import connect

RECORD_BYTES = 1024
RECORDS_PER_S = 20.0
PARTITIONS = 12
WRITE_ZONE, READ_ZONE = "writers", "readers"
SECONDS = {Size.SMALL: 5.0, Size.FULL: 20.0}
WARMUP_S = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    target: str
    store: str
    writers: int
    result: TailResult | None
    used: Reading
    transactions: int | None
    """The database's transactions in the same time."""


def run(size: Size) -> Iterator[Table]:
    rows: list[Measured] = []
    jars = find_jars()
    if jars is None:
        progress(NO_JARS)
    else:
        with Broker(jars) as broker:
            kafka = warm(broker)
            rows += [_row(kafka, None, writers, size) for writers in writers_of(size)]
    for store in stores_of(size):
        with Stack(store, agents=2, zones=(WRITE_ZONE, READ_ZONE)) as stack:
            rows.append(_row(OurTarget(stack), stack, 0, size))
        for writers in writers_of(size):
            with Stack(store, agents=2, zones=(WRITE_ZONE, READ_ZONE)) as stack:
                rows.append(_row(OurTarget(stack), stack, writers, size))
    yield _table(rows)


def stores_of(size: Size) -> Sequence[Store]:
    return (Store.LOCAL,) if size is Size.SMALL else (Store.LOCAL, Store.S3_DISTANT)


def writers_of(size: Size) -> Sequence[int]:
    return (1, 12) if size is Size.SMALL else (1, 3, 6, 12)


def _row(target: Target, stack: Stack | None, writers: int, size: Size) -> Measured:
    topic = f"tail-{writers}"
    create_topic(target.bootstrap, topic, writers or PARTITIONS)
    read = _job(target, topic, writers or PARTITIONS, size, client_id=f"zone={READ_ZONE}")
    before, transactions = target.read(), transactions_of(stack)
    result = None
    if writers:
        result = run_tail(_job(target, topic, writers, size, client_id=f"zone={WRITE_ZONE}"), read)
    else:
        run_idle(read)
    used = target.read() - before
    after = transactions_of(stack)
    progress(
        f"{target.name}, {target.store}: {writers} writers"
        + ("" if result is None else f": p50 {result.p50_ms:.0f} ms, p99 {result.p99_ms:.0f} ms")
    )
    say_complaints(target)
    return Measured(
        target=target.name,
        store=target.store,
        writers=writers,
        result=result,
        used=used,
        transactions=after - transactions if after is not None and transactions is not None else None,
    )


def _job(target: Target, topic: str, writers: int, size: Size, *, client_id: str) -> TailJob:
    return TailJob(
        bootstrap=target.bootstrap,
        topic=topic,
        client_id=client_id,
        writers=writers,
        records_per_s=RECORDS_PER_S,
        record_bytes=RECORD_BYTES,
        seconds=SECONDS[size],
        warmup_s=WARMUP_S,
    )


def transactions_of(stack: Stack | None) -> int | None:
    """The transactions committed so far. Backends report about once a second, so a difference may be off by a second's
    worth.
    """

    async def ask(url: str) -> int:
        connection = await connect(url, application="siltstone-bench")
        try:
            return await connection.fetchval("SELECT sum(xact_commit) FROM pg_stat_database WHERE datname IS NOT NULL")
        finally:
            await connection.close()

    return None if stack is None else int(asyncio.run(ask(stack.metadata_url)))


def _table(rows: Sequence[Measured]) -> Table:
    return Table(
        "The tail",
        f"Each writer (librdkafka, linger 5 ms) sends {RECORDS_PER_S:.0f} records of {RECORD_BYTES} B a second to a "
        "partition of its own, through one agent; one reader of all partitions reads through another. Age: from the "
        "call of `produce` to the record in the reader's hands; files wait up to produce.linger.ms (250) before they "
        "are written. Without writers the reader has 12 empty partitions. CPU is that of both agents, and of all of "
        f"Postgres, in ms a second (10 = 1 % of a core). {PRICE_NOTE} {store_note()}",
        (
            Column("broker"),
            Column("store"),
            Column("writers"),
            Column("records"),
            Column("age p50", "ms"),
            Column("p99", "ms"),
            Column("worst", "ms"),
            Column("broker CPU", "ms/s"),
            Column("Postgres CPU", "ms/s"),
            Column("transactions", "1/s", 1),
            Column("PUTs", "1/s", 1),
            Column("fetches", "1/s", 1),
            *PRICE_COLUMNS,
        ),
        [_cells(row) for row in rows],
    )


def _cells(row: Measured) -> list[Cell]:
    result, used = row.result, row.used
    ours = row.target == OURS
    return [
        row.target,
        row.store,
        row.writers,
        None if result is None else result.records,
        None if result is None else result.p50_ms,
        None if result is None else result.p99_ms,
        None if result is None else result.max_ms,
        used.agents.cpu_s * 1000 / used.at_s,
        used.postgres.cpu_s * 1000 / used.at_s if ours else None,
        row.transactions / used.at_s if row.transactions is not None else None,
        used.counters.sum("object_requests_total", op="put") / used.at_s if ours else None,
        used.counters.sum("requests_total", api="Fetch") / used.at_s if ours else None,
        *(_price(used) if ours else no_price()),
    ]


def _price(used: Reading) -> list[Cell]:
    """For records in and out: the least is a PUT for each file, and a GET for each in the zone of the reader, unless
    its agent had the records from the other one."""
    files = used.counters.sum("l0_files_total")
    from_store = used.counters.sum("fetch_bytes_total", source="store")
    floor = Floor(puts=files, gets=max(files, from_store / MIB) if from_store else 0)
    return price_cells(asked_of(used.counters, used.wal_bytes), floor, used.counters.sum("produce_bytes_total"))
