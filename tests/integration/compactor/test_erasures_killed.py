"""Compactors killed in the middle of an erasure, as processes, on a real Postgres: the next one goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from metadata.erasures.contract import ErasureStage, KeyMark, NewErasure
from metadata.urls import open_metadata
from siltstone.kafka.client import connected
from tests.fixtures.compactors import CompactorProcesses
from tests.fixtures.erasures import hash_of
from tests.fixtures.faults import Processes, create_topic
from tests.fixtures.idempotent_load import check_fsck
from tests.fixtures.waiting import wait_until
from wire.records import NewRecord, build_batch

ADA, SECRET = b"ada", b"what-nobody-may-find-again"
QUIET = {"l1_runs_min": 1000, "l2_runs_min": 1000, "mostly_dead_fraction": 1.0}
FILES = 6

QUERIES = {
    "before the rewrite is committed": "SELECT count(*) FROM merge_jobs WHERE kind = 'erase'",
    "after the rewrite is committed": "SELECT count(*) FROM merge_jobs WHERE kind = 'erase' AND state = 'done'",
    "before the end is written": "SELECT count(*) FROM merge_jobs WHERE kind = 'erase' AND state = 'done'"
    " AND NOT EXISTS (SELECT FROM files WHERE state = 'dead')",
}


async def written(bootstrap: str) -> None:
    async with connected(bootstrap) as client:
        for number in range(FILES):
            records = [(ADA, SECRET + b"." * 100_000), (b"bea", b"%d" % number)]
            now_ms = int(time.time() * 1000)
            await client.produce("t", 0, build_batch([NewRecord(now_ms, *each) for each in records]))


async def requested(metadata_url: str) -> int:
    metadata = open_metadata(metadata_url)
    await metadata.open()
    try:
        [topic] = [each for each in await metadata.agents.list_topics() if each.name == "t"]
        return await metadata.erasures.request_erasure(
            NewErasure(
                topic_id=topic.topic_id,
                marks={0: [KeyMark(hash_of(ADA), 2 * FILES)]},
                deadline_ms=600_000,
                secret=b"s" * 32,
            )
        )
    finally:
        await metadata.close()


def bytes_in(processes: Processes) -> bool:
    """Whether a file of the store's directory holds the secret, half-written ones included."""
    return any(SECRET in path.read_bytes() for path in processes.store_folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("moment", QUERIES)
def test_an_erasure_whose_compactor_is_killed_is_ended_by_the_next_one(
    processes: Processes, compactors: CompactorProcesses, moment: str
) -> None:
    # given records in several L1 files
    processes.start(1, gc_grace_ms=2_000)
    create_topic(processes.bootstrap, "t", partitions=1)
    value: Callable[..., int] = processes.postgres.value
    # Merges erase without the duty, which ends the erasure; the first compactor looks at it too seldom for that.
    [first] = compactors.start(1, **QUIET, erase_interval_ms=600_000)
    asyncio.run(written(processes.bootstrap))
    compactors.until_all_is_leveled()
    assert bytes_in(processes)
    # when it is killed
    number = asyncio.run(requested(processes.postgres.url))
    wait_until(lambda: value(QUERIES[moment]) > 0)
    first.kill()
    stages = {row["stage"] for row in processes.postgres.query("SELECT stage FROM erasures")}
    compactors.end_leases(first.node_id)
    # then the next one ends the erasure
    compactors.start(1, **QUIET)
    done = "SELECT count(*) FROM erasures WHERE stage = $1 AND erasure_id = $2"
    wait_until(lambda: value(done, ErasureStage.DONE.value, number) == 1, 60)
    assert stages == {ErasureStage.ERASING.value}
    assert not bytes_in(processes)
    check_fsck(metadata_url=processes.postgres.url, store_url=processes.store_url)
