"""The metadata contract (`metadata/service.py`), kept by the memory and the Postgres implementation alike."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from metadata.invariants import check_log_1, check_log_3, check_prod_1, live_extents
from metadata.packed_index import IndexRow
from metadata.service import (
    AgentAddress,
    ChangeKind,
    CommitRefusedError,
    Committed,
    Cursor,
    FileState,
    InvalidPartitionsError,
    TopicExistsError,
    UnknownTopicError,
    WriterFencedError,
)
from tests.contract.metadata_worlds import (
    BATCH_BYTES,
    MemoryWorld,
    PostgresWorld,
    World,
    Writer,
    batch,
    duplicate,
    new_key,
    new_topic,
    offsets,
    refused,
    rows,
    sent,
    stored,
)

OUT_OF_ORDER, OLD_EPOCH, UNKNOWN_PARTITION, SERVER_ERROR = 45, 47, 3, -1
INT32_MAX = 2**31 - 1


@pytest.fixture(params=["memory", "postgres"])
async def world(request: pytest.FixtureRequest) -> AsyncIterator[World]:
    made: World
    made = MemoryWorld() if request.param == "memory" else PostgresWorld(request.getfixturevalue("postgres_url"))
    await made.service.open()
    yield made
    await made.close()


# ---- giving offsets ------------------------------------------------------------------------------------------------


async def test_offsets_follow_each_other_within_a_file_and_across_files(world: World) -> None:
    writer = await Writer.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids

    first = await writer.commit(batch(one, 3), batch(one, 2), batch(two, 4))
    second = await writer.commit(batch(one, 1), batch(two, 1))

    assert list(first.results) == [stored(0), stored(3), stored(0)]
    assert list(second.results) == [stored(5), stored(4)]
    assert second.file_id > first.file_id
    marks = await world.service.watermarks([one, two])
    assert (marks[one].high_watermark, marks[two].high_watermark) == (6, 5)
    assert (marks[one].log_start_offset, marks[one].last_stable_offset) == (0, 6)


async def test_batches_that_touch_share_an_index_row_with_the_widest_timestamps(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids

    committed = await writer.commit(
        batch(one, 3, min_timestamp_ms=50, max_timestamp_ms=60), batch(one, 2, min_timestamp_ms=-1, max_timestamp_ms=55)
    )

    assert rows(committed) == [IndexRow(one, 0, 4, 0, 2 * BATCH_BYTES, -1, 60)]


async def test_a_refused_batch_is_a_hole_that_splits_the_index_row(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids

    committed = await writer.commit(batch(one, 3), batch(one, 2, masked_error=87), batch(one, 4))

    assert list(committed.results) == [stored(0), refused(87), stored(3)]
    assert rows(committed) == [
        IndexRow(one, 0, 2, 0, BATCH_BYTES, 10, 20),
        IndexRow(one, 3, 6, 2 * BATCH_BYTES, BATCH_BYTES, 10, 20),
    ]


async def test_a_hundred_partitions_in_one_file(world: World) -> None:
    writer = await Writer.register(world.service)
    ids = (await new_topic(world.service, partitions=100)).partition_ids

    committed = await writer.commit(*(batch(id_, n + 1) for n, id_ in enumerate(ids)))

    assert offsets(committed) == [(id_, 0, n) for n, id_ in enumerate(ids)]
    marks = await world.service.watermarks(ids)
    assert [marks[id_].high_watermark for id_ in ids] == list(range(1, 101))


async def test_a_file_in_which_nothing_was_accepted_still_answers_its_repeat(world: World) -> None:
    writer = await Writer.register(world.service)
    request = writer.request([batch(999)])

    first = await world.service.commit_l0(request)
    again = await world.service.commit_l0(request)

    assert list(first.results) == [refused(UNKNOWN_PARTITION)]
    assert (first, rows(first)) == (again, [])
    assert [file.state for file in await world.service.files()] == [FileState.DEAD]


async def test_log_append_time_is_answered_for_stored_batches_and_their_duplicates(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids

    first = await writer.commit(sent(one, 0, 0, log_append_time_ms=111))
    again = await writer.commit(sent(one, 0, 0, log_append_time_ms=222))

    assert list(first.results) == [stored(0, 111)]
    assert list(again.results) == [duplicate(0, 111)]


# ---- idempotence by key --------------------------------------------------------------------------------------------


async def test_a_repeated_call_gets_the_stored_answer_and_gives_nothing_twice(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    request = writer.request([batch(one, 3), sent(one, 0, 5), sent(one, 0, 0)])

    first = await world.service.commit_l0(request)
    again = await world.service.commit_l0(request)

    assert first == again
    assert (await world.service.watermarks([one]))[one].high_watermark == 4
    assert len(await world.service.files()) == 1


async def test_a_repeat_after_the_agent_crashed_and_others_committed_gets_the_stored_answer(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    request = writer.request([batch(one, 3)])
    first = await world.service.commit_l0(request)
    await writer.commit(batch(one, 9))

    again = await (await world.another()).commit_l0(request)

    assert first == again


async def test_a_known_key_is_answered_even_when_its_writer_was_fenced_or_its_file_was_deleted(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    request = writer.request([batch(one)])
    first = await world.service.commit_l0(request)
    await Writer.register(world.service)
    await world.set_state(first.file_id, FileState.DELETED)

    assert await world.service.commit_l0(request) == first


async def test_an_older_epoch_of_a_writer_is_fenced(world: World) -> None:
    old = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    new = await Writer.register(world.service)

    with pytest.raises(WriterFencedError):
        await old.commit(batch(one))

    assert list((await new.commit(batch(one))).results) == [stored(0)]
    assert len(await world.service.files()) == 1


@pytest.mark.parametrize("back", [1, 2])
async def test_a_seq_that_is_not_above_the_writers_last_is_refused_and_leaves_nothing(world: World, back: int) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    writer.seq = 7
    await writer.commit(batch(one))
    writer.seq -= back

    with pytest.raises(CommitRefusedError):
        await writer.commit(batch(one))

    assert (await world.service.watermarks([one]))[one].high_watermark == 1
    assert len(await world.service.files()) == 1


async def test_a_new_epoch_may_number_from_the_start(world: World) -> None:
    first = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await first.commit(batch(one))
    second = await Writer.register(world.service)

    assert list((await second.commit(batch(one))).results) == [stored(1)]


# ---- aborted keys --------------------------------------------------------------------------------------------------


async def test_an_aborted_key_is_never_committed(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    key = new_key()

    assert await world.service.abort_file(key)
    with pytest.raises(CommitRefusedError):
        await writer.commit(batch(one), key=key)

    assert (await world.service.watermarks([one]))[one].high_watermark == 0
    assert await world.service.abort_file(key), "the janitor may have lost the first answer"


async def test_a_committed_key_is_never_aborted(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    request = writer.request([batch(one)])
    first = await world.service.commit_l0(request)

    assert not await world.service.abort_file(request.key)
    assert await world.service.commit_l0(request) == first


async def test_of_a_commit_and_an_abort_at_once_exactly_one_wins(world: World) -> None:
    writer = await Writer.register(world.service)
    janitor = await world.another()
    (one,) = (await new_topic(world.service)).partition_ids

    wins = 0
    for number in range(40):
        request = writer.request([batch(one)])
        calls = [world.service.commit_l0(request), janitor.abort_file(request.key)]
        outcome = await asyncio.gather(*(calls if number % 2 else reversed(calls)), return_exceptions=True)
        commit, abort = outcome if number % 2 else reversed(outcome)
        assert isinstance(commit, Committed) != abort, f"{commit!r} and abort {abort!r}"
        wins += isinstance(commit, Committed)

    assert (await world.service.watermarks([one]))[one].high_watermark == wins


async def test_a_key_as_old_as_a_forgotten_aborted_one_is_refused(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    sleeping = new_key("2024010107")
    await world.service.abort_file(sleeping)
    await world.forget_rows()

    with pytest.raises(CommitRefusedError):
        await writer.commit(batch(one), key=sleeping)

    later = await writer.commit(batch(one), key=new_key("2024010108"))
    assert list(later.results) == [stored(0)]


# ---- producers -----------------------------------------------------------------------------------------------------


async def test_a_retry_in_a_later_file_of_another_agent_answers_with_the_first_offset(world: World) -> None:
    writer = await Writer.register(world.service)
    other = await Writer.register(await world.another(), port=9093)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(batch(one, 7), sent(one, 0, 0, 3))

    again = await other.commit(batch(one), sent(one, 0, 0, 3), batch(one))

    assert list(again.results) == [stored(10), duplicate(7), stored(11)]
    assert offsets(again) == [(one, 10, 10), (one, 11, 11)]


async def test_a_retry_and_its_original_may_share_a_file(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids

    committed = await writer.commit(
        sent(one, 0, 0, 2), sent(one, 0, 0, 2), sent(one, 0, 2, 2), sent(one, 0, 0, 2), sent(one, 0, 4)
    )

    assert list(committed.results) == [stored(0), duplicate(0), stored(2), duplicate(0), stored(4)]
    assert offsets(committed) == [(one, 0, 1), (one, 2, 3), (one, 4, 4)]


async def test_after_a_gap_every_batch_is_refused_until_the_missing_one_arrives(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids

    committed = await writer.commit(
        sent(one, 0, 0, 2), sent(one, 0, 4, 2), sent(one, 0, 6, 2), sent(one, 0, 2, 2), sent(one, 0, 4, 2)
    )

    expected = [stored(0), refused(OUT_OF_ORDER), refused(OUT_OF_ORDER), stored(2), stored(4)]
    assert list(committed.results) == expected


async def test_after_a_masked_batch_the_rest_of_its_producer_is_refused_and_others_are_not(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids

    committed = await writer.commit(sent(one, 0, 0, masked_error=87), sent(one, 1, 0), sent(one, 0, 1))

    assert list(committed.results) == [refused(87), stored(0), refused(OUT_OF_ORDER)]


async def test_only_the_last_five_batches_are_known_as_duplicates(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(*(sent(one, 0, n) for n in range(3)))
    await writer.commit(*(sent(one, 0, n) for n in range(3, 7)))

    again = await writer.commit(*(sent(one, 0, n) for n in range(7)))

    assert list(again.results) == [refused(OUT_OF_ORDER)] * 2 + [duplicate(n) for n in range(2, 7)]
    (state,) = await world.service.producer_states()
    assert list(state.batches) == [(n, n, n) for n in range(2, 7)]


async def test_a_partial_overlap_is_no_duplicate(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(sent(one, 0, 0, 4))

    again = await writer.commit(sent(one, 0, 0, 3), sent(one, 0, 2, 2))

    assert list(again.results) == [refused(OUT_OF_ORDER)] * 2


async def test_sequences_wrap_from_the_greatest_int_to_zero(world: World) -> None:
    service = await world.another(producer_id_expiration_ms=-1)
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await service.allocate_producer_ids(1)

    inside = await writer.commit(sent(one, 0, INT32_MAX - 1, 4), sent(one, 0, 2))
    again = await writer.commit(sent(one, 0, INT32_MAX - 1, 4), sent(one, 0, 3, INT32_MAX - 3), sent(one, 0, INT32_MAX))
    past = await writer.commit(sent(one, 0, 0))

    assert list(inside.results) == [stored(0), stored(4)]
    assert list(again.results) == [duplicate(0), stored(5), stored(INT32_MAX + 2)]
    assert list(past.results) == [stored(INT32_MAX + 3)]
    assert check_prod_1(await service.producer_states(), await service.watermarks([one])) == []


async def test_an_older_epoch_is_refused_and_a_newer_one_starts_at_zero(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(sent(one, 0, 0, epoch=3), sent(one, 0, 1, epoch=3))

    committed = await writer.commit(
        sent(one, 0, 2, epoch=2),
        sent(one, 0, 2, epoch=4),
        sent(one, 0, 0, epoch=4),
        sent(one, 0, 0, epoch=3),
        sent(one, 0, 1, epoch=4),
    )

    codes = [result.error for result in committed.results]
    assert codes == [OLD_EPOCH, OUT_OF_ORDER, 0, OLD_EPOCH, 0]
    (state,) = await world.service.producer_states()
    assert (state.epoch, list(state.batches)) == (4, [(0, 0, 2), (1, 1, 3)])


async def test_a_batch_that_overtook_the_first_one_is_refused(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await asyncio.sleep(0.003)  # ids allocated in the partition's own millisecond count as older
    young = (await world.service.allocate_producer_ids(1))[0]

    overtaking = await writer.commit(sent(one, young, 5))
    in_order = await writer.commit(sent(one, young, 0, 5), sent(one, young, 5))

    assert list(overtaking.results) == [refused(OUT_OF_ORDER)]
    assert list(in_order.results) == [stored(0), stored(5)]


async def test_a_producer_older_than_the_partition_may_start_anywhere(world: World) -> None:
    writer = await Writer.register(world.service)
    old = (await world.service.allocate_producer_ids(5))[3]
    await asyncio.sleep(0.003)
    (one,) = (await new_topic(world.service)).partition_ids

    assert list((await writer.commit(sent(one, old, 5))).results) == [stored(0)]


async def test_a_producer_older_than_the_expiration_may_start_anywhere(world: World) -> None:
    service = await world.another(producer_id_expiration_ms=1)
    writer = await Writer.register(service)
    (one,) = (await new_topic(service)).partition_ids
    await asyncio.sleep(0.003)
    expired = (await service.allocate_producer_ids(1))[0]
    await asyncio.sleep(0.005)

    assert list((await writer.commit(sent(one, expired, 5))).results) == [stored(0)]


async def test_a_producer_id_that_was_never_allocated_must_start_at_zero(world: World) -> None:
    service = await world.another(producer_id_expiration_ms=-1)
    writer = await Writer.register(service)
    await service.allocate_producer_ids(3)
    (one,) = (await new_topic(service)).partition_ids

    committed = await writer.commit(sent(one, 3, 1), sent(one, 7, 0), sent(one, 2**40, 9))

    assert list(committed.results) == [refused(OUT_OF_ORDER), stored(0), refused(OUT_OF_ORDER)]


async def test_producer_ids_are_given_once_to_all_who_ask(world: World) -> None:
    other = await world.another()

    blocks = await asyncio.gather(
        *(service.allocate_producer_ids(10) for service in [world.service, other] for _ in range(8))
    )

    given = list(itertools.chain(*blocks))
    assert sorted(given) == list(range(160))


# ---- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "impossible",
    [
        {"record_count": 0},
        {"record_count": -1},
        {"record_count": 2**31},
        {"length": 0},
        {"max_timestamp_ms": 2**63},
        {"partition_id": 2**31},
        {"partition_id": -1},
        {"log_append_time_ms": -2},
        {"producer_id": -2},
        {"producer_id": 5, "producer_epoch": 0, "base_sequence": -1},
        {"producer_id": 5, "producer_epoch": 2**15, "base_sequence": 0},
    ],
    ids=str,
)
async def test_a_batch_of_impossible_values_is_masked_alone(world: World, impossible: dict[str, int]) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    request = writer.request([batch(one, 2), batch(one), sent(one, 0, 0), batch(one)])
    culprit = replace(request.batches[1], **impossible)
    request = replace(request, batches=[request.batches[0], culprit, *request.batches[2:]])

    committed = await world.service.commit_l0(request)

    assert list(committed.results) == [stored(0), refused(SERVER_ERROR), stored(2), stored(3)]
    assert await world.service.commit_l0(request) == committed


async def test_all_culprits_of_a_file_are_found(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    bad = {0, 3, 4, 11}

    committed = await writer.commit(*(batch(one, 0 if n in bad else 1) for n in range(12)))

    assert {n for n, result in enumerate(committed.results) if result.error} == bad
    assert (await world.service.watermarks([one]))[one].high_watermark == 8


async def test_batches_of_a_deleted_topic_are_refused_alone(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service, "gone")
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(sent(topic.partition_ids[0], 0, 0))
    await world.service.delete_topic(topic.topic_id)

    committed = await writer.commit(sent(topic.partition_ids[0], 0, 1), batch(one))

    assert list(committed.results) == [refused(UNKNOWN_PARTITION), stored(0)]
    assert await world.service.producer_states() == []
    assert topic.partition_ids[0] not in await world.service.watermarks([*topic.partition_ids, one])


async def test_a_topic_deleted_amid_commits_leaves_neither_state_nor_a_deadlock(world: World) -> None:
    writer = await Writer.register(world.service)
    other = await Writer.register(await world.another(), port=9093)
    topic = await new_topic(world.service, "gone", partitions=8)
    kept = (await new_topic(world.service)).partition_ids[0]

    async def commit_many(writer: Writer) -> None:
        for sequence in range(10):
            producer = writer.lease.writer_id
            await writer.commit(*(sent(id_, producer, sequence) for id_ in reversed(topic.partition_ids)), batch(kept))

    await asyncio.gather(commit_many(writer), commit_many(other), (await world.another()).delete_topic(topic.topic_id))

    assert await world.service.producer_states() == []
    assert list(await world.service.watermarks(topic.partition_ids)) == []
    assert (await world.service.watermarks([kept]))[kept].high_watermark == 20


# ---- the tail ------------------------------------------------------------------------------------------------------


async def test_the_tail_gives_every_file_once_in_file_id_order(world: World) -> None:
    writers = [await Writer.register(world.service, port) for port in (9092, 9093)]
    (one,) = (await new_topic(world.service)).partition_ids
    committed = [await writers[n % 2].commit(batch(one)) for n in range(4)]

    first = await world.service.tail(Cursor())
    committed.append(await writers[0].commit(batch(one)))
    second = await world.service.tail(first.cursor)
    third = await world.service.tail(second.cursor)

    assert [file.file_id for file in [*first.files, *second.files]] == [file.file_id for file in committed]
    assert [file.index for file in [*first.files, *second.files]] == [file.index for file in committed]
    assert (list(third.files), list(third.changes), third.cold) == ([], [], False)


async def test_the_tail_never_waits_for_a_missing_seq(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(batch(one))
    writer.seq += 10
    await writer.commit(batch(one))

    seen = await world.service.tail(Cursor())

    assert [file.seq for file in seen.files] == [1, 12]
    assert seen.cursor.writers == {writer.lease.writer_id: (writer.lease.epoch, 12)}


async def test_the_tail_sees_files_that_were_merged_or_deleted_before_it_looked(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    files = [await writer.commit(batch(one)) for _ in range(3)]
    await world.set_state(files[0].file_id, FileState.DEAD)
    await world.set_state(files[1].file_id, FileState.DELETED)

    seen = await world.service.tail(Cursor())

    assert [file.file_id for file in seen.files] == [file.file_id for file in files]


async def test_the_tail_follows_a_writer_into_its_new_epoch(world: World) -> None:
    old = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await old.commit(batch(one))
    await old.commit(batch(one))
    cursor = (await world.service.tail(Cursor())).cursor
    new = await Writer.register(world.service)
    later = await new.commit(batch(one))

    seen = await world.service.tail(cursor)

    assert [file.file_id for file in seen.files] == [later.file_id]


async def test_a_snapshot_and_the_tail_after_it_lose_nothing_and_repeat_nothing(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service)
    (one,) = topic.partition_ids
    files = [await writer.commit(batch(one)) for _ in range(3)]
    await world.set_state(files[1].file_id, FileState.DEAD)
    snapshot = await world.service.snapshot()
    later = await writer.commit(batch(one))
    grown = await world.service.create_partitions(topic.topic_id, 2)

    seen = await world.service.tail(snapshot.cursor)

    assert [file.file_id for file in snapshot.files] == [files[0].file_id, files[2].file_id]
    assert list(snapshot.topics) == [topic]
    assert [mark.high_watermark for mark in snapshot.watermarks] == [3]
    assert [file.file_id for file in seen.files] == [later.file_id]
    assert [change.kind for change in seen.changes] == [ChangeKind.PARTITIONS_ADDED]
    assert seen.changes[0].detail["partition_ids"] == list(grown.partition_ids)


async def test_a_cursor_older_than_the_changes_kept_starts_cold(world: World) -> None:
    old = (await world.service.snapshot()).cursor
    await new_topic(world.service)
    await world.forget_rows()

    assert (await world.service.tail(old)).cold
    assert not (await world.service.tail((await world.service.snapshot()).cursor)).cold


async def test_a_cursor_older_than_the_files_kept_starts_cold(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await world.forget_rows()
    old = (await world.service.snapshot()).cursor
    file = await writer.commit(batch(one))
    await writer.commit(batch(one))
    current = (await world.service.tail(old)).cursor
    await world.set_state(file.file_id, FileState.DELETED)
    await world.forget_rows()

    assert (await world.service.tail(old)).cold
    assert not (await world.service.tail(current)).cold
    assert not (await world.service.tail((await world.service.snapshot()).cursor)).cold


async def test_changes_are_seen_once_and_in_order_by_a_follower_amid_many_writers(world: World) -> None:
    services = [world.service, *[await world.another() for _ in range(3)]]
    follower = await world.another()
    seen: list[int] = []
    names: list[str] = []

    async def create(service_number: int) -> None:
        for n in range(8):
            await new_topic(services[service_number], f"t-{service_number}-{n}")

    writing = asyncio.gather(*(create(n) for n in range(4)))
    cursor = Cursor()
    while len(seen) < 32:
        done = writing.done()
        tail = await follower.tail(cursor)
        seen += [change.change_id for change in tail.changes]
        names += [change.detail["name"] for change in tail.changes]
        cursor = tail.cursor
        assert not done or tail.changes, f"a change was lost: {sorted(names)}"
        await asyncio.sleep(0)
    await writing

    assert seen == sorted(set(seen))
    assert sorted(names) == sorted(f"t-{service}-{n}" for service in range(4) for n in range(8))


async def test_news_wakes_a_follower_of_the_same_store(world: World) -> None:
    other = await world.another()
    await other.wait_for_news(200)  # hints of before, and time to begin to listen

    async def hint() -> None:
        while True:
            await world.service.notify()
            await asyncio.sleep(0.02)

    hints = asyncio.create_task(hint())
    try:
        await asyncio.wait_for(other.wait_for_news(60_000), timeout=20)
    finally:
        hints.cancel()


async def test_waiting_for_news_ends_with_its_timeout(world: World) -> None:
    await asyncio.wait_for(world.service.wait_for_news(10), timeout=20)


# ---- many writers --------------------------------------------------------------------------------------------------


async def test_offsets_stay_dense_and_in_file_order_under_concurrent_writers(world: World) -> None:
    writers = [await Writer.register(await world.another(), port) for port in range(9000, 9004)]
    ids = (await new_topic(world.service, partitions=6)).partition_ids

    async def commit_many(number: int) -> None:
        for n in range(15):
            mine = ids if n % 2 else tuple(reversed(ids[number % 3 :]))
            await writers[number].commit(*(batch(id_, n % 3 + 1) for id_ in mine), sent(ids[0], number, n))

    await asyncio.gather(*(commit_many(number) for number in range(4)))

    files = await world.service.files()
    snapshot = await world.service.snapshot()
    marks = {mark.partition_id: mark for mark in snapshot.watermarks}
    assert check_log_1(files, marks) == []
    assert check_log_3(live_extents(snapshot.files, marks), marks) == []
    assert check_prod_1(await world.service.producer_states(), marks) == []
    assert len(files) == 60


async def test_files_are_listed_in_pages(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    made = [(await writer.commit(batch(one))).file_id for _ in range(5)]

    first = await world.service.files(limit=2)
    rest = await world.service.files(after_file_id=first[-1].file_id)

    assert [file.file_id for file in [*first, *rest]] == made
    assert {(file.level, file.state, file.crc32c, file.size_bytes) for file in first} == {
        (0, FileState.LIVE, 0xDEADBEEF, BATCH_BYTES)
    }


# ---- topics --------------------------------------------------------------------------------------------------------


async def test_a_topic_is_made_described_changed_and_deleted(world: World) -> None:
    service = world.service
    topic = await service.create_topic("orders", partitions=2, configs={"retention.ms": "1"})
    altered = await service.alter_configs(topic.topic_id, {"retention.ms": None, "cleanup.policy": "compact"})
    grown = await service.create_partitions(topic.topic_id, 4)

    assert list(await service.topics()) == [grown]
    assert (altered.configs, grown.configs) == ({"cleanup.policy": "compact"},) * 2
    assert grown.partition_ids[:2] == topic.partition_ids
    assert len(set(grown.partition_ids)) == 4

    await service.delete_topic(topic.topic_id)

    assert list(await service.topics()) == []
    assert list(await service.watermarks(grown.partition_ids)) == []
    changes = (await service.tail(Cursor())).changes
    assert [change.kind for change in changes] == [
        ChangeKind.TOPIC_CREATED,
        ChangeKind.CONFIGS_CHANGED,
        ChangeKind.PARTITIONS_ADDED,
        ChangeKind.TOPIC_DELETED,
    ]
    assert {change.topic_id for change in changes} == {topic.topic_id}
    assert changes[0].detail == {
        "name": "orders",
        "partition_ids": list(topic.partition_ids),
        "configs": {"retention.ms": "1"},
        "created_ms": topic.created_ms,
    }
    assert changes[1].detail == {"name": "orders", "configs": {"cleanup.policy": "compact"}}
    assert changes[3].detail == {"name": "orders", "partition_ids": list(grown.partition_ids)}


async def test_a_name_is_taken_until_its_topic_is_deleted(world: World) -> None:
    first = await new_topic(world.service)
    with pytest.raises(TopicExistsError):
        await new_topic(world.service)
    await world.service.delete_topic(first.topic_id)

    second = await new_topic(world.service)

    assert second.topic_id != first.topic_id
    assert not set(second.partition_ids) & set(first.partition_ids)


async def test_a_topic_that_does_not_exist_is_said_so(world: World) -> None:
    gone = await new_topic(world.service)
    await world.service.delete_topic(gone.topic_id)

    with pytest.raises(UnknownTopicError):
        await world.service.delete_topic(gone.topic_id)
    with pytest.raises(UnknownTopicError):
        await world.service.alter_configs(gone.topic_id, {"retention.ms": "1"})
    with pytest.raises(UnknownTopicError):
        await world.service.create_partitions(gone.topic_id, 9)


async def test_partitions_are_only_added(world: World) -> None:
    topic = await new_topic(world.service, partitions=3)

    for count in (0, 2, 3):
        with pytest.raises(InvalidPartitionsError):
            await world.service.create_partitions(topic.topic_id, count)


# ---- agents --------------------------------------------------------------------------------------------------------


async def test_an_address_keeps_its_node_id_under_a_new_epoch(world: World) -> None:
    here, there = AgentAddress(host="a", port=1, zone="z1"), AgentAddress(host="a", port=2)
    first = await world.service.register_agent(here)
    second = await world.service.register_agent(there)
    again = await world.service.register_agent(here)

    assert (again.writer_id, again.epoch) == (first.writer_id, first.epoch + 1)
    assert second.writer_id != first.writer_id
    alive = await world.service.live_agents()
    assert [(agent.writer_id, agent.epoch, agent.address) for agent in alive] == [
        (again.writer_id, again.epoch, here),
        (second.writer_id, second.epoch, there),
    ]
    with pytest.raises(WriterFencedError):
        await world.service.heartbeat(first)
    await world.service.heartbeat(again)


async def test_one_address_registered_twice_at_once_gives_two_epochs_of_one_id(world: World) -> None:
    other = await world.another()
    here = AgentAddress(host="a", port=1)

    leases = await asyncio.gather(*(service.register_agent(here) for service in [world.service, other] * 3))

    assert len({lease.writer_id for lease in leases}) == 1
    assert sorted(lease.epoch for lease in leases) == list(range(6))


async def test_draining_ended_and_expired_agents_are_not_alive(world: World) -> None:
    draining, ended, expired = [
        await world.service.register_agent(AgentAddress(host="a", port=port)) for port in (1, 2, 3)
    ]
    await world.expire_leases()
    await world.service.heartbeat(draining, draining=True)
    await world.service.heartbeat(ended)
    assert [agent.writer_id for agent in await world.service.live_agents()] == [ended.writer_id]

    await world.service.unregister_agent(ended)
    await world.service.unregister_agent(ended)
    assert await world.service.live_agents() == []

    await world.service.heartbeat(expired)
    assert [agent.writer_id for agent in await world.service.live_agents()] == [expired.writer_id]
    with pytest.raises(WriterFencedError):
        await world.service.heartbeat(ended)


async def test_a_fenced_agent_cannot_end_its_successors_lease(world: World) -> None:
    here = AgentAddress(host="a", port=1)
    old, new = await world.service.register_agent(here), await world.service.register_agent(here)

    await world.service.unregister_agent(old)

    assert [agent.epoch for agent in await world.service.live_agents()] == [new.epoch]


async def test_the_cluster_id_stays_and_remembers_its_store(world: World) -> None:
    before = await world.service.cluster_identity()
    await world.service.bind_store()
    await world.service.bind_store()
    after = await (await world.another()).cluster_identity()

    assert (before.store_bound, after.store_bound) == (False, True)
    assert before.cluster_id == after.cluster_id
    assert len(before.cluster_id) == 22
