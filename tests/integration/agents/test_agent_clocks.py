"""An agent whose own clock is wrong: its files are dated and named by the metadata store's time, so it stops nobody and
is not stopped."""

from __future__ import annotations

import pytest

from runtime.clock import SystemClock
from storage.keys import hour_of, parse_file_key
from tests.contract.metadata_worlds import new_key
from tests.fixtures.agents import Dial, StartAgent
from tests.fixtures.compacted_systems import System
from tests.integration.compactor.test_compactor_clocks import JumpingClock
from wire.batch import iter_headers
from wire.records import NewRecord, build_batch

DAY_MS = 86_400_000
SLACK_MS = 5_000
"""The store's time reached the agent some time after it was read."""


@pytest.mark.parametrize("ahead_ms", [3 * DAY_MS, -3 * DAY_MS])
async def test_an_agent_whose_clock_is_days_off_dates_and_names_its_files_as_others_do(
    system: System, start_agent: StartAgent, dial: Dial, ahead_ms: int
) -> None:
    # given a system in which keys of yesterday are refused, and an agent whose clock is wrong, and then more so
    before_ms = await system.metadata.now_ms()
    await system.metadata.deletion.abort_file(new_key(hour_of(before_ms - DAY_MS)))
    await system.metadata.deletion.forget_rows(before_ms=before_ms + SLACK_MS)
    clock = JumpingClock()
    clock.ahead_ms = ahead_ms
    wrong = await start_agent(store=system.store, metadata=system.metadata, clock=clock)
    client = await dial.kafka(wrong.address)
    await client.create_topic("t", partitions=1, configs={"message.timestamp.type": "LogAppendTime"})
    for value in (b"1", b"2"):
        await client.produce("t", 0, build_batch([NewRecord(SystemClock().wall_ms(), b"k", value)]))
        clock.ahead_ms *= 2
    fetched = await client.fetch("t", 0, 0)
    await wrong.agent.stop()
    # then keys and append times are as the store's clock has it
    after_ms = await system.metadata.now_ms()
    keys = [parse_file_key(file.key) for file in await system.metadata.operators.files()]
    assert len(keys) == 2
    assert {key.hour for key in keys} <= {hour_of(before_ms), hour_of(after_ms)}
    appended_ms = [header.max_timestamp_ms for _, header in iter_headers(fetched.records)]
    for ms in (*(key.file_uuid.int >> 80 for key in keys), *appended_ms):
        assert before_ms - SLACK_MS <= ms <= after_ms


async def test_a_producer_is_not_refused_because_the_agents_clock_is_wrong(
    system: System, start_agent: StartAgent, dial: Dial
) -> None:
    clock = JumpingClock()
    clock.ahead_ms = -3 * DAY_MS
    wrong = await start_agent(store=system.store, metadata=system.metadata, clock=clock)
    client = await dial.kafka(wrong.address)
    await client.create_topic("t", partitions=1, configs={"message.timestamp.after.max.ms": "3600000"})

    offset = await client.produce("t", 0, build_batch([NewRecord(SystemClock().wall_ms(), b"k", b"v")]))

    assert offset == 0
    await wrong.agent.stop()
