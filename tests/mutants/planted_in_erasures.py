"""Bugs by which an erasure leaves records behind, takes others along, or says that it is done too early."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_PENDING = "tests/contract/test_erasures_pending.py"
_HELD = "tests/contract/test_erasures_held.py"
_LIFE = "tests/contract/test_erasures.py"

ERASER, ORACLE = "compactor/erasing/partition_eraser.py", "compactor/erasing/oracle.py"
KERNELS, MARKS = "compactor/erasing/kernels.py", "compactor/erasing/marks_table.py"
BYTES = "tests/property/test_eraser.py::test_the_kernels_give_the_bytes_of_the_oracle"
RULES = "tests/property/test_eraser.py::test_an_erasing_takes_the_marked_records_and_nothing_else"
LOOK_UP = "tests/property/test_eraser.py::test_a_key_is_found_among_many_and_no_other_is"
MERGE = "tests/integration/merging/test_merge_engine_erase.py"
GOES = f"{MERGE}::test_records_of_erased_keys_go_from_their_partition_and_every_batch_stays"
PLAN = "tests/unit/compactor/planning/test_plan_erasures.py"
HERE = (
    "tests/integration/compactor/test_heavy_lane.py::"
    "test_an_erasing_merge_of_any_size_runs_here_and_takes_the_marks_of_its_partitions"
)
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
        name="nobody-runs-large-erasing-merges",
        file="compactor/compactor.py",
        text="    return heavy_min is not None and await",
        replacement="    return heavy_min is None and await",
        tests=(HERE,),
    ),
    Mutant(
        name="the-worker-asks-for-no-marks",
        file="compactor/worker.py",
        text="if claimed.job.kind != MergeKind.ERASE:",
        replacement="if claimed.job.kind != MergeKind.LEVEL:",
        tests=(HERE,),
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

DUTY, END = "compactor/deletion/erasures.py", "compactor/deletion/erasure_end.py"
ENDS = "tests/unit/compactor/deletion/test_erasure_end.py"
HELD = "tests/integration/compactor/test_erasures.py"

IN_ENDS = (
    Mutant(
        name="an-erasure-ends-beside-a-batch-that-was-sent-again",
        file="compactor/deletion/erasures.py",
        text="        refused = await self._holding(free, times, await self._metadata.erasures.refused_files())\n",
        replacement="        refused: Mapping[int, Sequence[str]] = {each.erasure_id: () for each in free}\n",
        tests=(f"{HELD}::test_a_batch_that_was_sent_again_holds_an_erasure_back_until_its_l0_file_is_gone",),
    ),
    Mutant(
        name="a-duplicate-is-no-refused-batch-in-memory",
        file="metadata/memory/erasures.py",
        text="any(each.error or each.duplicate for each in file.results)",
        replacement="any(each.error for each in file.results)",
        tests=(f"{_PENDING}::test_l0_files_with_a_batch_that_was_refused_or_known_are_told_until_they_are_deleted",),
    ),
    Mutant(
        name="a-duplicate-is-no-refused-batch-in-sql",
        file="metadata/postgres/erasures/pending.py",
        text=" OR get_byte(f.results, at + 2) <> 0",
        replacement="",
        tests=(f"{_PENDING}::test_l0_files_with_a_batch_that_was_refused_or_known_are_told_until_they_are_deleted",),
    ),
    Mutant(
        name="an-erasure-ends-before-its-last-stage",
        file=END,
        text="and (erasure.erases_tombstones or not erasure.tombstones)",
        replacement="",
        tests=(f"{ENDS}::test_an_erasure_settles_in_its_last_stage_alone",),
    ),
    Mutant(
        name="an-erasure-that-is-pending-again-stays-settled",
        file=END,
        text="    settled_ms = None\n    if not pending",
        replacement="    settled_ms = known.settled_ms\n    if not pending",
        tests=(f"{ENDS}::test_an_erasure_settles_when_its_last_pending_file_is_gone_and_stays_settled",),
    ),
    Mutant(
        name="strays-are-judged-without-slack-for-clocks",
        file=END,
        text="< settled_ms + CLOCK_SLACK_MS\n    except",
        replacement="< settled_ms\n    except",
        tests=(f"{ENDS}::test_only_objects_that_may_have_been_begun_before_the_settled_time_hold_an_erasure_back",),
    ),
    Mutant(
        name="uploads-of-running-merges-are-aborted",
        file=END,
        text=", *(now_ms - each - CLOCK_SLACK_MS for each in at_work_ms)",
        replacement="",
        tests=(f"{ENDS}::test_no_upload_is_aborted_that_may_belong_to_a_running_merge_or_put",),
    ),
    Mutant(
        name="strays-hold-no-erasure-back",
        file=DUTY,
        text="why = why_held(strays[number], len(holding), refused[number])",
        replacement="why = why_held((), len(holding), refused[number])",
        tests=(f"{HELD}::test_an_object_without_a_row_holds_an_erasure_back_and_those_of_other_topics_do_not",),
    ),
    Mutant(
        name="uploads-hold-no-erasure-back",
        file=DUTY,
        text="why = why_held(strays[number], len(holding), refused[number])",
        replacement="why = why_held(strays[number], 0, refused[number])",
        tests=(f"{HELD}::test_a_forgotten_upload_holds_an_erasure_back_until_it_is_aborted",),
    ),
    Mutant(
        name="the-outputs-of-a-failed-job-count-as-those-of-a-live-one",
        file=DUTY,
        text="job.state in (JobState.READY, JobState.RUNNING)",
        replacement="job.state in JobState",
        tests=(f"{HELD}::test_outputs_of_a_job_that_lives_hold_nothing_back_and_those_of_a_failed_one_do",),
    ),
    Mutant(
        name="an-erasure-is-done-after-a-failover",
        file=DUTY,
        text="        except JanitorHaltedError:\n            return True",
        replacement="        except JanitorHaltedError:\n            return False",
        tests=(f"{HELD}::test_nothing_is_declared_done_while_postgres_is_not_the_one_that_was_adopted",),
    ),
)


IN_METADATA = (
    Mutant(
        name="dead-extents-of-live-files-are-no-erasure-s-business-in-sql",
        file="metadata/postgres/erasures/pending.py",
        text="e.state = 'dead'\n            AND e.base_offset < k.end_offset",
        replacement="e.state = 'dead'\n            AND EXISTS (SELECT FROM files f WHERE f.file_id = e.file_id "
        "AND f.state = 'dead') AND e.base_offset < k.end_offset",
        tests=(f"{_PENDING}::test_dead_extents_of_a_live_file_are_pending",),
    ),
    Mutant(
        name="dead-extents-of-live-files-are-no-erasure-s-business-in-memory",
        file="metadata/memory/erasures.py",
        text="        if extent.row.partition_id in erasure.ends\n",
        replacement="        if extent.row.partition_id in erasure.ends\n"
        "        and (extent.dead_ms is None or not file.is_live)\n",
        tests=(f"{_PENDING}::test_dead_extents_of_a_live_file_are_pending",),
    ),
    Mutant(
        name="an-extent-with-the-stamp-is-pending-in-sql",
        file="metadata/postgres/erasures/pending.py",
        text="e.state = 'live'\n            AND e.base_offset < k.end_offset AND e.erased_through < k.stamp",
        replacement="e.state = 'live'\n            AND e.base_offset < k.end_offset AND e.erased_through <= k.stamp",
        tests=(f"{_PENDING}::test_extents_below_the_marks_are_pending_until_they_carry_the_stamp",),
    ),
    Mutant(
        name="an-extent-with-the-stamp-is-pending-in-memory",
        file="metadata/erasures/stamps.py",
        text="erased_through < stamp)",
        replacement="erased_through <= stamp)",
        tests=(f"{_PENDING}::test_extents_below_the_marks_are_pending_until_they_carry_the_stamp",),
    ),
    Mutant(
        name="l0-files-above-the-bound-are-pending-in-sql",
        file="metadata/postgres/erasures/pending.py",
        text="AND f.file_id <= (",
        replacement="AND -f.file_id <= (",
        tests=(f"{_PENDING}::test_all_l0_files_committed_before_the_erasure_are_pending_until_deleted",),
    ),
    Mutant(
        name="l0-files-above-the-bound-are-pending-in-memory",
        file="metadata/memory/erasures.py",
        text="file.info.level == 0 and file_id <= erasure.l0_through",
        replacement="file.info.level == 0",
        tests=(f"{_PENDING}::test_all_l0_files_committed_before_the_erasure_are_pending_until_deleted",),
    ),
    Mutant(
        name="an-erasure-ends-before-the-transactions-below-it",
        file="metadata/erasures/stages.py",
        text="    if holding:\n",
        replacement="    if not holding and erasure_id < 0:\n",
        tests=(f"{_HELD}::test_an_erasure_ends_after_the_transactions_that_began_below_its_marks",),
    ),
    Mutant(
        name="a-tombstone-rests-before-readers-get-to-it",
        file="metadata/postgres/erasures/erasures.py",
        text="        or await holding_transactions(connection, erasure.erasure_id, limit=1)\n",
        replacement="",
        tests=(f"{_HELD}::test_a_tombstone_rests_from_the_time_on_at_which_readers_of_committed_records_get_to_it",),
    ),
    Mutant(
        name="transactions-that-begin-at-the-marks-hold-too",
        file="metadata/postgres/erasures/pending.py",
        text="t.first_offset < k.end_offset",
        replacement="t.first_offset <= k.end_offset",
        tests=(f"{_HELD}::test_a_transaction_that_begins_at_the_tombstone_holds_and_one_behind_it_does_not",),
    ),
    Mutant(
        name="a-stamp-that-an-extent-carries-is-given-again",
        file="metadata/erasures/stages.py",
        text="max(of_extents or 0, of_erasures or 0)",
        replacement="max(of_erasures or 0, 0)",
        tests=(f"{_LIFE}::test_a_stamp_is_above_those_of_extents_whose_erasures_are_unknown",),
    ),
    Mutant(
        name="a-join-with-later-records-undoes-an-erasure",
        file="metadata/erasures/stamps.py",
        text="            erased_through = stamp\n",
        replacement="            pass\n",
        tests=(f"{_PENDING}::test_an_erased_extent_stays_erased_when_a_merge_joins_it_with_later_records",),
    ),
    Mutant(
        name="a-join-passes-over-a-pending-erasure",
        file="metadata/erasures/stamps.py",
        text="            break\n",
        replacement="            continue\n",
        tests=(f"{_PENDING}::test_new_records_do_not_hide_what_an_earlier_erasure_has_left",),
    ),
)

ERASING = (*IN_METADATA, *IN_MERGES, *IN_PLANS, *IN_ENDS)
