"""Reading a topic with transactions, by both isolation levels."""

from __future__ import annotations

from statistics import median

from bench.loads.clients import create_topic, run_consume
from bench.loads.jobs import ConsumeJob
from bench.loads.large_transactions import LargeTransactionsJob, run_large_transactions
from bench.loads.load import OurTarget, progress, say_complaints
from bench.registry import Size
from bench.servers.stack import Stack, Store
from bench.table import Cell, Column, Table

PARTITIONS = 4
RECORD_BYTES = 1024
RECORDS = 1_000
"""Of each transaction: about 1 MB."""
ABORTS_EACH = 10
TRANSACTIONS = {Size.SMALL: 120, Size.FULL: 480}
"""480 MB: more than the agent's cache holds would be a measurement of the store."""
ROUNDS = {Size.SMALL: 2, Size.FULL: 7}
LEVELS = ("read_uncommitted", "read_committed")


def measure_reading(size: Size) -> Table:
    times_ms: dict[str, list[float]] = {level: [] for level in LEVELS}
    rates: dict[str, list[float]] = {level: [] for level in LEVELS}
    with Stack(Store.LOCAL) as stack:
        target = OurTarget(stack)
        create_topic(target.bootstrap, "read", PARTITIONS)
        written = run_large_transactions(
            LargeTransactionsJob(
                bootstrap=target.bootstrap,
                topic="read",
                partitions=PARTITIONS,
                name="read",
                record_bytes=RECORD_BYTES,
                transactions=TRANSACTIONS[size],
                records=RECORDS,
                aborts_each=ABORTS_EACH,
            )
        )
        counts = dict(zip(LEVELS, (written.committed + written.aborted, written.committed), strict=True))
        all_mb = counts[LEVELS[0]] * RECORD_BYTES / 1e6
        for number in range(ROUNDS[size] + 1):
            # In turns, and each level first in half of the rounds.
            for level in LEVELS if number % 2 else reversed(LEVELS):
                before = target.read()
                read = run_consume(
                    ConsumeJob(
                        bootstrap=target.bootstrap,
                        topic="read",
                        partitions=PARTITIONS,
                        record_bytes=RECORD_BYTES,
                        records=counts[level],
                        isolation=level,
                    )
                )
                used = target.read() - before
                # The aborted records go over the wire at both levels; a committed reader drops them.
                cpu_ms = used.agents.cpu_s * 1000 / all_mb
                progress(f"{level}: {read.mb_per_s:.0f} MB/s, agent {cpu_ms:.2f} ms/MB")
                if number:  # the first round fills the cache
                    times_ms[level].append(cpu_ms)
                    rates[level].append(read.mb_per_s * all_mb / (read.read_bytes / 1e6))
        say_complaints(target)
    base = median(times_ms[LEVELS[0]])
    rows: list[list[Cell]] = [
        [
            level,
            counts[level],
            median(rates[level]),
            median(times_ms[level]),
            None if level == LEVELS[0] else median(times_ms[level]) / base,
        ]
        for level in LEVELS
    ]
    return Table(
        "Reading transactions",
        f"librdkafka reads {all_mb:.0f} MB in {PARTITIONS} partitions from the agent's memory; a transaction has about "
        f"1 MB, one of {ABORTS_EACH} is aborted. Medians of {ROUNDS[size]} readings of each level, in turns, after one "
        "that is not counted. Rate and CPU are those of all records: also a committed reader is sent the aborted ones.",
        (
            Column("isolation"),
            Column("records shown"),
            Column("rate", "MB/s"),
            Column("agent CPU", "ms/MB", 3),
            Column("to uncommitted", "x", 2),
        ),
        rows,
    )
