"""The order of a merge's inputs, and the requests that read them."""

from __future__ import annotations

import asyncio
import threading
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from compactor.merging.cursors import Cursors, plan_reads
from compactor.merging.kway_merge import InputExtent, InputFile, PartitionInputs, class_of, order_inputs, whole_through
from compactor.merging.windows import KernelCaller
from compactor.planning.spec import MIB, MergeSpec
from metadata.contract.leveled import FileClass
from storage.memory import MemoryStore
from tests.fixtures.merge_inputs import Counting, MergeWorld, Sent, a_batch
from wire.crc import crc32c


def an_extent(
    file_id: int, position: int, length: int, *, base: int = 0, partition_id: int = 1, is_l0: bool = False
) -> InputExtent:
    return InputExtent(
        partition_id, base, base, file_id, f"l1/{file_id}", position, length, is_l0, 1, 0, 0, 0, False, None
    )


def files_of(sizes: dict[int, int], *, is_l0: bool = False) -> dict[int, InputFile]:
    return {
        file_id: InputFile(file_id=file_id, key=f"l1/{file_id}", size_bytes=size, is_l0=is_l0)
        for file_id, size in sizes.items()
    }


async def test_inputs_are_ordered_by_partition_and_offset_whatever_file_they_are_in() -> None:
    world = MergeWorld()
    for partition_id in (1, 2):
        world.add_partition(
            partition_id, partition=partition_id, cleanup_policy="compact" if partition_id == 2 else "delete"
        )
    await world.add_leveled({1: [a_batch(2)], 2: [a_batch(2)]})
    await world.add_l0([Sent(2, a_batch(3)), Sent(1, a_batch(1))])
    await world.add_l0([Sent(1, a_batch(4)), Sent(1, a_batch(1), accepted=False), Sent(1, a_batch(1))])
    world.l0_files.reverse()
    claimed = world.claim()
    inputs = order_inputs(claimed, MergeSpec.from_json(claimed.job.spec))
    assert [
        (each.partition.partition_id, [(one.base_offset, one.last_offset, one.is_l0) for one in each.extents])
        for each in inputs.partitions
    ] == [
        (1, [(0, 1, False), (2, 2, True), (3, 6, True), (7, 7, True)]),
        (2, [(0, 1, False), (2, 4, True)]),
    ]
    assert [each.file_class for each in inputs.partitions] == [FileClass.PLAIN, FileClass.COMPACTED]
    assert [each.name for each in inputs.partitions] == ["plain-1", "plain-2"]
    assert sorted(inputs.files) == [1, 2, 3]


async def test_only_partitions_that_are_compacted_still_are_deduped() -> None:
    # given a spec for two partitions, one of which has changed its policy since
    world = MergeWorld()
    for partition_id, policy in ((1, "compact"), (2, "delete"), (3, "compact,delete")):
        world.add_partition(partition_id, partition=partition_id, cleanup_policy=policy)
    await world.add_leveled({n: [a_batch(2)] for n in (1, 2, 3)})
    claimed = world.claim(dedupe={n: world.dedupe_spec(n) for n in (1, 2)})
    inputs = order_inputs(claimed, MergeSpec.from_json(claimed.job.spec))
    assert [each.dedupe for each in inputs.partitions] == [True, False, False]
    assert class_of(inputs.partitions[2].partition) is FileClass.COMPACTED


@pytest.mark.parametrize(
    ("log_start", "extents", "through"),
    [
        (0, [(0, 9), (10, 19), (25, 30)], 20),
        (0, [(5, 9)], 0),
        (7, [(5, 9), (10, 12)], 13),
        (7, [(0, 3), (8, 12)], 7),
        (7, [(0, 3), (4, 12)], 13),
    ],
)
def test_the_stretch_from_the_log_start_ends_at_the_first_gap(
    log_start: int, extents: list[tuple[int, int]], through: int
) -> None:
    world = MergeWorld()
    world.add_partition(1)
    inputs = PartitionInputs(
        partition=replace(world.partitions[1].info, log_start_offset=log_start),
        file_class=FileClass.COMPACTED,
        dedupe=True,
        extents=[an_extent(1, 0, 1, base=base)._replace(last_offset=last) for base, last in extents],
    )
    assert whole_through(inputs) == through


# Reads


def test_stretches_that_touch_are_read_together_in_windows_of_16_mib() -> None:
    extents = [an_extent(1, 0, 3 * MIB), an_extent(1, 3 * MIB, 30 * MIB, base=1), an_extent(1, 34 * MIB, MIB, base=2)]
    plan = plan_reads(extents, files_of({1: 36 * MIB}), budget_bytes=256 * MIB)
    assert [(read.start // MIB, read.length // MIB, read.first_need) for read in plan.reads] == [
        (0, 16, 0),
        (16, 16, 1),
        (32, 1, 1),
        (34, 1, 2),
    ]


@pytest.mark.parametrize(("files", "window_mib"), [(1, 16), (16, 16), (64, 4), (256, 1), (1000, 1)])
def test_windows_shrink_with_the_files_that_are_open_at_once(files: int, window_mib: int) -> None:
    # given partitions with an extent in every file each
    extents = [
        an_extent(file_id, partition * MIB, MIB, base=file_id, partition_id=partition)
        for partition in range(2)
        for file_id in range(files)
    ]
    plan = plan_reads(extents, files_of(dict.fromkeys(range(files), 2 * MIB)), budget_bytes=256 * MIB)
    assert (plan.open_max, plan.window_bytes) == (files, window_mib * MIB)


def test_files_that_follow_each_other_are_not_open_at_once() -> None:
    extents = [an_extent(file_id, 0, 17 * MIB, base=file_id) for file_id in range(100)]
    plan = plan_reads(extents, files_of(dict.fromkeys(range(100), 17 * MIB)), budget_bytes=256 * MIB)
    assert (plan.open_max, plan.window_bytes, len(plan.reads)) == (1, 16 * MIB, 200)


def test_an_l0_file_is_read_whole_when_most_of_it_is_wanted_or_it_is_small() -> None:
    wanted = [an_extent(1, 100, 3 * MIB, is_l0=True), an_extent(1, 4 * MIB, MIB, base=1, is_l0=True)]
    assert [read[1:3] for read in plan_reads(wanted, files_of({1: 7 * MIB}, is_l0=True), budget_bytes=MIB).reads] == [
        (0, 7 * MIB)
    ]
    reads = plan_reads(wanted, files_of({1: 9 * MIB}, is_l0=True), budget_bytes=MIB).reads
    assert [read[1:3] for read in reads] == [(100, 3 * MIB), (4 * MIB, MIB)]
    small = [an_extent(1, 100, 10, is_l0=True)]
    assert plan_reads(small, files_of({1: 200_000}, is_l0=True), budget_bytes=MIB).reads[0][1:3] == (0, 200_000)


@given(
    lengths=st.lists(st.lists(st.integers(0, 40), min_size=1, max_size=6), min_size=1, max_size=6),
    dead=st.sets(st.integers(0, 35)),
    budget_bytes=st.integers(1, 400),
)
async def test_every_wanted_byte_is_given_once_and_no_other_is_read(
    lengths: list[list[int]], dead: set[int], budget_bytes: int
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("compactor.merging.cursors.WINDOW_BYTES", 32)
        patch.setattr("compactor.merging.cursors.WINDOW_BYTES_MIN", 4)
        # given files with an extent of each partition, some of them dead
        store = Counting(MemoryStore())
        extents: list[InputExtent] = []
        bodies: dict[int, bytes] = {}
        number = 0
        for file_id, parts in enumerate(lengths):
            position = 0
            for partition_id, length in enumerate(parts):
                if number not in dead:
                    extents.append(an_extent(file_id, position, length, base=file_id, partition_id=partition_id))
                number += 1
                position += length
            bodies[file_id] = bytes((file_id * 40 + byte) % 251 for byte in range(position))
            await store.put_if_absent(f"l1/{file_id}", bodies[file_id], crc32c=crc32c(bodies[file_id]))
        extents.sort(key=lambda extent: (extent.partition_id, extent.base_offset))
        # when they are taken in merge order
        files = files_of({file_id: len(body) for file_id, body in bodies.items()})
        cursors = Cursors(store, extents, files, budget_bytes=budget_bytes)
        for extent in extents:
            whole = cursors.at_hand(extent) if extent.length else None
            data = (
                bytes(whole) if whole is not None else b"".join([bytes(part) async for part in cursors.chunks(extent)])
            )
            # then each has its bytes
            assert data == bodies[extent.file_id][extent.position : extent.position + extent.length]
        # and each live byte was read once, and no dead byte
        assert sum(length for _, _, length in store.reads) == sum(extent.length for extent in extents)
        assert cursors.requests == len(store.reads) == len(cursors.plan.reads)
        await cursors.close()


async def test_the_next_reads_are_on_their_way_while_one_is_waited_for_as_far_as_the_budget_goes() -> None:
    class Gated(Counting):
        gate = asyncio.Event()

        async def get_range(self, key: str, start: int, length: int) -> bytes:
            self.reads.append((key, start, length))
            await self.gate.wait()
            return b"x" * length

    # given twenty files that are read one after the other, and room for three windows
    extents = [an_extent(file_id, 0, 8 * MIB, base=file_id) for file_id in range(20)]
    for budget_bytes, expected in ((24 * MIB, 3), (1024 * MIB, 5)):
        store = Gated(MemoryStore())
        store.gate.clear()
        cursors = Cursors(store, extents, files_of(dict.fromkeys(range(20), 8 * MIB)), budget_bytes=budget_bytes)
        taking = asyncio.create_task(anext(cursors.chunks(extents[0])))  # type: ignore[arg-type]
        for _ in range(20):
            await asyncio.sleep(0)
        # then the first window is requested together with the next ones, in order
        assert [key for key, _, _ in store.reads] == [f"l1/{n}" for n in range(expected)]
        store.gate.set()
        assert len(await taking) == 8 * MIB
        await cursors.close()


async def test_a_kernel_that_runs_on_a_thread_ends_before_its_cancelled_caller_does() -> None:
    # given a call on a thread that works on a buffer which another merge may get next
    begun, let_go, ended = threading.Event(), threading.Event(), threading.Event()

    def kernel() -> None:
        begun.set()
        let_go.wait(10)
        ended.set()

    running = asyncio.create_task(KernelCaller(in_thread=True).call(1 << 30, kernel))
    await asyncio.to_thread(begun.wait, 10)
    # when the caller is cancelled, then it waits
    running.cancel()
    for _ in range(20):
        await asyncio.sleep(0)
    assert not running.done()
    let_go.set()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert ended.is_set()


async def test_what_is_passed_over_is_not_read() -> None:
    store = Counting(MemoryStore())
    body = b"x" * (20 * MIB)
    await store.put_if_absent("l1/1", body, crc32c=crc32c(body))
    extents = [an_extent(1, n * 10 * MIB, 10 * MIB, base=n) for n in range(2)]
    cursors = Cursors(store, extents, files_of({1: 20 * MIB}), budget_bytes=8 * MIB)
    taken = cursors.chunks(extents[0])
    assert len(await anext(taken)) == 8 * MIB
    await taken.aclose()
    cursors.skip_rest(extents)
    await cursors.close()
    assert len(store.reads) == 1
