"""Commits of several agents at once: what one Postgres takes, by this schema and by the one before.

pgbench sends the calls, so that the figures are those of Postgres alone. Sessions that write the *same* partitions wait
for each other: before in their rows, now at the gate. Sessions with *disjoint* partitions of one topic do not meet, and
use no gate. Every commit has one batch of ten records for each partition.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.loads.commit_scripts import Commits
from bench.measures.usage import cpu_with_ended_children_s
from bench.registry import Size
from bench.servers.databases import migrated_database, run_on, wal_position
from bench.table import Cell, Column, Table
from siltstone.embedded.binaries import find_binaries
from siltstone.embedded.postgres import EmbeddedPostgres

SECONDS = {Size.SMALL: 3, Size.FULL: 8}
SKIPPED_SHARE = 0.25
"""The part of each run that is not counted in rates and latencies: caches, plans and tables become what they stay."""
SCHEMA_BEFORE = "0005"
COLUMNS = (
    Column("sessions"),
    Column("partitions"),
    Column("of the sessions"),
    Column("producer"),
    Column("before", "commits/s"),
    Column("now", "commits/s"),
    Column("now / before", "x", 1),
    Column("p99 before", "ms", 1),
    Column("p99 now", "ms", 1),
    Column("CPU a partition before", "us", 1),
    Column("now", "us", 1),
    Column("WAL a partition before", "B"),
    Column("now", "B"),
)


@dataclass(frozen=True, slots=True)
class Case:
    sessions: int
    partitions: int
    idempotent: bool
    disjoint: bool = False


@dataclass(frozen=True, slots=True)
class Figures:
    commits_per_s: float
    p99_ms: float
    cpu_us: float
    """User and system time of all of Postgres, per partition and commit."""
    wal_bytes: float


CASES = {
    Size.SMALL: [
        Case(1, 1000, False), Case(1, 1000, True), Case(8, 100, False), Case(8, 1000, True), Case(8, 100, False, True)
    ],
    Size.FULL: [
        *(
            Case(sessions, partitions, idempotent)
            for partitions in (100, 1000)
            for idempotent in (False, True)
            for sessions in (1, 4, 8, 16)
        ),
        Case(8, 100, False, True),
        Case(8, 100, True, True),
    ],
}  # fmt: skip


def run(size: Size) -> Iterator[Table]:
    with tempfile.TemporaryDirectory(prefix="siltstone-bench-") as folder:
        Path(folder).chmod(0o711)  # Postgres may run as another user
        with EmbeddedPostgres(Path(folder) / "postgres") as server:
            rows: list[Sequence[Cell]] = []
            for number, case in enumerate(CASES[size]):
                print(f"{case}", file=sys.stderr, flush=True)
                before = asyncio.run(_measure(server, f"before_{number}", case, SECONDS[size], before=True))
                now = asyncio.run(_measure(server, f"now_{number}", case, SECONDS[size], before=False))
                rows.append(_row(case, before, now))
    yield Table(
        "Commits of several sessions, one batch a partition",
        f"Before: `commit_l0_v1` of schema {SCHEMA_BEFORE}. Each row on a new database. CPU is user and system time of"
        " Postgres.",
        COLUMNS,
        rows,
    )


def _row(case: Case, before: Figures, now: Figures) -> Sequence[Cell]:
    return [
        case.sessions,
        case.partitions,
        "disjoint" if case.disjoint else "the same",
        "idempotent" if case.idempotent else "plain",
        before.commits_per_s,
        now.commits_per_s,
        now.commits_per_s / before.commits_per_s,
        before.p99_ms,
        now.p99_ms,
        before.cpu_us,
        now.cpu_us,
        before.wal_bytes,
        now.wal_bytes,
    ]


async def _measure(server: EmbeddedPostgres, database: str, case: Case, seconds: int, *, before: bool) -> Figures:
    revision = SCHEMA_BEFORE if before else "head"
    async with migrated_database(server, database, revision=revision) as url:
        partitions = case.partitions * (case.sessions if case.disjoint else 1)
        await run_on(
            url,
            f"INSERT INTO watermarks SELECT generate_series(1, {partitions})",
            f"INSERT INTO writers (host, port) SELECT 'bench', generate_series(1, {case.sessions})",
            "VACUUM ANALYZE",
        )
        cpu_before, wal_before = cpu_with_ended_children_s(server.pid), await wal_position(url)
        latencies_ms, counted_s, commits = await asyncio.to_thread(_pgbench, url, case, seconds, before)
        cpu_after, wal_after = cpu_with_ended_children_s(server.pid), await wal_position(url)
    each = commits * case.partitions
    return Figures(
        commits_per_s=len(latencies_ms) / counted_s,
        p99_ms=sorted(latencies_ms)[int(len(latencies_ms) * 0.99)],
        cpu_us=(cpu_after - cpu_before) * 1e6 / each,
        wal_bytes=(wal_after - wal_before) / each,
    )


def _pgbench(url: str, case: Case, seconds: int, before: bool) -> tuple[list[float], float, int]:
    """Latencies of the counted part, its seconds, and the number of all commits."""
    with tempfile.TemporaryDirectory() as folder:
        scripts = [Path(folder) / f"session_{number}.sql" for number in range(case.sessions)]
        for number, script in enumerate(scripts):
            script.write_text(_script(case, number, before), encoding="utf-8")
        # One process a session: pgbench gives a script to any session, and a writer has one.
        running = [
            subprocess.Popen(
                [
                    *(str(find_binaries(None).postgres.with_name("pgbench")), "--no-vacuum", "--define=n=-1"),
                    *(f"--time={seconds}", f"--file={script}", "--log", f"--log-prefix={script}.log", url),
                ],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for script in scripts
        ]
        for each in running:
            said, _ = each.communicate()
            if each.returncode:
                raise RuntimeError(f"pgbench ended with {each.returncode}: {said}")
        lines = [line.split() for log in Path(folder).glob("*.log.*") for line in log.read_text().splitlines()]
    ended = [(int(line[4]) + int(line[5]) / 1e6, int(line[2]) / 1000) for line in lines]
    first, last = min(ended)[0], max(ended)[0]
    begin = first + (last - first) * SKIPPED_SHARE
    return [latency_ms for at, latency_ms in ended if at >= begin], last - begin, len(ended)


def _script(case: Case, session: int, before: bool) -> str:
    first = 1 + (session * case.partitions if case.disjoint else 0)
    commits = Commits(
        writer_id=session + 1,
        partition_ids=range(first, first + case.partitions),
        producer_id=session if case.idempotent else -1,
    )
    if before:
        return commits.before()
    return commits.alone() if case.disjoint or case.sessions == 1 else commits.behind_gate()
