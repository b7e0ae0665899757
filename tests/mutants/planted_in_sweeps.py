"""Bugs in what the sweeps leave behind: marks, indexes and answers of files that are gone."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_SQL, _MEMORY = "metadata/postgres/deletion.py", "metadata/memory/deletion.py"
_FORGETTING = "metadata/postgres/forgetting.py"
_SWEEPS, _IN_POSTGRES = "tests/contract/test_sweeps.py", "tests/integration/metadata/test_postgres_sweeps.py"
_TWINS = (
    "tests/integration/metadata/test_metadata_histories.py"
    "::test_after_every_call_of_a_history_both_stores_hold_the_same"
)
_COLD = f"{_SWEEPS}::test_a_follower_behind_a_deleted_file_starts_cold_and_others_go_on"
_DOUBT = f"{_SWEEPS}::test_a_commit_in_doubt_is_answered_after_its_file_was_merged_and_deleted"
_BACKLOG = f"{_SWEEPS}::test_any_backlog_is_forgotten_batch_by_batch_and_rows_that_stay_hold_nothing_up"
_BATCHES = f"{_IN_POSTGRES}::test_the_marks_are_true_after_each_batch"
_ALONE = f"{_IN_POSTGRES}::test_answers_that_lie_in_the_index_alone_outlive_it"

SWEEPS = (
    Mutant(
        name="a-producer-that-went-on-expires",
        file=_SQL,
        text=" AND p.last_seen_ms < :silent_since_ms",
        replacement="",
        tests=(f"{_IN_POSTGRES}::test_a_producer_that_goes_on_while_silent_ones_expire_is_kept",),
    ),
    Mutant(
        name="an-index-goes-and-no-follower-hears-of-it-in-sql",
        file=_SQL,
        text="FROM gone WHERE gives_index",
        replacement="FROM gone WHERE gives_index AND seq < 0",
        tests=(_COLD, _TWINS),
    ),
    Mutant(
        name="an-index-goes-and-no-follower-hears-of-it-in-memory",
        file=_MEMORY,
        text='            file.info = replace(info, index=encode_index(()), txn_rows=b"")\n'
        "            writer.forgotten = max(writer.forgotten, (info.epoch, info.seq))\n",
        replacement='            file.info = replace(info, index=encode_index(()), txn_rows=b"")\n',
        tests=(_COLD,),
    ),
    Mutant(
        name="a-commit-in-doubt-loses-its-index-in-sql",
        file=_SQL,
        text="AND n.epoch = f.epoch AND n.seq > f.seq",
        replacement="AND n.epoch = f.epoch AND n.seq >= f.seq",
        tests=(_DOUBT, _TWINS),
    ),
    Mutant(
        name="a-commit-in-doubt-loses-its-index-in-memory",
        file=_MEMORY,
        text="if info.seq < newest:",
        replacement="if info.seq <= newest:",
        tests=(_DOUBT,),
    ),
    Mutant(
        name="answers-go-with-their-index",
        file=_SQL,
        text="g.gives_index AND f.results = ''",
        replacement="g.gives_index AND f.results = '?'",
        tests=(_ALONE,),
    ),
    Mutant(
        name="the-mark-of-a-batch-is-its-first-file",
        file=_FORGETTING,
        text="ORDER BY writer_id, epoch DESC, seq DESC",
        replacement="ORDER BY writer_id, epoch, seq",
        tests=(_BATCHES,),
    ),
    Mutant(
        name="a-row-that-stays-ends-the-sweep",
        file=_FORGETTING,
        text="if row is None or row.looked < FORGOTTEN_MAX:",
        replacement="if row is None or row.gone < FORGOTTEN_MAX:",
        tests=(_BACKLOG,),
    ),
    Mutant(
        name="the-walk-over-producers-skips-one",
        file=_SQL,
        text="(partition_id, producer_id) > (:partition_id, :producer_id)",
        replacement="(partition_id, producer_id) > (:partition_id, :producer_id + 1)",
        tests=(f"{_SWEEPS}::test_silent_producers_are_found_slice_by_slice",),
    ),
)
