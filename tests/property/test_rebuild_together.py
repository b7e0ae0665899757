"""Catalogues that two compactors write at once (`tests/fixtures/rebuild_together.py`): every acknowledged record comes
back in its place, or is listed as missing and the result is not called complete. Without faults the result is called
complete.
"""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from siltstone.ops.rebuild.plan import NEWER_L0, RebuildPlan
from tests.fixtures.chance import examples
from tests.fixtures.rebuild_together import FAULTS, Teller, Together
from tests.fixtures.rebuild_world import Record
from tests.property.test_rebuild_plan import check_keys, readable_of

SILENT = frozenset({"old", "miss"})
"""The faults that a rebuild cannot notice: increments of a release that did not record where they begin, and missing
increments.
"""


def check(world: Together) -> None:
    catalogued, behind, is_damaged = world.bucketed()
    plan = world.plan(catalogued)
    may_notice = not world.faults & SILENT
    if behind:
        assert is_unsure(world) or world.is_gap(catalogued), "a gap is reported where none exists"
    elif may_notice and not is_damaged:
        assert not world.is_gap(catalogued), "a gap is not reported"
    if may_notice:
        assert not world.commits.keys() & set(plan.uncommitted_l0)
    is_complete = plan.is_complete and catalogued.is_whole
    known = {row["partition_id"] for row in plan.tables["partitions"]}
    for id_ in world.places:
        if id_ in known:
            check_partition(world, plan, id_, is_whole=catalogued.is_whole and may_notice, is_complete=is_complete)
        elif may_notice and catalogued.is_whole:
            of_it = {key for (key, partition), _ in world.records.items() if partition == id_}
            assert of_it & world.objects & world.commits.keys() <= set(plan.unknown_topics)
            assert not is_complete or not world.history[id_]


def is_unsure(world: Together) -> bool:
    catalogued = world.bucketed().catalogued
    bases = [each.base for each in catalogued.increments if each.base is not None]
    return any(world.is_unsure(catalogued, base) for base in bases)


def check_partition(world: Together, plan: RebuildPlan, id_: int, *, is_whole: bool, is_complete: bool) -> None:
    after = readable_of(world, plan, id_)
    given = {record for (_, partition), records in world.records.items() if partition == id_ for record in records}
    assert set(after) <= given
    if not is_whole:
        return
    lost = set(world.readable(id_)) - set(after)
    assert not lost or not is_complete, "not all records came back, and the result is called complete"
    if world.places[id_].compacts:
        [end] = [row["next_offset"] for row in plan.tables["watermarks"] if row["partition_id"] == id_]
        check_keys(world, plan, after, end, id_)
    place = plan.places[id_]
    listed = {*plan.newer_l0, *plan.unknown_topics}
    has_holes = any((loss.what, *loss[1:3]) == ("offsets", *place) for loss in plan.losses)
    assert not lost or has_holes or lost <= in_files(world, listed, id_), "a lost record is not listed"


def in_files(world: Together, keys: set[str], id_: int) -> set[Record]:
    return {record for key in keys for record in world.records.get((key, id_), [])}


def check_recovered(world: Together) -> None:
    """After one compactor's snapshot everything is known, whatever happened before."""
    teller = Teller(world)
    teller.snapshot()
    catalogued, behind, is_damaged = world.bucketed()
    assert not behind
    if is_damaged:
        return
    plan = world.plan(catalogued)
    assert {loss.what for loss in plan.losses} <= {NEWER_L0}
    assert not {*plan.newer_l0, *plan.unknown_topics, *plan.uncommitted_l0} & world.commits.keys()
    assert {row["partition_id"] for row in plan.tables["partitions"]} == world.places.keys()
    for id_ in world.places:
        assert readable_of(world, plan, id_) == world.readable(id_)


def run(seed: int) -> None:
    chance = random.Random(seed)
    faults = frozenset(fault for fault in FAULTS if chance.random() < 0.35)
    world = Together(chance, faults=faults)
    steps = (
        [world.commit] * 5 + [world.merge] * 4 + [world.act] * 6 + [world.delete_records, world.sweep, world.leave_l0]
    )
    steps += [world.step_back, world.wait, world.register, world.topic, world.goes_wrong, world.goes_wrong]
    for _ in range(chance.randint(0, 60)):
        chance.choice(steps)()
        if not faults & {"damage", "miss"} and chance.random() < 0.01:
            world.begin_anew()
    if not faults and not any(teller.about for teller in world.tellers):
        assert world.bucketed().catalogued.is_whole or is_unsure(world)
    if chance.random() < 0.8:
        check(world)
    else:
        check_recovered(world)


@settings(max_examples=examples(60), deadline=None)
@given(st.integers(0, 2**32))
def test_what_was_acknowledged_comes_back_or_is_listed(seed: int) -> None:
    run(seed)


@pytest.mark.soak
@pytest.mark.timeout(3600)
def test_many_histories() -> None:
    for seed in range(50_000):
        run(seed)
