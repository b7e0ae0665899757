"""Wrong clocks: a writer's, which gives the hour in its keys, and the store's, which decides when leases end."""

from __future__ import annotations

import pytest

from metadata.contract.files import FileState
from metadata.contract.l0_commit import CommitRefusedError
from metadata.contract.leases import JOB_LEASE_MS
from storage.keys import hour_of
from tests.contract.merges import claim, job
from tests.contract.metadata_worlds import DAY_MS, World, Writer, batch, new_key, new_topic, stored

HOUR_MS = 3_600_000


def key_of(at_ms: int) -> str:
    return new_key(hour_of(at_ms))


@pytest.mark.parametrize("state", [FileState.DELETED, FileState.ABORTED])
async def test_rows_of_a_writer_whose_clock_is_ahead_are_forgotten_late_and_stop_nobody(
    world: World, state: FileState
) -> None:
    # given two files that came and went: one of a writer whose clock is three days ahead, one of a sound writer
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    now_ms = await world.service.now_ms()
    ahead, sound = key_of(now_ms + 3 * DAY_MS), key_of(now_ms)
    repeat = writer.request([batch(one)], key=ahead)
    for key in (ahead, sound):
        if state is FileState.ABORTED:
            assert await world.service.deletion.abort_file(key)
        else:
            done = await world.service.agents.commit_l0(
                repeat if key == ahead else writer.request([batch(one)], key=key)
            )
            await world.set_state(done.file_id, state)
    # when rows of their age are forgotten
    await world.service.deletion.forget_rows(before_ms=now_ms + HOUR_MS)
    # then a writer with the right time can go on
    later = await writer.commit(batch(one), key=key_of(now_ms + 2 * HOUR_MS))
    assert [each.error for each in later.results] == [0]
    with pytest.raises(CommitRefusedError, match="forgotten"):
        await writer.commit(batch(one), key=sound)
    # and the key ahead is as dead as before, because its row still exists
    assert [file.key for file in await world.service.operators.files() if file.state is state] == [ahead]
    if state is FileState.ABORTED:
        with pytest.raises(CommitRefusedError, match="aborted"):
            await world.service.agents.commit_l0(repeat)
    else:
        assert list((await world.service.agents.commit_l0(repeat)).results) == [stored(0)]
    # until its hour is over
    await world.service.deletion.forget_rows(before_ms=now_ms + 4 * DAY_MS)
    assert ahead not in [file.key for file in await world.service.operators.files()]
    with pytest.raises(CommitRefusedError, match="forgotten"):
        await writer.commit(batch(one), key=ahead)


async def test_after_the_stores_clock_stepped_back_nothing_rests_for_as_long_as_the_step(world: World) -> None:
    # given an agent, and a compactor with a job and a duty; all vanish at the moment when the clock steps back an hour
    gone = await world.service.compactors.register_compactor("gone")
    assert await world.service.compactors.take_duty("plan", gone, ttl_ms=HOUR_MS)
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    file = await writer.commit(batch(one))
    held = await claim(world.service, job(l0_file_ids=[file.file_id]), lease=gone)
    await world.set_clock_back(HOUR_MS)
    # then nobody waits for them
    other = await world.service.compactors.register_compactor("other")
    assert [node_id for node_id, _ in await world.service.compactors.live_compactors()] == [other.writer_id]
    assert await world.service.agents.live_agents() == []
    assert await world.service.compactors.take_duty("plan", other, ttl_ms=HOUR_MS)
    claimed = await world.service.compactors.claim_job(other)
    assert claimed is not None
    assert (claimed.job.job_id, claimed.job.epoch) == (held.job.job_id, held.job.epoch + 1)
    # and a live agent is back with its next heartbeat
    await world.service.agents.heartbeat(writer.lease)
    assert [agent.writer_id for agent in await world.service.agents.live_agents()] == [writer.lease.writer_id]


async def test_a_small_step_back_takes_nothing_from_those_who_live(world: World) -> None:
    holder = await world.service.compactors.register_compactor("holder")
    assert await world.service.compactors.take_duty("plan", holder, ttl_ms=HOUR_MS)
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    file = await writer.commit(batch(one))
    await claim(world.service, job(l0_file_ids=[file.file_id]), lease=holder)

    await world.set_clock_back(JOB_LEASE_MS // 2)

    other = await world.service.compactors.register_compactor("other")
    assert await world.service.compactors.claim_job(other) is None
    assert not await world.service.compactors.take_duty("plan", other, ttl_ms=HOUR_MS)
    assert len(await world.service.compactors.live_compactors()) == 2
    assert len(await world.service.agents.live_agents()) == 1
