"""Merges with corrupt bytes, missing objects, failing stores, and a stop."""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from dataclasses import replace

import pytest

from compactor.merging.execute import MergeInputError, Progress
from compactor.planning.spec import MIB, MergeKind, SpecError
from metadata.contract.jobs import CommitMerge, JobLostError
from runtime.clock import ManualClock
from runtime.ids import SystemIds
from storage.format.file_format import EXTENT_FLAGGED, TRAILER_BYTES, read_file
from storage.format.file_properties import decode_properties
from storage.format.flag_reason import written_crc
from storage.memory import MemoryStore
from storage.objects import PutInDoubtError, StoreFullError, StoreUnavailableError
from storage.wrappers.faulty import Fault, FaultPlan, FaultRule, Faulty
from storage.wrappers.retrying import Retrying
from tests.fixtures.merge_inputs import MergeWorld, Sent, a_batch, extents_of, keyed, newer_trailer, records_in
from tests.fixtures.record_batches import NOW_MS
from wire.crc import crc32c
from wire.records import build_batch


async def leveled(world: MergeWorld) -> CommitMerge:
    return await world.engine().run(world.claim())


async def merged(world: MergeWorld, *, output_bytes: int = 64 * MIB) -> CommitMerge:
    return await world.engine().run(world.claim(kind=MergeKind.MERGE, level=2, output_bytes=output_bytes))


async def deduped(world: MergeWorld, *partition_ids: int, keys_max: int = 10_000, **options: int) -> CommitMerge:
    passes = options.pop("passes", 1)
    specs = {partition_id: world.dedupe_spec(partition_id, passes=passes) for partition_id in partition_ids}
    claimed = world.claim(kind=MergeKind.MERGE, level=2, output_bytes=64 * MIB, dedupe=specs)
    return await world.engine(keys_max=keys_max, **options).run(claimed)


async def damage(world: MergeWorld, key: str, position: int) -> None:
    body = bytearray(await world.inner.get(key))
    body[position] ^= 0x40
    await world.replace_object(key, body)


async def make_newer(world: MergeWorld, key: str) -> None:
    """Make the trailer name the next format version."""
    body = await world.inner.get(key)
    await world.replace_object(key, body[:-TRAILER_BYTES] + newer_trailer(body[-TRAILER_BYTES:]))


def flagged(commit: CommitMerge) -> dict[tuple[int, int], str]:
    return {
        (extent.partition_id, extent.base_offset): extent.flagged_reason
        for output in commit.outputs
        for extent in output.extents
        if extent.flagged_reason is not None
    }


# Corrupt bytes


async def test_a_corrupt_l0_row_is_copied_as_it_is_and_alone_while_the_rest_goes_on() -> None:
    # given three files of two partitions, and a flipped bit in the middle one's first partition
    world = MergeWorld()
    world.add_partition(1)
    world.add_partition(2, partition=1)
    for _ in range(3):
        await world.add_l0([Sent(1, a_batch(2)), Sent(1, a_batch(2)), Sent(2, a_batch(3))])
    await damage(world, world.l0_files[1].key, len(a_batch(2)) + 70)
    # when they are leveled
    commit = await leveled(world)
    # then that row is an extent of its own, its bytes are the file's, and nothing else is missing
    assert list(flagged(commit)) == [(1, 4)]
    assert "CRC-32C" in flagged(commit)[1, 4]
    log = await world.log_of(commit)
    assert log[2] == world.model_log()[2]
    batch = len(a_batch(2))
    body = await world.inner.get(world.l0_files[1].key)
    model = world.partitions[1].batches
    assert log[1] == b"".join(model[:2]) + body[: 2 * batch] + b"".join(model[4:])
    assert [(each.base_offset, each.last_offset) for each in extents_of(commit, 1)] == [(0, 3), (4, 7), (8, 11)]
    # and the file itself records it
    (output,) = commit.outputs
    index = read_file(written := await world.inner.get(output.key))
    section = index.sections[1]
    properties = decode_properties(written[section.position : section.position + section.length])
    assert properties.flagged == {1: flagged(commit)[1, 4]}
    assert index.extents[1].flags & EXTENT_FLAGGED
    assert index.extents[1].block_index_length == 0
    assert commit.summary["flagged_extents"] == 1


async def test_an_l0_row_whose_batches_have_other_offsets_than_the_commit_gave_is_flagged() -> None:
    world = MergeWorld()
    world.add_partition(1)
    await world.add_l0([Sent(1, a_batch(2))])
    await world.add_l0([Sent(1, a_batch(3))])
    # given: a batch of four records where the commit counted three
    other = a_batch(4)
    body = await world.inner.get(world.l0_files[1].key)
    row = len(a_batch(3))
    index = bytearray(world.l0_files[1].index)
    struct.pack_into(">i", index, 1 + 24, len(other))
    await world.replace_object(world.l0_files[1].key, other + body[row:])
    world.l0_files[1] = replace(world.l0_files[1], index=bytes(index), size_bytes=len(body) - row + len(other))
    commit = await leveled(world)
    assert flagged(commit) == {(1, 2): "its batches have 4 offsets, the commit gave it 2 to 4"}
    assert written_crc(flagged(commit)[1, 2]) is None, "nobody has summed an extent of L0"


@pytest.mark.parametrize("value_bytes", [1_000, 3 * MIB])
async def test_a_corrupt_leveled_extent_is_copied_as_it_is_whether_it_fits_a_window_or_not(value_bytes: int) -> None:
    # given extents of which the second has a flipped bit near its end
    world = MergeWorld()
    world.add_partition(1)
    for _ in range(3):
        await world.add_leveled({1: [a_batch(1, value_bytes=value_bytes) for _ in range(4)]})
    bad = world.extents[1]
    await damage(world, bad.key, bad.position + bad.length - 10)
    # when they are merged
    commit = await merged(world)
    # then only that extent is flagged, and every byte of it is there
    ((place, reason),) = flagged(commit).items()
    assert place == (1, 4)
    assert written_crc(reason) == bad.crc32c, "the sum that it was written with is told"
    extents = extents_of(commit, 1)
    assert [(each.base_offset, each.last_offset) for each in extents] == [(0, 3), (4, 7), (8, 11)]
    assert (extents[1].length, extents[1].record_count) == (bad.length, 4)
    assert extents[1].crc32c == crc32c(await world.inner.get_range(bad.key, bad.position, bad.length))
    # and the attempt that had begun to write left nothing behind
    assert len(await world.keys()) == 3 + len(commit.outputs)
    assert await world.inner.abort_multiparts(older_than_ms=2**60) == 0
    # and the next merge copies it again
    world.adopt(commit)
    again = await merged(world)
    assert flagged(again) == flagged(commit)
    assert await world.log_of(again) == await world.log_of(commit)


@pytest.mark.parametrize("value_bytes", [10, 5 * MIB])
@pytest.mark.parametrize("position", [0, 7, 12, 15])
async def test_damage_that_no_batch_crc_covers_is_found_by_the_extents_own(position: int, value_bytes: int) -> None:
    # given a flipped bit in base offset or leader epoch
    world = MergeWorld()
    world.add_partition(1)
    batch = a_batch(2, value_bytes=value_bytes)
    await world.add_leveled({1: [batch, batch]})
    await damage(world, world.extents[0].key, len(batch) + position)
    assert list(flagged(await merged(world))) == [(1, 0)]


async def test_offsets_that_leave_their_extent_are_flagged_though_every_crc_is_right() -> None:
    world = MergeWorld()
    world.add_partition(1)
    await world.add_leveled({1: [a_batch(2), a_batch(2)]})
    world.extents[0] = world.extents[0]._replace(last_offset=2)
    ((_, reason),) = flagged(await merged(world)).items()
    assert written_crc(reason) == world.extents[0].crc32c
    assert reason.startswith("the batch with offsets 2 to 3 is out of order in the extent from 0 to 2; ")


async def test_a_batch_length_past_its_extent_is_flagged_and_not_waited_for() -> None:
    # given a long extent in which one batch claims 2 GB
    world = MergeWorld()
    world.add_partition(1)
    await world.add_leveled({1: [a_batch(1, value_bytes=3 * MIB) for _ in range(4)]})
    size = world.extents[0].length // 4
    body = bytearray(await world.inner.get(world.extents[0].key))
    struct.pack_into(">i", body, 2 * size + 8, 2**31 - 1)
    await world.replace_object(world.extents[0].key, body)
    ((_, reason),) = flagged(await merged(world)).items()
    assert "2147483659 bytes" in reason


# Damaged records in a compacted partition


def values(*pairs: tuple[str, bytes | None]) -> bytes:
    return build_batch([keyed(key, value) for key, value in pairs])


@pytest.mark.parametrize("kept_bytes_max", [64 * MIB, 0])
@pytest.mark.parametrize("passes", [1, 3])
async def test_dedupe_goes_round_an_extent_with_damaged_records(kept_bytes_max: int, passes: int) -> None:
    # given key "a" before, in and after an extent with damaged records, and a tombstone above and below it
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    world.add_partition(2, partition=1, cleanup_policy="compact")
    await world.add_leveled({1: [values(("a", b"1"), ("x", None))], 2: [values(("q", b"1"), ("q", b"2"))]})
    await world.add_leveled({1: [values(("a", b"2")), a_batch(2)]})
    await damage(world, world.extents[2].key, world.extents[2].position + world.extents[2].length - 1)
    await world.add_leveled({1: [values(("a", b"3"), ("y", None), ("z", b"1"))]})
    # when they are deduped
    commit = await deduped(world, 1, 2, kept_bytes_max=kept_bytes_max, passes=passes)
    # then the extent is unchanged, and the records that the others supersede are gone
    assert list(flagged(commit)) == [(1, 2)]
    low, middle, high = extents_of(commit, 1)
    log = await world.log_of(commit)
    body = await world.inner.get(world.extents[2].key)
    assert body[: world.extents[2].length] in log[1]
    assert middle.length == world.extents[2].length
    kept = records_in(log[1][: low.length]) + records_in(log[1][low.length + middle.length :])
    assert kept == [(1, b"x", None), (5, b"a", b"3"), (6, b"y", None), (7, b"z", b"1")]
    assert [value for _, _, value in records_in(log[2])] == [b"2"]
    # and the tombstone below it is stamped with its horizon, the one above waits: an old value may hide in the extent
    assert log[1][22] & 0x40
    assert not log[1][low.length + middle.length + 22] & 0x40
    assert (high.has_tombstones, middle.has_tombstones) == (True, True)
    # and the partition does not count as dirty for ever
    assert [each.cleaned_through_offset for each in commit.cleaned] == [8, 2]


@pytest.mark.parametrize("value_bytes", [10, 5 * MIB])
async def test_a_scan_finds_every_extent_that_is_corrupt_before_it_begins_anew(value_bytes: int) -> None:
    # given six extents, in one window or in one or more each, of which three have a flipped bit in a value
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    for number in range(6):
        await world.add_leveled({1: [values((f"{number}-{n}", b"v" * value_bytes)) for n in range(2)]})
    for number in (0, 2, 5):
        extent = world.extents[number]
        await damage(world, extent.key, extent.position + 75)
    # when they are deduped
    commit = await deduped(world, 1, kept_bytes_max=0)
    # then the first scan found all three: with the second scan and the rewrite the others are read three times
    assert list(flagged(commit)) == [(1, 0), (1, 4), (1, 10)]
    assert all("CRC-32C" in reason for reason in flagged(commit).values())
    assert commit.summary["passes"] == 2
    assert commit.summary["gets"] <= 3 * sum(-(-extent.length // (8 * MIB)) for extent in world.extents)


async def test_an_extent_that_turns_corrupt_between_scan_and_rewrite_supersedes_nothing() -> None:
    # given a key in two extents, and a store that returns other bytes of the second from its second read on
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    for value in (b"1", b"2"):
        await world.add_leveled({1: [values(("a", value))]})
    turning = world.extents[1].key
    get_range, reads = world.store.get_range, 0

    async def turned(key: str, start: int, length: int) -> bytes:
        nonlocal reads
        data = await get_range(key, start, length)
        reads += key == turning
        return data[:-3] + b"???" if key == turning and reads > 1 else data

    world.store.get_range = turned  # type: ignore[method-assign]
    commit = await deduped(world, 1, kept_bytes_max=0)
    # then a second attempt flags the extent, and records that only it superseded remain
    assert list(flagged(commit)) == [(1, 1)]
    low, _ = extents_of(commit, 1)
    assert records_in((await world.log_of(commit))[1][: low.length]) == [(0, b"a", b"1")]
    assert len(await world.keys()) == 3


@pytest.mark.parametrize("at", [0, 30, 61 + 500_000], ids=["base offset", "base timestamp", "value"])
async def test_any_byte_of_a_long_extent_that_turns_between_scan_and_rewrite_is_noticed(at: int) -> None:
    # given an extent of several windows, and a store that changes a byte of its middle on the second read
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    batches = [values((f"k{n}", b"v" * 1_000_000)) for n in range(18)]
    await world.add_leveled({1: batches})
    middle = world.extents[0].position + sum(len(batch) for batch in batches[:3]) + at
    get_range, reads = world.store.get_range, 0

    async def turned(key: str, start: int, length: int) -> bytes:
        nonlocal reads
        data = bytearray(await get_range(key, start, length))
        if start <= middle < start + length:
            reads += 1
            data[middle - start] ^= reads > 1
        return bytes(data)

    world.store.get_range = turned  # type: ignore[method-assign]
    commit = await deduped(world, 1, kept_bytes_max=0)
    # then nothing that was written from it is kept: the extent is flagged, and copied unchanged
    assert list(flagged(commit)) == [(1, 0)]
    assert len(await world.keys()) == 2


# Inputs that are not there


async def test_a_missing_object_names_file_partition_and_offset() -> None:
    world = MergeWorld()
    world.add_partition(1)
    await world.add_leveled({1: [a_batch(2)]})
    await world.add_leveled({1: [a_batch(2)]})
    lost = world.extents[1]
    await world.inner.delete_many([lost.key])
    with pytest.raises(MergeInputError, match="partition 1, offset 2") as caught:
        await merged(world)
    assert caught.value.file_ids == (lost.file_id,)
    assert lost.key in str(caught.value)
    assert not caught.value.retriable


async def test_an_object_that_ends_too_soon_names_where() -> None:
    world = MergeWorld()
    world.add_partition(1)
    await world.add_leveled({1: [a_batch(2)]})
    await world.replace_object(world.extents[0].key, b"x" * 50)
    with pytest.raises(MergeInputError, match="ends at byte 50"):
        await merged(world)


async def test_an_l0_file_of_a_newer_format_is_refused_with_what_to_do() -> None:
    world = MergeWorld()
    world.add_partition(1)
    file = await world.add_l0([Sent(1, a_batch(2))])
    await make_newer(world, file.key)
    with pytest.raises(MergeInputError, match=r"partition 1, offset 0: format version 2 .*release that wrote it"):
        await leveled(world)


@pytest.mark.parametrize("value_bytes", [10, 5 * MIB], ids=["one window", "several"])
async def test_a_leveled_file_of_a_newer_format_is_not_taken_for_corrupt(value_bytes: int) -> None:
    # given a file whose batches cannot be read, because a later release wrote it
    world = MergeWorld()
    world.add_partition(1)
    await world.add_leveled({1: [a_batch(2, value_bytes=value_bytes)]})
    await world.add_leveled({1: [a_batch(2, value_bytes=value_bytes)]})
    newer = world.extents[1]
    await make_newer(world, newer.key)
    await damage(world, newer.key, newer.position + 16)
    with pytest.raises(MergeInputError, match=r"partition 1, offset 2: format version 2 .*release") as caught:
        await merged(world)
    assert caught.value.file_ids == (newer.file_id,) and newer.key in str(caught.value)


async def test_a_damaged_trailer_of_an_l0_file_does_not_stop_its_batches() -> None:
    world = MergeWorld()
    world.add_partition(1)
    file = await world.add_l0([Sent(1, a_batch(2))])
    await damage(world, file.key, file.size_bytes - 1)
    assert await world.log_of(await leveled(world)) == world.model_log()


async def test_a_packed_index_that_cannot_be_right_names_its_file() -> None:
    world = MergeWorld()
    world.add_partition(1)
    file = await world.add_l0([Sent(1, a_batch(2))])
    for wrong in (replace(file, index=b"\x02"), replace(file, size_bytes=10)):
        world.l0_files = [wrong]
        with pytest.raises(MergeInputError) as caught:
            await leveled(world)
        assert caught.value.file_ids == (file.file_id,)


async def test_extents_that_overlap_are_refused() -> None:
    world = MergeWorld()
    world.add_partition(1)
    await world.add_leveled({1: [a_batch(2)]})
    await world.add_leveled({1: [a_batch(2)]})
    world.extents[1] = world.extents[1]._replace(base_offset=1)
    with pytest.raises(MergeInputError, match="has offset 1 both in") as caught:
        await merged(world)
    assert caught.value.file_ids == (1, 2)


async def test_a_spec_of_another_release_is_refused() -> None:
    world = MergeWorld()
    claimed = world.claim()
    claimed = replace(claimed, job=replace(claimed.job, spec={**claimed.job.spec, "version": 99}))
    with pytest.raises(SpecError):
        await world.engine().run(claimed)


# Failing stores, and stops


class FaultyWorld(MergeWorld):
    def __init__(self, *rules: FaultRule, retrying: bool = False) -> None:
        self.plan = FaultPlan()
        self.memory = MemoryStore()
        clock = ManualClock()
        faulty = Faulty(self.memory, self.plan, SystemIds(3), clock)
        super().__init__(Retrying(faulty, clock, SystemIds(4), deadline_ms=1_000) if retrying else faulty)
        self.rules = rules

    async def prepare(self) -> None:
        """Inputs of 20 MiB in two partitions. The faults begin after they are written."""
        self.add_partition(1)
        self.add_partition(2, partition=1)
        for _ in range(2):
            await self.add_leveled({n: [a_batch(1, value_bytes=MIB) for _ in range(5)] for n in (1, 2)})
        self.plan.rules = self.rules


@pytest.mark.parametrize(
    ("fault", "op", "calls", "error"),
    [
        (Fault.UNREACHABLE, "get_range", {2}, StoreUnavailableError),
        (Fault.SLOW_DOWN, "multipart_start", {1}, StoreUnavailableError),
        (Fault.UNREACHABLE, "multipart_write", {2}, StoreUnavailableError),
        (Fault.FULL, "multipart_write", {1}, StoreFullError),
        (Fault.FULL, "multipart_complete", {1}, StoreFullError),
        (Fault.LOST_REQUEST, "multipart_complete", {1}, PutInDoubtError),
    ],
)
async def test_a_store_that_fails_ends_the_try_and_no_upload_is_left(
    fault: Fault, op: str, calls: set[int], error: type[Exception]
) -> None:
    world = FaultyWorld(FaultRule(fault=fault, op=op, calls=frozenset(calls)))
    await world.prepare()
    before = await world.keys()
    with pytest.raises(error) as caught:
        await merged(world)
    assert getattr(caught.value, "retriable", False)
    assert await world.memory.abort_multiparts(older_than_ms=2**60) == 0
    # then nothing was published, and the same job can be run again
    assert await world.keys() == before
    world.plan.rules = ()
    assert await world.log_of(await merged(world)) == world.model_log()


async def test_answers_that_are_lost_are_settled_below_and_the_merge_goes_on() -> None:
    world = FaultyWorld(
        FaultRule(fault=Fault.LOST_ANSWER, op="multipart_complete", calls=frozenset({1})),
        FaultRule(fault=Fault.LOST_ANSWER, op="multipart_write", calls=frozenset({1, 2})),
        FaultRule(fault=Fault.SLOW_DOWN, op="get_range", calls=frozenset({1})),
        retrying=True,
    )
    await world.prepare()
    commit = await merged(world)
    assert await world.log_of(commit) == world.model_log()


async def test_a_merge_that_is_told_to_stop_does_so_at_the_next_window() -> None:
    world = FaultyWorld()
    await world.prepare()
    before = await world.keys()
    calls = 0

    def keep_going() -> None:
        nonlocal calls
        calls += 1
        if calls == 4:
            raise JobLostError("the job is not ours")

    with pytest.raises(JobLostError):
        await world.engine().run(world.claim(kind=MergeKind.MERGE, level=2), keep_going=keep_going)
    assert calls == 4
    assert await world.keys() == before
    assert await world.memory.abort_multiparts(older_than_ms=2**60) == 0


async def test_a_merge_that_is_cancelled_leaves_no_upload() -> None:
    world = FaultyWorld(FaultRule(fault=Fault.DELAY, op="get_range", delay_ms=1))
    await world.prepare()
    before = await world.keys()
    seen: list[Progress] = []
    running = asyncio.create_task(world.engine().run(world.claim(kind=MergeKind.MERGE, level=2), progress=seen.append))
    while len(seen) < 3 and not running.done():
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await world.keys() == before
    assert await world.memory.abort_multiparts(older_than_ms=2**60) == 0


@pytest.mark.parametrize("prepare", ["level", "merge", "dedupe", "deep"])
async def test_progress_rises_to_one_and_keep_going_is_asked_with_every_window(prepare: str) -> None:
    world = MergeWorld()
    world.add_partition(1, cleanup_policy="compact")
    runs: dict[str, Callable[[], object]] = {
        "level": world.claim,
        "merge": lambda: world.claim(kind=MergeKind.MERGE, level=2),
        "dedupe": lambda: world.claim(kind=MergeKind.MERGE, level=2, dedupe={1: world.dedupe_spec(1)}),
        "deep": lambda: world.claim(kind=MergeKind.MERGE, level=2, dedupe={1: world.dedupe_spec(1, passes=3)}),
    }
    for _ in range(3):
        if prepare == "level":
            await world.add_l0([Sent(1, a_batch(2, timestamp_ms=NOW_MS))])
        else:
            await world.add_leveled({1: [a_batch(1, value_bytes=5 * MIB) for _ in range(2)]})
    seen: list[Progress] = []
    asked = 0

    def keep_going() -> None:
        nonlocal asked
        asked += 1

    claimed = runs[prepare]()
    await world.engine(kept_bytes_max=0).run(claimed, progress=seen.append, keep_going=keep_going)  # type: ignore[arg-type]
    fractions = [each.fraction for each in seen]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert asked >= len(seen)
    assert all("plain-0" in each.step for each in seen)
