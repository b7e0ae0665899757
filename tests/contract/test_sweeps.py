"""The sweeps: what deleted L0 files leave behind, rows forgotten in batches, producers looked at in slices."""

from __future__ import annotations

import pytest

import metadata.memory.deletion
import metadata.postgres.deletion
import metadata.postgres.forgetting
from compactor.deletion.retention import PRODUCERS_INTERVAL_MS, Retention
from metadata.contract.deletion import DeadWaiting, ExpiredProducers
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.files import FileState
from metadata.contract.l0_commit import CommitRefusedError
from metadata.contract.tail import Cursor
from metadata.rules.object_keys import hour_at
from metadata.rules.packed_index import decode_index
from runtime.clock import ManualClock
from runtime.metrics import Metrics
from tests.contract.merges import broken, claim, job, merge
from tests.contract.metadata_worlds import (
    BATCH_BYTES,
    DAY_MS,
    World,
    Writer,
    batch,
    new_key,
    new_topic,
    sent,
)

HOUR_MS = 3_600_000


async def delete(world: World, *file_ids: int) -> None:
    """Merge these L0 files, and delete them."""
    await merge(world.service, l0=file_ids)
    await world.service.deletion.files_deleted(file_ids)


async def is_cold(world: World, cursor: Cursor) -> bool:
    return (await world.service.agents.tail(cursor)).cold


async def present(world: World) -> Cursor:
    return (await world.service.agents.snapshot()).cursor


# ---- deleted files ---------------------------------------------------------------------------------------------------


async def test_a_commit_in_doubt_is_answered_after_its_file_was_merged_and_deleted(world: World) -> None:
    writer = await Writer.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids
    request = writer.request([batch(one, 3), batch(two, 4), batch(one, 2)])
    first = await world.service.agents.commit_l0(request)

    await delete(world, first.file_id)

    # the answer is whole: without its index, the writer would pass over offsets that its own follower never saw
    assert await world.service.agents.commit_l0(request) == first
    assert await broken(world.service) == []


@pytest.mark.parametrize("sequence", [0, 1])
async def test_a_deleted_file_gives_its_index_back_once_its_writer_has_gone_on(world: World, sequence: int) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    # all batches are stored, or the second is refused
    request = writer.request([batch(one, 3), sent(one, 7, sequence), batch(one, 2)])
    first = await world.service.agents.commit_l0(request)
    await writer.commit(batch(one))

    await delete(world, first.file_id)

    row, _, _ = await world.service.operators.files()
    assert (row.state, row.size_bytes, decode_index(row.index)) == (FileState.DELETED, 3 * BATCH_BYTES, [])
    again = await world.service.agents.commit_l0(request)
    assert (again.file_id, list(again.results)) == (first.file_id, list(first.results))
    assert [result.error for result in again.results] == [0, 45 * sequence, 0]
    assert await broken(world.service) == []


async def test_a_follower_behind_a_deleted_file_starts_cold_and_others_go_on(world: World) -> None:
    writer, other = await Writer.register(world.service), await Writer.register(world.service, port=9093)
    (one,) = (await new_topic(world.service)).partition_ids
    cursors = [await present(world)]
    files: list[int] = []
    for each in (writer, other, writer, other, writer):
        files.append((await each.commit(batch(one))).file_id)
        cursors.append(await present(world))

    # when the files of the two writers are deleted one by one, each not in the order of its commits
    await merge(world.service, l0=files)
    await world.service.deletion.files_deleted([files[1]])
    assert [await is_cold(world, cursor) for cursor in cursors] == [True, True, False, False, False, False]
    await world.service.deletion.files_deleted([files[2]])
    assert [await is_cold(world, cursor) for cursor in cursors] == [True, True, True, False, False, False]
    await world.service.deletion.files_deleted([files[0]])
    assert [await is_cold(world, cursor) for cursor in cursors] == [True, True, True, False, False, False]
    # the newest file of each writer is there for all to see
    await world.service.deletion.files_deleted(files[3:])
    tail = await world.service.agents.tail(cursors[3])
    assert [[row.base_offset for row in decode_index(file.index)] for file in tail.files] == [[3], [4]]
    assert not tail.cold and not await is_cold(world, await present(world))


async def test_the_newest_file_of_an_older_epoch_keeps_its_index_and_later_marks_count_by_epoch(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    before = await present(world)
    old = [(await writer.commit(batch(one))).file_id for _ in range(2)]
    between = await present(world)
    again = await Writer.register(world.service, instead_of=writer.lease)
    new = [(await again.commit(batch(one))).file_id for _ in range(2)]
    after = await present(world)

    await delete(world, *old)
    assert [await is_cold(world, cursor) for cursor in (before, between, after)] == [True, False, False]
    kept = {file.file_id: bool(decode_index(file.index)) for file in await world.service.operators.files()}
    assert [kept[file_id] for file_id in (*old, *new)] == [False, True, True, True]
    # a seq of the new epoch is above all of the old one, though it is a smaller number
    await delete(world, *new)
    assert [await is_cold(world, cursor) for cursor in (before, between, after)] == [True, True, False]


async def test_a_follower_that_knows_nothing_of_a_writer_starts_cold_once_a_file_gave_its_index_back(
    world: World,
) -> None:
    (one,) = (await new_topic(world.service)).partition_ids
    cursor = await present(world)
    writer = await Writer.register(world.service)
    files = [(await writer.commit(batch(one))).file_id for _ in range(2)]
    assert len((await world.service.agents.tail(cursor)).files) == 2

    await delete(world, *files)

    assert await is_cold(world, cursor)


async def test_a_file_of_which_nothing_was_stored_makes_nobody_cold(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    cursor = await present(world)
    refused = await writer.commit(sent(one, 7, 1))
    await writer.commit(batch(one))

    await world.service.deletion.files_deleted([refused.file_id])

    tail = await world.service.agents.tail(cursor)
    assert not tail.cold and [file.live for file in tail.files] == [False, True]


async def test_only_files_that_are_dead_give_their_index_back(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    cursor = await present(world)
    live = await writer.commit(batch(one, 3))
    await writer.commit(batch(one))

    await world.service.deletion.files_deleted([live.file_id, 999])

    assert (await world.service.operators.files())[0].index == live.index
    assert not await is_cold(world, cursor)


async def test_all_dead_files_are_counted_whatever_they_wait_for(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    assert await world.service.deletion.dead_waiting() == DeadWaiting(files=0, bytes=0)
    files = [(await writer.commit(batch(one), batch(one))).file_id for _ in range(4)]
    await merge(world.service, l0=files[:1])
    await world.service.readers.pin("reader", ttl_ms=HOUR_MS)
    await merge(world.service, l0=files[1:2])  # protected by the pin
    await claim(world.service, job(l0_file_ids=files[2:3]))
    await world.set_state(files[2], FileState.DEAD)  # an input of a job

    assert await world.service.deletion.dead_waiting() == DeadWaiting(files=3, bytes=6 * BATCH_BYTES)
    # no more than a bound, however many there are
    for module in (metadata.memory.deletion, metadata.postgres.deletion):
        monkeypatch.setattr(module, "DEAD_COUNTED_MAX", 2)
    assert await world.service.deletion.dead_waiting() == DeadWaiting(files=2, bytes=4 * BATCH_BYTES)
    await world.service.deletion.files_deleted(files[:3])
    assert await world.service.deletion.dead_waiting() == DeadWaiting(files=0, bytes=0)


# ---- forgotten rows --------------------------------------------------------------------------------------------------


async def test_any_backlog_is_forgotten_batch_by_batch_and_rows_that_stay_hold_nothing_up(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(metadata.postgres.forgetting, "FORGOTTEN_MAX", 2)
    now_ms = await world.service.now_ms()
    writers = [await Writer.register(world.service, port=9000 + number) for number in range(3)]
    topics = [await new_topic(world.service, f"topic {number}") for number in range(5)]
    (one,) = topics[0].partition_ids
    for number in range(11):
        # keys of a clock that is far ahead: their rows stay, among others that go and before them
        hour = hour_at(now_ms + 9 * DAY_MS) if number in (0, 1, 2, 3, 7) else hour_at(now_ms)
        committed = await writers[number % 3].commit(batch(one), key=new_key(str(hour)))
        await world.set_state(committed.file_id, FileState.DELETED)
    for number in range(5):
        await world.service.deletion.abort_file(new_key(str(hour_at(now_ms) - 1 - number)))
        await world.service.agents.delete_topic(topics[number].topic_id)
    before = await present(world)

    # 6 of 11 files, 5 aborted keys, 10 changes; times of deletions stay for as long as producer ids may
    assert await world.service.deletion.forget_rows(before_ms=now_ms + HOUR_MS) == 6 + 5 + 10

    assert len(await world.service.operators.files()) == 5
    assert not await is_cold(world, before)
    assert await is_cold(world, Cursor(writers=before.writers, change_id=before.change_id - 1))
    (late,) = (await new_topic(world.service, "late")).partition_ids
    with pytest.raises(CommitRefusedError, match="forgotten"):
        await writers[0].commit(batch(late), key=new_key(str(hour_at(now_ms))))
    assert await world.service.deletion.forget_rows(before_ms=now_ms + HOUR_MS) == 1  # the newest topic's change


# ---- silent producers ------------------------------------------------------------------------------------------------


async def test_silent_producers_are_found_slice_by_slice(world: World) -> None:
    writer = await Writer.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids
    began_ms = await world.service.now_ms()
    await world.set_clock(began_ms)
    await writer.commit(*(sent(one, who, 0) for who in (1, 2, 3, 4)), *(sent(two, who, 0) for who in (1, 9)))
    await world.set_clock(began_ms + DAY_MS)
    await writer.commit(sent(one, 3, 1), sent(two, 1, 1))
    await world.set_clock(began_ms + DAY_MS + 1)
    expire = world.service.deletion.expire_producers

    assert await expire(limit=2) == ExpiredProducers(producers=2, after=(one, 2))
    assert await expire(after=(one, 2), limit=3) == ExpiredProducers(producers=1, after=(two, 1))
    # the end is known when a slice is not full
    assert await expire(after=(two, 1), limit=1) == ExpiredProducers(producers=1, after=(two, 9))
    assert await expire(after=(two, 9), limit=1) == ExpiredProducers(producers=0, after=None)
    states = await world.service.agents.producer_states()
    assert [(state.partition_id, state.producer_id) for state in states] == [(one, 3), (two, 1)]


async def test_retention_walks_over_all_producers_once_an_hour_and_goes_on_where_an_error_ended_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock, metrics = ManualClock(), Metrics()
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    began_ms = await world.service.now_ms()
    await world.set_clock(began_ms)
    await writer.commit(*(sent(one, who, 0) for who in range(5)))
    await world.set_clock(began_ms + DAY_MS + 1)
    whole = world.service.deletion.expire_producers
    asked: list[tuple[int, int] | None] = []

    async def slices_of_two(*, after: tuple[int, int] | None = None) -> ExpiredProducers:
        asked.append(after)
        if asked == [None, (one, 1)]:
            raise MetadataUnavailableError("away")
        return await whole(after=after, limit=2)

    monkeypatch.setattr(world.service.deletion, "expire_producers", slices_of_two)
    retention = Retention(metadata=world.service.deletion, metrics=metrics, clock=clock)
    with pytest.raises(MetadataUnavailableError):
        await retention.apply()
    assert (await retention.apply()).producers == 3
    assert asked == [None, (one, 1), (one, 1), (one, 3)]
    # and then not before the hour is over
    clock.advance_ms(PRODUCERS_INTERVAL_MS - 1)
    await retention.apply()
    assert len(asked) == 4
    clock.advance_ms(1)
    await retention.apply()
    assert asked[4:] == [None]
