"""The cost of committing offsets of consumer groups, and the table's growth after a storm of commits.

Embedded Postgres with its production settings (fsync on, autovacuum as shipped), a new database per row, one agent that
owns all groups and commits call after call. Every call has ten partitions per group, as an agent's commits do when they
are gathered for some milliseconds. The time is that of the whole call, including the agent's own Python.

The storm commits the same 1,000 offsets again and again, and looks at the table after the first call and after the
last. With a held snapshot, another session sits in a REPEATABLE READ transaction from before the first call on:
Postgres can then prune no old version of a row, and every commit leaves one.
"""

from __future__ import annotations

import asyncio
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.cases.rebalance import rebalances
from bench.measures.limits import plain_insert_p50_ms
from bench.measures.usage import postgres_usage
from bench.registry import Size
from bench.servers.databases import held_snapshot, migrated_database, wal_position
from bench.table import Cell, Column, Table
from metadata.contract.leases import AgentAddress
from metadata.groups.contract import GroupLease, OffsetCommitBatch, OffsetPlace, OffsetToCommit
from metadata.postgres.driver import open_connection
from metadata.postgres.store import PostgresMetadata
from siltstone.embedded.postgres import EmbeddedPostgres

PARTITIONS = 10
"""The partitions of each group, in every call."""
CALLS = {Size.SMALL: {1: 300, 10: 300, 100: 60}, Size.FULL: {1: 2000, 10: 2000, 100: 400}}
STORM_GROUPS = 100
STORM_CALLS = {Size.SMALL: 40, Size.FULL: 200}
WARM_UP_CALLS = 10
"""Enough for PL/pgSQL to have chosen between generic and custom plans (it tries five custom ones)."""
STATISTICS_LOOKS = 600
MIB = 1 << 20
COLUMNS = (
    Column("groups"),
    Column("offsets"),
    Column("calls"),
    Column("p50", "ms", 2),
    Column("p99", "ms", 2),
    Column("of one INSERT", "x", 1),
    Column("commits of a group", "1/s"),
    Column("offsets written", "1/s"),
    Column("server CPU", "ms", 2),
    Column("agent CPU", "ms", 2),
    Column("WAL an offset", "B"),
)
STORM_COLUMNS = (
    Column("snapshot"),
    Column("rows"),
    Column("updates"),
    Column("offsets written", "1/s"),
    Column("HOT", "%", 1),
    Column("WAL an offset", "B"),
    Column("table after the first", "MiB", 2),
    Column("after the last", "MiB", 2),
    Column("indexes after the first", "MiB", 2),
    Column("after the last", "MiB", 2),
)


@dataclass(frozen=True, slots=True)
class Run:
    """The figures of some calls."""

    times_s: Sequence[float]
    server_cpu_s: float
    agent_cpu_s: float
    wal_bytes: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """The size of the table."""

    heap_bytes: int
    index_bytes: int


def run(size: Size) -> Iterator[Table]:
    with tempfile.TemporaryDirectory(prefix="siltstone-bench-") as folder:
        Path(folder).chmod(0o711)  # Postgres may run as another user
        with EmbeddedPostgres(Path(folder) / "postgres") as server:
            insert_ms = asyncio.run(plain_insert_p50_ms(server.url))
            yield Table(
                "Commit of consumer groups' offsets, ten partitions a group",
                f"A plain INSERT of one row took {insert_ms:.2f} ms (p50) in this run. CPU is user and system time per"
                " call.",
                COLUMNS,
                [asyncio.run(_commits(server, groups, calls, insert_ms)) for groups, calls in CALLS[size].items()],
            )
            yield Table(
                "A storm of commits of the same offsets",
                f"{STORM_GROUPS} groups of {PARTITIONS} partitions in every call; sizes of `group_offsets`.",
                STORM_COLUMNS,
                [asyncio.run(_storm(server, STORM_CALLS[size], held)) for held in (False, True)],
            )
    yield rebalances(size)


async def _commits(server: EmbeddedPostgres, groups: int, calls: int, insert_ms: float) -> Sequence[Cell]:
    print(f"{groups} groups", file=sys.stderr, flush=True)
    async with migrated_database(server, f"groups_{groups}") as url:
        service = PostgresMetadata(url)
        await service.open()
        try:
            leases, places = await _prepare(service, groups)
            await _commit_many(service, server, url, leases, places, range(WARM_UP_CALLS))
            done = await _commit_many(service, server, url, leases, places, range(WARM_UP_CALLS, WARM_UP_CALLS + calls))
        finally:
            await service.close()
    offsets = groups * PARTITIONS
    p50_ms, seconds = statistics.median(done.times_s) * 1000, sum(done.times_s)
    return [
        groups,
        offsets,
        calls,
        p50_ms,
        sorted(done.times_s)[int(calls * 0.99)] * 1000,
        p50_ms / insert_ms,
        groups * calls / seconds,
        offsets * calls / seconds,
        done.server_cpu_s * 1000 / calls,
        done.agent_cpu_s * 1000 / calls,
        done.wal_bytes / calls / offsets,
    ]


async def _storm(server: EmbeddedPostgres, calls: int, held: bool) -> Sequence[Cell]:
    print(f"storm, snapshot {'held' if held else 'not held'}", file=sys.stderr, flush=True)
    async with migrated_database(server, f"storm_{held}".lower()) as url:
        service = PostgresMetadata(url)
        await service.open()
        try:
            leases, places = await _prepare(service, STORM_GROUPS)
            async with held_snapshot(url, held):
                await _commit_many(service, server, url, leases, places, range(1))
                before = await _table(url)
                done = await _commit_many(service, server, url, leases, places, range(1, calls + 1))
                after = await _table(url)
        finally:
            await service.close()
        hot = await _hot_share(url, calls * len(leases) * len(places))
    rows = len(leases) * len(places)
    return [
        "held" if held else "-",
        rows,
        rows * calls,
        rows * calls / sum(done.times_s),
        100 * hot,
        done.wal_bytes / calls / rows,
        before.heap_bytes / MIB,
        after.heap_bytes / MIB,
        before.index_bytes / MIB,
        after.index_bytes / MIB,
    ]


async def _prepare(service: PostgresMetadata, groups: int) -> tuple[Sequence[GroupLease], Sequence[OffsetPlace]]:
    topic = await service.agents.create_topic("bench", partitions=PARTITIONS, configs={})
    owner = await service.agents.register_agent(AgentAddress(host="bench", port=9092))
    leases: list[GroupLease] = []
    for number in range(groups):
        if number % 50 == 0:
            await service.agents.heartbeat(owner)
        taken = await service.groups.take_group(f"consumer-group-{number:05}", owner=owner, create=True)
        assert taken is not None
        leases.append(taken.lease)
    return leases, [OffsetPlace(topic.topic_id, partition) for partition in range(PARTITIONS)]


async def _commit_many(
    service: PostgresMetadata,
    server: EmbeddedPostgres,
    url: str,
    leases: Sequence[GroupLease],
    places: Sequence[OffsetPlace],
    offsets: range,
) -> Run:
    """One call for each element of `offsets`, which it commits everywhere."""
    times_s: list[float] = []
    agent_cpu_s = 0.0
    wal_before, cpu_before = await wal_position(url), postgres_usage(server.pid).cpu_s
    for offset in offsets:
        batches = [
            OffsetCommitBatch(
                lease=lease,
                offsets=[
                    OffsetToCommit(place=place, offset=offset * 500, leader_epoch=0, metadata="") for place in places
                ],
            )
            for lease in leases
        ]
        cpu_started, started = time.process_time(), time.perf_counter()
        results = await service.groups.commit_offsets(batches)
        times_s.append(time.perf_counter() - started)
        agent_cpu_s += time.process_time() - cpu_started
        assert not any(result.fenced or result.unknown for result in results)
    cpu_after, wal_after = postgres_usage(server.pid).cpu_s, await wal_position(url)
    return Run(
        times_s=times_s,
        server_cpu_s=cpu_after - cpu_before,
        agent_cpu_s=agent_cpu_s,
        wal_bytes=wal_after - wal_before,
    )


async def _table(url: str) -> Footprint:
    connection = await open_connection(url, connect_timeout_s=10, command_timeout_s=60, settings={})
    try:
        row = await connection.fetchrow(
            "SELECT pg_relation_size('group_offsets') AS heap, pg_indexes_size('group_offsets') AS indexes"
        )
    finally:
        await connection.close()
    assert row is not None
    return Footprint(heap_bytes=row["heap"], index_bytes=row["indexes"])


async def _hot_share(url: str, updates: int) -> float:
    """The share of HOT updates among all updates of offsets. The session that made them has ended, and its counts
    arrive a moment later.
    """
    connection = await open_connection(url, connect_timeout_s=10, command_timeout_s=60, settings={})
    counts = "SELECT n_tup_upd AS all, n_tup_hot_upd AS hot FROM pg_stat_user_tables WHERE relname = 'group_offsets'"
    try:
        for _ in range(STATISTICS_LOOKS):
            row = await connection.fetchrow(counts)
            if row is not None and row["all"] >= updates:
                return row["hot"] / row["all"]
            await asyncio.sleep(0.05)
    finally:
        await connection.close()
    raise TimeoutError("Postgres does not tell how many updates there were")
