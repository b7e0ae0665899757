"""The contract of erasures: the files that are pending, and the stamps that merges give."""

from __future__ import annotations

from metadata.contract.files import FileState
from metadata.erasures.contract import (
    ErasedKeys,
)
from tests.contract.erasing import (
    a_log,
    delete_dead,
    erase_file,
    erasing,
    erasure,
    leveled_files,
    mark,
    new_erasure,
    pending,
    request,
)
from tests.contract.merges import claim, commit_of, extents_of, job, merge, output_extent, output_file, outputs_of
from tests.contract.metadata_worlds import World, Writer, batch, new_topic, sent

HOUR_MS = 3_600_000


# ---- pending files ---------------------------------------------------------------------------------------------------


async def test_extents_below_the_marks_are_pending_until_they_carry_the_stamp(world: World) -> None:
    topic, (first, second) = await a_log(world, files=2)
    number = await request(world.service, topic, mark("a", 10))

    (file,) = await world.service.erasures.pending_files(number)
    row = next(each for each in await world.service.operators.files() if each.file_id == first)
    assert (file.file_id, file.key, file.level, file.size_bytes) == (first, row.key, 1, row.size_bytes)
    assert (file.state, file.dead_ms, file.live_extents) == (FileState.LIVE, None, 1)
    assert (file.flagged_reason, file.trouble, file.is_pinned) == (None, "", False)
    assert await erasing(world.service) == {first}

    (written,) = (await erase_file(world.service, first)).file_ids
    (file,) = await world.service.erasures.pending_files(number)
    assert (file.file_id, file.state, file.live_extents) == (first, FileState.DEAD, 0)
    assert file.dead_ms is not None
    assert await erasing(world.service) == set()
    assert {each.file_id for each in await leveled_files(world.service)} == {second, written}

    await delete_dead(world.service)
    assert await pending(world.service, number) == []


async def test_l0_files_with_a_batch_that_was_refused_or_known_are_told_until_they_are_deleted(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service, partitions=2)
    first, second = topic.partition_ids
    # given a file of which all is stored, one with a batch sent again, one with a refused batch behind a stored one
    await writer.commit(sent(first, 7, 0), batch(second))
    again = await writer.commit(batch(second), sent(first, 7, 0))
    gap = await writer.commit(sent(first, 7, 1), sent(first, 7, 5))
    assert [(each.error, each.duplicate) for each in again.results] == [(0, False), (0, True)]
    assert [each.error != 0 for each in gap.results] == [False, True]

    keys = {each.file_id: each.key for each in await world.service.operators.files()}
    assert await world.service.erasures.refused_files() == [keys[again.file_id], keys[gap.file_id]]

    # when they are merged they are dead and still there
    await merge(world.service, l0=[each.file_id for each in (again, gap)])
    assert await world.service.erasures.refused_files() == [keys[again.file_id], keys[gap.file_id]]
    await delete_dead(world.service)
    assert await world.service.erasures.refused_files() == []


async def test_an_extent_that_begins_at_the_record_of_a_tombstone_is_pending(world: World) -> None:
    topic, (first, second) = await a_log(world, files=2)

    plain = await request(world.service, topic, mark("a", 10))
    with_tombstone = await request(world.service, topic, mark("a", 10, tombstone=True), rest_ms=0)

    assert await pending(world.service, plain) == [first]
    assert await pending(world.service, with_tombstone) == [first, second]


async def test_other_partitions_are_never_pending(world: World) -> None:
    writer = await Writer.register(world.service)
    topic, other = await new_topic(world.service), await new_topic(world.service, "others")
    ids: list[int] = []
    for each in (topic, other):
        file = await writer.commit(batch(each.partition_ids[0], 10))
        ids += (await merge(world.service, l0=[file.file_id])).file_ids
        await delete_dead(world.service)

    number = await request(world.service, topic, mark("a", 10))

    assert await pending(world.service, number) == ids[:1]


async def test_dead_extents_of_a_live_file_are_pending(world: World) -> None:
    topic, _ = await a_log(world, partitions=2)
    one, two = topic.partition_ids
    (shared,) = [each.file_id for each in await leveled_files(world.service)]
    (extent,) = await extents_of(world.service, one)
    # given a pass over partition 0 alone, so that its old bytes lie dead in a live file
    claimed = await claim(world.service, job("forced", extent_ids=[extent.extent_id]))
    (passed,) = (await world.service.compactors.commit_merge(commit_of(claimed))).file_ids

    number = await request(world.service, topic, mark("a", 10))

    assert await pending(world.service, number) == [shared, passed]
    (file, _) = await world.service.erasures.pending_files(number)
    assert (file.state, file.live_extents) == (FileState.LIVE, 0)
    assert await erasing(world.service) == {shared, passed}
    await erase_file(world.service, shared)
    assert await erasing(world.service) == {passed}
    assert [each.partition_id for each in await extents_of(world.service, two)] == [two]


async def test_all_l0_files_committed_before_the_erasure_are_pending_until_deleted(world: World) -> None:
    topic, (first, second) = await a_log(world, files=2, merged=False)
    writer = await Writer.register(world.service, port=9093)
    other = await new_topic(world.service, "others")
    foreign = (await writer.commit(batch(other.partition_ids[0]))).file_id

    number = await request(world.service, topic, mark("a", 5))
    later = (await writer.commit(batch(topic.partition_ids[0], 10))).file_id

    assert await pending(world.service, number) == [first, second, foreign]
    assert await erasing(world.service) == set()  # L0 goes by the ordinary rule
    (made,) = (await merge(world.service, l0=[first, second, foreign, later])).file_ids
    assert await pending(world.service, number) == [first, second, foreign, made]
    await delete_dead(world.service)
    assert await pending(world.service, number) == [made]


async def test_while_an_erasure_waits_extents_with_any_stamp_are_pending_but_none_is_erased(world: World) -> None:
    topic, (first,) = await a_log(world)
    earlier = await request(world.service, topic, mark("a", 5))
    (second,) = (await erase_file(world.service, first)).file_ids
    await delete_dead(world.service)
    assert await pending(world.service, earlier) == []

    number = await request(world.service, topic, mark("b", 5), wait_ms=HOUR_MS)

    assert await pending(world.service, number) == [second]
    assert await erasing(world.service) == set()


async def test_pending_files_say_what_holds_them(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service)
    made: list[int] = []
    for reason in (None, "bad magic"):
        file = await writer.commit(batch(topic.partition_ids[0], 10))
        made += (await merge(world.service, l0=[file.file_id], flagged_reason=reason)).file_ids
    await delete_dead(world.service)
    claimed = await claim(world.service, job("merge", file_ids=made[:1]))
    await world.service.compactors.fail_job(claimed.job.job_id, claimed.job.epoch, error="no room", file_ids=made[:1])

    number = await request(world.service, topic, mark("a", 20))

    first, second = await world.service.erasures.pending_files(number)
    assert (first.trouble, first.flagged_reason) == ("no room", None)
    assert (second.trouble, second.flagged_reason) == ("", "bad magic")
    # no merge erases anything from an extent that cannot be read
    assert await erasing(world.service) == {made[0]}


async def test_a_trouble_that_is_over_is_not_shown(world: World) -> None:
    topic, (first,) = await a_log(world)
    claimed = await claim(world.service, job("merge", file_ids=[first]))
    await world.service.compactors.fail_job(
        claimed.job.job_id, claimed.job.epoch, error="no room", file_ids=[first], retry_after_ms=-1
    )

    number = await request(world.service, topic, mark("a", 5))

    assert [file.trouble for file in await world.service.erasures.pending_files(number)] == [""]


async def test_a_dead_flagged_extent_does_not_keep_its_file_from_being_rewritten(world: World) -> None:
    writer = await Writer.register(world.service)
    topic = await new_topic(world.service, partitions=2)
    one, two = topic.partition_ids
    file = await writer.commit(batch(one, 10), batch(two, 10))
    (made,) = (await merge(world.service, l0=[file.file_id], flagged_reason="bad magic")).file_ids
    await delete_dead(world.service)

    number = await request(world.service, topic, mark("a", 5))
    assert await erasing(world.service) == set()
    await world.service.agents.delete_records(one, 10)

    assert await erasing(world.service) == {made}
    assert [each.flagged_reason for each in await world.service.erasures.pending_files(number)] == [None]


async def test_a_pin_shows_on_the_files_that_died_after_it(world: World) -> None:
    topic, (first, second) = await a_log(world, files=2)
    number = await request(world.service, topic, mark("a", 20))
    await erase_file(world.service, first)
    pinned_ms = await world.service.now_ms()
    await world.set_death(first, pinned_ms - 1)
    await world.service.readers.pin("reader", ttl_ms=HOUR_MS)
    await erase_file(world.service, second)

    held = await world.service.erasures.pending_files(number)
    assert [(each.file_id, each.is_pinned) for each in held] == [(first, False), (second, True)]

    await world.end_pins_and_duties()
    assert [each.is_pinned for each in await world.service.erasures.pending_files(number)] == [False, False]


async def test_pending_files_come_by_id_and_up_to_a_limit(world: World) -> None:
    topic, files = await a_log(world, files=4)
    number = await request(world.service, topic, mark("a", 40))

    assert [each.file_id for each in await world.service.erasures.pending_files(number, limit=3)] == files[:3]


async def test_a_file_is_erased_when_the_first_of_its_erasures_begins(world: World) -> None:
    topic, (first,) = await a_log(world)
    await request(world.service, topic, mark("a", 5), begin_ms=HOUR_MS)
    later = await request(world.service, topic, mark("b", 5), begin_ms=1)

    files = (await world.service.compactors.compaction_view()).erasing_files
    assert files == {first: (await erasure(world.service, later)).begin_ms}


# ---- merges ----------------------------------------------------------------------------------------------------------


async def test_a_merge_gets_the_marks_of_all_erasures_that_are_erasing(world: World) -> None:
    topic, _ = await a_log(world, partitions=2)
    one, two = topic.partition_ids
    for key, fields in (("a", {}), ("waits", {"wait_ms": HOUR_MS}), ("b", {})):
        await request(world.service, topic, mark(key, 9, tombstone=True), rest_ms=0, **fields)
    await world.service.erasures.request_erasure(new_erasure(topic, {1: [mark("c", 10)]}))

    keys = await world.service.erasures.erased_keys([one, two, 1_000_000])

    assert keys.keys() == {one, two}
    # no tombstone goes before readers had time to hear of it
    assert sorted(keys[one].marks) == sorted([mark("a", 9), mark("b", 9)])
    assert keys[one].stamp == 2
    assert keys[two] == ErasedKeys([mark("c", 10)], 3)
    assert await world.service.erasures.erased_keys([one]) == {one: keys[one]}
    assert await world.service.erasures.erased_keys([]) == {}


async def test_a_merge_that_read_the_marks_before_a_request_leaves_its_outputs_pending(world: World) -> None:
    topic, (first,) = await a_log(world)
    await request(world.service, topic, mark("a", 5))
    claimed = await claim(world.service, job("erase", file_ids=[first]))
    stamp = (await world.service.erasures.erased_keys(topic.partition_ids))[topic.partition_ids[0]].stamp

    number = await request(world.service, topic, mark("b", 5))
    output = output_file(output_extent(topic.partition_ids[0], 0, 9, erased_through=stamp))
    (written,) = (await world.service.compactors.commit_merge(commit_of(claimed, output))).file_ids

    assert await erasing(world.service) == {written}
    assert await pending(world.service, number) == [first, written]


async def test_a_merge_that_was_claimed_before_the_request_leaves_its_outputs_pending(world: World) -> None:
    topic, files = await a_log(world, files=2)
    claimed = await claim(world.service, job("merge", file_ids=files))

    number = await request(world.service, topic, mark("a", 20))
    (written,) = (await world.service.compactors.commit_merge(commit_of(claimed))).file_ids

    assert await erasing(world.service) == {written}
    assert await pending(world.service, number) == [*files, written]


async def test_an_erased_extent_stays_erased_when_a_merge_joins_it_with_later_records(world: World) -> None:
    topic, (first, second) = await a_log(world, files=2)
    number = await request(world.service, topic, mark("a", 10))
    (erased,) = (await erase_file(world.service, first)).file_ids

    await merge(world.service, files=[erased, second])

    (extent,) = await extents_of(world.service, topic.partition_ids[0])
    assert (extent.base_offset, extent.last_offset) == (0, 19)
    assert await erasing(world.service) == set()
    await delete_dead(world.service)
    assert await pending(world.service, number) == []


async def test_a_join_with_records_that_are_pending_is_pending(world: World) -> None:
    topic, (first, second) = await a_log(world, files=2)
    number = await request(world.service, topic, mark("a", 11))
    (erased,) = (await erase_file(world.service, first)).file_ids

    (joined,) = (await merge(world.service, files=[erased, second])).file_ids
    await delete_dead(world.service)

    assert await pending(world.service, number) == [joined]


async def test_of_two_erasures_a_join_fulfils_only_the_one_that_left_nothing_pending(world: World) -> None:
    topic, (first, second) = await a_log(world, files=2)
    low = await request(world.service, topic, mark("a", 10))
    (erased,) = (await erase_file(world.service, first)).file_ids
    high = await request(world.service, topic, mark("b", 20))

    (joined,) = (await merge(world.service, files=[erased, second])).file_ids
    await delete_dead(world.service)

    assert (await pending(world.service, low), await pending(world.service, high)) == ([], [joined])


async def test_new_records_do_not_hide_what_an_earlier_erasure_has_left(world: World) -> None:
    topic, (first, second) = await a_log(world, files=2)
    high = await request(world.service, topic, mark("a", 20))
    (erased,) = (await erase_file(world.service, first)).file_ids
    low = await request(world.service, topic, mark("b", 5))
    (erased,) = (await erase_file(world.service, erased)).file_ids

    # the second file was rewritten for neither, and lies above the marks of the later erasure
    (joined,) = (await merge(world.service, files=[erased, second])).file_ids
    await delete_dead(world.service)

    assert await pending(world.service, high) == [joined]
    assert await pending(world.service, low) == [joined]


async def test_records_of_l0_below_the_marks_make_a_merge_pending_whatever_it_states(world: World) -> None:
    topic, (file,) = await a_log(world, merged=False)
    number = await request(world.service, topic, mark("a", 5))

    (made,) = (await merge(world.service, l0=[file])).file_ids

    assert await pending(world.service, number) == [file, made]


async def test_new_records_above_the_marks_are_never_pending(world: World) -> None:
    topic, (first,) = await a_log(world)
    number = await request(world.service, topic, mark("a", 10))
    (erased,) = (await erase_file(world.service, first)).file_ids
    writer = await Writer.register(world.service, port=9093)
    file = await writer.commit(batch(topic.partition_ids[0], 10))
    (made,) = (await merge(world.service, l0=[file.file_id])).file_ids
    await delete_dead(world.service)
    assert await pending(world.service, number) == []

    await merge(world.service, files=[erased, made], level=2)
    await delete_dead(world.service)
    assert await pending(world.service, number) == []


async def test_an_output_that_was_trimmed_is_pending_until_it_is_deleted(world: World) -> None:
    topic, (first,) = await a_log(world)
    number = await request(world.service, topic, mark("a", 10))
    claimed = await claim(world.service, job("merge", file_ids=[first]))
    await world.service.agents.delete_records(topic.partition_ids[0], 10)
    output = outputs_of({topic.partition_ids[0]: [(0, 9)]})
    (written,) = (await world.service.compactors.commit_merge(commit_of(claimed, output))).file_ids

    assert await pending(world.service, number) == [first, written]
    assert await erasing(world.service) == set()
