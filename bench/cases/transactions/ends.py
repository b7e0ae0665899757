"""How long the end of a transaction takes, and the PUTs of many small transactions."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from bench.loads.clients import create_topic
from bench.loads.load import OURS, KafkaTarget, OurTarget, Target, progress, say_complaints
from bench.loads.small_transactions import SmallTransactionsJob, SmallTransactionsResult, run_small_transactions
from bench.registry import Size
from bench.servers.stack import Reading, Stack, Store, store_note
from bench.table import Cell, Column, Table

SECONDS = {Size.SMALL: 3.0, Size.FULL: 20.0}
PARTITIONS = 16
TURN_S = 0.5
"""A turn takes somewhat more than produce.linger.ms (250): so many clients reach the rate."""
_names = itertools.count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    target: str
    store: str
    per_s: float
    transactional: bool
    result: SmallTransactionsResult
    used: Reading

    @property
    def puts(self) -> float:
        return self.used.counters.sum("object_requests_total", op="put")

    @property
    def puts_beside_files(self) -> float:
        """PUTs that are not those of a sealed file."""
        return self.puts - self.used.counters.sum("l0_files_total")


def measure(
    target: Target, per_s: float, seconds: float, *, transactional: bool = True, partitions: int = PARTITIONS
) -> Measured:
    topic = f"small-{next(_names)}"
    create_topic(target.bootstrap, topic, partitions)
    progress(
        f"{target.name}, {target.store}: {per_s:.0f} {'transactions' if transactional else 'records'}/s ...", end=" "
    )
    before = target.read()
    result = run_small_transactions(
        SmallTransactionsJob(
            bootstrap=target.bootstrap,
            topic=topic,
            partitions=partitions,
            name=topic,
            clients=max(1, round(per_s * TURN_S)),
            turns_per_s=per_s,
            seconds=seconds,
            transactional=transactional,
        )
    )
    used = target.read() - before
    progress(
        f"{result.turns / seconds:.0f}/s, turn p50 {result.turn_p50_ms or 0:.0f} ms, "
        f"end p50 {result.end_p50_ms or 0:.0f} ms, p99 {result.end_p99_ms or 0:.0f} ms"
    )
    say_complaints(target)
    return Measured(
        target=target.name, store=target.store, per_s=per_s, transactional=transactional, result=result, used=used
    )


def measure_ends(size: Size, kafka: KafkaTarget | None) -> Table:
    rates = (200.0,) if size is Size.SMALL else (10.0, 50.0, 200.0)
    stores = (Store.LOCAL,) if size is Size.SMALL else (Store.LOCAL, Store.S3_DISTANT)
    rows: list[Measured] = []
    if kafka is not None:
        rows += [measure(kafka, rate, SECONDS[size]) for rate in rates]
    for store in stores:
        with Stack(store) as stack:
            rows += [measure(OurTarget(stack), rate, SECONDS[size]) for rate in rates]
    return Table(
        "The end of a transaction",
        "Each transaction is one record of 100 B and a commit, by the second protocol (two requests). End: from EndTxn "
        "to its answer. Whole: from the Produce request; a file waits up to produce.linger.ms (250) for other "
        "records. PUTs an end: those beside the PUTs of sealed files. CPU is that of the whole run. Kafka answers when "
        f"one node has the decision in its page cache; it writes the markers later. {store_note()}",
        (
            Column("broker"),
            Column("store"),
            Column("asked", "1/s"),
            Column("done", "1/s"),
            Column("end p50", "ms"),
            Column("end p99", "ms"),
            Column("whole p50", "ms"),
            Column("whole p99", "ms"),
            Column("broker CPU", "ms/transaction", 2),
            Column("Postgres CPU", "ms/transaction", 2),
            Column("PUTs an end", "", 3),
        ),
        [_end_row(row, SECONDS[size]) for row in rows],
    )


def _end_row(row: Measured, seconds: float) -> list[Cell]:
    result, ours = row.result, row.target == OURS
    return [
        row.target,
        row.store,
        row.per_s,
        result.turns / seconds,
        result.end_p50_ms,
        result.end_p99_ms,
        result.turn_p50_ms,
        result.turn_p99_ms,
        row.used.agents.cpu_s * 1000 / result.all_turns,
        row.used.postgres.cpu_s * 1000 / result.all_turns if ours else None,
        row.puts_beside_files / result.all_turns if ours else None,
    ]


def measure_puts(size: Size) -> Table:
    """The same records by idempotent producers and in transactions, in turns."""
    rates = (200.0,) if size is Size.SMALL else (200.0, 1000.0)
    rows: list[Sequence[Cell]] = []
    for rate in rates:
        plain, transactional = (_on_empty_stack(rate, SECONDS[size], transactional=each) for each in (False, True))
        for row in (plain, transactional):
            per_turn = row.puts / row.result.all_turns
            rows.append(
                [
                    rate,
                    "in transactions" if row.transactional else "idempotent",
                    row.result.turns / SECONDS[size],
                    row.result.turn_p50_ms,
                    row.puts / row.used.at_s,
                    per_turn * 1000,
                    per_turn / (plain.puts / plain.result.all_turns),
                    row.used.agents.cpu_s * 1000 / row.result.all_turns,
                    row.used.postgres.cpu_s * 1000 / row.result.all_turns,
                    row.used.wal_bytes / row.result.all_turns,
                    row.result.late_p99_ms,
                ]
            )
    return Table(
        "PUTs of small transactions",
        f"Records of 100 B over {PARTITIONS} partitions, each by a client that waits for its answer; in transactions "
        "each is committed by itself. Each row on a new database and an empty directory. Late: how late a turn began "
        "(p99); where that is long, the machine's two ends together could not keep the rate.",
        (
            Column("asked", "1/s"),
            Column("producers"),
            Column("done", "1/s"),
            Column("whole p50", "ms"),
            Column("PUTs", "1/s", 1),
            Column("PUTs", "1/1000 records", 1),
            Column("to idempotent", "x", 2),
            Column("agent CPU", "ms/record", 2),
            Column("Postgres CPU", "ms/record", 2),
            Column("WAL", "B/record"),
            Column("late", "ms"),
        ),
        rows,
    )


def _on_empty_stack(rate: float, seconds: float, *, transactional: bool) -> Measured:
    with Stack(Store.LOCAL) as stack:
        return measure(OurTarget(stack), rate, seconds, transactional=transactional)
