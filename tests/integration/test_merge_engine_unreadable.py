"""Batches that are sound outside and not inside: merges go round them, and what is around them is cleaned as ever."""

from __future__ import annotations

import time

import pytest

from compactor.spec import MIB, MergeKind
from compactor.unreadable import FAILED_READS_MAX
from metadata.compaction import CommitMerge
from tests.fixtures.merge_inputs import MergeWorld, extents_of, keyed, ranges_of, records_in, stamped
from tests.fixtures.record_batches import with_header, with_payload
from wire.batch import read_header
from wire.codecs import Codec
from wire.records import build_batch

HORIZON = 0x40


def values(*pairs: tuple[str, bytes | None]) -> bytes:
    return build_batch([keyed(key, value) for key, value in pairs])


def same_delta_twice() -> bytes:
    """What a client can produce to a plain topic: both records say offset delta 0."""
    batch = values(("e", b"1"), ("f", b"2"))
    payload = bytearray(batch[61:])
    payload[len(payload) // 2 + 3] = 0
    return with_payload(batch, bytes(payload))


def no_records(codec: Codec = Codec.NONE) -> bytes:
    return with_payload(values(("e", b"1"), ("f", b"2")), b"\xff" * 40, codec)


def does_not_unfold() -> bytes:
    return with_header(with_payload(values(("e", b"1"), ("f", b"2")), b"\xff" * 40), attributes=Codec.ZSTD)


def a_million_and_more() -> bytes:
    """Says so; whether it has them is not worth finding out."""
    batch = with_payload(values(("e", b"1")), bytes(8 * MIB), Codec.ZSTD)
    return with_header(batch, records_count=(1 << 20) + 1, last_offset_delta=1 << 20)


UNREADABLE = {
    "deltas": same_delta_twice,
    "records": no_records,
    "compressed records": lambda: no_records(Codec.LZ4),
    "codec": does_not_unfold,
    "count": a_million_and_more,
}


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
    # then no extent is flagged, the batch is there to the byte, and the rest is cleaned as if it were not there
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
    assert [each.cleaned_through_offset for each in commit.cleaned] == [world.partitions[1].next_offset]


async def test_a_second_clean_of_what_the_first_left_changes_nothing() -> None:
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    await world.add_leveled({1: [values(("a", b"1"), ("a", b"2")), same_delta_twice(), values(("a", b"3"))]})
    first = await deduped(world)
    log = (await world.log_of(first))[1]
    world.adopt(first)
    assert (await world.log_of(await deduped(world)))[1] == log


async def test_a_batch_whose_crc_is_wrong_is_not_taken_for_an_unreadable_one() -> None:
    """Its count is the least of what cannot be believed."""
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    await world.add_leveled({1: [values(("a", b"1")), values(("b", b"1"), ("c", b"1"))]})
    extent = world.extents[0]
    body = bytearray(await world.inner.get(extent.key))
    body[extent.position + extent.length - 1] ^= 0x01
    await world.replace_object(extent.key, body)
    commit = await deduped(world)
    assert "CRC-32C" in reasons(commit)[0]
    assert commit.summary["unreadable_batches"] == 0


async def test_thousands_of_unreadable_batches_cost_no_more_than_a_bounded_number_of_looks() -> None:
    # given a client all of whose batches are unreadable, between those of another
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    bad, good = same_delta_twice(), values(("a", b"1"))
    batches = [good, good, *[bad, good] * 5_000]
    await world.add_leveled({1: batches})
    began = time.monotonic()
    commit = await deduped(world)
    assert time.monotonic() - began < 20
    # then what was looked at is cleaned, and all of them are there
    log = batches_of((await world.log_of(commit))[1])
    assert sum(batch[61:] == bad[61:] for batch in log) == 5_000
    assert len(batches) - len(log) == FAILED_READS_MAX
    assert commit.summary["unreadable_batches"] == 10_000 - (FAILED_READS_MAX - 1)


# Extents at one position


def behind_an_empty_one(world: MergeWorld) -> None:
    """Dedupe left nothing of offsets 0 to 2: an extent without bytes, where the one behind it begins."""
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
