"""`plan_rebuild` against a model (`tests/fixtures/rebuild_world.py`): whatever happened, and whenever the catalogue was
written, a rebuild makes exactly the live records readable, and no deleted ones.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.rules.packed_index import iter_index
from siltstone.ops.rebuild.plan import NEWER_L0, RebuildPlan
from tests.fixtures.chance import examples
from tests.fixtures.rebuild_world import COMPACTED, TOPICS, Record, World


def readable_of(world: World, plan: RebuildPlan, partition: int) -> list[Record]:
    keys = {row["file_id"]: row["key"] for row in plan.tables["files"]}
    held: list[tuple[int, int, str]] = [
        (row["base_offset"], row["last_offset"], keys[row["file_id"]])
        for row in plan.tables["extents"]
        if row["state"] == "live" and row["partition_id"] == partition
    ]
    for file in plan.tables["files"]:
        if file["level"] == 0 and file["state"] == "live":
            rows = [row for row in iter_index(file["index"]) if row.partition_id == partition]
            held += [(row.base_offset, row.last_offset, file["key"]) for row in rows]
    held.sort()
    held += [(hole.base_offset, hole.last_offset, "") for hole in plan.holes if hole.partition_id == partition]
    held.sort()
    [start] = [row["log_start_offset"] for row in plan.tables["log_starts"] if row["partition_id"] == partition]
    [end] = [row["next_offset"] for row in plan.tables["watermarks"] if row["partition_id"] == partition]
    at = start
    for base, last, key in held:
        assert base <= at <= last + 1 and (base == at or at == start), (held, start, end)
        assert not key or key in world.objects
        at = last + 1
    assert at == end, (held, start, end)
    return sorted(
        record
        for base, last, key in held
        for record in world.records.get((key, partition), [])
        if base <= record[0] <= last and record[0] >= start
    )


def check_keys(world: World, plan: RebuildPlan, after: list[Record], end: int, id_: int = COMPACTED) -> None:
    """Check that no deleted key and no old value returns: each key's newest record is still its newest one, as far as
    offsets came back."""
    [start] = [row["log_start_offset"] for row in plan.tables["log_starts"] if row["partition_id"] == id_]
    holes = [(hole.base_offset, hole.last_offset) for hole in plan.holes if hole.partition_id == id_]
    truth = {
        key: (offset, value)
        for offset, key, value in world.history[id_]
        if offset < end and not any(base <= offset <= last for base, last in holes)
    }
    wanted = {key: found for key, found in truth.items() if found[0] >= start and found[1] is not None}
    newest = {key: (offset, value) for offset, key, value in after}
    assert {key: found for key, found in newest.items() if found[1] is not None} == wanted


def left_l0(world: World) -> set[str]:
    return {file.key for file in world.files.values() if not file.level and not file.committed}


def check_left_out(world: World, plan: RebuildPlan) -> None:
    """Check the files left out: none was acknowledged, and they include every uncommitted file that was sealed before a
    file whose commit the catalogue knows."""
    never = left_l0(world)
    assert set(plan.uncommitted_l0) <= never and not plan.newer_l0.keys() & set(plan.uncommitted_l0)
    [told_ms] = [file.created_ms for file in world.files.values() if file.writer_seq == world.told[0] >= 0] or [0]
    assert {key for key in never if world.files[key].created_ms < told_ms} <= set(plan.uncommitted_l0)
    assert {row["state"] for row in plan.tables["files"]} <= {"live", "dead"}


def check(world: World) -> None:
    plan = world.rebuild()
    heard_seq, heard_change, heard_jobs = world.told
    is_told = heard_seq == world.seq and heard_change == world.change_id
    for partition in TOPICS:
        before, after = world.readable(partition), readable_of(world, plan, partition)
        [end] = [row["next_offset"] for row in plan.tables["watermarks"] if row["partition_id"] == partition]
        assert end <= world.ends[partition]
        # acknowledged offsets stay as they are: nothing is invented
        given = {record for (_, id_), records in world.records.items() if id_ == partition for record in records}
        assert set(after) <= given
        if is_told and heard_jobs == {job.job_id for job in world.done}:
            assert after == before and {loss.what for loss in plan.losses} <= {NEWER_L0}
            assert plan.newer_l0.keys() <= left_l0(world), "what nobody was told of may look newer"
        # the contents of a committed merge of L0 are there, even if the catalogue lacks the commit
        assert {record for record in world.leveled(partition) if record in before} <= set(after)
        if partition == COMPACTED:
            check_keys(world, plan, after, end)
    check_left_out(world, plan)
    live = [row for row in plan.tables["files"] if row["state"] == "live"]
    counted: dict[int, int] = {}
    for row in plan.tables["extents"]:
        if row["state"] == "live":
            counted[row["file_id"]] = counted.get(row["file_id"], 0) + 1
    for row in live:
        if row["level"]:
            assert row["live_extents"] == counted.get(row["file_id"], 0) > 0
    assert len({row["file_id"] for row in plan.tables["files"]}) == len(plan.tables["files"])


def check_sound(world: World) -> None:
    """With parts of the catalogue unread: each offset is held once, with the record that was given to it, and live
    files are there."""
    world.increments = [each for each in world.increments if world.chance.random() < 0.5]
    plan = world.rebuild()
    for partition in TOPICS:
        given = {record for (_, id_), records in world.records.items() if id_ == partition for record in records}
        assert set(readable_of(world, plan, partition)) <= given


def run(seed: int, check: Callable[[World], None] = check) -> None:
    chance = random.Random(seed)
    world = World(chance)
    steps = [world.commit] * 5 + [world.merge] * 4 + [world.delete_records, world.sweep, world.increment]
    steps += [world.leave_l0, world.step_back]
    for _ in range(chance.randint(0, 12)):
        chance.choice([world.commit, world.merge])()
    world.snapshot()
    for _ in range(chance.randint(0, 40)):
        chance.choice([*steps, world.snapshot] if chance.random() < 0.1 else steps)()
    check(world)


@settings(max_examples=examples(150), deadline=None)
@given(st.integers(0, 2**32))
def test_what_a_rebuild_makes_readable_is_what_was(seed: int) -> None:
    run(seed)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_what_cannot_be_read_of_the_catalogue_makes_no_offset_ambiguous(seed: int) -> None:
    run(seed, check_sound)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_histories() -> None:
    for seed in range(50_000):
        run(seed)
