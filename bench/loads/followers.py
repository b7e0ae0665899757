"""Followers and writers of a metadata store without the rest of an agent, in a process of their own.

`python -m bench.loads.followers` reads one job as JSON on stdin. Each agent has its own connections, its lease, its
heart-beats and its follower, as an agent of the product has; some of them commit besides. The process prints a line
when all of them run. Then it answers each line on stdin by one line of JSON, the totals since its start. It ends with
its stdin.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections import Counter
from collections.abc import Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

from agents.membership import Membership
from agents.tail.follower import Follower, FollowerCallbacks
from agents.tail.log_index import LogIndex
from agents.tail.waiters import ParkedReaders
from agents.topics.topic_cache import TopicCache
from metadata.contract.l0_commit import CommitL0, L0Batch
from metadata.contract.leases import AgentAddress
from metadata.contract.tail import Cursor, Tail
from metadata.postgres.store import PostgresMetadata
from runtime.runtime import Runtime
from storage.keys import file_key

POLL_MS = 100.0
"""The default of tail.poll.ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowersJob:
    url: str
    first_port: int
    """The agents take ports from here on, in name only."""
    followers: int
    writers: int
    """Agents that commit and do not follow."""
    commits_per_s: float
    """Of each writer."""
    partition_ids: Sequence[int]
    """Every commit has a batch for each."""


class _Counting:
    """The calls of an agent, with the tail counted."""

    def __init__(self, inner: Any, counts: Counter[str]) -> None:
        self._inner, self._counts = inner, counts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def tail(self, cursor: Cursor) -> Tail:
        self._counts["polls"] += 1
        tail: Tail = await self._inner.tail(cursor)
        self._counts["files"] += len(tail.files)
        return tail


async def run(job: FollowersJob) -> None:
    runtime, counts = Runtime(), Counter[str]()
    loop = asyncio.get_running_loop()
    async with AsyncExitStack() as stack:
        for number in range(job.followers + job.writers):
            service = PostgresMetadata(job.url, runtime=Runtime())
            await service.open()
            stack.push_async_callback(service.close)
            agents: Any = _Counting(service.agents, counts)
            address = AgentAddress(host="bench", port=job.first_port + number)
            membership = Membership(metadata=agents, address=address, runtime=runtime)
            await membership.join()
            stack.push_async_callback(membership.leave)
            if number < job.followers:
                follower = Follower(
                    metadata=agents,
                    topic_cache=TopicCache(),
                    index=LogIndex(),
                    parked_readers=ParkedReaders(),
                    poll_ms=POLL_MS,
                    callbacks=FollowerCallbacks(on_fatal=_fail),
                    runtime=runtime,
                )
                await follower.start()
                stack.push_async_callback(follower.stop)
            else:
                lag_s = (number - job.followers) / job.writers / job.commits_per_s
                writing = asyncio.create_task(_write(job, agents, membership, runtime, counts, lag_s))
                stack.callback(writing.cancel)
        print("runs", flush=True)
        while await loop.run_in_executor(None, sys.stdin.readline):
            print(json.dumps(counts), flush=True)


async def _write(
    job: FollowersJob, agents: Any, membership: Membership, runtime: Runtime, counts: Counter[str], lag_s: float
) -> None:
    await asyncio.sleep(lag_s)
    due_s, seq = asyncio.get_running_loop().time(), 0
    while True:
        now_ms, lease = membership.now_ms(), membership.current
        file_uuid = runtime.ids.uuid7(now_ms)
        batches = [
            L0Batch(
                partition_id=partition_id,
                position=number * 1000,
                length=1000,
                record_count=1,
                min_timestamp_ms=now_ms,
                max_timestamp_ms=now_ms,
            )
            for number, partition_id in enumerate(job.partition_ids)
        ]
        key = file_key(level=0, writer_id=lease.writer_id, epoch=lease.epoch, file_uuid=file_uuid, created_ms=now_ms)
        await agents.commit_l0(
            CommitL0(lease=lease, seq=seq, key=key, size_bytes=1000 * len(batches), crc32c=0, batches=batches)
        )
        await agents.notify()
        counts["commits"] += 1
        seq += 1
        due_s += 1 / job.commits_per_s
        await asyncio.sleep(due_s - asyncio.get_running_loop().time())


def _fail(error: Exception) -> None:
    raise error


if __name__ == "__main__":
    asyncio.run(run(FollowersJob(**json.loads(sys.stdin.readline()))))
