"""Old records that are written behind a young head: they stay, so they are merged like all others."""

from __future__ import annotations

import time

from metadata.contract.files import FileState
from tests.fixtures.compacted_systems import System
from tests.fixtures.compacted_systems import start_beside as start
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.waiting import until
from wire.records import NewRecord, build_batch

DAY_MS = 86_400_000
HASTY = {
    "l0_files_min": 1,
    "l0_wait_ms": 20,
    "compaction_l0_wait_max_ms": 50,
    "retention_check_interval_ms": 100,
}


async def test_records_past_their_time_behind_younger_ones_are_merged_out_of_l1(
    system: System, start_compactor: StartCompactor
) -> None:
    # given a young record, and behind it records older than their retention of a week
    await system.client.create_topic("t", partitions=1)
    compactor = await start(system, start_compactor, **HASTY)
    now_ms = int(time.time() * 1000)
    await system.client.produce("t", 0, build_batch([NewRecord(now_ms, b"k", b"young")]))

    async def is_leveled() -> bool:
        return await system.levels() <= {1, 2}

    values = [b"backfilled %d" % number for number in range(9)]
    for value in values:
        await system.client.produce("t", 0, build_batch([NewRecord(now_ms - 8 * DAY_MS, b"k", value)]))
        await until(is_leveled)  # so that each becomes a run of its own
    # then retention, which begins at the log start, leaves them, and they do not pile up in L1
    marks = await system.metadata.agents.watermarks([1])

    async def runs_of_l1() -> int:
        return sum(file.level == 1 for file in await system.metadata.operators.files() if file.state is FileState.LIVE)

    async def are_merged() -> bool:
        return await runs_of_l1() < 3 and 2 in await system.levels()

    await until(are_merged)
    assert marks[1].log_start_offset == 0 and compactor.merges("failed") == 0
    assert await system.values("t") == [b"young", *values]
