"""The decisions of a rebuild, case by case. Random histories are in `tests/property/test_rebuild_plan.py`."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

from compactor.deletion.backup_format import Increment
from metadata.contract.backup import REBUILT_HOST, has_heard
from metadata.contract.tail import Cursor
from siltstone.ops.rebuild.plan import L0Extent, plan_rebuild
from siltstone.ops.rebuild.state import PRODUCER_IDS_ABOVE, Catalogued, linked, rolled_forward
from siltstone.ops.rebuild.uncommitted import ABANDONED_MS, uncommitted_l0
from tests.fixtures.rebuild_world import TOPICS, File, World


def small_world() -> World:
    world = World(random.Random(7))
    world.commit()
    world.snapshot()
    return world


def test_a_cluster_that_was_rebuilt_before_can_be_rebuilt_again() -> None:
    # given a catalogue with the writer of an earlier rebuild
    world = small_world()
    assert world.catalogued is not None
    writers = world.catalogued.tables["writers"]
    assert isinstance(writers, list)
    earlier = {"writer_id": 9, "host": REBUILT_HOST, "port": 0, "epoch": 1, "last_seq": -1}
    writers.append(earlier)
    # then there is one writer of that name, and it is a new one
    writers = world.rebuild().tables["writers"]
    assert [row["host"] for row in writers].count(REBUILT_HOST) == 1
    assert len({(row["host"], row["port"]) for row in writers}) == len(writers)
    assert writers[-1]["host"] == REBUILT_HOST and writers[-1]["writer_id"] > 9


def unknown_l0(catalogued: Catalogued, *, writer_id: int = 7, epoch: int = 0, sealed_ms: int) -> bool:
    """Whether the rebuild reports the file as never committed."""
    key = f"l0/00/1970010100/{writer_id}-{epoch}-{uuid.UUID(int=sealed_ms << 80)}.silt"
    return uncommitted_l0(catalogued, [key]) == [key]


def test_an_l0_file_that_a_writer_passed_over_or_left_long_ago_was_never_committed() -> None:
    world = small_world()
    [file] = world.files.values()
    at_ms = file.created_ms
    world.increment()
    catalogued = world.catalogued
    assert catalogued is not None
    # sealed before the last file whose commit is known. A file sealed at the same time, or later, is uncertain
    assert unknown_l0(catalogued, sealed_ms=at_ms - 1)
    assert not unknown_l0(catalogued, sealed_ms=at_ms) and not unknown_l0(catalogued, sealed_ms=at_ms + 1)
    # of an older epoch than the known one, or of a newer one
    assert not unknown_l0(catalogued, epoch=1, sealed_ms=at_ms - 1)
    instant = replace(catalogued.instant, cursor=Cursor(writers={7: (2, -1)}, change_id=0))
    later = replace(catalogued, instant=instant)
    assert unknown_l0(later, epoch=1, sealed_ms=at_ms + 1) and not unknown_l0(later, epoch=2, sealed_ms=at_ms - 1)
    # of an unknown writer: judged by the file's age
    taken_ms = catalogued.instant.taken_ms
    assert not unknown_l0(catalogued, writer_id=8, sealed_ms=taken_ms - ABANDONED_MS)
    assert unknown_l0(catalogued, writer_id=8, sealed_ms=taken_ms - ABANDONED_MS - 1)
    # and where an increment could not be read, anything may have been committed
    assert not unknown_l0(replace(later, is_whole=False), epoch=1, sealed_ms=0)


def test_numbers_and_epochs_that_may_have_been_given_since_are_not_given_again() -> None:
    world = small_world()
    of_epoch_5 = File(f"l0/00/1970010100/7-5-{uuid.UUID(int=1)}.silt", 0, 0, committed=False)
    world.files[of_epoch_5.key] = of_epoch_5
    world.objects.add(of_epoch_5.key)
    tables = world.rebuild().tables
    assert tables["cluster"][0]["next_producer_id"] == PRODUCER_IDS_ABOVE == 1 << 32
    assert [row["epoch"] for row in tables["writers"] if row["writer_id"] == 7] == [6]


def test_who_has_heard_less_of_changes_or_of_a_writer_has_not_heard_it() -> None:
    assert has_heard(at(5, 5), at(5, 5)) and has_heard(at(5, 5, w9=0), at(4, 5))
    assert not has_heard(at(5, 4), at(5, 5)) and not has_heard(at(4, 5), at(5, 5))
    assert not has_heard(at(5, 5), at(5, 5, w9=0))
    # an agent that has committed nothing yet has no news
    assert has_heard(at(5, 5), at(5, 5, w9=-1))


def told(base: Cursor | None, cursor: Cursor, *, taken_ms: int = 0) -> Increment:
    return Increment(taken_ms=taken_ms, cluster_id="c", cursor=cursor, base=base, files=[], changes=[], jobs=[])


def at(seq: int, change_id: int = 0, **others: int) -> Cursor:
    return Cursor(writers={7: (0, seq)} | {int(name[1:]): (0, of) for name, of in others.items()}, change_id=change_id)


def test_increments_that_begin_behind_what_is_known_are_not_linked_to_a_snapshot() -> None:
    world = small_world()
    assert world.catalogued is not None
    instant = replace(world.catalogued.instant, cursor=at(5, 5), sequences={"node_ids": 7})
    # in a chain, whatever their order; old ones; ones that do not record where they begin
    chain = [told(at(7, 5), at(9, 6)), told(at(5, 5), at(8, 5)), told(at(9, 9), at(4, 4)), told(None, at(1))]
    assert len(linked(instant, chain)) == 4
    # behind: by a file, by a change, or by a newer writer, but not by a writer that an earlier rebuild took out
    assert not linked(instant, [told(at(6, 5), at(9, 5))]) and not linked(instant, [told(at(5, 6), at(5, 7))])
    assert not linked(instant, [told(at(5, 5, w9=0), at(6, 5, w9=1))])
    assert linked(instant, [told(at(5, 5, w6=0), at(6, 5, w6=1))])
    # nor by a writer that has committed nothing. A writer registered while the snapshot was read does not count as gone
    assert linked(instant, [told(at(5, 5, w9=-1), at(6, 5, w9=-1))])
    meanwhile = replace(instant, sequences={"node_ids": 9})
    assert not linked(meanwhile, [told(at(5, 5, w9=0), at(6, 5, w9=1))])
    # then later changes are unknown, though such an increment was written later
    increments = [told(at(5, 5), at(8, 5), taken_ms=10**9), told(at(9, 5), at(10, 5), taken_ms=2 * 10**9)]
    assert rolled_forward(replace(world.catalogued, instant=instant, increments=increments)).known_ms == 10**9


def test_after_a_clock_went_back_age_is_told_by_what_it_says_now() -> None:
    world = small_world()
    assert world.catalogued is not None
    taken_ms = world.catalogued.instant.taken_ms
    before = told(None, world.catalogued.instant.cursor, taken_ms=taken_ms - ABANDONED_MS)
    since = told(None, at(9), taken_ms=taken_ms - ABANDONED_MS)
    old_ms = taken_ms - ABANDONED_MS - 1
    assert unknown_l0(replace(world.catalogued, increments=[before]), writer_id=8, sealed_ms=old_ms)
    assert not unknown_l0(replace(world.catalogued, increments=[since]), writer_id=8, sealed_ms=old_ms)


def test_l0_of_topics_and_partitions_that_nobody_heard_of_is_said() -> None:
    world = small_world()
    assert world.catalogued is not None
    l0 = {
        f"l0/00/1970010100/7-1-{uuid.UUID(int=number + (10**9 << 80))}.silt": [extent]
        for number, extent in enumerate(
            [L0Extent(uuid.UUID(int=99), 0, 1), L0Extent(TOPICS[1], 1, 1), L0Extent(TOPICS[1], 0, 1)]
        )
    }
    plan = plan_rebuild(world.catalogued, {}, [], l0, now_ms=0)
    assert plan.unknown_topics == list(l0)[:2] and list(plan.newer_l0) == list(l0)[2:]
