"""Where removed bytes still lie, and what `topics explain` says about them."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from typing import Any

import pytest

from compactor.planning.plan import Plan
from compactor.planning.spec import PlanOptions
from metadata.contract.compactors import PartitionView
from metadata.contract.operators import HeldBytes
from siltstone.ops.compaction.evidence import Evidence, partition_states
from siltstone.ops.compaction.reasons import Reason, explain
from siltstone.ops.remains import FOOTERS_MAX, dead_below, remnant, remnants_text, sooner_text, stray, strays_of
from storage.memory import MemoryStore
from tests.fixtures.compaction_views import DAY_MS, HOUR_MS, NOW_MS, extent, partition, view

OPTIONS = PlanOptions()
GONE, REMAINS, MAY_REMAIN = "gone", "remains", "may remain"


def held(
    base: int, last: int, *, file_id: int = 7, level: int = 1, dead: int | None = 0, file: int | None = None
) -> Any:
    """`dead` and `file`: how long ago these bytes and their whole file died, in ms; None: they live."""
    return HeldBytes(
        *(1, base, last, file_id, f"l{level}/00/2027011500/9-0-{file_id}.silt", level, 0, 100, 0, 0, False),
        *(None if each is None else NOW_MS - each for each in (dead, file)),
    )


def said(seen: PartitionView, *rows: HeldBytes, strays: Sequence[str] | None = None) -> Sequence[tuple[str, str]]:
    """(code, text) of the reasons about removed bytes."""
    evidence = Evidence(
        topic="users",
        options=OPTIONS,
        view=view(),
        plan=Plan(specs=(), notes=()),
        compactors=[(9, "host")],
        held={1: rows},
        strays=None if strays is None else {1: strays},
    )
    reasons: Sequence[Reason] = explain(partition_states([seen], OPTIONS, evidence.view), evidence)
    return [(each.cause.code, each.text) for each in reasons if each.cause.code in (GONE, REMAINS, MAY_REMAIN)]


TOMBSTONES = partition(extent(0, 99, has_tombstones=True), end=100, cleaned_through=100, last_cleaned_ms=NOW_MS - 1000)
LIVE = held(0, 99, level=2, dead=None)


def test_removed_values_are_gone_only_if_no_file_holds_dead_bytes_below_cleaned_through() -> None:
    [(code, text)] = said(TOMBSTONES, LIVE)
    assert code == GONE and "no file that the metadata know holds" in text
    [(code, text)] = said(TOMBSTONES, LIVE, strays=[])
    assert code == GONE and "no object of the bucket holds" in text
    assert [code for code, _ in said(TOMBSTONES, LIVE, held(99, 99))] == [REMAINS]
    assert [code for code, _ in said(TOMBSTONES, LIVE, held(100, 120))] == [GONE]


def test_an_object_without_a_row_may_hold_them() -> None:
    [(code, text)] = said(TOMBSTONES, LIVE, strays=["l1/lost.silt"])
    assert code == REMAINS and "l1/lost.silt" in text


@pytest.mark.parametrize(
    "seen",
    [
        partition(extent(0, 99, has_tombstones=True), end=100, cleaned_through=100, passes_needed=3),
        partition(extent(0, 99, has_tombstones=True), extent(100, 109, flagged="x"), end=110, cleaned_through=110),
    ],
)
def test_where_a_pass_may_have_kept_old_values_nothing_is_said_to_be_gone(seen: PartitionView) -> None:
    assert [code for code, _ in said(seen, LIVE)] == [MAY_REMAIN]


def test_a_dead_extent_of_a_live_file_goes_by_the_purge_deadline_and_a_dead_file_after_the_grace() -> None:
    in_live, in_dead, alive = (
        remnant(each, OPTIONS)
        for each in (held(0, 9, dead=HOUR_MS), held(0, 9, dead=HOUR_MS, file=60_000), held(0, 9, dead=None))
    )
    assert in_live.latest_ms == NOW_MS - HOUR_MS + OPTIONS.purge_deadline_ms == NOW_MS - HOUR_MS + 7 * DAY_MS
    assert in_dead.latest_ms == NOW_MS - 60_000 + OPTIONS.grace_ms
    assert alive.latest_ms is None
    assert remnants_text([in_dead, in_live], NOW_MS) == (
        "L1 file 7 (dead for 1h00m; it is rewritten without them, and they go within 6d23h)"
    )
    assert remnants_text([in_dead], NOW_MS) == "L1 file 7 (dead for 1h00m; the whole file goes within 14m00s)"
    assert remnants_text([alive], NOW_MS) == "L1 file 7 (beside records that live)"
    # no setting makes dead files, or living extents, go sooner
    assert "purge.deadline.ms" in sooner_text([in_dead, in_live])
    assert sooner_text([in_dead, alive]) == ""


def test_the_files_that_stay_longest_are_named_and_the_others_counted() -> None:
    rows = [held(0, 9, file_id=number, dead=HOUR_MS, file=number * 1000) for number in range(1, 6)]
    text = remnants_text([*(remnant(each, OPTIONS) for each in rows), stray("l0/x")], NOW_MS)
    assert text.startswith("object l0/x (no row names these bytes; ")
    assert "L1 file 1 " in text and "L1 file 2 " in text and text.endswith(" and 3 more files")


def test_dead_bytes_below_an_offset() -> None:
    rows = [held(0, 9), held(10, 19), held(0, 9, dead=None)]
    assert dead_below(rows, 10) == rows[:1]


async def test_objects_that_are_too_many_to_be_read_may_hold_anything() -> None:
    keys = [f"l1/{number}" for number in range(FOOTERS_MAX + 2)]
    # none of them is there, and only those that were looked for are known to be gone
    assert await strays_of(MemoryStore(), keys, uuid.uuid4(), 0) == keys[FOOTERS_MAX:]
