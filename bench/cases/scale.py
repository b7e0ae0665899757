"""The growth with partitions and connections: the start of an agent, its stalls, its memory, and what clients ask.

The partitions are made through the metadata store. The agent runs in a process of its own, which watches its event
loop: a stall is the CPU time between two turns of another task. On a machine of its own, every connection of this agent
would wait that long. Clients run in this process.
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import sys
import tempfile
import time
from collections.abc import Awaitable, Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

from agents.agent import Agent
from bench.measures.usage import resident_bytes
from bench.registry import Size
from bench.servers.databases import migrated_database
from bench.table import Cell, Column, Table
from metadata.postgres.store import PostgresMetadata
from runtime.runtime import Runtime
from runtime.settings.table import Settings
from siltstone.embedded.postgres import EmbeddedPostgres
from siltstone.kafka.client import KafkaClient
from siltstone.processes.garbage import SELDOM
from storage.memory import MemoryStore
from wire.error_codes import ErrorCode
from wire.messages import join_group, offset_commit, sync_group

TOPIC_PARTITIONS = 1_000
COMMITTED = 10_000
"""Partitions in one commit of a group."""
SHAPES = {Size.SMALL: ((10_000, 200),), Size.FULL: ((10_000, 200), (10_000, 5_000), (100_000, 200), (100_000, 5_000))}
"""Pairs of partitions and connections."""
IDLE_S = {Size.SMALL: 3.0, Size.FULL: 10.0}
CONNECT_AT_ONCE = 100
TICK_S = 0.005
KIB = 1 << 10
GROUP = "bench"


@dataclass(frozen=True, slots=True)
class Reading:
    """The work of an agent since its last reading."""

    seconds: float
    cpu_s: float
    stall_s: float
    resident_bytes: int
    """Now."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    partitions: int
    connections: int
    start: Reading
    empty_bytes: int
    """Resident before the agent began to start."""
    connected: Reading
    idle: Reading
    metadata_one: Reading
    metadata_all: Reading
    join: Reading
    commit: Reading


def run(size: Size) -> Iterator[Table]:
    rows: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="siltstone-bench-") as folder:
        Path(folder).chmod(0o711)  # Postgres may have to run as another user, who must reach its folder
        with EmbeddedPostgres(Path(folder) / "postgres") as server:
            rows += [asyncio.run(_row(server, *shape, IDLE_S[size])) for shape in SHAPES[size]]
    yield _table(rows)


async def _row(server: EmbeddedPostgres, partitions: int, connections: int, idle_s: float) -> Row:
    print(f"{partitions} partitions, {connections} connections", file=sys.stderr, flush=True)
    async with AsyncExitStack() as stack:
        url = await stack.enter_async_context(migrated_database(server, f"scale_{partitions}_{connections}"))
        await _make(url, partitions)
        ours, theirs = multiprocessing.Pipe()
        process = multiprocessing.get_context("spawn").Process(target=_agent, args=(url, theirs))
        process.start()
        stack.callback(process.join)
        stack.callback(ours.send, False)
        address, empty_bytes, start = await asyncio.to_thread(ours.recv)

        async def measured(work: Awaitable[object]) -> Reading:
            await _asked(ours)
            await work
            return await _asked(ours)

        clients: list[KafkaClient] = []

        async def connect() -> None:
            while len(clients) < connections:
                some = (KafkaClient.connect(address, timeout_ms=60_000) for _ in range(CONNECT_AT_ONCE))
                clients.extend(await asyncio.gather(*some))

        connected = await measured(connect())
        stack.push_async_callback(_close, clients)
        return Row(
            partitions=partitions,
            connections=connections,
            start=start,
            empty_bytes=empty_bytes,
            connected=connected,
            idle=await measured(asyncio.sleep(idle_s)),
            metadata_one=await measured(clients[0].metadata([_name(0)])),
            metadata_all=await measured(clients[0].metadata()),
            join=await measured(_join(clients[0], min(partitions, COMMITTED))),
            commit=await measured(_commit(clients[0], min(partitions, COMMITTED))),
        )


async def _asked(agent: Connection) -> Reading:
    agent.send(True)
    return await asyncio.to_thread(agent.recv)


async def _close(clients: Sequence[KafkaClient]) -> None:
    await asyncio.gather(*(client.close() for client in clients))


async def _make(url: str, partitions: int) -> None:
    metadata = PostgresMetadata(url, runtime=Runtime())
    await metadata.open()
    try:
        for number in range(partitions // TOPIC_PARTITIONS):
            await metadata.agents.create_topic(_name(number), partitions=TOPIC_PARTITIONS, configs={})
    finally:
        await metadata.close()


def _name(number: int) -> str:
    return f"orders.region-{number:05}"


async def _join(client: KafkaClient, partitions: int) -> None:
    """One member joins and stores an assignment of as many bytes as so many partitions take."""
    member_id = ""
    while True:
        joined = await client.call(
            join_group.JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id=member_id,
                protocol_type="consumer",
                protocols=[join_group.JoinGroupRequestProtocol(name="range", metadata=b"\x00\x00")],
            ),
            join_group.JoinGroupResponse,
        )
        member_id = joined.member_id
        if joined.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            break
    assignment = sync_group.SyncGroupRequestAssignment(member_id=member_id, assignment=bytes(4 * partitions))
    synced = await client.call(
        sync_group.SyncGroupRequest(
            group_id=GROUP,
            generation_id=joined.generation_id,
            member_id=member_id,
            protocol_type="consumer",
            protocol_name="range",
            assignments=[assignment],
        ),
        sync_group.SyncGroupResponse,
    )
    assert (joined.error_code, synced.error_code) == (0, 0)


async def _commit(client: KafkaClient, partitions: int) -> None:
    """Commits an offset of each partition in one request, as a client without a group does."""
    of_topic = [
        offset_commit.OffsetCommitRequestPartition(partition_index=at, committed_offset=0, committed_metadata="")
        for at in range(TOPIC_PARTITIONS)
    ]
    topics = [
        offset_commit.OffsetCommitRequestTopic(name=_name(number), partitions=of_topic)
        for number in range(partitions // TOPIC_PARTITIONS)
    ]
    request = offset_commit.OffsetCommitRequest(
        group_id=f"{GROUP}-2", generation_id_or_member_epoch=-1, member_id="", topics=topics
    )
    answer = await client.call(request, offset_commit.OffsetCommitResponse)
    assert all(each.error_code == 0 for topic in answer.topics for each in topic.partitions)


# ---- the agent's process


def _agent(url: str, parent: Connection) -> None:
    asyncio.run(_serve(url, parent))


async def _serve(url: str, parent: Connection) -> None:
    metadata = PostgresMetadata(url, runtime=Runtime())
    await metadata.open()
    settings = Settings(listen="127.0.0.1:0", group_initial_rebalance_delay_ms=0, connections_max=10_000)
    agent = Agent(settings=settings, store=MemoryStore(), metadata=metadata, runtime=Runtime())
    # As `siltstone agent` does.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*SELDOM)
    watch = Watch()
    empty_bytes = resident_bytes(os.getpid())
    await asyncio.sleep(10 * TICK_S)
    watch.read()
    await agent.start()
    gc.freeze()
    await asyncio.sleep(2 * TICK_S)
    parent.send((agent.address, empty_bytes, watch.read()))
    asked = asyncio.Event()
    asyncio.get_running_loop().add_reader(parent.fileno(), asked.set)
    while True:
        await asked.wait()
        asked.clear()
        if not parent.poll():
            continue  # the loop saw the same message twice
        if not parent.recv():
            break
        await asyncio.sleep(2 * TICK_S)
        parent.send(watch.read())
    watch.stop()
    await agent.stop()
    await metadata.close()


class Watch:
    """Watches the event loop of this process."""

    def __init__(self) -> None:
        self._longest_s = 0.0
        self._at = (time.perf_counter(), time.process_time())
        self._task = asyncio.create_task(self._run())

    def read(self) -> Reading:
        """The reading since the last call."""
        at = (time.perf_counter(), time.process_time())
        seconds, cpu_s = at[0] - self._at[0], at[1] - self._at[1]
        reading = Reading(seconds, cpu_s, self._longest_s, resident_bytes(os.getpid()))
        self._at, self._longest_s = at, 0.0
        return reading

    def stop(self) -> None:
        self._task.cancel()

    async def _run(self) -> None:
        while True:
            before_s = time.thread_time()
            await asyncio.sleep(TICK_S)
            self._longest_s = max(self._longest_s, time.thread_time() - before_s)


# ---- the table


def _table(rows: Sequence[Row]) -> Table:
    return Table(
        "What grows with partitions and connections",
        f"One agent on Postgres, topics of {TOPIC_PARTITIONS:,} partitions without records. Stall: the most CPU time "
        "in one turn of the event loop. Memory: resident, what the start added for a partition and the connections for "
        f"one of them. Commit: of up to {COMMITTED:,} partitions in one request. Idle CPU includes what watches the "
        "loop, 200 turns a second.",
        (
            Column("partitions"),
            Column("connections"),
            Column("start", "ms"),
            Column("its stall", "ms"),
            Column("memory a partition", "B"),
            Column("connecting, stall", "ms"),
            Column("memory a connection", "KiB", 1),
            Column("idle CPU", "ms/s", 1),
            Column("its stall", "ms", 1),
            Column("Metadata of one topic, CPU", "ms", 1),
            Column("of all", "ms"),
            Column("its stall", "ms", 1),
            Column("join, CPU", "ms", 1),
            Column("its stall", "ms", 1),
            Column("commit, CPU a partition", "us", 1),
            Column("its stall", "ms", 1),
        ),
        [_cells(row) for row in rows],
    )


def _cells(row: Row) -> list[Cell]:
    connections_bytes = row.connected.resident_bytes - row.start.resident_bytes
    return [
        row.partitions,
        row.connections,
        row.start.seconds * 1000,
        row.start.stall_s * 1000,
        (row.start.resident_bytes - row.empty_bytes) / row.partitions,
        row.connected.stall_s * 1000,
        connections_bytes / KIB / row.connections,
        row.idle.cpu_s * 1000 / row.idle.seconds,
        row.idle.stall_s * 1000,
        row.metadata_one.cpu_s * 1000,
        row.metadata_all.cpu_s * 1000,
        row.metadata_all.stall_s * 1000,
        row.join.cpu_s * 1000,
        row.join.stall_s * 1000,
        row.commit.cpu_s * 1e6 / min(row.partitions, COMMITTED),
        row.commit.stall_s * 1000,
    ]
