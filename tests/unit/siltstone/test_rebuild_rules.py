"""What a rebuild decides, case by case; random histories are in `tests/property/test_rebuild_plan.py`."""

from __future__ import annotations

import random
import uuid
from dataclasses import replace

from metadata.catalog import REBUILT_HOST
from metadata.service import Cursor
from siltstone.rebuild_state import PRODUCER_IDS_ABOVE, Catalogued
from siltstone.rebuild_uncommitted import ABANDONED_MS, uncommitted_l0
from tests.fixtures.rebuild_world import File, World


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
    """Whether it is said never to have been committed."""
    key = f"l0/00/1970010100/{writer_id}-{epoch}-{uuid.UUID(int=sealed_ms << 80)}.silt"
    return uncommitted_l0(catalogued, [key]) == [key]


def test_an_l0_file_that_a_writer_passed_over_or_left_long_ago_was_never_committed() -> None:
    world = small_world()
    [file] = world.files.values()
    at_ms = file.created_ms
    world.increment()
    catalogued = world.catalogued
    assert catalogued is not None
    # sealed before the last file whose commit is known; at once with it, or behind it, nobody knows
    assert unknown_l0(catalogued, sealed_ms=at_ms - 1)
    assert not unknown_l0(catalogued, sealed_ms=at_ms) and not unknown_l0(catalogued, sealed_ms=at_ms + 1)
    # of an older epoch than is known, or a newer one
    assert not unknown_l0(catalogued, epoch=1, sealed_ms=at_ms - 1)
    instant = replace(catalogued.instant, cursor=Cursor(writers={7: (2, -1)}, change_id=0))
    later = replace(catalogued, instant=instant)
    assert unknown_l0(later, epoch=1, sealed_ms=at_ms + 1) and not unknown_l0(later, epoch=2, sealed_ms=at_ms - 1)
    # of a writer of whom nothing is known: by its age
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
