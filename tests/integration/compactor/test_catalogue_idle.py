"""The metadata backup of a Postgres in which nothing changes: what is left out, and what never is."""

# ruff: noqa: F811 - fixtures of another module are arguments here

from __future__ import annotations

import pytest

from compactor.deletion.metadata_backup import LOOK_MS, SNAPSHOTS_KEPT, MetadataBackup, keys_over
from metadata.contract.leases import AgentAddress
from runtime.clock import ManualClock
from runtime.runtime import Runtime
from tests.integration.compactor.test_catalogue_faults import IDS, World, world  # noqa: F401
from tests.integration.siltstone.test_rebuild import lost  # noqa: F401

HOUR_S = 3_600
pytestmark = pytest.mark.parametrize("store_url", ["directory"], indirect=True)


class Idle:
    """A backup with a snapshot an hour, and clocks that the test moves."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.clock = ManualClock()
        self._hours = 0
        self.backup = MetadataBackup(
            store=world.lost.store,
            metadata=world.lost.metadata,
            runtime=Runtime(ids=IDS, metrics=world.metrics, clock=self.clock),
            interval_ms=HOUR_S * 1_000,
        )

    async def hours_pass(self, hours: int) -> list[bool]:
        """Each hour ends with a round. Returns whether each round wrote anything."""
        written: list[bool] = []
        for _ in range(hours):
            self._hours += 1
            self.clock.advance_ms(HOUR_S * 1_000)
            await self.world.set_clock(self._hours * HOUR_S)
            written.append(await self.backup.round())
        return written

    async def snapshots(self) -> set[str]:
        return {key.split("/")[2] for key in await self.world.names("catalog/snapshots/")}


@pytest.fixture
def idle(world: World) -> Idle:
    return Idle(world)


async def test_where_nothing_changes_no_snapshot_follows_once_all_kept_ones_are_the_same(idle: Idle) -> None:
    agents = idle.world.lost.metadata.agents
    lease = await agents.register_agent(AgentAddress(host="h", port=1))
    topic = await agents.create_topic("t", partitions=3, configs={})
    assert await idle.backup.round()
    assert await idle.hours_pass(SNAPSHOTS_KEPT - 1) == [True] * (SNAPSHOTS_KEPT - 1)
    # when an agent lives, and nothing else happens, then nothing is written; and what is there counts as of now
    await agents.heartbeat(lease)
    assert await idle.hours_pass(8) == [False] * 8
    assert len(await idle.snapshots()) == SNAPSHOTS_KEPT and idle.world.metric("catalog_age_seconds") == 0
    # when the topic is deleted, then it is in no kept snapshot some intervals later
    before = await idle.snapshots()
    await agents.delete_topic(topic.topic_id)
    assert await idle.hours_pass(SNAPSHOTS_KEPT + 2) == [True] * SNAPSHOTS_KEPT + [False] * 2
    assert {key.split("/")[2] for key in await keys_over(idle.world.lost.store) if "/snapshots/" in key} == before


async def test_offsets_that_a_waiting_consumer_commits_again_make_one_snapshot_a_day(idle: Idle) -> None:
    topic = await idle.world.lost.metadata.agents.create_topic("t", partitions=1, configs={})
    query = idle.world.lost.query
    await query(
        "INSERT INTO group_offsets (group_id, topic_id, partition, committed_offset, leader_epoch, metadata,"
        rf" committed_ms) VALUES ('\x67', '{topic.topic_id}', 0, 5, -1, '\x', 1)",
        new=False,
    )
    await idle.backup.round()
    await idle.hours_pass(SNAPSHOTS_KEPT)
    # when the same offset is committed every hour, for a day
    written: list[bool] = []
    for _ in range(24):
        await query("UPDATE group_offsets SET committed_ms = committed_ms + 1", new=False)
        written += await idle.hours_pass(1)
    assert sum(written) == 1
    # but another offset is in the next snapshot
    await query("UPDATE group_offsets SET committed_offset = 6", new=False)
    assert await idle.hours_pass(1) == [True]


async def test_snapshots_that_are_gone_or_not_the_newest_are_written_again(idle: Idle) -> None:
    await idle.backup.round()
    assert await idle.hours_pass(SNAPSHOTS_KEPT + 1) == [True] * (SNAPSHOTS_KEPT - 1) + [False] * 2
    # given that somebody deleted the newest one
    newest = max(await idle.snapshots())
    await idle.world.lost.store.delete_many(await idle.world.names(f"catalog/snapshots/{newest}/"))
    # then it is missed at the next look
    looks = LOOK_MS // (HOUR_S * 1_000) + 1
    assert any(await idle.hours_pass(looks + 1))
    # and when another compactor had the duty, its snapshot may be older than the present
    await idle.hours_pass(SNAPSHOTS_KEPT + 1)
    assert await idle.hours_pass(1) == [False]
    idle.backup.pause()
    assert await idle.hours_pass(1) == [True]
