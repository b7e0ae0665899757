"""The metadata contract (`metadata/contract/store.py`) for the memory and the Postgres implementation: commits.

Producers are in test_metadata_producers.py, followers in test_metadata_tail.py, topics and agents in
test_metadata_topics.py.
"""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from metadata.contract.agents import each_live_file
from metadata.contract.files import FileState
from metadata.contract.l0_commit import Committed
from metadata.rules.invariants.all_levels import check_log_1, check_log_3, check_prod_1, live_extents
from metadata.rules.object_keys import key_too_old
from metadata.rules.packed_index import IndexRow
from metadata.rules.refusals import commit_fenced, commit_refused, key_aborted, other_epoch, seq_used
from tests.contract.metadata_worlds import (
    BATCH_BYTES,
    World,
    Writer,
    batch,
    duplicate,
    new_key,
    new_topic,
    offsets,
    raises_exactly,
    refused,
    rows,
    sent,
    stored,
)

UNKNOWN_PARTITION = 3
SERVER_ERROR = -1


# ---- giving offsets --------------------------------------------------------------------------------------------------


async def test_offsets_follow_each_other_within_a_file_and_across_files(world: World) -> None:
    writer = await Writer.register(world.service)
    one, two = (await new_topic(world.service, partitions=2)).partition_ids

    first = await writer.commit(batch(one, 3), batch(one, 2), batch(two, 4))
    second = await writer.commit(batch(one, 1), batch(two, 1))

    assert list(first.results) == [stored(0), stored(3), stored(0)]
    assert list(second.results) == [stored(5), stored(4)]
    assert second.file_id > first.file_id
    marks = await world.service.agents.watermarks([one, two])
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
    marks = await world.service.agents.watermarks(ids)
    assert [marks[id_].high_watermark for id_ in ids] == list(range(1, 101))


async def test_a_file_in_which_nothing_was_accepted_still_answers_its_repeat(world: World) -> None:
    writer = await Writer.register(world.service)
    request = writer.request([batch(999)])

    first = await world.service.agents.commit_l0(request)
    again = await world.service.agents.commit_l0(request)

    assert list(first.results) == [refused(UNKNOWN_PARTITION)]
    assert (first, rows(first)) == (again, [])
    assert [file.state for file in await world.service.operators.files()] == [FileState.DEAD]


async def test_log_append_time_is_answered_for_stored_batches_and_their_duplicates(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids

    first = await writer.commit(sent(one, 0, 0, log_append_time_ms=111))
    again = await writer.commit(sent(one, 0, 0, log_append_time_ms=222))

    assert list(first.results) == [stored(0, 111)]
    assert list(again.results) == [duplicate(0, 111)]


# ---- idempotence by key ----------------------------------------------------------------------------------------------


async def test_a_repeated_call_gets_the_stored_answer_and_gives_nothing_twice(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    request = writer.request([batch(one, 3), sent(one, 0, 5), sent(one, 0, 0)])

    first = await world.service.agents.commit_l0(request)
    again = await world.service.agents.commit_l0(request)

    assert first == again
    assert (await world.service.agents.watermarks([one]))[one].high_watermark == 4
    assert len(await world.service.operators.files()) == 1


async def test_a_repeat_after_the_agent_crashed_and_others_committed_gets_the_stored_answer(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    request = writer.request([batch(one, 3)])
    first = await world.service.agents.commit_l0(request)
    await writer.commit(batch(one, 9))

    again = await (await world.another()).agents.commit_l0(request)

    assert first == again


async def test_a_known_key_is_answered_even_when_its_writer_was_fenced_or_its_file_was_deleted(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    request = writer.request([batch(one)])
    first = await world.service.agents.commit_l0(request)
    await Writer.register(world.service, instead_of=writer.lease)
    await world.set_state(first.file_id, FileState.DELETED)

    assert await world.service.agents.commit_l0(request) == first


async def test_an_older_epoch_of_a_writer_is_fenced(world: World) -> None:
    old = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    new = await Writer.register(world.service, instead_of=old.lease)

    key = new_key()
    with raises_exactly(commit_fenced(key, other_epoch(old.lease, new.lease.epoch))):
        await old.commit(batch(one), key=key)

    assert list((await new.commit(batch(one))).results) == [stored(0)]
    assert len(await world.service.operators.files()) == 1


async def test_an_older_epoch_is_fenced_although_it_used_the_seq_itself(world: World) -> None:
    old = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await old.commit(batch(one))
    new = await Writer.register(world.service, instead_of=old.lease)
    old.seq -= 1

    key = new_key()
    with raises_exactly(commit_fenced(key, other_epoch(old.lease, new.lease.epoch))):
        await old.commit(batch(one), key=key)


@pytest.mark.parametrize("back", [1, 2])
async def test_a_seq_that_is_not_above_the_writers_last_is_refused_and_leaves_nothing(world: World, back: int) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    writer.seq = 7
    await writer.commit(batch(one))
    writer.seq -= back

    request = writer.request([batch(one)])
    with raises_exactly(commit_refused(request.key, seq_used(request, 8))):
        await world.service.agents.commit_l0(request)

    assert (await world.service.agents.watermarks([one]))[one].high_watermark == 1
    assert len(await world.service.operators.files()) == 1


async def test_a_new_epoch_may_number_from_the_start(world: World) -> None:
    first = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    await first.commit(batch(one))
    second = await Writer.register(world.service, instead_of=first.lease)

    assert list((await second.commit(batch(one))).results) == [stored(1)]


# ---- aborted keys ----------------------------------------------------------------------------------------------------


async def test_an_aborted_key_is_never_committed(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    key = new_key()

    assert await world.service.deletion.abort_file(key)
    with raises_exactly(commit_refused(key, key_aborted(key))):
        await writer.commit(batch(one), key=key)

    assert (await world.service.agents.watermarks([one]))[one].high_watermark == 0
    assert await world.service.deletion.abort_file(key), "the janitor may have lost the first answer"


async def test_a_committed_key_is_never_aborted(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    request = writer.request([batch(one)])
    first = await world.service.agents.commit_l0(request)

    assert not await world.service.deletion.abort_file(request.key)
    assert await world.service.agents.commit_l0(request) == first


async def test_of_a_commit_and_an_abort_at_once_exactly_one_wins(world: World) -> None:
    writer = await Writer.register(world.service)
    janitor = await world.another()
    (one,) = (await new_topic(world.service)).partition_ids

    wins = 0
    for number in range(40):
        request = writer.request([batch(one)])
        calls = [world.service.agents.commit_l0(request), janitor.deletion.abort_file(request.key)]
        outcome = await asyncio.gather(*(calls if number % 2 else reversed(calls)), return_exceptions=True)
        commit, abort = outcome if number % 2 else reversed(outcome)
        assert isinstance(commit, Committed) != abort, f"{commit!r} and abort {abort!r}"
        wins += isinstance(commit, Committed)

    assert (await world.service.agents.watermarks([one]))[one].high_watermark == wins


async def test_a_key_as_old_as_a_forgotten_aborted_one_is_refused(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    sleeping = new_key("2024010107")
    await world.service.deletion.abort_file(sleeping)
    await world.forget_rows()

    with raises_exactly(commit_refused(sleeping, key_too_old(sleeping))):
        await writer.commit(batch(one), key=sleeping)

    later = await writer.commit(batch(one), key=new_key("2024010108"))
    assert list(later.results) == [stored(0)]


# ---- refusals --------------------------------------------------------------------------------------------------------


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
    culprit = request.batches[1]._replace(**impossible)
    request = replace(request, batches=[request.batches[0], culprit, *request.batches[2:]])

    committed = await world.service.agents.commit_l0(request)

    assert list(committed.results) == [stored(0), refused(SERVER_ERROR), stored(2), stored(3)]
    assert await world.service.agents.commit_l0(request) == committed


@pytest.mark.parametrize("timestamp_ms", [-(2**63), 2**63 - 1])
async def test_a_batch_of_extreme_timestamps_is_stored_with_them(world: World, timestamp_ms: int) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids

    committed = await writer.commit(batch(one, min_timestamp_ms=-(2**63), max_timestamp_ms=timestamp_ms))

    assert list(committed.results) == [stored(0)]
    assert [(row.min_timestamp_ms, row.max_timestamp_ms) for row in rows(committed)] == [(-(2**63), timestamp_ms)]


async def test_all_culprits_of_a_file_are_found(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    bad = {0, 3, 4, 11}

    committed = await writer.commit(*(batch(one, 0 if n in bad else 1) for n in range(12)))

    assert {n for n, result in enumerate(committed.results) if result.error} == bad
    assert (await world.service.agents.watermarks([one]))[one].high_watermark == 8


async def test_batches_of_a_deleted_topic_are_refused_alone(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service, "gone")
    (one,) = (await new_topic(world.service)).partition_ids
    await writer.commit(sent(topic.partition_ids[0], 0, 0))
    await world.service.agents.delete_topic(topic.topic_id)

    committed = await writer.commit(sent(topic.partition_ids[0], 0, 1), batch(one))

    assert list(committed.results) == [refused(UNKNOWN_PARTITION), stored(0)]
    assert await world.service.agents.producer_states() == []
    assert topic.partition_ids[0] not in await world.service.agents.watermarks([*topic.partition_ids, one])


async def test_a_topic_deleted_amid_commits_leaves_neither_state_nor_a_deadlock(world: World) -> None:
    writer = await Writer.register(world.service)
    other = await Writer.register(await world.another(), port=9093)
    topic = await new_topic(world.service, "gone", partitions=8)
    kept = (await new_topic(world.service)).partition_ids[0]

    async def commit_many(writer: Writer) -> None:
        for sequence in range(10):
            producer = writer.lease.writer_id
            await writer.commit(*(sent(id_, producer, sequence) for id_ in reversed(topic.partition_ids)), batch(kept))

    await asyncio.gather(
        commit_many(writer), commit_many(other), (await world.another()).agents.delete_topic(topic.topic_id)
    )

    assert await world.service.agents.producer_states() == []
    assert list(await world.service.agents.watermarks(topic.partition_ids)) == []
    assert (await world.service.agents.watermarks([kept]))[kept].high_watermark == 20


# ---- many writers ----------------------------------------------------------------------------------------------------


async def test_offsets_stay_dense_and_in_file_order_under_concurrent_writers(world: World) -> None:
    writers = [await Writer.register(await world.another(), port) for port in range(9000, 9004)]
    ids = (await new_topic(world.service, partitions=6)).partition_ids

    async def commit_many(number: int) -> None:
        for n in range(15):
            mine = ids if n % 2 else tuple(reversed(ids[number % 3 :]))
            await writers[number].commit(*(batch(id_, n % 3 + 1) for id_ in mine), sent(ids[0], number, n))

    await asyncio.gather(*(commit_many(number) for number in range(4)))

    files = await world.service.operators.files()
    snapshot = await world.service.agents.snapshot()
    marks = {mark.partition_id: mark for mark in snapshot.watermarks}
    assert check_log_1(files, marks) == []
    files = [file async for file in each_live_file(world.service.agents, snapshot)]
    assert check_log_3(live_extents(files, marks), marks) == []
    assert check_prod_1(await world.service.agents.producer_states(), marks) == []
    assert len(files) == 60


async def test_files_are_listed_in_pages(world: World) -> None:
    writer = await Writer.register(world.service)
    (one,) = (await new_topic(world.service)).partition_ids
    made = [(await writer.commit(batch(one))).file_id for _ in range(5)]

    first = await world.service.operators.files(limit=2)
    rest = await world.service.operators.files(after_file_id=first[-1].file_id)

    assert [file.file_id for file in [*first, *rest]] == made
    assert {(file.level, file.state, file.crc32c, file.size_bytes) for file in first} == {
        (0, FileState.LIVE, 0xDEADBEEF, BATCH_BYTES)
    }
