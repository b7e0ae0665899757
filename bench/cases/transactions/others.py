"""Commits of files beside the ends of transactions on the same partitions."""

from __future__ import annotations

import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from statistics import median

from bench.loads.clients import create_topic
from bench.loads.load import OurTarget, progress, say_complaints
from bench.loads.small_transactions import SmallTransactionsJob, SmallTransactionsResult, run_small_transactions
from bench.registry import Size
from bench.servers.stack import Counters, Stack, Store, parse_metrics
from bench.table import Cell, Column, Table

PARTITIONS = 100
CLIENTS = 100
PER_S = 200.0
SECONDS = {Size.SMALL: 3.0, Size.FULL: 15.0}
ROUNDS = {Size.SMALL: 1, Size.FULL: 3}


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    commit_ms: float
    """Mean of the other agent's commits of files."""
    result: SmallTransactionsResult
    """Of the other agent's clients."""
    beside: SmallTransactionsResult
    postgres_ms_per_s: float


def measure_others(size: Size) -> Table:
    """Two agents. The clients of one write plainly; beside it those of the other do, or commit each record."""
    seen: dict[bool, list[Measured]] = {False: [], True: []}
    with Stack(Store.LOCAL, agents=2) as stack:
        for number in range(ROUNDS[size]):
            for transactional in (False, True) if number % 2 == 0 else (True, False):
                measured = _measure(stack, f"others-{number}-{transactional:d}", SECONDS[size], transactional)
                p50_ms, p99_ms = measured.result.turn_p50_ms or 0, measured.result.turn_p99_ms or 0
                progress(
                    f"beside {'transactions' if transactional else 'records'}: a commit {measured.commit_ms:.1f} ms, "
                    f"acknowledged p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms"
                )
                seen[transactional].append(measured)
        say_complaints(OurTarget(stack))
    rows: list[list[Cell]] = []
    base = median(each.commit_ms for each in seen[False])
    for transactional, all_of_them in seen.items():
        commit_ms = median(each.commit_ms for each in all_of_them)
        rows.append(
            [
                "transactions" if transactional else "records",
                median(each.beside.turns for each in all_of_them) / SECONDS[size],
                median(each.beside.end_p50_ms or 0 for each in all_of_them) or None,
                commit_ms,
                commit_ms / base if transactional else None,
                median(each.result.turn_p50_ms or 0 for each in all_of_them),
                median(each.result.turn_p99_ms or 0 for each in all_of_them),
                median(each.postgres_ms_per_s for each in all_of_them),
            ]
        )
    return Table(
        "The others' commits beside ends",
        f"Two agents, {PARTITIONS} partitions, all written by both. Clients of the first commit each record as a "
        f"transaction ({PER_S:.0f} a second), or write the same records plainly; {CLIENTS} clients of the second write "
        f"{PER_S:.0f} records a second plainly. Commit: the second agent's commits of files in Postgres, mean; the "
        f"median of {ROUNDS[size]} rounds, in turns.",
        (
            Column("beside"),
            Column("done", "1/s"),
            Column("end p50", "ms"),
            Column("commit", "ms", 1),
            Column("to plain", "x", 2),
            Column("acknowledged p50", "ms"),
            Column("p99", "ms"),
            Column("Postgres CPU", "ms/s"),
        ),
        rows,
    )


def _measure(stack: Stack, topic: str, seconds: float, transactional: bool) -> Measured:
    create_topic(stack.bootstrap, topic, PARTITIONS)
    first, second = stack.agents
    plain = SmallTransactionsJob(
        bootstrap=second.bootstrap,
        topic=topic,
        partitions=PARTITIONS,
        name=topic,
        clients=CLIENTS,
        turns_per_s=PER_S,
        seconds=seconds,
        transactional=False,
    )
    beside = replace(plain, bootstrap=first.bootstrap, transactional=transactional)
    before, commits_before = stack.read(), _counters(second.metrics_url)
    with ThreadPoolExecutor(2) as threads:
        beside_result = threads.submit(run_small_transactions, beside)
        result = run_small_transactions(plain)
        commits = _counters(second.metrics_url) - commits_before
        used = stack.read() - before
        return Measured(
            commit_ms=commits.sum("l0_commit_seconds_sum") / commits.sum("l0_commit_seconds_count") * 1000,
            result=result,
            beside=beside_result.result(),
            postgres_ms_per_s=used.postgres.cpu_s * 1000 / used.at_s,
        )


def _counters(metrics_url: str) -> Counters:
    with urllib.request.urlopen(metrics_url, timeout=10) as answer:
        return parse_metrics(answer.read().decode())
