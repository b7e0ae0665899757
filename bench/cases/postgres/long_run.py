"""Twelve writers for an hour, with merges, retention and the janitor: does anything grow or slow down?

The writers are sessions of `PostgresMetadata` that commit at a fixed rate, each an idempotent producer on all
partitions. No object stands behind a file. The clock of the database may run faster than the machine's: then
retention, sweeps and forgetting come so many times sooner.
"""

from __future__ import annotations

import asyncio
import itertools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.loads.long_upkeep import upkeep_process
from bench.registry import Size
from bench.servers.databases import migrated_database, run_on
from bench.table import Column, Table
from metadata.contract.agents import AgentAddress
from metadata.contract.l0_commit import CommitL0, L0Batch
from metadata.contract.leases import WriterLease
from metadata.postgres.driver import Connection, open_connection
from metadata.postgres.store import PostgresMetadata
from siltstone.embedded.postgres import EmbeddedPostgres

WRITERS = 12
RECORDS, BATCH_BYTES = 10, 1_000
KEPT_SHARE = 1 / 6
"""Records, rows of deleted files and silent producers are kept for this share of the run, by the database's clock."""
BEAT_S = 1.0
TABLES = ("files", "watermarks", "producer_states", "extents", "file_sums")


@dataclass(frozen=True, slots=True)
class Case:
    files_per_s: float
    """Of each writer."""
    partitions: int
    seconds: float
    speed: int = 1
    """How many times faster the clock of the database runs."""
    row_s: float = 60.0


CASES = {
    Size.SMALL: [Case(4, 1_000, 60, row_s=7.5)],
    Size.FULL: [Case(4, 1_000, 3_600), Case(20, 100, 3_600), Case(4, 1_000, 3_600, 24)],
}
MEASURES = (
    Column("commits/s", "", 1),
    Column("p99", "ms", 1),
    Column("WAL a commit", "B"),
    Column("lag behind the pace", "s", 1),
    *(Column(name, "MiB", 1) for name in TABLES),
    *(Column(f"indexes of {name}", "MiB", 1, detail=True) for name in TABLES),
    *(Column(f"dead in {name}", detail=name not in ("files", "watermarks", "producer_states")) for name in TABLES),
)


@dataclass(slots=True)
class Progress:
    """The commits of the writers since the last row."""

    latencies_ms: list[float] = field(default_factory=list[float])
    lag_s: float = 0.0


def run(size: Size) -> Iterator[Table]:
    for case in CASES[size]:
        with tempfile.TemporaryDirectory(prefix="siltstone-bench-") as folder:
            Path(folder).chmod(0o711)  # Postgres may run as another user
            with EmbeddedPostgres(Path(folder) / "postgres") as server:
                rows = asyncio.run(measure(server, case))
        yield from tables(case, rows)


def tables(case: Case, rows: Sequence[Sequence[float]]) -> Iterator[Table]:
    minutes = case.seconds * case.speed / 60
    title = f"{WRITERS} writers, {case.files_per_s:g} files a second each, {case.partitions:,} shared partitions"
    yield Table(
        f"{title}, {minutes:g} minutes by the database's clock",
        f"A row for each {case.row_s:g} s. Sizes of tables are with their indexes. What is no longer needed goes after"
        f" {minutes * KEPT_SHARE:.2f} minutes.",
        (Column("until", "s"), *MEASURES),
        [[case.row_s * (number + 1), *row] for number, row in enumerate(rows)],
    )
    second, last = (_means(rows, quarter) for quarter in (1, 3))
    yield Table(
        f"{title}: the last quarter against the second",
        "Flat is 1. A size of 0 has no ratio.",
        (Column("measure"), Column("second quarter", "", 1), Column("last quarter", "", 1), Column("ratio", "x", 2)),
        [
            [column.title, before, after, after / before if before else None]
            for column, before, after in zip(MEASURES, second, last, strict=True)
        ],
    )


def _means(rows: Sequence[Sequence[float]], quarter: int) -> list[float]:
    some = rows[len(rows) * quarter // 4 : max(len(rows) * (quarter + 1) // 4, len(rows) * quarter // 4 + 1)]
    return [sum(column) / len(some) for column in zip(*some, strict=True)]


def faster_clock(now_ms: int, speed: int) -> str:
    """The statement that gives a database a clock that is right at `now_ms` and `speed` times too fast from then on."""
    machine_ms = "(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
    function = "CREATE OR REPLACE FUNCTION clock_ms() RETURNS bigint LANGUAGE sql VOLATILE PARALLEL SAFE"
    return f"{function} AS $$ SELECT {now_ms}::bigint + ({machine_ms} - {now_ms}) * {speed} $$"


async def measure(server: EmbeddedPostgres, case: Case) -> Sequence[Sequence[float]]:
    kept_ms = int(case.seconds * 1000 * case.speed * KEPT_SHARE)
    async with migrated_database(server, "long_run") as url, AsyncExitStack() as stack:
        if case.speed != 1:
            await run_on(url, faster_clock(int(time.time() * 1000), case.speed))
        writers: list[tuple[PostgresMetadata, WriterLease]] = []
        for number in range(WRITERS):
            metadata = PostgresMetadata(url)
            await metadata.open()
            stack.push_async_callback(metadata.close)
            lease = await metadata.agents.register_agent(AgentAddress(host="bench", port=9092 + number))
            writers.append((metadata, lease))
        configs = {"retention.ms": str(kept_ms)}
        topic = await writers[0][0].agents.create_topic("long", partitions=case.partitions, configs=configs)
        spawn = multiprocessing.get_context("spawn")
        ended = spawn.Event()
        upkeep = spawn.Process(target=upkeep_process, args=(url, kept_ms, ended), daemon=True)
        upkeep.start()
        progress = Progress()
        tasks = [
            asyncio.create_task(each)
            for metadata, lease in writers
            for each in (_write(metadata, lease, topic.partition_ids, case, progress), _beat(metadata, lease))
        ]
        try:
            return await _watch(url, case, progress, upkeep.is_alive, tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            ended.set()
            await asyncio.to_thread(upkeep.join)


async def _beat(metadata: PostgresMetadata, lease: WriterLease) -> None:
    while True:
        await metadata.agents.heartbeat(lease)
        await asyncio.sleep(BEAT_S)


async def _write(
    metadata: PostgresMetadata, lease: WriterLease, partition_ids: Sequence[int], case: Case, progress: Progress
) -> None:
    (producer_id,) = await metadata.agents.allocate_producer_ids(1)
    begin = time.monotonic()
    for number in itertools.count():
        due = begin + number / case.files_per_s
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        request = _request(lease, number, partition_ids, producer_id, int(time.time() * 1000))
        started = time.monotonic()
        progress.lag_s = max(progress.lag_s, started - due)
        committed = await metadata.agents.commit_l0(request)
        progress.latencies_ms.append((time.monotonic() - started) * 1000)
        if refused := [result for result in committed.results if result.error or result.duplicate]:
            raise RuntimeError(f"file {number} of writer {lease.writer_id} was not stored: {refused[0]}")


def _request(lease: WriterLease, number: int, partition_ids: Sequence[int], producer_id: int, now_ms: int) -> CommitL0:
    return CommitL0(
        lease=lease,
        seq=number + 1,
        key=f"l0/long/{lease.writer_id}-{number}.silt",
        size_bytes=BATCH_BYTES * len(partition_ids),
        crc32c=0,
        batches=[
            L0Batch(
                partition_id=partition_id,
                position=at * BATCH_BYTES,
                length=BATCH_BYTES,
                record_count=RECORDS,
                min_timestamp_ms=now_ms,
                max_timestamp_ms=now_ms,
                producer_id=producer_id,
                producer_epoch=0,
                base_sequence=number * RECORDS,
            )
            for at, partition_id in enumerate(partition_ids)
        ],
    )


async def _watch(
    url: str, case: Case, progress: Progress, upkeep_runs: Callable[[], bool], tasks: Sequence[asyncio.Task[None]]
) -> Sequence[Sequence[float]]:
    """A row of MEASURES for each part of the run. Raises what ended a writer."""
    line = await open_connection(url, connect_timeout_s=10, command_timeout_s=60, settings={})
    try:
        rows: list[Sequence[float]] = []
        begin, wal = time.monotonic(), await _wal(line)
        for number in range(int(case.seconds / case.row_s)):
            seen_at = time.monotonic()
            until_s = max(0.0, begin + (number + 1) * case.row_s - seen_at)
            done, _ = await asyncio.wait(tasks, timeout=until_s, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if not upkeep_runs():
                raise RuntimeError("the process that merges and sweeps has ended; its error is above")
            latencies, progress.latencies_ms = sorted(progress.latencies_ms), []
            lag_s, progress.lag_s = progress.lag_s, 0.0
            if not latencies:
                raise RuntimeError(f"no commit in {case.row_s} s")
            wal_before, wal = wal, await _wal(line)
            rate = len(latencies) / (time.monotonic() - seen_at)
            p99_ms = latencies[int(len(latencies) * 0.99)]
            rows.append([rate, p99_ms, (wal - wal_before) / len(latencies), lag_s, *await _sizes(line)])
            print(f"{number + 1}: {rate:.1f} commits/s, p99 {p99_ms:.1f} ms", file=sys.stderr, flush=True)
        return rows
    finally:
        await line.close()


async def _wal(line: Connection) -> int:
    return int(await line.fetchval("SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn"))


async def _sizes(line: Connection) -> list[float]:
    """MiB of each of TABLES, MiB of its indexes, its dead rows."""
    found = await line.fetch(
        """SELECT pg_total_relation_size(relid) / 1048576.0::float8 AS whole,
            pg_indexes_size(relid) / 1048576.0::float8 AS indexes, n_dead_tup::float8 AS dead
        FROM unnest($1::text[]) WITH ORDINALITY AS t (name, at) JOIN pg_stat_user_tables s ON s.relname = t.name
        ORDER BY t.at""",
        list(TABLES),
    )
    return [float(row[measure]) for measure in ("whole", "indexes", "dead") for row in found]
