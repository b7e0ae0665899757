"""Offsets committed as fast as Postgres takes them, for a while: the table stays as it was, and a commit's WAL."""

from __future__ import annotations

import time
from collections.abc import Sequence
from itertools import pairwise

import pytest

from metadata.contract.leases import AgentAddress
from metadata.groups.contract import GroupLease, OffsetCommitBatch, OffsetPlace, OffsetToCommit
from metadata.postgres.driver import open_connection
from metadata.postgres.store import PostgresMetadata

GROUPS, PARTITIONS = 100, 10
LOOKS = 10
"""During a storm."""
FILL = 3
"""The table may become so many times as large as after the first commit: room for row versions that are not pruned yet,
which HOT updates then use again."""


@pytest.mark.parametrize(
    "seconds", [5, pytest.param(600, marks=[pytest.mark.soak, pytest.mark.timeout(900)])], ids=["short", "long"]
)
async def test_a_storm_of_commits_leaves_the_table_as_large_as_it_was(postgres_url: str, seconds: int) -> None:
    service = PostgresMetadata(postgres_url)
    await service.open()
    look = await open_connection(postgres_url, connect_timeout_s=10, command_timeout_s=60, settings={})
    try:
        topic = await service.agents.create_topic("t", partitions=PARTITIONS, configs={})
        owner = await service.agents.register_agent(AgentAddress(host="127.0.0.1", port=9092))
        leases: list[GroupLease] = []
        for number in range(GROUPS):
            taken = await service.groups.take_group(f"group-{number}", owner=owner, create=True)
            assert taken is not None
            leases.append(taken.lease)
        places = [OffsetPlace(topic.topic_id, partition) for partition in range(PARTITIONS)]
        sizes: list[int] = []
        wal_bytes: list[float] = []
        rates: list[float] = []
        offset = 0
        for _ in range(LOOKS + 1):
            wal, started, calls = await look.fetchval(WAL), time.monotonic(), 0
            while calls == 0 or (sizes and time.monotonic() - started < seconds / LOOKS):
                await service.agents.heartbeat(owner)
                results = await service.groups.commit_offsets([_batch(lease, places, offset) for lease in leases])
                assert not any(result.fenced or result.unknown for result in results)
                calls, offset = calls + 1, offset + 1
            rates.append(calls * GROUPS / (time.monotonic() - started))
            wal_bytes.append((await look.fetchval(WAL) - wal) / calls / GROUPS / PARTITIONS)
            sizes.append(await look.fetchval("SELECT pg_total_relation_size('group_offsets')"))
        print("commits/s", *map(round, rates[1:]), "WAL bytes an offset", *map(round, wal_bytes[1:]))
        print(f"table bytes {sizes}")
        assert max(wal_bytes[2:]) <= 1.5 * wal_bytes[1]
        assert max(sizes) <= FILL * sizes[0]
        # A vacuum that comes late on a busy machine makes the table grow once.
        grown = sum(after > 1.2 * before for before, after in pairwise(sizes[LOOKS // 2 :]))
        assert grown <= 1, "it grows on and on"
        rows = await look.fetchval("SELECT count(*) FROM group_offsets WHERE committed_offset = $1", offset - 1)
        assert rows == GROUPS * PARTITIONS
    finally:
        await look.close()
        await service.close()


WAL = "SELECT (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint"


def _batch(lease: GroupLease, places: Sequence[OffsetPlace], offset: int) -> OffsetCommitBatch:
    return OffsetCommitBatch(
        lease=lease,
        offsets=[OffsetToCommit(place=place, offset=offset, leader_epoch=0, metadata="") for place in places],
    )
