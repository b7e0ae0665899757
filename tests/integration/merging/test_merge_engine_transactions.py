"""Merges of transactions: markers that no object holds become batches of L1, and a dedupe reports the aborted
transactions of which nothing is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from compactor.merging.kway_merge import MergeInputError
from compactor.planning.spec import MIB, MergeKind
from metadata.contract.jobs import ClaimedJob, CommitMerge
from tests.fixtures.cleaning import ABORT, COMMIT, marker_batch
from tests.fixtures.merge_inputs import MergeWorld, Sent, a_batch, extents_of, keyed, ranges_of, records_in
from wire.batch import ProducerStamp, iter_headers
from wire.records import build_batch

PLAIN, KEYED, OTHER = 1, 2, 3


def data(producer_id: int, *keys: str) -> bytes:
    return build_batch([keyed(key, b"v") for key in keys], producer=ProducerStamp(producer_id), transactional=True)


def marker(kind: int, producer_id: int) -> bytes:
    return marker_batch(kind, producer_id, 0)


def a_world() -> MergeWorld:
    world = MergeWorld()
    world.add_partition(PLAIN)
    world.add_partition(KEYED, topic="keyed", cleanup_policy="compact")
    world.add_partition(OTHER, topic="other")
    return world


async def test_markers_that_no_object_holds_become_batches_at_their_offsets() -> None:
    # given two files of markers, one with several transactions whose partitions cross, and data between them
    world = a_world()
    await world.add_l0([Sent(PLAIN, data(7, "a")), Sent(KEYED, data(7, "a")), Sent(KEYED, data(8, "b"))])
    world.add_markers([(marker(COMMIT, 7), [PLAIN, KEYED])])
    await world.add_l0([Sent(PLAIN, data(9, "c")), Sent(OTHER, a_batch(2))])
    world.add_markers([(marker(ABORT, 8), [OTHER, KEYED]), (marker(COMMIT, 9), [PLAIN, OTHER, KEYED])])
    # when they are leveled
    commit = await world.engine().run(world.claim())
    # then all partitions are as they were written, each marker at an offset of its own
    assert await world.log_of(commit) == world.model_log()
    assert ranges_of(commit, KEYED) == [(0, 4)]
    # and nothing but the two objects was read
    assert sorted({key for key, _, _ in world.store.reads}) == sorted(
        each.key for each in world.l0_files if not each.inline
    )
    assert commit.summary["gets"] == 2


async def test_a_merge_of_markers_alone_reads_nothing() -> None:
    world = a_world()
    first = world.add_markers([(marker(ABORT, 7), [PLAIN, KEYED])])
    commit = await world.engine().run(world.claim())
    assert await world.log_of(commit) == {each: world.model_log()[each] for each in (PLAIN, KEYED)}
    assert (world.store.reads, commit.summary["gets"]) == ([], 0)
    # then its extents hold no tombstones, and are as old as the file
    for partition_id in (PLAIN, KEYED):
        (extent,) = extents_of(commit, partition_id)
        assert (extent.has_tombstones, extent.committed_ms, extent.record_count) == (False, first.created_ms, 1)
        assert (extent.base_offset, extent.last_offset, extent.length) == (0, 0, 78)


async def test_an_index_row_outside_the_markers_contradicts_the_metadata() -> None:
    world = a_world()
    file = world.add_markers([(marker(ABORT, 7), [PLAIN])])
    world.l0_files = [replace(file, inline=file.inline[:-1], size_bytes=9_999)]
    with pytest.raises(MergeInputError, match="77 bytes") as raised:
        await world.engine().run(world.claim())
    assert raised.value.file_ids == (file.file_id,)


async def test_damaged_markers_are_flagged_without_a_look_at_their_object() -> None:
    world = a_world()
    file = world.add_markers([(marker(ABORT, 7), [PLAIN, OTHER])])
    world.l0_files = [replace(file, inline=file.inline[:-1] + b"\xff", size_bytes=9_999)]
    commit = await world.engine().run(world.claim())
    assert [extents_of(commit, each)[0].flagged_reason is not None for each in (PLAIN, OTHER)] == [True, True]
    assert world.store.reads == []


# What a dedupe reports


async def aborted_world(*, holes: bool = False) -> MergeWorld:
    """Offsets 0: old; 1, 3: aborted by 7; 2: of 8, committed; 4: ABORT of 7; 5: COMMIT of 8; 6: the next of 7."""
    world = MergeWorld()
    world.add_partition(KEYED, topic="keyed", cleanup_policy="compact")
    files = [data(1, "a"), data(7, "a"), data(8, "b"), data(7, "c"), marker(ABORT, 7), marker(COMMIT, 8), data(7, "d")]
    for number, batch in enumerate(files):
        await world.add_leveled({KEYED: [batch]})
        if holes and number == 2:
            world.extents.pop()
    return world


LISTED = (7, 1, 4)


def dedupe_of(world: MergeWorld, aborted: Sequence[tuple[int, int, int]] = (LISTED,), **bounds: int) -> ClaimedJob:
    spec = replace(world.dedupe_spec(KEYED, **bounds), aborted=aborted)
    return world.claim(kind=MergeKind.MERGE, level=2, output_bytes=64 * MIB, dedupe={KEYED: spec})


def gone(commit: CommitMerge) -> Sequence[int]:
    (cleaned,) = commit.cleaned
    return cleaned.aborted_gone


async def bases(world: MergeWorld, commit: CommitMerge) -> list[int]:
    return [header.base_offset for _, header in iter_headers((await world.log_of(commit))[KEYED])]


async def test_a_transaction_whose_records_all_went_is_reported_and_its_marker_stays() -> None:
    world = await aborted_world()
    commit = await world.engine().run(dedupe_of(world))
    assert gone(commit) == (4,)
    assert await bases(world, commit) == [0, 2, 4, 5, 6]


@pytest.mark.parametrize("passes", [2, 3])
async def test_a_deep_pass_reports_it_too(passes: int) -> None:
    world = await aborted_world()
    commit = await world.engine(keys_max=2).run(dedupe_of(world, passes=passes))
    assert gone(commit) == (4,)
    assert [key for _, key, _ in records_in((await world.log_of(commit))[KEYED]) if key and len(key) == 1] == [
        b"a",
        b"b",
        b"d",
    ]


async def test_a_transaction_of_which_a_part_lies_elsewhere_is_not_reported() -> None:
    # given inputs without offset 2: an extent between the transaction's data is in another merge
    world = await aborted_world(holes=True)
    assert gone(await world.engine().run(dedupe_of(world))) == ()
    # given inputs that begin above its first offset
    world = await aborted_world()
    del world.extents[:2]
    assert gone(await world.engine().run(dedupe_of(world))) == ()
    # given inputs that end below its marker
    world = await aborted_world()
    del world.extents[4:]
    assert gone(await world.engine().run(dedupe_of(world))) == ()


async def test_what_lies_below_the_log_start_need_not_be_among_the_inputs() -> None:
    world = await aborted_world()
    del world.extents[:2]
    claimed = dedupe_of(world)
    partitions = {KEYED: replace(claimed.partitions[KEYED], log_start_offset=2)}
    assert gone(await world.engine().run(replace(claimed, partitions=partitions))) == (4,)


async def test_a_transaction_with_records_above_the_bound_is_not_reported() -> None:
    world = await aborted_world()
    commit = await world.engine().run(dedupe_of(world, first_uncleanable_offset=2, last_stable_offset=2))
    assert gone(commit) == ()
    # and the aborted record below the bound hid nothing and is gone
    assert await bases(world, commit) == [0, 1, 2, 3, 4, 5, 6]
    first = records_in((await world.log_of(commit))[KEYED])[:2]
    assert first == [(0, b"a", b"v"), (2, b"b", b"v")]


@pytest.mark.parametrize(("flagged", "reported"), [(0, (4,)), (1, ()), (2, ()), (4, ()), (5, (4,))])
async def test_a_flagged_extent_may_hold_something_of_a_transaction(flagged: int, reported: tuple[int, ...]) -> None:
    world = await aborted_world()
    world.extents[flagged] = world.extents[flagged]._replace(flagged_reason="nobody reads it")
    assert gone(await world.engine().run(dedupe_of(world))) == reported


async def test_an_extent_that_turns_out_to_be_corrupt_counts_as_flagged() -> None:
    world = await aborted_world()
    damaged = world.extents[3]
    body = bytearray(await world.inner.get(damaged.key))
    body[damaged.position + damaged.length - 1] ^= 1
    await world.replace_object(damaged.key, bytes(body))
    assert gone(await world.engine().run(dedupe_of(world))) == ()
