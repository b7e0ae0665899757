"""Bugs in tables with one row per key, in their key indexes, in the deletion of rows, and in erasures of tables."""

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
_ERASED = "tests/integration/spark/erasing/test_erased_tables.py"
_DELTA = "tests/integration/spark/delta/test_erased_delta_tables.py"
_STOPPED = "tests/integration/spark/erasing/test_stopped_erasures.py::test_the_next_run_finishes_an_erasure"

KEYED_TABLES = (
    Mutant(
        name="tails-with-gaps-are-trusted",
        file="spark_jobs/tables/keyed/run.py",
        text="in with_gaps(snapshot, progress.offsets):",
        replacement="in with_gaps(snapshot, progress.offsets)[:0]:",
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
        text="keys[partition] = SoughtKeys.of(hashes[np.searchsorted(offsets, last)])",
        replacement="keys[partition] = SoughtKeys.of(hashes[np.searchsorted(offsets, last[: len(last) // 2])])",
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
        file="spark_jobs/tables/tidying/decide.py",
        text="if number is not None and tiers[number] <= tier:",
        replacement="if number is not None and (tiers[number] <= tier or tiers[number] == _TIERS):",
        tests=(
            "tests/unit/spark_jobs/tables/tidying/test_which_files.py::test_neighbours_of_one_size_are_merged_and_others_are_left",
        ),
    ),
    Mutant(
        name="entries-of-earlier-removals-outlive-an-erasure",
        file="spark_jobs/tables/iceberg/manifests.py",
        text="if change.forgets and each.deleted_files_count]",
        replacement="if change.forgets and each.deleted_files_count and not each.has_added_files()]",
        tests=(f"{_ERASED}::test_a_partition_that_went_before_its_key_is_erased_leaves_no_trace",),
    ),
    Mutant(
        name="a-stopped-erasure-of-a-delta-table-is-not-swept",
        file="spark_jobs/tables/delta/table.py",
        text="self._unswept = None if sweep == self._swept else sweep",
        replacement="self._unswept = None",
        tests=(f"{_DELTA}::test_an_erasure_that_is_stopped_anywhere_is_finished_by_the_next_run",),
    ),
    Mutant(
        name="dead-letters-forget-the-erasure-that-they-have-had",
        file="spark_jobs/tables/dead_letters/table.py",
        text="self._held, done = self._erasing.apply(self._held)",
        replacement="_, done = self._erasing.apply(self._held)",
        tests=(f"{_ERASED}::test_an_erasure_of_dead_letters_is_noted_and_not_made_again",),
    ),
    Mutant(
        name="a-swept-delta-table-is-settled-at-once",
        file="spark_jobs/tables/delta/table.py",
        text="if now_ms - sweep.at_ms >= SETTLED_MS:",
        replacement="if now_ms >= sweep.at_ms:",
        tests=(f"{_DELTA}::test_the_place_is_listed_until_no_writer_from_before_the_erasure_can_write_any_more",),
    ),
    Mutant(
        name="a-sweep-of-a-delta-table-takes-files-of-later-versions",
        file="spark_jobs/tables/delta/table.py",
        text="left.difference(_paths(table), _paths(newest))",
        replacement="left.difference(_paths(newest))",
        tests=(f"{_DELTA}::test_a_version_since_the_erasure_stays_when_its_files_are_replaced",),
    ),
    Mutant(
        name="a-sweep-of-a-delta-table-takes-files-that-somebody-restored",
        file="spark_jobs/tables/delta/table.py",
        text="left.difference(_paths(table), _paths(newest))",
        replacement="left.difference(_paths(table))",
        tests=(f"{_DELTA}::test_a_table_restored_to_before_a_stopped_erasure_keeps_its_other_rows",),
    ),
    Mutant(
        name="commits-after-a-stopped-erasure-of-a-delta-table-forget-it",
        file="spark_jobs/tables/delta/table.py",
        text="unswept = {} if self._unswept is None else {UNSWEPT: self._unswept.mark}",
        replacement="unswept = dict[str, str]()",
        tests=(f"{_DELTA}::test_a_stopped_erasure_is_finished_however_many_commits_came_since",),
    ),
    Mutant(
        name="files-of-killed-writers-outlive-an-erasure",
        file="spark_jobs/tables/iceberg/upkeep/purge.py",
        text="for each in (*files.data, *_ours(table))",
        replacement="for each in files.data",
        tests=(f"{_ERASED}::test_files_of_a_killed_writer_go_with_an_erasure",),
    ),
    Mutant(
        name="an-erasure-deletes-files-that-a-tag-keeps",
        file="spark_jobs/tables/iceberg/upkeep/purge.py",
        text="paths = reach.unnamed(table.io, metadata, location, note.files.data, others)",
        replacement="paths = [*others[:0], *reach.unreached(table.io, metadata, location, note.files)]",
        tests=(f"{_ERASED}::test_refs_that_keep_the_past_are_named_and_a_tables_own_wish_is_kept",),
    ),
    Mutant(
        name="removed-files-keep-their-bounds-in-manifests",
        file="spark_jobs/tables/iceberg/manifests.py",
        text="for position in _BOUNDS:",
        replacement="for position in _BOUNDS[:0]:",
        tests=(f"{_ERASED}::test_erased_rows_leave_a_table_with_all_their_bytes",),
    ),
    Mutant(
        name="a-new-table-has-had-all-erasures",
        file="spark_jobs/tables/erasing/decide.py",
        text="if each.stage is ErasureStage.DONE\n    }",
        replacement="if each.stage in ErasureStage\n    }",
        tests=(f"{_ERASED}::test_a_table_behind_its_topic_gets_no_erased_rows",),
    ),
    Mutant(
        name="rows-that-come-below-the-marks-later-stay",
        file="spark_jobs/tables/erasing/decide.py",
        text="return Applied(step, ends, created_ms)",
        replacement="return Applied(step, dict[int, int](list(ends.items())[:0]), created_ms)",
        tests=(f"{_ERASED}::test_rows_behind_an_open_transaction_are_erased_when_they_come",),
    ),
    Mutant(
        name="an-erasure-that-was-killed-is-not-looked-for",
        file="spark_jobs/tables/iceberg/upkeep/purge.py",
        text='        self._is_settled = False\n        """Whether no removal',
        replacement='        self._is_settled = True\n        """Whether no removal',
        tests=(_STOPPED,),
    ),
)
