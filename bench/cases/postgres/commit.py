"""The cost of committing one L0 file, by the number of partitions in it.

Embedded Postgres with its production settings (fsync on, autovacuum as shipped), a new database per row, one agent that
commits file after file, one batch of ten records for each partition in every file. The time is that of the whole call,
including the agent's own Python. In a row with a held snapshot, another session sits in a REPEATABLE READ transaction
from before the first commit on: Postgres can then prune no old version of a hot row, and every commit leaves one.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.measures.limits import plain_insert_p50_ms
from bench.measures.usage import postgres_usage
from bench.registry import Size
from bench.servers.databases import held_snapshot, migrated_database, wal_position
from bench.table import Cell, Column, Table
from metadata.contract.l0_commit import CommitL0, L0Batch
from metadata.contract.leases import AgentAddress, WriterLease
from metadata.postgres.store import PostgresMetadata
from siltstone.embedded.postgres import EmbeddedPostgres
from storage.keys import file_key

PARTITIONS = (10, 100, 1000, 5000)
BASE_PARTITIONS = 100
"""The row with which the cost per partition is compared."""
COMMITS = {Size.SMALL: {10: 200, 100: 200, 1000: 60, 5000: 25}, Size.FULL: {10: 1000, 100: 3000, 1000: 1000, 5000: 100}}
"""By partitions. 3,000 commits of the same partitions are a minute of twelve agents."""
WARM_UP_COMMITS = 10
"""Enough for PL/pgSQL to have chosen between generic and custom plans (it tries five custom ones)."""
RECORDS = 10
BATCH_BYTES = 1600
NOW_MS = 1_800_000_000_000
COLUMNS = (
    Column("partitions"),
    Column("producer"),
    Column("snapshot"),
    Column("commits"),
    Column("p50", "ms", 2),
    Column("p99", "ms", 2),
    Column("per partition", "us", 1),
    Column("of that at 100", "x", 2),
    Column("CPU of that at 100", "x", 2),
    Column("of one INSERT", "x", 1),
    Column("server CPU", "ms", 2),
    Column("agent CPU", "ms", 2),
    Column("WAL", "KiB", 1),
)


@dataclass(frozen=True, slots=True)
class Case:
    partitions: int
    idempotent: bool
    snapshot_held: bool
    commits: int


@dataclass(frozen=True, slots=True)
class Figures:
    """The figures of one commit."""

    p50_ms: float
    p99_ms: float
    server_cpu_ms: float
    agent_cpu_ms: float
    wal_bytes: float

    @property
    def cpu_ms(self) -> float:
        return self.server_cpu_ms + self.agent_cpu_ms


def run(size: Size) -> Iterator[Table]:
    cases = [
        Case(partitions, idempotent, held, COMMITS[size][partitions])
        for held in (False, True)
        for idempotent in (False, True)
        for partitions in PARTITIONS
    ]
    yield measure(cases)


def measure(cases: Sequence[Case]) -> Table:
    """All cases on one server, each in a database of its own."""
    with tempfile.TemporaryDirectory(prefix="siltstone-bench-") as folder:
        Path(folder).chmod(0o711)  # Postgres may run as another user
        with EmbeddedPostgres(Path(folder) / "postgres") as server:
            insert_ms = asyncio.run(plain_insert_p50_ms(server.url))
            measured: list[tuple[Case, Figures]] = []
            for number, case in enumerate(cases):
                print(f"{case.partitions} partitions, {_words(case)}", file=sys.stderr, flush=True)
                measured.append((case, asyncio.run(_measure(server, f"bench_{number}", case))))
    return Table(
        "Commit of one file, one batch a partition",
        f"A plain INSERT of one row took {insert_ms:.2f} ms (p50) in this run. CPU is user and system time per commit."
        f" Ratios to {BASE_PARTITIONS} partitions are per partition, by p50 and by CPU of server and agent together.",
        COLUMNS,
        [_row(case, figures, measured, insert_ms) for case, figures in measured],
    )


def _words(case: Case) -> str:
    return f"{'idempotent' if case.idempotent else 'plain'}, snapshot {'held' if case.snapshot_held else 'not held'}"


def _row(case: Case, figures: Figures, measured: Sequence[tuple[Case, Figures]], insert_ms: float) -> Sequence[Cell]:
    like = (case.idempotent, case.snapshot_held)
    base = next(
        (
            other
            for one, other in measured
            if one.partitions == BASE_PARTITIONS and (one.idempotent, one.snapshot_held) == like
        ),
        None,
    )
    share = BASE_PARTITIONS / case.partitions
    return [
        case.partitions,
        "idempotent" if case.idempotent else "plain",
        "held" if case.snapshot_held else "-",
        case.commits,
        figures.p50_ms,
        figures.p99_ms,
        figures.p50_ms * 1000 / case.partitions,
        None if base is None else figures.p50_ms / base.p50_ms * share,
        None if base is None else figures.cpu_ms / base.cpu_ms * share,
        figures.p50_ms / insert_ms,
        figures.server_cpu_ms,
        figures.agent_cpu_ms,
        figures.wal_bytes / 1024,
    ]


async def _measure(server: EmbeddedPostgres, database: str, case: Case) -> Figures:
    async with migrated_database(server, database) as url, held_snapshot(url, case.snapshot_held):
        service = PostgresMetadata(url)
        await service.open()
        try:
            return await _commit_many(service, server, url, case)
        finally:
            await service.close()


async def _commit_many(service: PostgresMetadata, server: EmbeddedPostgres, url: str, case: Case) -> Figures:
    topic = await service.agents.create_topic("bench", partitions=case.partitions, configs={})
    lease = await service.agents.register_agent(AgentAddress(host="bench", port=9092))
    producer_id = (await service.agents.allocate_producer_ids(1))[0] if case.idempotent else -1
    requests = (_request(lease, seq, topic.partition_ids, producer_id) for seq in range(10**9))
    for _ in range(WARM_UP_COMMITS):
        await service.agents.commit_l0(next(requests))
    times: list[float] = []
    agent_cpu_s = 0.0
    wal_before, cpu_before = await wal_position(url), postgres_usage(server.pid).cpu_s
    for _ in range(case.commits):
        request = next(requests)
        cpu_started, started = time.process_time(), time.perf_counter()
        await service.agents.commit_l0(request)
        times.append(time.perf_counter() - started)
        agent_cpu_s += time.process_time() - cpu_started
    cpu_after, wal_after = postgres_usage(server.pid).cpu_s, await wal_position(url)
    return Figures(
        p50_ms=statistics.median(times) * 1000,
        p99_ms=sorted(times)[int(len(times) * 0.99)] * 1000,
        server_cpu_ms=(cpu_after - cpu_before) * 1000 / case.commits,
        agent_cpu_ms=agent_cpu_s * 1000 / case.commits,
        wal_bytes=(wal_after - wal_before) / case.commits,
    )


def _request(lease: WriterLease, seq: int, partition_ids: Sequence[int], producer_id: int) -> CommitL0:
    return CommitL0(
        lease=lease,
        seq=seq,
        key=file_key(level=0, writer_id=lease.writer_id, epoch=lease.epoch, file_uuid=_uuid7(seq), created_ms=NOW_MS),
        size_bytes=BATCH_BYTES * len(partition_ids),
        crc32c=0,
        batches=[
            L0Batch(
                partition_id=partition_id,
                position=number * BATCH_BYTES,
                length=BATCH_BYTES,
                record_count=RECORDS,
                min_timestamp_ms=NOW_MS,
                max_timestamp_ms=NOW_MS + seq,
                producer_id=producer_id,
                producer_epoch=-1 if producer_id < 0 else 0,
                base_sequence=-1 if producer_id < 0 else seq * RECORDS,
            )
            for number, partition_id in enumerate(partition_ids)
        ],
    )


def _uuid7(number: int) -> uuid.UUID:
    return uuid.UUID(int=NOW_MS << 80 | 7 << 76 | 2 << 62 | number)
