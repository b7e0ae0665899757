"""Bugs by which a tool says that bytes are gone although they are there, or by which they stay too long."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

CLAIMS, REMAINS = "tests/compaction/test_claims.py", "tests/unit/siltstone/ops/test_remains.py"
HELD = "tests/contract/test_held_bytes.py"

GONE = (
    Mutant(
        name="objects-too-many-to-be-read-hold-nothing",
        file="siltstone/ops/remains.py",
        text="number >= FOOTERS_MAX or await",
        replacement="number < FOOTERS_MAX and await",
        tests=(f"{REMAINS}::test_objects_that_are_too_many_to_be_read_may_hold_anything",),
    ),
    Mutant(
        name="forgets-dead-extents-of-live-files",
        file="siltstone/ops/remains.py",
        text="if each.dead_ms is not None and each.base_offset < offset]",
        replacement="if each.file_dead_ms is not None and each.base_offset < offset]",
        tests=(f"{CLAIMS}::test_what_is_said_to_be_gone_is_in_no_object",),
    ),
    Mutant(
        name="diagnoses-without-dead-extents-of-live-files",
        file="siltstone/ops/record_trace.py",
        text="if each.base_offset <= known.offset <= each.last_offset:",
        replacement="if each.base_offset <= known.offset <= each.last_offset and each.file_dead_ms is not None:",
        tests=(f"{CLAIMS}::test_what_is_said_to_be_gone_is_in_no_object",),
    ),
    Mutant(
        name="diagnoses-without-objects-that-no-row-names",
        file="siltstone/ops/record_trace.py",
        text="        remnants += map(stray, strays)\n",
        replacement="",
        tests=(f"{CLAIMS}::test_what_is_said_to_be_gone_is_in_no_object",),
    ),
    Mutant(
        name="explains-without-objects-that-no-row-names",
        file="siltstone/ops/compaction/reasons.py",
        text="    remnants += map(stray, strays)\n",
        replacement="",
        tests=(
            f"{CLAIMS}::test_what_is_said_to_be_gone_is_in_no_object",
            f"{REMAINS}::test_an_object_without_a_row_may_hold_them",
        ),
    ),
    Mutant(
        name="an-overflowed-pass-removed-every-old-value",
        file="siltstone/ops/compaction/reasons.py",
        text="if case.view.passes_needed > 1 else",
        replacement="if case.view.passes_needed > 99 else",
        tests=(f"{REMAINS}::test_where_a_pass_may_have_kept_old_values_nothing_is_said_to_be_gone",),
    ),
    Mutant(
        name="dead-files-hold-nothing-in-sql",
        file="metadata/postgres/operators.py",
        text="AND f.state IN ('live', 'dead')",
        replacement="AND f.state IN ('live')",
        tests=(f"{HELD}::test_an_extent_that_died_is_held_by_its_live_file_and_by_its_dead_one",),
    ),
    Mutant(
        name="dead-l0-files-hold-nothing-in-sql",
        file="metadata/postgres/operators.py",
        text='FILES.c.state.in_(["live", "dead"])',
        replacement='FILES.c.state.in_(["live"])',
        tests=(f"{HELD}::test_rows_of_live_and_dead_l0_files_are_held_until_the_object_is_deleted",),
    ),
    Mutant(
        name="rewrites-for-the-purge-deadline-when-it-has-passed",
        file="compactor/planning/assembly.py",
        text="options.purge_deadline_ms - limit_ms(options, options.output_bytes) - options.grace_ms",
        replacement="options.purge_deadline_ms",
        tests=(
            f"{REMAINS}::test_a_dead_extent_of_a_live_file_goes_by_the_purge_deadline_and_a_dead_file_after_the_grace",
        ),
    ),
    Mutant(
        name="an-idle-l0-file-keeps-deleted-topics",
        file="compactor/planning/options.py",
        text="max(rewrite_after_ms(options), L0_WAIT_LEAST_MS)",
        replacement="settings.compaction_l0_wait_max_ms",
        tests=(
            "tests/unit/compactor/planning/test_options.py::test_an_l0_file_is_leveled_in_time_for_the_purge_deadline",
        ),
    ),
    Mutant(
        name="dead-bytes-stay-in-l1",
        file="compactor/planning/purge.py",
        text="PURGED_LEVELS = (1, 2)",
        replacement="PURGED_LEVELS = (2,)",
        tests=(f"{CLAIMS}::test_what_is_said_to_be_gone_is_in_no_object",),
    ),
    Mutant(
        name="passes-take-turns-at-a-file-that-must-be-rewritten",
        file="compactor/planning/purge.py",
        text="                    draft.reserve([file])\n",
        replacement="",
        tests=("tests/unit/compactor/planning/test_plan_golden.py::test_a_view_is_planned_as_its_table_says",),
    ),
)
