"""The contract of erasures: requests, stamps, stages, the end."""

from __future__ import annotations

import uuid
from dataclasses import replace

import pytest

from metadata.contract.files import FileState
from metadata.contract.topics import UnknownTopicError
from metadata.erasures.contract import (
    ERASURE_KEYS_MAX,
    ErasureKeysError,
    ErasurePendingError,
    ErasureStage,
    KeyMark,
    TopicErasure,
)
from tests.contract.erasing import (
    DAY_MS,
    a_log,
    delete_dead,
    erase_file,
    erasing,
    erasure,
    hash_of,
    mark,
    new_erasure,
    pending,
    request,
)
from tests.contract.merges import merge
from tests.contract.metadata_worlds import World, Writer, batch, new_topic

HOUR_MS = 3_600_000


# ---- requests --------------------------------------------------------------------------------------------------------


async def test_an_erasure_is_stored_as_it_was_requested(world: World) -> None:
    topic, _ = await a_log(world, partitions=3)
    marks = {0: [mark("b", 4), mark("a", 9, tombstone=True)], 1: [], 2: [mark("a", 10)]}
    before_ms = await world.service.now_ms()

    number = await world.service.erasures.request_erasure(
        new_erasure(topic, marks, wait_ms=HOUR_MS, rest_ms=DAY_MS, begin_ms=5, deadline_ms=7 * DAY_MS, secret=b"s" * 32)
    )

    found = await erasure(world.service, number)
    assert before_ms <= found.created_ms <= await world.service.now_ms()
    assert (found.erasure_id, found.topic_id, found.topic_name) == (number, topic.topic_id, "orders")
    assert (found.stage, found.stamp, found.erases_tombstones) == (ErasureStage.WAITING, None, False)
    assert found.partitions == {0: topic.partition_ids[0], 2: topic.partition_ids[2]}
    assert (found.keys, found.tombstones, found.secret, found.report) == (3, 1, b"s" * 32, {})
    assert (found.next_ms, found.begin_ms) == (found.created_ms + HOUR_MS, found.created_ms + HOUR_MS + 5)
    assert (found.deadline_ms, found.done_ms) == (found.created_ms + 7 * DAY_MS, None)
    stored = await world.service.erasures.erasure_marks(number)
    assert {number: list(each) for number, each in stored.items()} == {0: sorted(marks[0]), 2: marks[2]}


async def test_the_erasures_of_a_topic_are_told_by_id_in_their_stages(world: World) -> None:
    topic, _ = await a_log(world)
    (other,) = [await new_topic(world.service, name="other")]
    first = await request(world.service, topic, mark("a", 4))
    await request(world.service, other, mark("a", 0))
    second = await request(world.service, topic, mark("b", 4), wait_ms=HOUR_MS)
    assert await world.service.erasures.topic_erasures(topic.topic_id) == [
        TopicErasure(number, stage, False, (await erasure(world.service, number)).created_ms)
        for number, stage in ((first, ErasureStage.ERASING), (second, ErasureStage.WAITING))
    ]
    assert await world.service.erasures.topic_erasures(uuid.uuid4()) == []


async def test_without_a_wait_an_erasure_is_erasing_at_once(world: World) -> None:
    topic, _ = await a_log(world)

    number = await request(world.service, topic, mark("a", 5))

    found = await erasure(world.service, number)
    assert (found.stage, found.stamp) == (ErasureStage.ERASING, 1)
    assert found.next_ms == found.begin_ms == found.created_ms


async def test_an_unknown_topic_has_nothing_to_erase(world: World) -> None:
    topic, _ = await a_log(world)

    with pytest.raises(UnknownTopicError):
        await request(world.service, replace(topic, topic_id=uuid.uuid4()), mark("a", 5))

    assert list(await world.service.erasures.erasures()) == []


@pytest.mark.parametrize(
    "marks",
    [
        {},
        {0: []},
        {0: [mark("a", 11)]},
        {0: [mark("a", 10, tombstone=True)]},
        {0: [mark("a", -1)]},
        {0: [mark("a", 1), mark("a", 2)]},
        {1: [mark("a", 1)]},
        {-1: [mark("a", 1)]},
        {0: [KeyMark(b"short", 1)]},
        {0: [KeyMark(number.to_bytes(32), 1) for number in range(ERASURE_KEYS_MAX + 1)]},
    ],
    ids=[
        "none",
        "empty",
        "beyond",
        "tombstone beyond",
        "negative",
        "twice",
        "partition 1",
        "partition -1",
        "hash",
        "n",
    ],
)
async def test_keys_that_cannot_be_stored_are_refused_and_nothing_is_stored(
    world: World, marks: dict[int, list[KeyMark]]
) -> None:
    topic, _ = await a_log(world)

    with pytest.raises(ErasureKeysError):
        await world.service.erasures.request_erasure(new_erasure(topic, marks, rest_ms=0))

    assert list(await world.service.erasures.erasures()) == []
    assert await world.service.erasures.advance_erasures() == []


async def test_the_last_record_of_a_partition_and_as_many_keys_as_may_be_can_be_erased(world: World) -> None:
    topic, _ = await a_log(world)
    marks = [KeyMark(number.to_bytes(32), 10) for number in range(ERASURE_KEYS_MAX)]

    number = await request(world.service, topic, *marks)

    assert list((await world.service.erasures.erasure_marks(number))[0]) == marks
    await request(world.service, topic, mark("a", 9, tombstone=True), rest_ms=0)


async def test_erasures_are_listed_newest_first(world: World) -> None:
    topic, _ = await a_log(world)
    numbers = [await request(world.service, topic, mark("a", 5), wait_ms=each) for each in (0, HOUR_MS, 0)]

    listed = await world.service.erasures.erasures()
    assert [each.erasure_id for each in listed] == numbers[::-1] == sorted(numbers, reverse=True)
    assert [each.erasure_id for each in await world.service.erasures.erasures(limit=2)] == numbers[::-1]
    assert await world.service.erasures.erasures(erasure_id=max(numbers) + 1) == []
    assert await world.service.erasures.erasure_marks(max(numbers) + 1) == {}
    assert await world.service.erasures.pending_files(max(numbers) + 1) == []


# ---- stamps ----------------------------------------------------------------------------------------------------------


async def test_no_open_erasure_is_left_out_behind_newer_ones_that_are_done(world: World) -> None:
    topic, (file,) = await a_log(world)
    # given one that waits, and then two that are done
    waits = await request(world.service, topic, mark("a", 5), wait_ms=HOUR_MS)
    done = [await request(world.service, topic, mark("a", 5)) for _ in range(2)]
    await erase_file(world.service, file)
    await delete_dead(world.service)
    for number in done:
        await world.service.erasures.finish_erasure(number, {})
    # then
    for limit, listed in ((0, [waits]), (1, [done[1], waits]), (2, [done[1], done[0], waits])):
        found = await world.service.erasures.erasures(limit=limit)
        assert [each.erasure_id for each in found] == listed
    (old,) = await world.service.erasures.erasures(erasure_id=done[0], limit=0)
    assert old.erasure_id == done[0]


async def test_each_stage_of_erasing_has_a_new_and_greater_stamp(world: World) -> None:
    topic, _ = await a_log(world)
    await request(world.service, topic, mark("a", 5))
    waiting = await request(world.service, topic, mark("b", 5), wait_ms=1)
    last = await request(world.service, topic, mark("c", 5))
    assert [each.stamp for each in await world.service.erasures.erasures()] == [2, None, 1]

    await world.age_erasures(10)
    await world.service.erasures.advance_erasures()

    assert (await erasure(world.service, waiting)).stamp == 3
    assert (await erasure(world.service, last)).stamp == 2


async def test_a_stamp_is_above_those_of_extents_whose_erasures_are_unknown(world: World) -> None:
    """As after a rebuild from the bucket."""
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service)
    file = await writer.commit(batch(topic.partition_ids[0], 10))
    made = await merge(world.service, l0=[file.file_id], erased_through=41)

    number = await request(world.service, topic, mark("a", 5))

    assert (await erasure(world.service, number)).stamp == 42
    assert made.file_ids[0] in await pending(world.service, number)


# ---- stages ----------------------------------------------------------------------------------------------------------


async def test_an_erasure_waits_for_as_long_as_it_said(world: World) -> None:
    topic, _ = await a_log(world)
    number = await request(world.service, topic, mark("a", 5), wait_ms=HOUR_MS, begin_ms=7)

    (found,) = await world.service.erasures.advance_erasures()
    assert (found.stage, found.stamp) == (ErasureStage.WAITING, None)
    await world.age_erasures(HOUR_MS)
    (found,) = await world.service.erasures.advance_erasures()

    assert (found.stage, found.stamp, found.begin_ms) == (ErasureStage.ERASING, 1, found.next_ms + 7)
    assert found == await erasure(world.service, number)
    assert await world.service.erasures.advance_erasures() == [found]


async def test_an_erasure_with_tombstones_erases_rests_and_erases_again(world: World) -> None:
    topic, (first,) = await a_log(world)
    one = topic.partition_ids[0]
    number = await request(world.service, topic, mark("a", 5, tombstone=True), mark("b", 7), rest_ms=HOUR_MS)
    (found,) = await world.service.erasures.advance_erasures()
    assert (found.stage, found.erases_tombstones) == (ErasureStage.ERASING, False)

    (second,) = (await erase_file(world.service, first)).file_ids
    (found,) = await world.service.erasures.advance_erasures()
    now_ms = await world.service.now_ms()
    assert (found.stage, found.stamp, found.erases_tombstones) == (ErasureStage.RESTING, 1, True)
    assert now_ms < found.next_ms <= now_ms + HOUR_MS
    assert found.begin_ms == found.next_ms
    # while it rests nothing is erased, and what was erased is not pending
    assert await world.service.erasures.erased_keys([one]) == {}
    assert await erasing(world.service) == set()
    assert await pending(world.service, number) == [first]
    assert await world.service.erasures.advance_erasures() == [found]

    await world.age_erasures(HOUR_MS)
    (found,) = await world.service.erasures.advance_erasures()
    assert (found.stage, found.stamp, found.erases_tombstones) == (ErasureStage.ERASING, 2, True)
    assert await erasing(world.service) == {second}
    keys = (await world.service.erasures.erased_keys([one]))[one]
    assert sorted(keys.marks) == sorted([mark("a", 5, tombstone=True), mark("b", 7)])
    await erase_file(world.service, second)
    assert await world.service.erasures.advance_erasures() == [found]
    await delete_dead(world.service)
    await world.service.erasures.finish_erasure(number, {})
    assert await world.service.erasures.advance_erasures() == []


async def test_an_erasure_rests_only_when_no_l0_file_before_it_lives(world: World) -> None:
    topic, (file,) = await a_log(world, merged=False)
    await request(world.service, topic, mark("a", 5, tombstone=True), rest_ms=0)

    (found,) = await world.service.erasures.advance_erasures()
    assert found.stage is ErasureStage.ERASING
    (made,) = (await merge(world.service, l0=[file])).file_ids
    (found,) = await world.service.erasures.advance_erasures()
    assert found.stage is ErasureStage.ERASING
    await erase_file(world.service, made)
    (found,) = await world.service.erasures.advance_erasures()

    assert found.stage is ErasureStage.RESTING


async def test_an_erasure_without_tombstones_never_rests(world: World) -> None:
    topic, (first,) = await a_log(world)
    await request(world.service, topic, mark("a", 5))
    await erase_file(world.service, first)

    (found,) = await world.service.erasures.advance_erasures()

    assert found.stage is ErasureStage.ERASING


# ---- the end ---------------------------------------------------------------------------------------------------------


async def test_an_erasure_ends_when_nothing_is_pending_and_its_first_report_stays(world: World) -> None:
    topic, (first,) = await a_log(world)
    number = await request(world.service, topic, mark("a", 5))
    with pytest.raises(ErasurePendingError, match=str(first)):
        await world.service.erasures.finish_erasure(number, {"n": 0})
    await erase_file(world.service, first)
    with pytest.raises(ErasurePendingError):  # its object may be there still
        await world.service.erasures.finish_erasure(number, {"n": 0})
    await delete_dead(world.service)
    assert (await erasure(world.service, number)).stage is ErasureStage.ERASING

    await world.service.erasures.finish_erasure(number, {"n": 1})
    found = await erasure(world.service, number)
    await world.service.erasures.finish_erasure(number, {"n": 2})

    assert found == await erasure(world.service, number)
    assert (found.stage, found.report, found.stamp) == (ErasureStage.DONE, {"n": 1}, 1)
    assert found.done_ms is not None
    assert found.created_ms <= found.done_ms <= await world.service.now_ms()
    assert await world.service.erasures.advance_erasures() == []
    assert await world.service.erasures.erased_keys(topic.partition_ids) == {}
    assert await pending(world.service, number) == []


@pytest.mark.parametrize("fields", [{"wait_ms": HOUR_MS}, {}])
async def test_an_erasure_with_a_stage_to_come_does_not_end(world: World, fields: dict[str, int]) -> None:
    topic = await new_topic(world.service)
    writer = await Writer.register(world.service)
    await writer.commit(batch(topic.partition_ids[0], 10))
    number = await request(world.service, topic, mark("a", 5, tombstone=True), rest_ms=HOUR_MS, **fields)
    await world.service.agents.delete_topic(topic.topic_id)
    await merge(world.service, l0=[each.file_id for each in await world.service.operators.files()])
    await delete_dead(world.service)
    assert await pending(world.service, number) == []

    for _ in range(2):
        with pytest.raises(ErasurePendingError):
            await world.service.erasures.finish_erasure(number, {})
        await world.service.erasures.advance_erasures()


async def test_the_erasure_of_a_deleted_topic_goes_on_until_its_bytes_are_gone(world: World) -> None:
    topic, (first,) = await a_log(world)
    number = await request(world.service, topic, mark("a", 5))

    await world.service.agents.delete_topic(topic.topic_id)

    assert (await erasure(world.service, number)).topic_name == "orders"
    (file,) = await world.service.erasures.pending_files(number)
    assert (file.file_id, file.state) == (first, FileState.DEAD)
    await delete_dead(world.service)
    await world.service.erasures.finish_erasure(number, {})


async def test_rows_of_an_erasure_go_thirty_days_after_it_was_done(world: World) -> None:
    topic, (first,) = await a_log(world)
    done = await request(world.service, topic, mark("a", 5))
    await erase_file(world.service, first)
    await delete_dead(world.service)
    await world.service.erasures.finish_erasure(done, {})
    still_open = await request(world.service, topic, mark("b", 5))

    await world.age_erasures(30 * DAY_MS - HOUR_MS)
    await world.forget_rows()
    assert [each.erasure_id for each in await world.service.erasures.erasures()] == [still_open, done]
    await world.age_erasures(2 * HOUR_MS)
    await world.forget_rows()

    assert [each.erasure_id for each in await world.service.erasures.erasures()] == [still_open]
    assert await world.service.erasures.erasure_marks(done) == {}
    assert hash_of("b") == (await world.service.erasures.erasure_marks(still_open))[0][0].key_hash
    await world.service.erasures.finish_erasure(done, {})
