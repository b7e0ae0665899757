"""A topic is deleted while a merge of it is under way and its bytes lie in files beside those of another topic. In the
end no object holds a byte of it and no table a row.
"""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any

import pytest

from compactor.planning.spec import MergeKind
from metadata.contract.files import FileState
from metadata.postgres.driver import open_connection
from metadata.rules.packed_index import iter_index
from siltstone.kafka.client import KafkaClient
from storage.objects import ObjectNotFoundError
from tests.fixtures.agents import Dial
from tests.fixtures.compacted_systems import Gate, System, start_beside
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.waiting import until
from wire.batch import ProducerStamp
from wire.records import NewRecord, build_batch

SECRET = b"what-nobody-may-find-again"
PURGE_MS = 3_000
NO_OTHER_REWRITE = {
    "mostly_dead_fraction": 1.0,
    "l2_runs_min": 1_000,
    "daily_interval_ms": 3_600_000,
    "forced_dirty_wait_ms": 3_600_000,
    "forced_dirty_bytes_min": 1 << 40,
    "forced_interval_ms": 3_600_000,
}
"""Options under which only the purge deadline causes a rewrite of a file at L2."""
OF_PARTITION = {
    "extents": "SELECT count(*) FROM extents WHERE partition_id = $1",
    "log_starts": "SELECT count(*) FROM log_starts WHERE partition_id = $1",
    "watermarks": "SELECT count(*) FROM watermarks WHERE partition_id = $1",
    "producers": "SELECT count(*) FROM producers WHERE partition_id = $1",
    "partitions": "SELECT count(*) FROM partitions WHERE partition_id = $1",
    "merge_inputs": """SELECT count(*) FROM merge_inputs i JOIN extents e ON e.extent_id = i.extent_id
        WHERE e.partition_id = $1""",
    "live jobs": """SELECT count(*) FROM merge_jobs
        WHERE state IN ('ready', 'running') AND $1 = ANY (forced_partition_ids)""",
}


class Deleted:
    """Topic "gone", written with a producer id in the same files as topic "stays"."""

    def __init__(self, system: System, client: KafkaClient, postgres_url: str) -> None:
        self.system, self._client, self._postgres_url = system, client, postgres_url
        self.partition_id = -1
        self._sequence = itertools.count(step=10)

    async def create(self, policy: str) -> None:
        for name in ("gone", "stays"):
            await self.system.client.create_topic(name, partitions=1, configs={"cleanup.policy": policy})
        topics = {topic.name: topic for topic in await self.system.metadata.agents.list_topics()}
        [self.partition_id] = topics["gone"].partition_ids

    async def write(self, files: int) -> None:
        """Write both topics to each file."""
        for _ in range(files):
            sequence = next(self._sequence)
            now_ms = int(time.time() * 1000)
            records = [NewRecord(now_ms, b"k%d" % (sequence + at), SECRET) for at in range(10)]
            batch = build_batch(records, producer=ProducerStamp(77, 0, sequence))
            await asyncio.gather(self._client.produce("gone", 0, batch), self.system.write("stays", 1))

    async def rows(self) -> dict[str, int]:
        """The number of rows by table, for the partition that goes."""
        connection = await open_connection(self._postgres_url, connect_timeout_s=10, command_timeout_s=10, settings={})
        try:
            return {name: await connection.fetchval(query, self.partition_id) for name, query in OF_PARTITION.items()}
        finally:
            await connection.close()

    async def shared_files(self) -> int:
        """The L0 files in which both topics lie."""
        files = await self.system.metadata.operators.files(limit=1000)
        return sum(len({row.partition_id for row in iter_index(file.index)}) == 2 for file in files)

    async def holding(self) -> list[str]:
        """The keys of objects that contain the secret."""
        found: list[str] = []
        for key in [stat.key async for stat in self.system.store.list()]:
            try:
                if SECRET in await self.system.store.get(key):
                    found.append(key)
            except ObjectNotFoundError:
                continue
        return found


@pytest.fixture
def system_metadata_url(postgres_url: str) -> str:
    """The rows are looked up in the tables."""
    return postgres_url


@pytest.mark.parametrize("policy", ["delete", "compact"])
async def test_nothing_of_a_topic_that_is_deleted_under_a_merge_is_left_in_bucket_or_tables(
    system: System, start_compactor: StartCompactor, dial: Dial, postgres_url: str, policy: str
) -> None:
    topics = Deleted(system, await dial.kafka(system.agent.address), postgres_url)
    await topics.create(policy)
    gate = Gate(system)
    compactor = await start_beside(
        system,
        start_compactor,
        engine=gate.only(MergeKind.MERGE),
        purge_deadline_ms=PURGE_MS,
        l1_runs_min=3,
        **NO_OTHER_REWRITE,
    )
    # given: runs of L1 that hold both topics, a merge of them under way, and newer L0 files
    while not gate.waiting.is_set():
        await topics.write(3)
    await topics.write(2)
    rows = await topics.rows()
    assert all(rows[name] > 0 for name in OF_PARTITION if name != "live jobs"), rows
    assert await topics.shared_files() > 2 and await topics.holding()
    stays = await system.values("stays")
    # when one topic is deleted, and the merge goes on
    await system.client.delete_topic("gone")
    gate.open.set()
    deleted_at = time.monotonic()

    async def is_merged() -> bool:
        return compactor.metric("merges_total", kind="merge", outcome="done") >= 1 and 0 not in await system.levels()

    await until(is_merged)
    # then its bytes go soon after the deadline, also from files that stay
    await until(lambda: _is_none(topics.holding()))
    print(f"in no object {time.monotonic() - deleted_at:.1f} s after it was deleted")
    assert compactor.metric("merges_total", kind="purge", outcome="done") >= 1
    await until(lambda: _is_none(topics.rows()))
    assert await topics.rows() == dict.fromkeys(OF_PARTITION, 0)
    # and the other topic is whole
    left = await system.values("stays")
    assert left == stays if policy == "delete" else len(left) >= 5 and left == [each for each in stays if each in left]
    assert await system.fsck() == []
    assert compactor.merges("failed") == 0
    assert {
        file.level for file in await system.metadata.operators.files(limit=1000) if file.state is FileState.LIVE
    } >= {2}


async def _is_none(found: Any) -> bool:
    """Whether the value is an empty list, or counts that are all 0."""
    what = await found
    return not (any(what.values()) if isinstance(what, dict) else what)
