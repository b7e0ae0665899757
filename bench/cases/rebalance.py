"""The time of a rebalance of many members, from the first request to the last answer.

One agent as a process, Postgres with its production settings, a connection for each member. A group forms: all members
come at once, wait for the initial delay (which is extended once, because they came while it ran), and get their
assignments when the leader's is stored. Then one more comes, and all others join again as soon as a heartbeat tells
them. The agent, the store and these clients need the time beyond the delays.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack

from bench.registry import Size
from bench.servers.stack import Stack, Store
from bench.table import Cell, Column, Table
from siltstone.kafka.client import KafkaClient
from wire.error_codes import ErrorCode
from wire.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from wire.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol, JoinGroupResponse
from wire.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse

MEMBERS = {Size.SMALL: (10, 100), Size.FULL: (10, 100, 500)}
DELAY_MS = 1_000
HEARTBEAT_S = 0.5
ASSIGNMENT = bytes(300)
"""About the size for thirty partitions of one topic."""
# Version 0, one topic named "bench", no user data.
SUBSCRIPTION = b"\x00\x00\x00\x00\x00\x01\x00\x05bench\xff\xff\xff\xff"
GROUP = "bench"
COLUMNS = (
    Column("members"),
    Column("formed", "ms", 0),
    Column("beyond its delays", "ms", 0),
    Column("its agent CPU", "ms", 0),
    Column("one more", "ms", 0),
    Column("beyond the heartbeat", "ms", 0),
    Column("its agent CPU", "ms", 0),
)


class Member:
    def __init__(self, client: KafkaClient) -> None:
        self._client = client
        self._member_id = ""
        self._generation = -1

    async def join(self) -> None:
        """Join, and wait for the assignment. Raises RuntimeError."""
        while True:
            request = JoinGroupRequest(
                group_id=GROUP,
                session_timeout_ms=30_000,
                rebalance_timeout_ms=30_000,
                member_id=self._member_id,
                protocol_type="consumer",
                protocols=[JoinGroupRequestProtocol(name="range", metadata=SUBSCRIPTION)],
            )
            joined = await self._client.call(request, JoinGroupResponse)
            self._member_id = joined.member_id
            # The first answer only gives a new member its id (KIP-394).
            if ErrorCode(joined.error_code) is ErrorCode.MEMBER_ID_REQUIRED:
                continue
            _check(joined.error_code)
            self._generation = joined.generation_id
            assignments = [
                SyncGroupRequestAssignment(member_id=each.member_id, assignment=ASSIGNMENT) for each in joined.members
            ]
            synced = await self._client.call(
                SyncGroupRequest(
                    group_id=GROUP,
                    generation_id=self._generation,
                    member_id=self._member_id,
                    protocol_type="consumer",
                    protocol_name="range",
                    assignments=assignments,
                ),
                SyncGroupResponse,
            )
            # Somebody joined meanwhile, so a new generation gathers.
            if ErrorCode(synced.error_code) is ErrorCode.REBALANCE_IN_PROGRESS:
                continue
            _check(synced.error_code)
            return

    async def rejoin_when_told(self) -> None:
        while True:
            request = HeartbeatRequest(
                group_id=GROUP, generation_id=self._generation, member_id=self._member_id, group_instance_id=None
            )
            answer = await self._client.call(request, HeartbeatResponse)
            if ErrorCode(answer.error_code) is ErrorCode.REBALANCE_IN_PROGRESS:
                return await self.join()
            _check(answer.error_code)
            await asyncio.sleep(HEARTBEAT_S)


def _check(code: int) -> None:
    if code:
        raise RuntimeError(f"the group answered {ErrorCode(code).name}")


def rebalances(size: Size) -> Table:
    return Table(
        "A rebalance, from the first request to the last assignment",
        f"The delay is {DELAY_MS:,} ms, twice; members send a heartbeat every {HEARTBEAT_S * 1000:.0f} ms. The members"
        " run in one process beside the agent, on the same processors.",
        COLUMNS,
        list(_rows(MEMBERS[size])),
    )


def _rows(counts: Sequence[int]) -> Iterator[Sequence[Cell]]:
    for count in counts:
        print(f"rebalance of {count} members", file=sys.stderr, flush=True)
        with Stack(Store.LOCAL, settings={"group.initial.rebalance.delay.ms": str(DELAY_MS)}) as stack:
            yield asyncio.run(_row(stack, count))


async def _row(stack: Stack, count: int) -> Sequence[Cell]:
    async with AsyncExitStack() as connections:
        members: list[Member] = []
        for _ in range(count + 1):
            client = await KafkaClient.connect(stack.bootstrap, timeout_ms=60_000)
            connections.push_async_callback(client.close)
            members.append(Member(client))
        *first, last = members
        cpu_0, started = stack.read().agents.cpu_s, time.perf_counter()
        await asyncio.gather(*(member.join() for member in first))
        formed_ms = (time.perf_counter() - started) * 1000
        cpu_1 = stack.read().agents.cpu_s
        waiting = [asyncio.create_task(member.rejoin_when_told()) for member in first]
        # All members have sent a heartbeat by now, so the measured time begins from a steady state.
        await asyncio.sleep(2 * HEARTBEAT_S)
        cpu_2, started = stack.read().agents.cpu_s, time.perf_counter()
        await asyncio.gather(last.join(), *waiting)
        grown_ms = (time.perf_counter() - started) * 1000
        cpu_3 = stack.read().agents.cpu_s
    return [
        count,
        formed_ms,
        formed_ms - 2 * DELAY_MS,
        (cpu_1 - cpu_0) * 1000,
        grown_ms,
        grown_ms - HEARTBEAT_S * 1000,
        (cpu_3 - cpu_2) * 1000,
    ]
