"""The compactor's contract: retention, DeleteRecords, deletable files, pins."""

from __future__ import annotations

import pytest

from compactor.deletion.retention import Retention
from metadata.contract.deletion import Expired
from metadata.contract.files import FileState
from metadata.contract.tail import Change, ChangeKind, Cursor
from metadata.postgres import deletion as postgres_deletion
from metadata.rules.refusals import offset_outside, unknown_partition
from runtime.clock import SystemClock
from runtime.metrics import Metrics
from tests.contract.merges import broken, claim, commit_of, extents_of, job, merge, output_extent, output_file, spans
from tests.contract.metadata_worlds import DAY_MS, World, Writer, batch, new_topic, raises_exactly, sent
from tests.fixtures.waiting import until

HOUR_MS = 3_600_000


async def aged_extents(world: World, configs: dict[str, str], ages_ms: list[int]) -> int:
    """A partition with one L1 extent for each age, of ten offsets and 100 bytes, each in a file of its own."""
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("orders", partitions=1, configs=configs)
    now_ms = await world.service.now_ms()
    for age_ms in ages_ms:
        file = await writer.commit(batch(topic.partition_ids[0], 10))
        await merge(world.service, l0=[file.file_id], max_timestamp_ms=now_ms - age_ms)
    return topic.partition_ids[0]


async def log_start(world: World, partition_id: int) -> int:
    return (await world.service.agents.watermarks([partition_id]))[partition_id].log_start_offset


async def moves(world: World) -> list[Change]:
    changes = (await world.service.agents.tail(Cursor())).changes
    return [change for change in changes if change.kind is ChangeKind.LOG_START_MOVED]


# ---- retention -------------------------------------------------------------------------------------------------------


async def test_retention_by_time_takes_whole_extents_oldest_first_and_stops_at_the_first_that_stays(
    world: World,
) -> None:
    ages_ms = [3 * HOUR_MS, 2 * HOUR_MS, HOUR_MS // 2, 3 * HOUR_MS]
    one = await aged_extents(world, {"retention.ms": str(HOUR_MS)}, ages_ms)

    assert await world.service.deletion.expire() == Expired(extents=2, bytes=200, partitions=1)

    assert await spans(world.service, one) == [(20, 29), (30, 39)]
    assert await log_start(world, one) == 20
    assert [change.detail for change in await moves(world)] == [{"offsets": {str(one): 20}}]
    files = await world.service.operators.files()
    assert [file.state for file in files if file.level == 1] == [FileState.DEAD] * 2 + [FileState.LIVE] * 2
    assert await world.service.deletion.expire() == Expired(extents=0, bytes=0, partitions=0)
    assert len(await moves(world)) == 1
    assert await broken(world.service) == []


@pytest.mark.parametrize("configs", [{"retention.ms": str(HOUR_MS)}, {"retention.ms": "-1", "retention.bytes": "100"}])
async def test_retention_goes_on_from_a_log_start_within_an_extent(world: World, configs: dict[str, str]) -> None:
    one = await aged_extents(world, configs, [3 * HOUR_MS, 2 * HOUR_MS, 0])
    await world.service.agents.delete_records(one, 5)
    assert await spans(world.service, one) == [(0, 9), (10, 19), (20, 29)]

    assert (await world.service.deletion.expire()).extents == 2

    assert await log_start(world, one) == 20
    assert await broken(world.service) == []


async def test_an_idle_topic_ends_with_its_log_start_at_the_high_watermark(world: World) -> None:
    one = await aged_extents(world, {"retention.ms": "0"}, [HOUR_MS, HOUR_MS])

    await world.service.deletion.expire()

    marks = (await world.service.agents.watermarks([one]))[one]
    assert (marks.log_start_offset, marks.high_watermark) == (20, 20)
    assert await broken(world.service) == []


@pytest.mark.parametrize(
    ("limit_bytes", "kept"), [(400, 4), (399, 4), (301, 4), (300, 3), (201, 3), (200, 2), (1, 1), (0, 0), (500, 4)]
)
async def test_retention_by_size_takes_the_oldest_while_what_remains_is_at_least_the_limit(
    world: World, limit_bytes: int, kept: int
) -> None:
    one = await aged_extents(world, {"retention.ms": "-1", "retention.bytes": str(limit_bytes)}, [0, 0, 0, 0])

    expired = await world.service.deletion.expire()

    assert expired.extents == 4 - kept
    assert await log_start(world, one) == (4 - kept) * 10
    assert len(await spans(world.service, one)) == kept


@pytest.mark.parametrize("policy", ["compact", ""])
async def test_retention_leaves_topics_without_delete_in_their_policy(world: World, policy: str) -> None:
    configs = {"cleanup.policy": policy, "retention.ms": "0", "retention.bytes": "0"}
    one = await aged_extents(world, configs, [HOUR_MS])

    assert (await world.service.deletion.expire()).extents == 0
    assert await log_start(world, one) == 0


async def test_retention_never_passes_an_l0_extent(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("orders", partitions=1, configs={"retention.ms": "0"})
    (one,) = topic.partition_ids
    files = [(await writer.commit(batch(one, 10))).file_id for _ in range(4)]
    for file in (files[0], files[2]):
        await merge(world.service, l0=[file])

    assert (await world.service.deletion.expire()).extents == 1
    assert (await world.service.deletion.expire()).extents == 0
    assert await log_start(world, one) == 10
    await merge(world.service, l0=[files[1]])
    assert (await world.service.deletion.expire()).extents == 2
    assert await log_start(world, one) == 30
    assert await broken(world.service) == []


async def test_records_without_a_timestamp_are_as_old_as_their_file(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("orders", partitions=1, configs={"retention.ms": str(HOUR_MS)})
    file = await writer.commit(batch(topic.partition_ids[0], 10, min_timestamp_ms=-1, max_timestamp_ms=-1))
    await merge(world.service, l0=[file.file_id], min_timestamp_ms=-1, max_timestamp_ms=-1)

    assert (await world.service.deletion.expire()).extents == 0
    (shown,) = (await world.service.compactors.compaction_view()).files
    assert shown.expires_ms == shown.created_ms + HOUR_MS


async def test_a_round_of_retention_has_a_limit(world: World) -> None:
    one = await aged_extents(world, {"retention.ms": "0"}, [HOUR_MS] * 5)

    assert (await world.service.deletion.expire(limit=2)).extents == 2
    assert await log_start(world, one) == 20
    assert (await world.service.deletion.expire(limit=2)).extents == 2
    assert (await world.service.deletion.expire(limit=2)).extents == 1
    assert await broken(world.service) == []


async def test_one_round_over_many_partitions_is_one_change(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("orders", partitions=5, configs={"retention.ms": "0"})
    file = await writer.commit(*(batch(id_, 10) for id_ in topic.partition_ids))
    merged = await merge(world.service, l0=[file.file_id])

    assert await world.service.deletion.expire() == Expired(extents=5, bytes=500, partitions=5)

    assert [change.detail["offsets"] for change in await moves(world)] == [
        {str(id_): 10 for id_ in topic.partition_ids}
    ]
    assert {file.file_id: file.state for file in await world.service.operators.files()}[
        merged.file_ids[0]
    ] is FileState.DEAD


async def test_retention_goes_on_until_nothing_is_left_that_expires_however_many_partitions(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(postgres_deletion, "PARTITIONS_MAX", 2)
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("orders", partitions=7, configs={"retention.ms": "0"})
    file = await writer.commit(*(batch(id_, 10) for id_ in topic.partition_ids))
    await merge(world.service, l0=[file.file_id])

    applied = await Retention(metadata=world.service.deletion, metrics=Metrics(), clock=SystemClock()).apply()

    assert (applied.extents, applied.partitions) == (7, 7)
    assert [await log_start(world, id_) for id_ in topic.partition_ids] == [10] * 7
    assert await world.service.deletion.expire() == Expired(extents=0, bytes=0, partitions=0)


async def test_retention_takes_the_oldest_first_when_one_call_is_not_enough(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await world.service.agents.create_topic("orders", partitions=3, configs={"retention.ms": "1000"})
    now_ms = await world.service.now_ms()
    for id_, age_ms in zip(topic.partition_ids, (HOUR_MS, 3 * HOUR_MS, 2 * HOUR_MS), strict=True):
        file = await writer.commit(batch(id_, 10))
        await merge(world.service, l0=[file.file_id], max_timestamp_ms=now_ms - age_ms)

    async def log_starts() -> list[int]:
        return [await log_start(world, id_) for id_ in topic.partition_ids]

    retention = Retention(
        metadata=world.service.deletion, metrics=Metrics(), clock=SystemClock(), round_extents=1, rounds_max=2
    )
    assert (await retention.apply()).extents == 2
    assert await log_starts() == [0, 10, 10]
    assert (await retention.apply()).extents == 1
    assert await log_starts() == [10, 10, 10]


# ---- DeleteRecords ---------------------------------------------------------------------------------------------------


async def test_delete_records_moves_the_log_start_and_kills_what_lies_wholly_below(world: World) -> None:
    one = await aged_extents(world, {}, [0, 0, 0])

    assert await world.service.agents.delete_records(one, 15) == 15
    assert await spans(world.service, one) == [(10, 19), (20, 29)]
    assert await log_start(world, one) == 15
    (change,) = await moves(world)
    (topic,) = await world.service.agents.list_topics()
    assert (change.topic_id, change.detail) == (topic.topic_id, {"offsets": {str(one): 15}})
    assert await world.service.agents.delete_records(one, 15) == 15
    assert await world.service.agents.delete_records(one, 3) == 15
    assert await world.service.agents.delete_records(one, 0) == 15
    assert len(await moves(world)) == 1
    assert await world.service.agents.delete_records(one, -1) == 30
    assert await spans(world.service, one) == []
    assert await broken(world.service) == []


async def test_delete_records_outside_the_log_or_of_nothing_is_refused(world: World) -> None:
    one = await aged_extents(world, {}, [0])

    for offset in (11, -2, 2**62):
        with raises_exactly(offset_outside(offset, 10)):
            await world.service.agents.delete_records(one, offset)
    with raises_exactly(unknown_partition(one + 1_000)):
        await world.service.agents.delete_records(one + 1_000, 0)
    assert await world.service.agents.delete_records(one, 10) == 10


async def test_delete_records_leaves_l0_files_live_until_they_are_merged(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    file = await writer.commit(batch(one, 10))

    assert await world.service.agents.delete_records(one, -1) == 10

    assert [info.state for info in await world.service.operators.files()] == [FileState.LIVE]
    await world.service.compactors.commit_merge(commit_of(await claim(world.service, job(l0_file_ids=[file.file_id]))))
    assert [info.state for info in await world.service.operators.files()] == [FileState.DEAD]
    assert await broken(world.service) == []


# ---- deletion of topics ----------------------------------------------------------------------------------------------


async def test_a_deleted_topic_leaves_nothing_once_the_janitor_is_done(world: World) -> None:
    writer = await Writer.register(world.service)
    gone, kept = await new_topic(world.service, "gone", partitions=2), await new_topic(world.service, "kept")
    alone = await writer.commit(sent(gone.partition_ids[0], 1, 0, 5))
    shared = await writer.commit(batch(gone.partition_ids[1], 5), batch(kept.partition_ids[0], 5))
    first = await merge(world.service, l0=[alone.file_id])
    second = await merge(world.service, l0=[shared.file_id])

    await world.service.agents.delete_topic(gone.topic_id)

    files = {file.file_id: file for file in await world.service.operators.files()}
    assert files[first.file_ids[0]].state is FileState.DEAD
    assert (files[second.file_ids[0]].state, files[second.file_ids[0]].live_extents) == (FileState.LIVE, 1)
    assert [await extents_of(world.service, id_) for id_ in gone.partition_ids] == [[], []]
    assert await broken(world.service) == []
    await world.age_dead_files(HOUR_MS)
    waiting = await world.service.deletion.dead_files(grace_ms=HOUR_MS)
    assert {file.file_id for file in waiting} == {alone.file_id, shared.file_id, first.file_ids[0]}
    await world.service.deletion.files_deleted([file.file_id for file in waiting])
    assert await world.service.deletion.dead_files(grace_ms=0) == []
    assert await world.service.agents.producer_states() == []


# ---- deletable files -------------------------------------------------------------------------------------------------


async def test_dead_files_wait_out_their_grace_and_come_oldest_first(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    first, second, live = [(await writer.commit(batch(one, 10))).file_id for _ in range(3)]
    await merge(world.service, l0=[second])
    assert await world.service.deletion.dead_files(grace_ms=HOUR_MS) == []
    await world.age_dead_files(2 * HOUR_MS)
    await merge(world.service, l0=[first])
    await world.age_dead_files(HOUR_MS)

    waiting = await world.service.deletion.dead_files(grace_ms=HOUR_MS)

    assert [file.file_id for file in waiting] == [second, first]
    info = {file.file_id: file for file in await world.service.operators.files()}
    assert [(file.key, file.size_bytes, file.dead_ms) for file in waiting] == [
        (info[id_].key, info[id_].size_bytes, info[id_].dead_ms) for id_ in (second, first)
    ]
    assert [file.file_id for file in await world.service.deletion.dead_files(grace_ms=2 * HOUR_MS)] == [second]
    assert [file.file_id for file in await world.service.deletion.dead_files(grace_ms=0, limit=1)] == [second]
    await world.service.deletion.files_deleted([second, live])
    states = {file.file_id: file.state for file in await world.service.operators.files()}
    assert (states[first], states[second], states[live]) == (FileState.DEAD, FileState.DELETED, FileState.LIVE)
    assert [file.file_id for file in await world.service.deletion.dead_files(grace_ms=0)] == [first]
    await world.service.deletion.files_deleted([second, first])
    assert await broken(world.service) == []


async def test_inputs_of_live_jobs_are_not_deleted_though_all_of_them_died(world: World) -> None:
    one = await aged_extents(world, {}, [0, 0])
    files = [file.file_id for file in (await world.service.compactors.compaction_view()).files]
    claimed = await claim(world.service, job(file_ids=files))
    await world.service.agents.delete_records(one, 10)
    await world.age_dead_files(2 * HOUR_MS)

    levels = {file.file_id: file.level for file in await world.service.operators.files()}
    assert {levels[file.file_id] for file in await world.service.deletion.dead_files(grace_ms=0)} == {0}
    await world.service.compactors.commit_merge(
        commit_of(claimed, output_file(output_extent(one, 0, 9), output_extent(one, 10, 19)))
    )
    assert [
        file.file_id for file in await world.service.deletion.dead_files(grace_ms=HOUR_MS) if levels[file.file_id]
    ] == [files[0]]


async def test_a_pin_protects_what_lived_at_its_creation(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    before, after = [(await writer.commit(batch(one, 10))).file_id for _ in range(2)]
    await merge(world.service, l0=[before])
    await world.age_dead_files(HOUR_MS)
    pin = await world.service.readers.pin("reader", ttl_ms=60_000)
    await merge(world.service, l0=[after])

    assert [file.file_id for file in await world.service.deletion.dead_files(grace_ms=0)] == [before]
    ((pin_id, holder, created_ms, expires_ms),) = await world.service.operators.pins()
    assert (pin_id, holder, expires_ms - created_ms) == (pin, "reader", 60_000)
    assert await world.service.readers.beat_pin(pin, ttl_ms=120_000)
    await world.service.readers.unpin(pin)
    assert not await world.service.readers.beat_pin(pin, ttl_ms=1)
    assert [file.file_id for file in await world.service.deletion.dead_files(grace_ms=0)] == [before, after]

    again = await world.service.readers.pin("reader", ttl_ms=60_000)
    await world.end_pins_and_duties()
    assert not await world.service.readers.beat_pin(again, ttl_ms=60_000)
    assert await world.service.operators.pins() == []


async def test_what_dies_in_the_very_millisecond_of_a_pin_is_protected(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    before, at_once, after = [(await writer.commit(batch(one, 10))).file_id for _ in range(3)]
    await merge(world.service, l0=[before, at_once, after])
    await world.service.readers.pin("reader", ttl_ms=60_000)
    ((_, _, created_ms, _),) = await world.service.operators.pins()
    for file_id, dead_ms in ((before, created_ms - 1), (at_once, created_ms), (after, created_ms + 1)):
        await world.set_death(file_id, dead_ms)

    async def is_past() -> bool:
        return await world.service.now_ms() > created_ms

    await until(is_past)
    assert [file.file_id for file in await world.service.deletion.dead_files(grace_ms=0)] == [before]


async def test_keys_that_should_be_there_are_known(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    live, dead, deleted = [await writer.commit(batch(one, 10)) for _ in range(3)]
    await merge(world.service, l0=[dead.file_id, deleted.file_id])
    await world.service.deletion.files_deleted([deleted.file_id])
    await world.service.deletion.abort_file("l0/a7/2024010100/5-0-aborted.silt")
    keys = {file.file_id: file.key for file in await world.service.operators.files()}

    known = await world.service.deletion.known_keys([*keys.values(), "l0/a7/2024010100/5-0-never.silt"])

    assert {keys[live.file_id], keys[dead.file_id]} <= known
    assert known.isdisjoint({keys[deleted.file_id], "l0/a7/2024010100/5-0-aborted.silt"})
    assert len(known) == 3
    assert await world.service.deletion.known_keys([]) == frozenset()


@pytest.mark.parametrize(("silent_ms", "dropped"), [(DAY_MS, 0), (DAY_MS + 1, 1)])
async def test_producers_silent_for_longer_than_the_expiration_are_dropped(
    world: World, silent_ms: int, dropped: int
) -> None:
    # given two producers, of which one goes on
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    began_ms = await world.service.now_ms()
    await world.set_clock(began_ms)
    await writer.commit(sent(one, 1, 0), sent(one, 2, 0))
    await world.set_clock(began_ms + silent_ms - 1)
    await writer.commit(sent(one, 2, 1))
    # when the other has been silent for as long as the expiration, or for a millisecond more
    await world.set_clock(began_ms + silent_ms)
    assert (await world.service.deletion.expire_producers()).producers == dropped
    # then only in the second case it is gone: its next batch is out of order
    kept = [state.producer_id for state in await world.service.agents.producer_states()]
    assert kept == ([2] if dropped else [1, 2])
    again = await writer.commit(sent(one, 1, 1), sent(one, 2, 2))
    assert [result.error for result in again.results] == [45 if dropped else 0, 0]


async def test_the_interval_of_retention_is_known_where_the_cluster_sets_one(world: World) -> None:
    for value, expected_ms in ((None, None), ("20000", 20_000), (None, None)):
        await world.service.agents.alter_broker_configs({"log.retention.check.interval.ms": value})
        assert await world.service.deletion.retention_check_ms() == expected_ms
        assert (await world.service.compactors.compaction_view()).retention_check_ms == expected_ms
