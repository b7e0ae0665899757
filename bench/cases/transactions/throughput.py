"""The throughput of producers that write in transactions, to that of idempotent ones."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

from bench.loads.clients import create_topic
from bench.loads.large_transactions import LargeTransactionsJob, LargeTransactionsResult, run_large_transactions
from bench.loads.load import KafkaTarget, OurTarget, Target, progress, say_complaints
from bench.registry import Size
from bench.servers.stack import Reading, Stack, Store, store_note
from bench.table import Cell, Column, Table

SECONDS = {Size.SMALL: 3.0, Size.FULL: 12.0}
PARTITIONS = 10
RECORD_BYTES = 1024
_names = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    target: str
    store: str
    producers: int
    transaction_s: float
    result: LargeTransactionsResult
    used: Reading

    @property
    def mb_per_s(self) -> float:
        assert self.result.mb_per_s is not None
        return self.result.mb_per_s


def cases(size: Size) -> list[tuple[int, float]]:
    """(producers, seconds between the commits of each; 0: idempotent)"""
    if size is Size.SMALL:
        return [(4, 0.0), (4, 1.0)]
    return [(1, 0.0), (1, 0.1), (1, 1.0), (1, 5.0), (4, 0.0), (4, 0.1), (4, 1.0), (4, 5.0)]


def measure_throughput(size: Size, kafka: KafkaTarget | None) -> Table:
    rows: list[Measured] = []
    if kafka is not None:
        rows += [_measure(kafka, size, *case) for case in cases(size)]
    for store in (Store.LOCAL,) if size is Size.SMALL else (Store.LOCAL, Store.S3_DISTANT):
        for case in cases(size):
            with Stack(store) as stack:
                rows.append(_measure(OurTarget(stack), size, *case))
    return Table(
        "Throughput in transactions",
        f"librdkafka, records of {RECORD_BYTES} B over {PARTITIONS} partitions, as fast as the client takes them, "
        "linger 50 ms; acknowledged MB/s (1,000,000 bytes). A producer that commits waits until all its records are "
        f"acknowledged, and sends nothing meanwhile. CPU is that of the whole run. {store_note()}",
        (
            Column("broker"),
            Column("store"),
            Column("producers"),
            Column("a commit each", "s", 1),
            Column("rate", "MB/s", 1),
            Column("to idempotent", "x", 2),
            Column("commit p50", "ms"),
            Column("broker CPU", "ms/MB", 2),
            Column("CPU to idempotent", "x", 2),
        ),
        [_row(row, rows) for row in rows],
    )


def _measure(target: Target, size: Size, producers: int, transaction_s: float) -> Measured:
    topic = f"large-{next(_names)}"
    create_topic(target.bootstrap, topic, PARTITIONS)
    progress(f"{target.name}, {target.store}: {producers} producers, a commit each {transaction_s} s ...", end=" ")
    before = target.read()
    result = run_large_transactions(
        LargeTransactionsJob(
            bootstrap=target.bootstrap,
            topic=topic,
            partitions=PARTITIONS,
            name=topic,
            producers=producers,
            record_bytes=RECORD_BYTES,
            transaction_s=transaction_s,
            seconds=SECONDS[size],
        )
    )
    measured = Measured(
        target=target.name,
        store=target.store,
        producers=producers,
        transaction_s=transaction_s,
        result=result,
        used=target.read() - before,
    )
    progress(f"{measured.mb_per_s:.1f} MB/s")
    say_complaints(target)
    return measured


def _cpu_ms_per_mb(row: Measured) -> float:
    return row.used.agents.cpu_s * 1000 / (row.result.committed * RECORD_BYTES / 1e6)


def _row(row: Measured, rows: list[Measured]) -> list[Cell]:
    (base,) = (
        each
        for each in rows
        if (each.target, each.store, each.producers, each.transaction_s) == (row.target, row.store, row.producers, 0)
    )
    return [
        row.target,
        row.store,
        row.producers,
        row.transaction_s or None,
        row.mb_per_s,
        None if row is base else row.mb_per_s / base.mb_per_s,
        row.result.commit_p50_ms,
        _cpu_ms_per_mb(row),
        None if row is base else _cpu_ms_per_mb(row) / _cpu_ms_per_mb(base),
    ]
