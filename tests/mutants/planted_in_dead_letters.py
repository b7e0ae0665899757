"""Bugs in tables of dead letters."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_TESTS = "tests/integration/spark/dead_letters/test_dead_letters.py"
_KILLS = f"{_TESTS}::test_kills_at_every_step_of_one_run"
_RACE = f"{_TESTS}::test_of_two_exports_that_judge_differently_each_record_is_once"

DEAD_LETTERS = (
    Mutant(
        name="a-new-schema-judges-again",
        file="spark_jobs/tables/dead_letters/rows.py",
        text="    dead = wrong & (offsets >= below)\n",
        replacement="    dead = wrong & ~np.isin(offsets, dead_before)\n",
        tests=(f"{_TESTS}::test_a_record_that_no_longer_fits_is_in_the_table_with_the_reason",),
    ),
    Mutant(
        name="dead-letters-that-fit-now-go-into-the-table-too",
        file="spark_jobs/tables/dead_letters/rows.py",
        text="    return Parted(~dead & ~np.isin(offsets, dead_before), dead)\n",
        replacement="    return Parted(~dead & ~(wrong & np.isin(offsets, dead_before)), dead)\n",
        tests=(f"{_TESTS}::test_a_table_that_begins_again_takes_nothing_that_is_a_dead_letter",),
    ),
    Mutant(
        name="the-table-commits-before-its-dead-letters",
        file="spark_jobs/tables/writing.py",
        text="        self._commit_letters(results, moved)\n        try:\n"
        "            name = self.table.commit(files, columns, moved, replaces=replaces, dead=dead)\n",
        replacement="        try:\n"
        "            name = self.table.commit(files, columns, moved, replaces=replaces, dead=dead)\n"
        "            self._commit_letters(results, moved)\n",
        tests=(_KILLS,),
    ),
    Mutant(
        name="records-without-dead-letters-are-not-settled",
        file="spark_jobs/tables/dead_letters/table.py",
        text="        if not files and self._held is not None and {**held, **offsets} == held:\n",
        replacement="        if not files:\n",
        tests=(_RACE,),
    ),
)
