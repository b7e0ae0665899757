"""The cost to Postgres of agents that follow it: idle ones with their heart-beats, and ones that hear of commits.

Embedded Postgres with its production settings, a new database per row. The agents run in PROCESSES processes of their
own, each agent with its own connections, lease, heart-beats and follower, and none with clients. In a row with former
writers, the cluster has had many agents at other addresses. Twelve writers commit four files a second each; the row
without followers shows what that costs by itself.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from bench.loads.followers import FollowersJob
from bench.measures.usage import postgres_usage, usage
from bench.registry import Size
from bench.servers.databases import migrated_database
from bench.table import Cell, Column, Table
from metadata.postgres.driver import Connection, open_connection
from metadata.postgres.store import PostgresMetadata
from siltstone.embedded.postgres import EmbeddedPostgres

PROCESSES = 2
PARTITIONS = 10
WRITERS = 12
COMMITS_PER_S = 4.0
SECONDS = {Size.SMALL: 6.0, Size.FULL: 15.0}
WARM_UP_S = 11.0
"""Postgres tells of a session's transactions up to ten seconds later."""
COLUMNS = (
    Column("followers"),
    Column("former writers"),
    Column("commits", "1/s", 1),
    Column("polls of a follower", "1/s", 2),
    Column("transactions", "1/s", 1),
    Column("server", "cores", 3),
    Column("of that a follower", "ms/s", 2),
    Column("the followers' own processes", "cores", 3),
)


@dataclass(frozen=True, slots=True)
class Case:
    followers: int
    former_writers: int = 0
    writers: int = 0


CASES = (Case(3), Case(64), Case(64, former_writers=10_000), Case(0, writers=WRITERS), Case(64, writers=WRITERS))


def run(size: Size) -> Iterator[Table]:
    yield measure(CASES, SECONDS[size])


def measure(cases: Sequence[Case], seconds: float) -> Table:
    with tempfile.TemporaryDirectory(prefix="siltstone-bench-") as folder:
        Path(folder).chmod(0o711)  # Postgres may run as another user
        with EmbeddedPostgres(Path(folder) / "postgres", settings={"max_connections": "800"}) as server:
            rows = [asyncio.run(_measure(server, number, case, seconds)) for number, case in enumerate(cases)]
    return Table(
        "Followers",
        f"Agents without clients, {WRITERS} writers of {COMMITS_PER_S:g} files a second and {PARTITIONS} partitions."
        " The server's cores are user and system time of all its processes; a follower's share has its heart-beats in"
        " it, and in rows with writers the commits.",
        COLUMNS,
        rows,
    )


async def _measure(server: EmbeddedPostgres, number: int, case: Case, seconds: float) -> Sequence[Cell]:
    print(f"{case.followers} followers, {case.writers} writers", file=sys.stderr, flush=True)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(migrated_database(server, f"followers_{number}"))
        session = await open_connection(url, connect_timeout_s=10, command_timeout_s=60, settings={})
        stack.push_async_callback(session.close)
        service = PostgresMetadata(url)
        await service.open()
        topic = await service.agents.create_topic("bench", partitions=PARTITIONS, configs={})
        await service.close()
        await session.execute(
            "INSERT INTO writers (host, port, epoch, last_seq)"
            f" SELECT 'former', n, 1, 100 FROM generate_series(1, {case.former_writers}) AS n"
        )
        # The writers are in the first process, which has followers too, as an agent that writes also follows.
        children = [
            await stack.enter_async_context(
                _child(
                    FollowersJob(
                        url=url,
                        first_port=10_000 + 1_000 * process,
                        followers=len(range(process, case.followers, PROCESSES)),
                        writers=case.writers if process == 0 else 0,
                        commits_per_s=COMMITS_PER_S,
                        partition_ids=topic.partition_ids,
                    )
                )
            )
            for process in range(PROCESSES)
        ]
        await asyncio.sleep(WARM_UP_S)
        before = await _read(server, session, children)
        await asyncio.sleep(seconds)
        after = await _read(server, session, children)
    passed_s = after["at_s"] - before["at_s"]
    rate = {name: (after[name] - before[name]) / passed_s for name in after}
    return [
        case.followers,
        case.former_writers,
        rate["commits"],
        rate["polls"] / case.followers if case.followers else None,
        rate["transactions"],
        rate["server_s"],
        rate["server_s"] * 1000 / case.followers if case.followers else None,
        rate["own_s"],
    ]


@asynccontextmanager
async def _child(job: FollowersJob) -> AsyncGenerator[asyncio.subprocess.Process]:
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.loads.followers", stdin=pipe, stdout=pipe, limit=1 << 20
    )
    assert child.stdin is not None and child.stdout is not None
    try:
        child.stdin.write(json.dumps({**asdict(job), "partition_ids": list(job.partition_ids)}).encode() + b"\n")
        if await child.stdout.readline() != b"runs\n":
            raise RuntimeError("a process of followers ended before it ran")
        yield child
        child.stdin.close()
        await child.wait()
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()


async def _read(
    server: EmbeddedPostgres, session: Connection, children: Sequence[asyncio.subprocess.Process]
) -> dict[str, float]:
    counts = Counter[str]({"polls": 0, "commits": 0})
    for child in children:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write(b"\n")
        counts.update(json.loads(await child.stdout.readline()))
    query = "SELECT xact_commit + xact_rollback FROM pg_stat_database WHERE datname = current_database()"
    return {
        "polls": counts["polls"],
        "commits": counts["commits"],
        "transactions": await session.fetchval(query),
        "server_s": postgres_usage(server.pid).cpu_s,
        "own_s": sum(usage(child.pid).cpu_s for child in children),
        "at_s": asyncio.get_running_loop().time(),
    }
