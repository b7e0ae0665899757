"""Bugs in the sums of extents and in what is kept from one view of the planner to the next."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SUMS = "tests/integration/metadata/test_extent_sums.py"
_ANY = f"{_SUMS}::test_the_sums_are_right_after_any_statement"
_SQL = "metadata/migrations/versions/0006_sums.sql"
_KNOWN = "metadata/postgres/merges/known_extents.py"

SUMS = (
    Mutant(
        name="the-largest-timestamp-of-a-topic-in-a-file-outlives-its-extent",
        file=_SQL,
        text="max_ts_ms = CASE WHEN excluded.max_ts_ms < s.max_ts_ms THEN s.max_ts_ms END",
        replacement="max_ts_ms = s.max_ts_ms",
        tests=(_ANY,),
    ),
    Mutant(
        name="the-first-extent-of-a-partition-outlives-itself",
        file=_SQL,
        text="WHEN excluded.first_base_offset > s.first_base_offset THEN s.first_base_offset END",
        replacement="WHEN excluded.first_base_offset >= s.first_base_offset THEN s.first_base_offset END",
        tests=(_ANY,),
    ),
    Mutant(
        name="a-view-takes-a-changed-partition-for-the-one-it-knows",
        file=_KNOWN,
        text="before.changed != (timeline, row.changed)",
        replacement="before.changed[0] != timeline",
        tests=(f"{_SUMS}::test_a_view_reads_what_changed_in_the_extents_since_the_last_one",),
    ),
    Mutant(
        name="a-view-believes-what-it-put-together",
        file=_KNOWN,
        text="!= (row.live_extents, row.live_bytes):\n                continue",
        replacement="!= (row.live_extents, row.live_bytes):\n                pass",
        tests=(f"{_SUMS}::test_a_view_begins_again_if_what_it_read_does_not_suffice",),
    ),
    Mutant(
        name="retention-judges-size-by-the-extents-it-looked-at",
        file="metadata/postgres/deletion.py",
        text="held_bytes=held[partition_id],",
        replacement="held_bytes=sum(each.length for each in extents[partition_id]),",
        tests=(f"{_SUMS}::test_retention_reads_a_bounded_number_of_extents_and_goes_on_in_the_next_round",),
    ),
)
