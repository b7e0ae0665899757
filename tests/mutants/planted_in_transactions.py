"""Bugs in merges of transactions: markers that go too early, transactions that are forgotten too early or never."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BYTES = "tests/property/test_cleaner.py::test_the_kernels_give_the_bytes_of_the_oracle"
_RULES = "tests/unit/compactor/cleaning/test_aborted_transactions.py"
_UNSTAMPED = f"{_RULES}::test_a_marker_gets_no_horizon_while_its_transaction_is_listed"
_KEPT = f"{_RULES}::test_a_marker_whose_horizon_has_passed_stays_while_its_transaction_is_listed"
_MERGES = "tests/integration/merging/test_merge_engine_transactions.py"
_PARTS = f"{_MERGES}::test_a_transaction_of_which_a_part_lies_elsewhere_is_not_reported"
_SLICES = "tests/unit/compactor/heavy/test_heavy_transactions.py::test_slices_report_what_one_merge_would"
_TABLES = "tests/unit/compactor/planning/test_plan_golden.py::test_a_view_is_planned_as_its_table_says"

TRANSACTIONS = (
    Mutant(
        name="a-marker-goes-while-its-transaction-is-listed",
        file="compactor/cleaning/rules.py",
        text="return (producer_id, marker_offset) in self._ends",
        replacement="return False",
        tests=(_UNSTAMPED, _KEPT),
    ),
    Mutant(
        name="the-compiled-cleaner-does-not-look-at-the-list",
        file="compactor/cleaning/partition_cleaner.py",
        text="and not self._aborted.ends_at(producer_id, int(part.base_offsets[index]))",
        replacement="",
        tests=(_BYTES, _UNSTAMPED, _KEPT),
    ),
    Mutant(
        name="unreadable-records-of-a-transaction-are-not-left",
        file="compactor/cleaning/partition_cleaner.py",
        text="        self._note_aborted(part)\n",
        replacement="",
        tests=(f"{_RULES}::test_an_unreadable_batch_of_a_transaction_is_left",),
    ),
    Mutant(
        name="an-empty-batch-keeps-its-transaction-listed",
        file="compactor/cleaning/partition_cleaner.py",
        text="rows = (is_data & (left.record_counts > 0)).nonzero()[0]",
        replacement="rows = is_data.nonzero()[0]",
        tests=(_BYTES, f"{_RULES}::test_an_empty_batch_is_nothing_that_is_left"),
    ),
    Mutant(
        name="a-part-of-a-transaction-is-all-of-it",
        file="compactor/merging/kway_merge.py",
        text="    return reached > last\n",
        replacement="    return True\n",
        tests=(_PARTS,),
    ),
    Mutant(
        name="what-lies-below-the-log-start-is-missed",
        file="compactor/merging/kway_merge.py",
        text="reached = max(first, inputs.partition.log_start_offset)",
        replacement="reached = first",
        tests=(f"{_MERGES}::test_what_lies_below_the_log_start_need_not_be_among_the_inputs",),
    ),
    Mutant(
        name="flagged-extents-hold-nothing-of-a-transaction",
        file="compactor/merging/partition_merge.py",
        text="any(base <= marker and last >= first for base, last in flagged)",
        replacement="any(base < first and last > marker for base, last in flagged)",
        tests=(f"{_MERGES}::test_a_flagged_extent_may_hold_something_of_a_transaction",),
    ),
    Mutant(
        name="one-slice-that-leaves-nothing-is-enough",
        file="compactor/heavy/combine.py",
        text="left[each.partition_id] |= {marker",
        replacement="left[each.partition_id] &= {marker",
        tests=(_SLICES,),
    ),
    Mutant(
        name="slices-do-not-list-transactions-that-begin-in-their-last-offset",
        file="compactor/heavy/plan/cut.py",
        text="waiting[0][1] <= extents[-1].last_offset",
        replacement="waiting[0][1] < extents[-1].last_offset",
        tests=(_SLICES,),
    ),
    Mutant(
        name="slices-report-parts-of-transactions",
        file="compactor/heavy/combine.py",
        text="if marker not in left and holds_live(inputs, first, marker))",
        replacement="if marker not in left)",
        tests=(_SLICES,),
    ),
    Mutant(
        name="transactions-that-end-above-the-inputs-are-not-listed",
        file="compactor/planning/assembly.py",
        text="one[2] >= lowest and one[1] <= highest",
        replacement="lowest <= one[2] <= highest",
        tests=(_TABLES,),
    ),
    Mutant(
        name="files-without-an-object-count-for-a-job",
        file="compactor/planning/l0.py",
        text="min(by_bytes, by_objects, start",
        replacement="min(by_bytes, by_objects, start + options.l0_job_files_max, start",
        tests=(_TABLES,),
    ),
    Mutant(
        name="files-without-an-object-have-no-end",
        file="compactor/planning/l0.py",
        text="start + options.l0_job_rows_max, files",
        replacement="files",
        tests=(_TABLES,),
    ),
    Mutant(
        name="all-markers-of-a-file-are-its-first",
        file="compactor/merging/cursors.py",
        text="memoryview(inline)[extent.position : extent.position + extent.length]",
        replacement="memoryview(inline)[: extent.length]",
        tests=(f"{_MERGES}::test_markers_that_no_object_holds_become_batches_at_their_offsets",),
    ),
)
