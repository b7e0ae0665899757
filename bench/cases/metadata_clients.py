"""The cost of many Metadata clients to an agent: 200 connections, 2,000 partitions in all.

One agent as a process. Every connection asks for all topics, round after round, all connections at once. Each then
fetches ten partitions of its own once a round, like a consumer at the end of the log. The agent's CPU is read around
the Metadata requests alone; its memory after the first round and after the last.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from contextlib import AsyncExitStack

from bench.measures.usage import resident_bytes
from bench.registry import Size
from bench.servers.stack import Stack, Store
from bench.table import Cell, Column, Table
from siltstone.kafka.client import KafkaClient

CONNECTIONS = 200
TOPICS, PARTITIONS = 20, 100
FETCHES = 10
ROUNDS = {Size.SMALL: 10, Size.FULL: 50}
MIB = 1 << 20
COLUMNS = (
    Column("connections"),
    Column("partitions"),
    Column("answers"),
    Column("agent CPU an answer", "ms", 3),
    Column("memory after the first round", "MiB", 1),
    Column("after the last", "MiB", 1),
)


def metadata_clients(size: Size) -> Table:
    print(f"{CONNECTIONS} connections", file=sys.stderr, flush=True)
    with Stack(Store.LOCAL) as stack:
        row = asyncio.run(_row(stack, ROUNDS[size]))
    return Table("Metadata asked for by many clients", "Memory is resident, of the agent's process.", COLUMNS, [row])


async def _row(stack: Stack, rounds: int) -> Sequence[Cell]:
    [agent] = stack.agents
    async with AsyncExitStack() as connections:
        clients: list[KafkaClient] = []
        for _ in range(CONNECTIONS):
            clients.append(await KafkaClient.connect(stack.bootstrap, timeout_ms=60_000))
            connections.push_async_callback(clients[-1].close)
        for number in range(TOPICS):
            await clients[0].create_topic(f"bench-{number:02}", partitions=PARTITIONS)
        cpu_s, memory = 0.0, list[int]()
        for _ in range(rounds):
            before = stack.read().agents.cpu_s
            answers = await asyncio.gather(*(client.metadata() for client in clients))
            cpu_s += stack.read().agents.cpu_s - before
            assert all(sum(len(topic.partitions) for topic in each.topics) == TOPICS * PARTITIONS for each in answers)
            await asyncio.gather(*(_fetch(number, client) for number, client in enumerate(clients)))
            memory.append(resident_bytes(agent.process.pid))
    return [
        CONNECTIONS,
        TOPICS * PARTITIONS,
        CONNECTIONS * rounds,
        cpu_s * 1000 / CONNECTIONS / rounds,
        memory[0] / MIB,
        memory[-1] / MIB,
    ]


async def _fetch(number: int, client: KafkaClient) -> None:
    for at in range(number * FETCHES, (number + 1) * FETCHES):
        topic, partition = divmod(at, PARTITIONS)
        await client.fetch(f"bench-{topic:02}", partition, 0, max_wait_ms=0, min_bytes=0)
