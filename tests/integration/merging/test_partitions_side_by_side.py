"""Merges whose partitions run side by side: the files are those of one strand, and the first error ends all strands."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import pairwise

import pytest

from compactor.merging.execute import MergeEngine, Progress, ignore_progress
from compactor.planning.options import MergeMemory
from compactor.planning.spec import MIB, MergeKind
from metadata.contract.jobs import ClaimedJob, CommitMerge
from runtime.ids import SystemIds
from runtime.runtime import Runtime
from tests.fixtures.merge_inputs import LEASE, MergeWorld, Sent, a_batch, keyed
from wire.records import build_batch

KEYS = 200


async def a_history_of_many_partitions(*, files: int = 6) -> MergeWorld:
    """Compacted and plain partitions of very different sizes, in leveled files and one L0 file."""
    world = MergeWorld()
    for number in range(1, 10):
        configs = {} if number % 4 == 0 else {"cleanup_policy": "compact"}
        world.add_partition(number, topic=f"t{number % 4 == 0}", partition=number, **configs)
    for turn in range(files):
        await world.add_leveled({number: [some_records(number, turn)] for number in range(1, 10)})
    await world.add_l0([Sent(number, some_records(number, files)) for number in range(1, 10)])
    return world


def some_records(partition_id: int, turn: int) -> bytes:
    """Every other record of a partition has a key that comes again in each turn. Partition 3 is the largest."""
    count, value_bytes = (KEYS, 4_000) if partition_id == 3 else (KEYS // partition_id, 300)
    return build_batch([keyed(f"k{n}" if n % 2 else f"k{turn}-{n}", b"%d" % turn * value_bytes) for n in range(count)])


def engine_of(world: MergeWorld, strands: int, *, in_thread: bool = True, **memory: int) -> MergeEngine:
    return MergeEngine(
        store=world.store,
        runtime=Runtime(clock=world.clock, ids=SystemIds(7)),
        lease=LEASE,
        memory=MergeMemory(**{"keys_max": 1_000} | memory),
        in_thread=in_thread,
        strands=strands,
    )


def job_of(world: MergeWorld, *, output_bytes: int = 64 * MIB) -> ClaimedJob:
    compacted = [number for number in world.partitions if number % 4]
    return world.claim(
        kind=MergeKind.MERGE,
        level=2,
        output_bytes=output_bytes,
        dedupe={number: world.dedupe_spec(number) for number in compacted},
    )


async def taken_out(world: MergeWorld, commit: CommitMerge) -> list[bytes]:
    """The bytes of the outputs, which leave the store, so that another merge may write them again."""
    keys = [output.key for output in commit.outputs]
    bodies = [await world.inner.get(key) for key in keys]
    await world.inner.delete_many(keys)
    return bodies


@pytest.mark.parametrize(
    "memory",
    [{}, {"kept_bytes_max": 100_000}, {"keys_max": 150}, {"cursor_bytes": MIB, "kept_bytes_max": 1}],
    ids=["in memory", "read twice", "keys overflow", "little memory"],
)
async def test_strands_write_the_files_of_one_strand(memory: dict[str, int]) -> None:
    world = await a_history_of_many_partitions()
    claimed = job_of(world, output_bytes=300_000)
    commit = await engine_of(world, 1, in_thread=True, **memory).run(claimed)
    expected = await taken_out(world, commit)
    assert len(expected) > 3
    for strands in (2, 3, 20):
        again = await engine_of(world, strands, in_thread=True, **memory).run(claimed)
        assert again == commit
        assert await taken_out(world, again) == expected


async def test_strands_level_l0_files_as_one_strand_does() -> None:
    world = MergeWorld()
    for number in range(1, 6):
        world.add_partition(number, partition=number)
    for _ in range(5):
        await world.add_l0([Sent(number, a_batch(5, value_bytes=20_000 * number)) for number in range(1, 6)])
    claimed = world.claim(output_bytes=500_000)
    commit = await engine_of(world, 1).run(claimed)
    expected = await taken_out(world, commit)
    again = await engine_of(world, 3).run(claimed)
    assert (again, await taken_out(world, again)) == (commit, expected)


async def test_corrupt_extents_of_several_partitions_are_flagged_as_by_one_strand() -> None:
    world = await a_history_of_many_partitions()
    for extent in world.extents[3:40:7]:
        body = bytearray(await world.inner.get(extent.key))
        body[extent.position + extent.length // 2] ^= 1
        await world.replace_object(extent.key, body)
    claimed = job_of(world)
    commit = await engine_of(world, 1).run(claimed)
    expected = await taken_out(world, commit)
    assert commit.summary["flagged_extents"] == len(world.extents[3:40:7])
    again = await engine_of(world, 3).run(claimed)
    assert (again, await taken_out(world, again)) == (commit, expected)


async def test_a_partition_is_scanned_while_the_one_before_it_is_written() -> None:
    world = await a_history_of_many_partitions()
    steps = await steps_of(world, strands=2)
    assert any("writing" in before and "reading" in step for before, step in pairwise(steps[len(steps) // 2 :]))
    # and with one strand no partition is read before the one ahead of it is done
    alone = await steps_of(world, strands=1)
    names = [step.rsplit(" ", 1)[1] for step in alone]
    assert len([1 for before, name in pairwise(names) if before != name]) == len(set(names)) - 1


async def steps_of(world: MergeWorld, *, strands: int) -> list[str]:
    steps: list[str] = []

    def progress(step: Progress) -> None:
        steps.append(step.step)

    await taken_out(world, await engine_of(world, strands, in_thread=False).run(job_of(world), progress=progress))
    return steps


class Halted(Exception): ...


@pytest.mark.parametrize("steps", [1, 5, 20, 60])
async def test_the_first_error_ends_all_strands(steps: int) -> None:
    world = await a_history_of_many_partitions()
    left, raised = steps, 0

    def keep_going() -> None:
        nonlocal left, raised
        left -= 1
        if left <= 0:
            raised += 1
            raise Halted(str(raised))

    before = set(await world.keys())
    engine = engine_of(world, 3)
    with pytest.raises(Halted, match="1"):
        await engine.run(job_of(world), keep_going=keep_going)
    # then nothing runs on, and the engine's memory is free for a merge that needs all of it
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert set(await world.keys()) == before
    await all_memory_is_free(engine)


@pytest.mark.parametrize("steps", [1, 10, 40])
async def test_a_cancelled_merge_leaves_no_strand(steps: int) -> None:
    world = await a_history_of_many_partitions()
    engine = engine_of(world, 3)
    seen: list[Progress] = []
    running = asyncio.create_task(engine.run(job_of(world), progress=seen.append))
    while len(seen) < steps:
        await asyncio.sleep(0)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert asyncio.all_tasks() == {asyncio.current_task()}
    await all_memory_is_free(engine)


async def all_memory_is_free(engine: MergeEngine) -> None:
    async with asyncio.timeout(10), engine.key_memory.buffer(engine.memory.keys_max):
        pass


async def test_merges_of_one_engine_at_once_share_its_memory_for_keys() -> None:
    world = await a_history_of_many_partitions()
    claimed = job_of(world)
    expected = await taken_out(world, await engine_of(world, 1).run(claimed))
    engine = MergeEngine(
        store=world.store,
        runtime=Runtime(clock=world.clock, ids=SystemIds(8)),
        lease=LEASE,
        memory=MergeMemory(keys_max=1_000),
        strands=2,
    )
    async with asyncio.timeout(60):
        commits: Sequence[CommitMerge] = await asyncio.gather(
            *(engine.run(claimed, progress=ignore_progress) for _ in range(3))
        )
    for commit in commits:
        assert [len(body) for body in await taken_out(world, commit)] == [len(body) for body in expected]
