"""The interval of retention, changed while a compactor runs."""

from __future__ import annotations

import time

from tests.fixtures.compacted_systems import System
from tests.fixtures.compacted_systems import start_beside as start
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.waiting import until
from wire.records import NewRecord, build_batch

HOUR_MS, DAY_MS = 3_600_000, 86_400_000


async def test_a_shorter_interval_is_followed_without_a_restart(
    system: System, start_compactor: StartCompactor
) -> None:
    # given a compactor that has looked for expired records, and will not do so again for a day
    await system.client.create_topic("t", partitions=1, configs={"retention.ms": str(HOUR_MS)})
    never_expiring = {"expiry_margin_ms": -DAY_MS}  # so that old records are merged out of L0
    settings = {"retention_check_interval_ms": DAY_MS, "retention_look_ms": 50, **never_expiring}
    compactor = await start(system, start_compactor, **settings)

    async def has_looked() -> bool:
        return compactor.metric("compactor_duty", duty="retain") == 1

    await until(has_looked)
    old = NewRecord(int(time.time() * 1000) - 2 * HOUR_MS, b"k", b"old")
    await system.client.produce("t", 0, build_batch([old]))

    async def is_leveled() -> bool:
        return await system.levels() == {1}

    await until(is_leveled)
    assert await system.values("t") == [b"old"]
    # when the cluster asks for a short interval
    await system.metadata.agents.alter_broker_configs({"log.retention.check.interval.ms": "100"})

    # then the records that have expired go
    async def is_expired() -> bool:
        [marks] = (await system.metadata.agents.watermarks([1])).values()
        return marks.log_start_offset == 1

    await until(is_expired)
