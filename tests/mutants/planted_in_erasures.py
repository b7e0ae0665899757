"""Bugs by which an erasure leaves records behind, takes others along, or says that it is done too early."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

ERASER, ORACLE = "compactor/erasing/partition_eraser.py", "compactor/erasing/oracle.py"
KERNELS, MARKS = "compactor/erasing/kernels.py", "compactor/erasing/marks_table.py"
BYTES = "tests/property/test_eraser.py::test_the_kernels_give_the_bytes_of_the_oracle"
RULES = "tests/property/test_eraser.py::test_an_erasing_takes_the_marked_records_and_nothing_else"
LOOK_UP = "tests/property/test_eraser.py::test_a_key_is_found_among_many_and_no_other_is"
MERGE = "tests/integration/merging/test_merge_engine_erase.py"
GOES = f"{MERGE}::test_records_of_erased_keys_go_from_their_partition_and_every_batch_stays"
PLAN = "tests/unit/compactor/planning/test_plan_erasures.py"
ANY_PLAN = "tests/property/test_plan.py"

IN_MERGES = (
    Mutant(
        name="erases-one-record-too-far",
        file=KERNELS,
        text="table.base_offsets[index] + delta >= ends[row]",
        replacement="table.base_offsets[index] + delta > ends[row]",
        tests=(BYTES, GOES),
    ),
    Mutant(
        name="the-oracle-erases-one-record-too-far",
        file=ORACLE,
        text="or entry.offset >= ends.get(",
        replacement="or entry.offset > ends.get(",
        tests=(RULES,),
    ),
    Mutant(
        name="the-first-stage-takes-tombstones",
        file=MARKS,
        text="mark.before_offset + (1 if mark.tombstone else 0)",
        replacement="mark.before_offset + 1",
        tests=(BYTES, GOES),
    ),
    Mutant(
        name="the-second-stage-leaves-tombstones",
        file=MARKS,
        text="mark.before_offset + (1 if mark.tombstone else 0)",
        replacement="mark.before_offset",
        tests=(BYTES, f"{MERGE}::test_a_second_stage_takes_the_tombstone_at_the_mark_as_well"),
    ),
    Mutant(
        name="the-nearest-of-several-marks-counts",
        file=MARKS,
        text="np.lexsort((ends, ",
        replacement="np.lexsort((-ends, ",
        tests=(BYTES,),
    ),
    Mutant(
        name="the-nearest-of-several-marks-counts-in-the-oracle",
        file=ORACLE,
        text="max(end, ends.get(mark.key_hash, 0))",
        replacement="min(end, ends.get(mark.key_hash, end))",
        tests=(RULES,),
    ),
    Mutant(
        name="half-of-a-hash-names-a-key",
        file=MARKS,
        text="                and words[at, 3] == hashes[row, 3]\n",
        replacement="",
        tests=(LOOK_UP,),
    ),
    Mutant(
        name="a-null-key-has-a-mark",
        file=MARKS,
        text="        if key_lengths[row] < 0:\n            continue\n",
        replacement="",
        tests=(LOOK_UP,),
    ),
    Mutant(
        name="erases-from-control-batches",
        file=KERNELS,
        text="stays = is_control or ",
        replacement="stays = ",
        tests=(BYTES,),
    ),
    Mutant(
        name="an-emptied-batch-goes",
        file=KERNELS,
        text="        action = EMPTIED\n",
        replacement="        action = 0\n",
        tests=(BYTES, GOES),
    ),
    Mutant(
        name="an-erased-batch-keeps-its-greatest-timestamp",
        file=KERNELS,
        text="    if action != REBUILT or attributes",
        replacement="    if action >= 0 or attributes",
        tests=(BYTES,),
    ),
    Mutant(
        name="the-last-batch-below-the-marks-is-not-read",
        file=ERASER,
        text="table.base_offsets.searchsorted(self._marks.end_offset)",
        replacement="table.last_offsets.searchsorted(self._marks.end_offset)",
        tests=(BYTES, GOES),
    ),
    Mutant(
        name="an-unreadable-batch-has-no-records-to-erase",
        file=ERASER,
        text="            raise UnreadableBatchError(error.position, error.base_offset, error.message) from error\n",
        replacement="            return ErasedWindow(data, table, 0)\n",
        tests=(f"{MERGE}::test_a_batch_that_cannot_be_read_fails_the_merge_and_names_its_file",),
    ),
    Mutant(
        name="stamps-without-erasing",
        file="compactor/merging/execute.py",
        text="        elif keys is not None:\n            await erase_partition",
        replacement="        elif keys is not None and not keys.stamp:\n            await erase_partition",
        tests=(GOES, "tests/property/test_erasing_merges.py::test_erasing_any_history_gives_the_bytes_of_the_oracle"),
    ),
    Mutant(
        name="every-merge-erases-and-stamps",
        file="compactor/merging/execute.py",
        text="        if self._spec.kind is not MergeKind.ERASE:\n            return None\n",
        replacement="",
        tests=(f"{MERGE}::test_no_merge_of_another_kind_erases_or_stamps",),
    ),
    Mutant(
        name="flagged-extents-get-the-stamp",
        file="compactor/merging/outputs.py",
        text="extent.committed_ms, None, extent.erased_through)",
        replacement="extent.committed_ms, None, self._facts._erased_through)",
        tests=(
            f"{MERGE}::test_flagged_extents_stay_as_they_are_and_get_no_stamp",
            f"{MERGE}::test_damage_that_is_found_late_costs_the_extent_its_stamp_and_nothing_else",
        ),
    ),
    Mutant(
        name="a-stamp-falls",
        file="compactor/merging/extent_facts.py",
        text="max(min(erased, default=0), self._erased_through)",
        replacement="self._erased_through or min(erased, default=0)",
        tests=(f"{MERGE}::test_a_stamp_never_falls",),
    ),
)

IN_PLANS = (
    Mutant(
        name="an-erasing-merge-takes-busy-files",
        file="compactor/planning/purge.py",
        text="            case FileStatus.FREE | FileStatus.EXPIRING:\n",
        replacement="            case FileStatus.FREE | FileStatus.EXPIRING | FileStatus.PARTLY_BUSY:\n",
        tests=(
            f"{ANY_PLAN}::test_nothing_forbidden_is_planned",
            f"{PLAN}::test_a_file_that_cannot_be_taken_is_noted_with_its_reason_and_kept_from_new_passes",
        ),
    ),
    Mutant(
        name="erases-before-its-time",
        file="compactor/planning/purge.py",
        text="draft.now_ms + 1) <= draft.now_ms]",
        replacement="draft.now_ms + 1) <= draft.now_ms + 1]",
        tests=(f"{PLAN}::test_a_file_is_due_when_its_erasure_begins_and_not_before",),
    ),
    Mutant(
        name="erasures-wait-for-the-purge-deadline",
        file="compactor/planning/plan.py",
        text="    plan_erasures(draft)\n    plan_overdue(draft)\n",
        replacement="    plan_overdue(draft)\n    plan_erasures(draft)\n",
        tests=(f"{PLAN}::test_an_erasure_comes_before_the_purge_deadline_and_before_runs",),
    ),
    Mutant(
        name="an-erasing-merge-dedupes",
        file="compactor/planning/purge.py",
        text="dedupe = level > 1 and kind is MergeKind.PURGE",
        replacement="dedupe = level > 1",
        tests=(f"{PLAN}::test_files_of_a_level_and_class_are_erased_together_at_their_level_and_only_copied",),
    ),
    Mutant(
        name="nobody-hears-that-a-merge-holds-a-file-to-erase",
        file="compactor/planning/purge.py",
        text="                if kind is MergeKind.ERASE:\n",
        replacement="                if kind is MergeKind.LEVEL:\n",
        tests=(f"{PLAN}::test_a_file_that_cannot_be_taken_is_noted_with_its_reason_and_kept_from_new_passes",),
    ),
    Mutant(
        name="an-erasure-that-fails-keeps-every-other-merge-away",
        file="compactor/planning/purge.py",
        text="[each for each in due if not _gives_way(draft, each)]",
        replacement="due",
        tests=(f"{PLAN}::test_after_a_failed_merge_of_its_file_an_erasure_lets_others_go_first",),
    ),
    Mutant(
        name="spark-erases",
        file="compactor/planning/spec.py",
        text="RUN_HERE = (MergeKind.LEVEL, MergeKind.ERASE)",
        replacement="RUN_HERE = (MergeKind.LEVEL,)",
        tests=(
            f"{PLAN}::test_spark_runs_no_erasing_merge_and_gives_it_no_time_for_a_cluster",
            "tests/unit/compactor/heavy/test_heavy_engine.py::"
            "test_small_merges_and_those_of_l0_files_stay_in_the_process",
        ),
    ),
)

ERASING = (*IN_MERGES, *IN_PLANS)
