"""Unreadable batches with a right header and CRC: merges skip them, and clean the records around them as usual."""

from __future__ import annotations

import itertools
import time

import pytest

from compactor.cleaning.unreadable import FAILED_READS_MAX
from compactor.planning.spec import MIB, MergeKind
from metadata.contract.jobs import CommitMerge
from metadata.rules import jobs as job_rules
from tests.fixtures.merge_inputs import MergeWorld, extents_of, ranges_of, records_in, stamped
from tests.fixtures.record_batches import with_header
from tests.fixtures.unreadable_batches import UNREADABLE, same_delta_twice, values
from wire.batch import read_header

HORIZON = 0x40


async def deduped(world: MergeWorld, *, passes: int = 1, keys_max: int = 10_000, **options: int) -> CommitMerge:
    specs = {1: world.dedupe_spec(1, passes=passes)}
    claimed = world.claim(kind=MergeKind.MERGE, level=2, output_bytes=64 * MIB, dedupe=specs)
    return await world.engine(keys_max=keys_max, **options).run(claimed)


def reasons(commit: CommitMerge) -> dict[int, str]:
    return {one.base_offset: one.flagged_reason for one in extents_of(commit, 1) if one.flagged_reason is not None}


def batches_of(log: bytes) -> list[bytes]:
    found: list[bytes] = []
    while log:
        size = read_header(log).size_bytes
        found.append(log[:size])
        log = log[size:]
    return found


@pytest.mark.parametrize("kept_bytes_max", [64 * MIB, 0])
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("name", UNREADABLE)
async def test_an_unreadable_batch_stays_as_it_is_and_nothing_else_does(
    name: str, passes: int, kept_bytes_max: int
) -> None:
    # given one extent: keys that are superseded before and behind an unreadable batch, and tombstones on both sides
    bad = UNREADABLE[name]()
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    before = [values(("a", b"1"), ("x", None)), values(("a", b"2"), ("b", b"1"))]
    behind = [values(("b", b"2"), ("y", None)), values(("a", b"3"), ("c", b"1")), values(("c", b"2"), ("d", b"1"))]
    await world.add_leveled({1: [*before, bad, *behind]})
    # when it is cleaned
    commit = await deduped(world, passes=passes, kept_bytes_max=kept_bytes_max)
    # then no extent is flagged, the batch is there byte for byte, and the rest is cleaned as if it were not there
    assert reasons(commit) == {}
    log = batches_of((await world.log_of(commit))[1])
    assert stamped(bad, 4) in log
    after = 4 + read_header(bad).last_offset_delta + 1
    low = [batch for batch in log if read_header(batch).base_offset < 4]
    high = [batch for batch in log if read_header(batch).base_offset >= after]
    assert records_in(b"".join(low)) == [(1, b"x", None)]
    kept = [(b"b", b"2"), (b"y", None), (b"a", b"3"), (b"c", b"2"), (b"d", b"1")]
    assert [(key, value) for _, key, value in records_in(b"".join(high))] == kept
    # and the tombstone behind it waits: the batch may hide an old value
    assert read_header(low[0]).attributes & HORIZON and not read_header(high[0]).attributes & HORIZON
    (extent,) = extents_of(commit, 1)
    assert extent.has_tombstones
    assert commit.summary["unreadable_batches"] == 1
    [told] = commit.summary[job_rules.UNREADABLE]
    assert (told["partition_id"], told["partition"], told["batches"], told["first_offset"]) == (1, 0, 1, 4)
    assert [each.cleaned_through_offset for each in commit.cleaned] == [world.partitions[1].next_offset]


@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("pair", list(itertools.product(UNREADABLE, repeat=2)), ids="-then-".join)
async def test_two_unreadable_batches_of_any_two_kinds_stay_in_one_window(pair: tuple[str, str], passes: int) -> None:
    """Each kind of damage is looked for in turn, so the later of two batches may be found first."""
    # given two of them, in any order, with keys before, between and behind
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    first, second = (UNREADABLE[name]() for name in pair)
    between = values(("b", b"1"), ("x", None))
    behind = [values(("a", b"2"), ("y", None)), values(("c", b"1"))]
    await world.add_leveled({1: [values(("a", b"1"), ("z", None)), first, between, second, *behind]})
    # when they are cleaned
    commit = await deduped(world, passes=passes)
    # then both are there byte for byte, in their places, and everything else is cleaned
    assert reasons(commit) == {} and commit.summary["unreadable_batches"] == 2
    second_at = 2 + read_header(first).last_offset_delta + 1 + 2
    log = batches_of((await world.log_of(commit))[1])
    both = [stamped(first, 2), stamped(second, second_at)]
    assert [batch for batch in log if batch in both] == both
    rest = [record for batch in log if batch not in both for record in records_in(batch)]
    kept = [(b"z", None), (b"b", b"1"), (b"x", None), (b"a", b"2"), (b"y", None), (b"c", b"1")]
    assert [(key, value) for _, key, value in rest] == kept
    # and the tombstone below the lower of them has its horizon, and those above it wait
    stamps = {read_header(batch).base_offset: read_header(batch).attributes & HORIZON for batch in log}
    assert [offset for offset, has_horizon in stamps.items() if has_horizon] == [0]
    [told] = commit.summary[job_rules.UNREADABLE]
    assert (told["batches"], told["first_offset"]) == (2, 2)


async def test_a_second_clean_of_what_the_first_left_changes_nothing() -> None:
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    await world.add_leveled({1: [values(("a", b"1"), ("a", b"2")), same_delta_twice(), values(("a", b"3"))]})
    first = await deduped(world)
    log = (await world.log_of(first))[1]
    world.adopt(first)
    assert (await world.log_of(await deduped(world)))[1] == log


async def test_a_partition_is_not_due_for_the_horizon_of_a_batch_that_no_pass_can_read() -> None:
    bad = same_delta_twice()
    horizoned = with_header(bad, attributes=read_header(bad).attributes | HORIZON, base_timestamp_ms=1)
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    await world.add_leveled({1: [values(("a", None)), horizoned, values(("b", b"1"))]})
    # the tombstone before it has a horizon that a pass can act on
    (extent,) = extents_of(await deduped(world), 1)
    assert extent.earliest_horizon_ms is not None and extent.earliest_horizon_ms > 1
    # and without it there is none
    other = MergeWorld()
    other.add_partition(1, cleanup_policy="compact")
    await other.add_leveled({1: [values(("a", b"1")), horizoned, values(("b", b"1"))]})
    (extent,) = extents_of(await deduped(other), 1)
    assert extent.earliest_horizon_ms is None and extent.has_tombstones


async def test_a_batch_whose_crc_is_wrong_is_not_taken_for_an_unreadable_one() -> None:
    """With a wrong CRC nothing in the batch can be trusted, not even its record count."""
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    await world.add_leveled({1: [values(("a", b"1")), values(("b", b"1"), ("c", b"1"))]})
    extent = world.extents[0]
    body = bytearray(await world.inner.get(extent.key))
    body[extent.position + extent.length - 1] ^= 0x01
    await world.replace_object(extent.key, body)
    commit = await deduped(world)
    assert "CRC-32C" in reasons(commit)[0]
    assert commit.summary["unreadable_batches"] == 0 and job_rules.UNREADABLE not in commit.summary


async def test_thousands_of_unreadable_batches_cost_no_more_than_a_bounded_number_of_looks() -> None:
    # given a client whose batches are all unreadable, between those of another client
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    bad, good = same_delta_twice(), values(("a", b"1"))
    batches = [good, good, *[bad, good] * 5_000]
    await world.add_leveled({1: batches})
    began = time.monotonic()
    commit = await deduped(world)
    assert time.monotonic() - began < 20
    # then the part that the merge examined is cleaned, and all unreadable batches are there
    log = batches_of((await world.log_of(commit))[1])
    assert sum(batch[61:] == bad[61:] for batch in log) == 5_000
    assert len(batches) - len(log) == FAILED_READS_MAX
    assert commit.summary["unreadable_batches"] == 10_000 - (FAILED_READS_MAX - 1)


# Extents at one position


def behind_an_empty_one(world: MergeWorld) -> None:
    """Dedupe left nothing of offsets 0 to 2: an extent without bytes begins at the place of the extent behind it."""
    (real,) = world.extents
    empty = real._replace(extent_id=999, base_offset=0, last_offset=2, length=0, record_count=0, crc32c=0)
    world.extents = [empty, real]


@pytest.mark.parametrize("dedupe", [True, False])
async def test_an_empty_extent_is_not_flagged_with_the_one_that_shares_its_position(dedupe: bool) -> None:
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    world.partitions[1].next_offset = 3
    await world.add_leveled({1: [values(("a", b"1"), ("b", b"1"))]})
    behind_an_empty_one(world)
    key, position = world.extents[1].key, world.extents[1].position + 70
    body = bytearray(await world.inner.get(key))
    body[position] ^= 0x40
    await world.replace_object(key, body)
    commit = (
        await deduped(world)
        if dedupe
        else await world.engine().run(world.claim(kind=MergeKind.MERGE, level=2, output_bytes=64 * MIB))
    )
    assert list(reasons(commit)) == [3]
    assert ranges_of(commit, 1) == [(0, 2), (3, 4)]


async def test_a_flagged_extent_without_bytes_keeps_its_range() -> None:
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    world.partitions[1].next_offset = 3
    await world.add_leveled({1: [values(("a", b"1"), ("b", b"1"))]})
    behind_an_empty_one(world)
    world.extents[0] = world.extents[0]._replace(flagged_reason="an old damage")
    commit = await deduped(world)
    assert reasons(commit) == {0: "an old damage"}
    assert ranges_of(commit, 1) == [(0, 2), (3, 4)]
