"""A compactor whose own clock jumps. Leases, limits, horizons, graces and the times in keys come from the metadata
store, so the compactor does no harm and loses no work.
"""

from __future__ import annotations

import pytest

from metadata.contract.files import FileState
from metadata.contract.jobs import JobState
from metadata.rules.packed_index import iter_index
from runtime.clock import SystemClock
from storage.keys import hour_of, parse_file_key
from tests.fixtures.agents import read_all
from tests.fixtures.compacted_systems import LEVEL_ONLY, Gate, System, start_beside
from tests.fixtures.compactors import StartCompactor
from tests.fixtures.waiting import until
from wire.crc import crc32c
from wire.records import NewRecord, build_batch

HOUR_MS = 3_600_000
JUMPS_MS = [-HOUR_MS, 30 * 24 * HOUR_MS]
MORE_JUMPS_MS = [HOUR_MS, -30 * 24 * HOUR_MS]
QUIET = {"forced_interval_ms": 200, "forced_dirty_wait_ms": 200, "orphan_check_interval_ms": 100}


class JumpingClock(SystemClock):
    """A clock whose wall time the test sets, as an operator or NTP may; monotonic time goes on."""

    def __init__(self) -> None:
        self.ahead_ms = 0

    def wall_ms(self) -> int:
        return super().wall_ms() + self.ahead_ms


@pytest.mark.parametrize(
    "jump_ms", [*JUMPS_MS, *(pytest.param(each, marks=pytest.mark.soak) for each in MORE_JUMPS_MS)]
)
async def test_a_merge_in_which_the_clock_jumps_is_committed_under_a_key_of_the_right_hour(
    system: System, start_compactor: StartCompactor, jump_ms: int
) -> None:
    await system.client.create_topic("t", partitions=1)
    await system.write("t", 3)
    gate, clock = Gate(system), JumpingClock()
    gate.clock = clock
    compactor = await start_beside(system, start_compactor, engine=gate.engine, clock=clock, **LEVEL_ONLY)
    await gate.waiting.wait()
    # when the clock jumps in the middle of a merge
    before_ms = await system.metadata.now_ms()
    clock.ahead_ms = jump_ms
    gate.open.set()
    await until(lambda: compactor.merges("done") == 1)
    # then the merge is neither late nor lost, and its file has its real age
    [output] = [file for file in await system.metadata.operators.files() if file.level == 1]
    assert parse_file_key(output.key).hour in (hour_of(before_ms), hour_of(await system.metadata.now_ms()))
    assert before_ms <= output.created_ms <= await system.metadata.now_ms()
    assert compactor.merges("lost") == compactor.merges("failed") == 0
    assert len(await system.values("t")) == 30
    # and its lease is as long as any other, and duties stay where they are
    assert [node_id for node_id, _ in await system.metadata.compactors.live_compactors()] == [
        compactor.compactor.node_id
    ]
    other = await start_beside(system, start_compactor, **LEVEL_ONLY)
    await system.write("t", 3)
    await until(lambda: compactor.merges("done") + other.merges("done") == 2)
    assert (compactor.metric("compactor_duty", duty="plan"), other.metric("compactor_duty", duty="plan")) == (1, 0)


@pytest.mark.parametrize("jump_ms", JUMPS_MS)
async def test_with_a_clock_that_jumped_no_tombstone_goes_early_and_nothing_young_is_deleted(
    system: System, start_compactor: StartCompactor, jump_ms: int
) -> None:
    configs = {"cleanup.policy": "compact", "min.cleanable.dirty.ratio": "0.01", "delete.retention.ms": str(HOUR_MS)}
    await system.client.create_topic("kv", partitions=1, configs=configs)
    now_ms = SystemClock().wall_ms()
    tombstone = build_batch([NewRecord(now_ms, b"k0", b"old"), NewRecord(now_ms, b"k0", None)])
    await system.client.produce("kv", 0, tombstone)
    await system.write("kv", 3, keys=1)
    await system.client.produce("kv", 0, build_batch([NewRecord(now_ms, b"last", None)]))
    # given: an object that an agent has put and not committed yet, and a compactor whose clock is wrong from the start
    key = await put_uncommitted(system)
    clock = JumpingClock()
    clock.ahead_ms = jump_ms
    patience = {"gc_grace_ms": HOUR_MS, "orphan_age_ms": HOUR_MS, "janitor_interval_ms": 50}
    compactor = await start_beside(system, start_compactor, clock=clock, **{**QUIET, **patience})
    # when it cleans the partition several times over
    for rounds in range(1, 4):
        await until(lambda rounds=rounds: _passes(system, rounds), timeout_s=60)
        clock.ahead_ms += jump_ms // 4
        await system.write("kv", 3, keys=1)
    # then the tombstone, whose hour is not over, is there; and no dead file and no young object has gone
    assert (b"last", None) in [(bytes(each.key or b""), each.value) for _, each in await read_all(system.client, "kv")]
    assert {file.state for file in await system.metadata.operators.files(limit=1000)} == {
        FileState.LIVE,
        FileState.DEAD,
    }
    assert key in [stat.key async for stat in system.store.list()]
    assert compactor.metric("deleted_files_total") == compactor.metric("orphans_deleted_total") == 0
    assert compactor.merges("failed") == compactor.merges("lost") == 0
    assert await system.fsck() == []


async def put_uncommitted(system: System) -> str:
    """Put an object of this hour by a writer that has left. Returns its key."""
    [file] = [each for each in await system.metadata.operators.files() if next(iter_index(each.index)).base_offset == 0]
    wanted = parse_file_key(file.key)
    key = file.key.replace(f"/{wanted.writer_id}-", "/999999-")
    body = b"not committed yet"
    await system.store.put_if_absent(key, body, crc32c=crc32c(body))
    return key


async def _passes(system: System, at_least: int) -> bool:
    """Whether this number of passes over the partition is done."""
    jobs = await system.metadata.operators.jobs(states=[JobState.DONE], limit=1000)
    return sum(job.kind == "forced" for job in jobs) >= at_least
