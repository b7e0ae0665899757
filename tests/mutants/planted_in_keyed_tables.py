"""Bugs in tables with one row per key, in their key indexes and in the deletion of rows."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_HISTORIES = (
    "tests/integration/spark/keyed/test_histories.py::test_the_table_is_the_latest_view_at_the_offsets_that_it_names"
)
_DROPPED = (
    "tests/integration/spark/keyed/test_histories.py"
    "::test_a_tombstone_that_a_dedupe_dropped_before_it_was_read_takes_its_row_away"
)
_DECIDE = "tests/unit/spark_jobs/tables/keyed/test_decide.py"
_INDEX = "tests/unit/spark_jobs/tables/keyed/test_key_index.py"

KEYED_TABLES = (
    Mutant(
        name="tails-with-gaps-are-trusted",
        file="spark_jobs/tables/keyed/run.py",
        text="    if gaps:\n",
        replacement="    if gaps and not files.files:\n",
        tests=(_DROPPED,),
    ),
    Mutant(
        name="gaps-at-the-tables-end-are-overlooked",
        file="spark_jobs/tables/keyed/decide.py",
        text="if extent.last_offset >= start and extent.base_offset < end",
        replacement="if extent.base_offset >= start and extent.base_offset < end",
        tests=(f"{_DECIDE}::test_a_gap_in_the_tail_is_one_behind_the_tables_end",),
    ),
    Mutant(
        name="rows-below-the-log-start-stay",
        file="spark_jobs/tables/keyed/run.py",
        text="        if file.first_offset < start:\n",
        replacement="        if file.first_offset < start and file.partition is None:\n",
        tests=(_HISTORIES,),
    ),
    Mutant(
        name="tombstones-of-the-tail-take-no-row-away",
        file="spark_jobs/tables/keyed/tail.py",
        text="keys[partition] = Wanted.of(hashes[np.searchsorted(offsets, last)])",
        replacement="keys[partition] = Wanted.of(hashes[np.searchsorted(offsets, last[: len(last) // 2])])",
        tests=(_HISTORIES,),
    ),
    Mutant(
        name="keys-are-told-apart-by-192-bits",
        file="spark_jobs/tables/keyed/key_index.py",
        text="same = (others[rows] == hashes[asked, 1:]).all(axis=1)",
        replacement="same = (others[rows] == hashes[asked, 1:]).any(axis=1) | (runs[asked] == 1)",
        tests=(f"{_INDEX}::test_rows_are_found_by_their_whole_hash",),
    ),
    Mutant(
        name="a-key-at-a-blocks-end-is-looked-for-in-the-next",
        file="spark_jobs/tables/keyed/key_index.py",
        text='begins = np.maximum(np.searchsorted(fences, firsts, side="left") - 1, 0)',
        replacement='begins = np.maximum(np.searchsorted(fences, firsts, side="right") - 1, 0)',
        tests=(f"{_INDEX}::test_rows_are_found_by_their_whole_hash",),
    ),
    Mutant(
        name="blocks-are-believed-without-their-crc",
        file="spark_jobs/tables/keyed/key_index.py",
        text='if crc32c(body) != int(self._entries["crc32c"][block]):',
        replacement="if not len(body):",
        tests=(f"{_INDEX}::test_damage_is_noticed_wherever_it_is",),
    ),
    Mutant(
        name="runs-are-merged-over-large-files",
        file="spark_jobs/tables/keyed/decide.py",
        text="if number is not None and tiers[number] <= tier:",
        replacement="if number is not None and (tiers[number] <= tier or tiers[number] == _TIERS):",
        tests=(f"{_DECIDE}::test_neighbours_of_one_size_are_merged_and_others_are_left",),
    ),
)
