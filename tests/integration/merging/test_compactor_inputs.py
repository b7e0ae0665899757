"""A compactor whose merge finds an input missing, corrupt or written by a later release: it names the file, partition
and offset, replaces nothing, and does all other work.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from metadata.contract.files import FileState
from metadata.contract.jobs import JobState, MergeJob
from metadata.contract.leveled import LeveledExtent
from metadata.rules.packed_index import iter_index
from storage.format.file_format import TRAILER_BYTES
from tests.fixtures.compacted_systems import LEVEL_ONLY, System, start_beside
from tests.fixtures.compactors import RunningCompactor, StartCompactor
from tests.fixtures.merge_inputs import newer_trailer
from tests.fixtures.waiting import until
from wire.crc import crc32c

INPUTS = 3
"""The number of files in each merge here; the middle one gets damaged."""


class Input(NamedTuple):
    file_id: int
    key: str
    partition_id: int
    base_offset: int
    position: int
    length: int
    block_index_position: int

    @property
    def where(self) -> str:
        """The file as an error names it."""
        return f"partition {self.partition_id}, offset {self.base_offset}"


Damage = Callable[[bytearray, Input], None]


async def inputs_of(system: System, start_compactor: StartCompactor, level: int) -> list[Input]:
    """Files of this level that hold topic "t". An agent makes them, and above L0 a compactor that has stopped."""
    await system.client.create_topic("t", partitions=1)
    await system.client.create_topic("other", partitions=1)
    if level == 0:
        await system.write("t", INPUTS)
        files = await system.metadata.operators.files()
        found = [(file, *iter_index(file.index)) for file in files]
        return [Input(file.file_id, file.key, *row[:2], row.position, row.length, -1) for file, row in found]
    for _ in range(INPUTS):
        await system.write("t", 3)
        # not before: it may make two files of the records while they are being written
        first = await start_beside(system, start_compactor, **LEVEL_ONLY)
        await until(lambda: _has_no_l0(system))
        await first.compactor.stop()
    return [
        Input(
            each.file_id,
            each.key,
            each.partition_id,
            each.base_offset,
            each.position,
            each.length,
            each.block_index_position,
        )
        for each in await extents_of(system, "t")
    ]


async def _has_no_l0(system: System) -> bool:
    return 0 not in await system.levels()


async def extents_of(system: System, topic: str) -> list[LeveledExtent]:
    [partition_id] = next(
        each for each in await system.metadata.agents.list_topics() if each.name == topic
    ).partition_ids
    return list(await system.metadata.readers.leveled_extents(partition_id, 0))


async def start_merging(system: System, start_compactor: StartCompactor, level: int) -> RunningCompactor:
    """A compactor that merges files of this level, and does not wait for more of them."""
    options = LEVEL_ONLY if level == 0 else {"l1_runs_min": INPUTS}
    return await start_beside(system, start_compactor, **options)


async def damage(system: System, one: Input, change: Damage) -> None:
    body = bytearray(await system.store.get(one.key))
    change(body, one)
    await system.store.delete_many([one.key])
    await system.store.put_if_absent(one.key, bytes(body), crc32c=crc32c(bytes(body)))


async def failed_job(system: System) -> MergeJob:
    await until(lambda: system.job(JobState.FAILED))
    job = await system.job(JobState.FAILED)
    assert job is not None
    return job


async def nothing_is_swapped(system: System, job: MergeJob, broken: Input) -> bool:
    """Whether the merge that failed committed nothing. The sound inputs may be in another merge by now."""
    files = await system.metadata.operators.files(limit=1000)
    return {file.state for file in files if file.file_id == broken.file_id} == {FileState.LIVE} and not any(
        file.job_id == job.job_id for file in files
    )


async def states_of(system: System, inputs: list[Input]) -> set[FileState]:
    wanted = {one.file_id for one in inputs}
    return {file.state for file in await system.metadata.operators.files(limit=1000) if file.file_id in wanted}


async def until_other_work_is_done(system: System, level: int, inputs: list[Input], broken: Input) -> None:
    """Check that new files are merged with the sound ones of the failed merge, and that the broken one stays in its
    place."""

    async def is_done() -> bool:
        files = [file for file in await system.metadata.operators.files(limit=1000) if file.state is FileState.LIVE]
        live = {file.file_id for file in files}
        wait_yet = {file.file_id for file in files if file.level == 0} | {one.file_id for one in inputs} & live
        return wait_yet == {broken.file_id}

    for _ in range(INPUTS):
        await system.write("other", 3)
        await until(lambda: _has_no_l0(system) if level else is_done())
    await until(is_done)
    assert len(await system.values("other")) == INPUTS * 30


def change_a_record(body: bytearray, one: Input) -> None:
    body[one.position + one.length - 3] ^= 0x40


def change_the_index(body: bytearray, _: Input) -> None:
    body[-TRAILER_BYTES - 20] ^= 0x40


def change_the_trailer(body: bytearray, _: Input) -> None:
    body[-1] ^= 0x40


def change_the_block_index(body: bytearray, one: Input) -> None:
    body[one.block_index_position + 4] ^= 0x40


def make_newer(body: bytearray, one: Input) -> None:
    """Make the trailer name the next format version; this release cannot read its batches."""
    body[-TRAILER_BYTES:] = newer_trailer(bytes(body[-TRAILER_BYTES:]))
    body[one.position + 16] += 1


@pytest.mark.parametrize("level", [0, 1])
async def test_a_missing_input_is_named_nothing_is_swapped_and_the_rest_goes_on(
    system: System, start_compactor: StartCompactor, level: int
) -> None:
    inputs = await inputs_of(system, start_compactor, level)
    lost = inputs[1]
    await system.store.delete_many([lost.key])
    compactor = await start_merging(system, start_compactor, level)
    failed = await failed_job(system)
    assert lost.key in failed.error and lost.where in failed.error and "is not in the object store" in failed.error
    assert await nothing_is_swapped(system, failed, lost)
    await until_other_work_is_done(system, level, inputs, lost)
    assert (compactor.merges("failed"), compactor.compactor.ready) == (1, True)


@pytest.mark.parametrize("level", [0, 1])
async def test_an_input_of_a_newer_format_is_named_nothing_is_swapped_and_the_rest_goes_on(
    system: System, start_compactor: StartCompactor, level: int
) -> None:
    inputs = await inputs_of(system, start_compactor, level)
    newer = inputs[1]
    await damage(system, newer, make_newer)
    compactor = await start_merging(system, start_compactor, level)
    failed = await failed_job(system)
    assert newer.key in failed.error and newer.where in failed.error and "format version 2" in failed.error
    assert await nothing_is_swapped(system, failed, newer)
    await until_other_work_is_done(system, level, inputs, newer)
    assert (compactor.merges("failed"), compactor.compactor.ready) == (1, True)


@pytest.mark.parametrize("level", [0, 1])
async def test_a_corrupt_batch_is_named_and_copied_as_it_is_while_its_neighbours_are_merged(
    system: System, start_compactor: StartCompactor, level: int, capsys: pytest.CaptureFixture[str]
) -> None:
    inputs = await inputs_of(system, start_compactor, level)
    bad = inputs[1]
    await damage(system, bad, change_a_record)
    bytes_before = await system.store.get_range(bad.key, bad.position, bad.length)
    compactor = await start_merging(system, start_compactor, level)
    await until(lambda: compactor.merges("done") == 1)
    before, flagged, after = await extents_of(system, "t")
    assert (before.flagged_reason, after.flagged_reason) == (None, None)
    assert flagged.base_offset == bad.base_offset and "CRC-32C" in (flagged.flagged_reason or "")
    # no byte of it is lost (an L0 file has no offsets, and stays so)
    assert await system.store.get_range(flagged.key, flagged.position, flagged.length) == bytes_before
    said = [line for line in capsys.readouterr().err.splitlines() if "a corrupt extent is copied unread" in line]
    assert len(said) == 1 and bad.key in said[0]
    assert f"base_offset={bad.base_offset}" in said[0] and f"partition_id={bad.partition_id}" in said[0]
    assert compactor.merges("failed") == 0


@pytest.mark.parametrize(
    ("level", "change"),
    [(0, change_the_index), (0, change_the_trailer), (1, change_the_index), (1, change_the_block_index)],
)
async def test_what_a_merge_does_not_need_of_its_inputs_may_be_corrupt_and_is_whole_in_the_output(
    system: System, start_compactor: StartCompactor, level: int, change: Damage
) -> None:
    inputs = await inputs_of(system, start_compactor, level)
    written = await system.values("t")
    await damage(system, inputs[1], change)
    compactor = await start_merging(system, start_compactor, level)
    await until(lambda: compactor.merges("done") == 1)
    assert [each.flagged_reason for each in await extents_of(system, "t")] == [None]
    assert await system.values("t") == written
    await until(lambda: _are_gone(system, inputs))
    assert await system.fsck() == []


async def _are_gone(system: System, inputs: list[Input]) -> bool:
    """Whether the janitor has deleted the files. Until then `fsck` would read the damaged one."""
    return await states_of(system, inputs) == {FileState.DELETED}
