"""The cost of the periodic statements on a large database: 10 M extents, 1 M rows of L0, 1 M producers, 10,000 writers.

The database is filled by SQL (`bench/loads/large_metadata.py`); the calls are those of `PostgresMetadata`, as agents
and compactors send them. No statement may take more than a second; the copy for a backup may hold its transaction for
five.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agents.tail.follower import Follower, FollowerCallbacks
from agents.tail.log_index import LogIndex
from agents.tail.waiters import ParkedReaders
from agents.topics.topic_cache import TopicCache
from bench.loads import large_metadata as large
from bench.measures.transactions import Watch
from bench.measures.usage import cpu_with_ended_children_s, resident_bytes
from bench.registry import Size
from bench.servers.databases import migrated_database
from bench.table import Cell, Column, Table
from metadata.contract.backup import BackupTable
from metadata.postgres.driver import open_connection
from metadata.postgres.store import PostgresMetadata
from runtime.clock import SystemClock
from runtime.metrics import Metrics
from runtime.runtime import Runtime
from siltstone.embedded.postgres import EmbeddedPostgres

LIMIT_MS = 1_000
BACKUP_LIMIT_MS = 5_000
DAY_MS = 86_400_000
GRACE_MS = 600_000
POLLS = 100
FILL_TIMEOUT_S = 7_200
COLUMNS = (
    Column("call"),
    Column("whole", "ms", 1),
    Column("longest statement", "ms", 1),
    Column("longest transaction", "ms", 1),
    Column("server CPU", "ms"),
    Column("client CPU", "ms"),
    Column("rows"),
    Column("memory held", "MiB"),
    Column("limit", "ms"),
    Column("kept"),
)


@dataclass(frozen=True, slots=True)
class Shape:
    topics: int
    compacted: int
    partitions: int
    writers: int
    producers: int
    merged_files: int
    extents: int
    apart_ms: int
    """Between two merged files. All of them span 70 days, so that retention has work."""
    l0_files: int
    dead: int
    """Ten minutes of files."""
    deleted: int
    """An hour of files."""


L0_ROWS_EACH = 100
FULL = Shape(1_000, 10, 10_000, 10_000, 1_000_000, 100_000, 10_000_000, 60_000, 10_000, 100_000, 600_000)
SHAPES = {
    Size.SMALL: [Shape(50, 1, 500, 500, 50_000, 5_000, 500_000, 1_200_000, 500, 5_000, 30_000)],
    # The second has as many extents as the limit of the backup is meant for.
    Size.FULL: [FULL, replace(FULL, merged_files=10_000, extents=1_000_000, apart_ms=600_000)],
}


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    run: Callable[[PostgresMetadata], Awaitable[tuple[int, Any]]]
    """Answers with the number of rows, and with all that its caller would hold."""
    limit_ms: int = LIMIT_MS
    whole_transaction: bool = False
    """The limit is for the transaction. Else it is for each statement."""


def run(size: Size) -> Iterator[Table]:
    for shape in SHAPES[size]:
        with tempfile.TemporaryDirectory(prefix="siltstone-bench-") as folder:
            Path(folder).chmod(0o711)  # Postgres may run as another user
            with EmbeddedPostgres(Path(folder) / "postgres") as server:
                rows = asyncio.run(measure(server, shape))
        yield table(shape, rows)


def table(shape: Shape, rows: Sequence[Sequence[Cell]]) -> Table:
    return Table(
        f"Periodic calls: {shape.extents:,} extents, {shape.l0_files * L0_ROWS_EACH:,} rows of L0,"
        f" {shape.producers:,} producers, {shape.writers:,} writers",
        "The longest statement and transaction are those that `pg_stat_activity` showed every 10 ms; what was shorter"
        f" than a look shows as the time of the whole call, divided by {POLLS} for the polls. The limit holds for the"
        " statement, for the backup for its transaction, and there it is meant for 1 M extents. Memory: what this"
        " process has grown by while it holds the answer, and of the cold start what an agent knows of the log; what"
        " was freed before may be used again, so it is a lower bound.",
        COLUMNS,
        rows,
    )


async def measure(server: EmbeddedPostgres, shape: Shape) -> Sequence[Sequence[Cell]]:
    async with migrated_database(server, "large") as url:
        await fill(url, shape)
        rows: list[Sequence[Cell]] = []
        # Each caller is a process of its own: what one has prepared and cached is not there for another.
        for call in CALLS:
            print(call.name, file=sys.stderr, flush=True)
            metadata = PostgresMetadata(url)
            await metadata.open()
            try:
                rows.append(await _measure(server, url, metadata, call))
                if call.name == VIEW:
                    again = Call(f"{VIEW}, again", call.run)
                    rows.append(await _measure(server, url, metadata, again))
            finally:
                await metadata.close()
        return rows


async def fill(url: str, shape: Shape) -> None:
    line = await open_connection(url, connect_timeout_s=10, command_timeout_s=FILL_TIMEOUT_S, settings={})
    steps: list[tuple[str, Awaitable[None]]] = [
        ("topics", large.fill_topics(
            line, topics=shape.topics, partitions=shape.partitions, compacted=shape.compacted)),
        ("writers", large.fill_writers(line, writers=shape.writers)),
        ("producers", large.fill_producers(line, producers=shape.producers)),
        ("merged files", large.fill_merged(
            line, files=shape.merged_files, extents=shape.extents, apart_ms=shape.apart_ms)),
        ("L0", large.fill_l0(line, files=shape.l0_files, partitions_each=L0_ROWS_EACH)),
        ("files that are gone", large.fill_gone(line, dead=shape.dead, deleted=shape.deleted)),
        ("statistics", large.settle(line)),
    ]  # fmt: skip
    try:
        for name, step in steps:
            begin = time.monotonic()
            await step
            if name == "producers":  # a tenth of them has been silent for two days
                await line.execute(
                    "UPDATE producer_states SET last_seen_ms = clock_ms() - $1 WHERE producer_id % 10 = 0", 2 * DAY_MS
                )
            print(f"filled: {name}, {time.monotonic() - begin:.1f} s", file=sys.stderr, flush=True)
    finally:
        await line.close()


async def _measure(server: EmbeddedPostgres, url: str, metadata: PostgresMetadata, call: Call) -> Sequence[Cell]:
    gc.collect()
    memory = resident_bytes(os.getpid())
    server_s, client_s, begin = cpu_with_ended_children_s(server.pid), time.process_time(), time.perf_counter()
    with Watch(url) as watch:
        rows, held = await call.run(metadata)
        wall_ms = (time.perf_counter() - begin) * 1000
        client_s = time.process_time() - client_s
        server_s = cpu_with_ended_children_s(server.pid) - server_s
    gc.collect()
    memory = max(0, resident_bytes(os.getpid()) - memory)
    del held
    # A call shorter than a look has no statement that is longer than itself.
    shortest_ms = wall_ms / POLLS if call.name == POLL else wall_ms
    statement_ms = watch.statement_ms or shortest_ms
    transaction_ms = watch.transaction_ms or shortest_ms
    counted_ms = transaction_ms if call.whole_transaction else statement_ms
    return [
        call.name,
        wall_ms,
        statement_ms,
        transaction_ms,
        max(0.0, server_s - watch.own_server_cpu_s) * 1000,
        max(0.0, client_s - watch.own_cpu_s) * 1000,
        rows,
        memory / 2**20,
        call.limit_ms,
        "yes" if counted_ms < call.limit_ms else "NO",
    ]


# -- the calls


async def _compaction_view(metadata: PostgresMetadata) -> tuple[int, Any]:
    view = await metadata.compactors.compaction_view()
    return len(view.files) + sum(len(each.extents) for each in view.partitions), view


async def _expire(metadata: PostgresMetadata) -> tuple[int, Any]:
    return (await metadata.deletion.expire()).extents, None


async def _expire_producers(metadata: PostgresMetadata) -> tuple[int, Any]:
    dropped, after = 0, None
    while True:
        looked = await metadata.deletion.expire_producers(after=after)
        dropped, after = dropped + looked.producers, looked.after
        if after is None:
            return dropped, None


async def _forget_rows(metadata: PostgresMetadata) -> tuple[int, Any]:
    return await metadata.deletion.forget_rows(before_ms=await metadata.now_ms() - 2 * DAY_MS), None


async def _dead_files(metadata: PostgresMetadata) -> tuple[int, Any]:
    files = await metadata.deletion.dead_files(grace_ms=GRACE_MS)
    return len(files), files


async def _dead_waiting(metadata: PostgresMetadata) -> tuple[int, Any]:
    return (await metadata.deletion.dead_waiting()).files, None


async def _polls(metadata: PostgresMetadata) -> tuple[int, Any]:
    cursor = (await metadata.agents.snapshot()).cursor
    files = 0
    for _ in range(POLLS):
        tail = await metadata.agents.tail(cursor)
        cursor, files = tail.cursor, files + len(tail.files)
    return files, cursor


async def _observe(metadata: PostgresMetadata) -> tuple[int, Any]:
    seen = await metadata.operators.observe(lags_max=100)
    return len(seen.postgres.tables) if seen.postgres else 0, seen


async def _cold_start(metadata: PostgresMetadata) -> tuple[int, Any]:
    """The rows are batches of L0. The agent keeps its index of them, and its topics."""
    index, topics = LogIndex(), TopicCache()
    follower = Follower(
        metadata=metadata.agents,
        topic_cache=topics,
        index=index,
        parked_readers=ParkedReaders(),
        poll_ms=60_000,
        callbacks=FollowerCallbacks(on_fatal=_fail),
        runtime=Runtime(clock=SystemClock(), metrics=Metrics()),
    )
    await follower.start()
    await follower.stop()
    return index.extents, (index, topics)


def _fail(error: Exception) -> None:
    raise error


async def _backup(metadata: PostgresMetadata) -> tuple[int, Any]:
    taken = 0

    async def take(_: BackupTable, rows: Sequence[Sequence[Any]]) -> None:
        nonlocal taken
        taken += len(rows)

    await metadata.backup.rows(take)
    return taken, None


VIEW = "the planner's view"
POLL = f"{POLLS} idle polls of a follower"
CALLS = (
    Call("an agent's cold start", _cold_start),
    Call(POLL, _polls),
    Call(VIEW, _compaction_view),
    Call("the observer's look", _observe),
    Call("the gauge of dead files", _dead_waiting),
    Call("the janitor's next 1,000 files", _dead_files),
    Call("the catalogue's copy", _backup, BACKUP_LIMIT_MS, whole_transaction=True),
    Call("retention, one round", _expire),
    Call("expiry of producers, all slices", _expire_producers),
    Call("forgetting, all batches", _forget_rows),
)
