"""Mutants in the commit of L0 files by two functions and a gate."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

V3 = "metadata/migrations/versions/commit_l0_v3.sql"
HISTORIES = "tests/integration/metadata/test_commit_histories.py"
GATE = "tests/integration/metadata/test_commit_gate.py"
PACKED = "tests/integration/metadata/test_packed_producers.py"
USUAL = "tests/property/test_usual_commit.py"
UNUSUAL = "tests/contract/test_unusual_files.py"
JUDGED_ALONE = f"{UNUSUAL}::test_what_is_not_usual_is_judged_alone"
HELD = (
    "tests/integration/metadata/test_held_snapshot.py"
    "::test_beside_a_held_snapshot_commits_look_at_the_newest_version_of_a_row_alone"
)
BORDERS = "tests/contract/test_borders.py"
USUAL_HISTORY = f"{HISTORIES}::test_usual_files_between_others_are_answered_as_their_model_does"

COMMITS = (
    Mutant(
        name="a-brief-wait-that-looks-cancelled-is-in-doubt",
        file="metadata/postgres/log/commit.py",
        text="call, waits_briefly=True)",
        replacement="call)",
        tests=(f"{GATE}::test_a_brief_wait_that_ends_as_if_a_user_cancelled_it_goes_to_the_gate",),
    ),
    Mutant(
        name="watermarks-leave-little-room",
        file="metadata/migrations/versions/0006_log.sql",
        text="SET (fillfactor = 10)",
        replacement="SET (fillfactor = 50)",
        tests=(HELD,),
    ),
    Mutant(
        name="a-deduplicated-index-gives-the-newest-version-last",
        file="metadata/migrations/versions/0006_log.sql",
        text="ON watermarks (partition_id) WITH (deduplicate_items = off)",
        replacement="ON watermarks (partition_id)",
        tests=(HELD,),
    ),
    Mutant(
        name="a-commit-walks-over-dead-versions-of-producers",
        file=V3,
        text="AND x.producer_id BETWEEN b.producer_id AND b.producer_id ORDER BY x.producer_id DESC LIMIT 1)",
        replacement="AND x.producer_id = b.producer_id ORDER BY x.producer_id DESC LIMIT 1)",
        tests=(HELD,),
    ),
    Mutant(
        name="a-commit-reads-dead-entries-in-a-bitmap",
        file=V3,
        text=" SET enable_bitmapscan = off",
        replacement="",
        tests=(HELD,),
    ),
    Mutant(
        name="a-row-that-moved-is-no-matter",
        file=V3,
        text="CASE WHEN p_lock_timeout_ms IS NULL THEN 'SL010' ELSE '55P03' END",
        replacement="'55P03'",
        tests=(f"{GATE}::test_a_row_that_moved_during_the_wait_is_found_by_another_call",),
    ),
    Mutant(
        name="a-producer-of-usual-files-looks-silent",
        file=V3,
        text="            last_seen_ms = v_now,\n",
        replacement="",
        tests=(f"{BORDERS}::test_every_commit_of_a_producer_shows_that_it_is_not_silent",),
    ),
    Mutant(
        # Of both aggregates: Postgres sorts once for all that ask for the same order.
        name="the-order-of-returned-rows-is-trusted",
        file=V3,
        text="""array_agg(m.next_offset - m.records ORDER BY m.ord),
        string_agg(int4send(m.partition_id) || int8send(m.next_offset - m.records) || int8send(m.next_offset - 1)
            || substr(p_places, 24 * m.ord - 23, 24), ''::bytea ORDER BY m.ord)""",
        replacement="""array_agg(m.next_offset - m.records),
        string_agg(int4send(m.partition_id) || int8send(m.next_offset - m.records) || int8send(m.next_offset - 1)
            || substr(p_places, 24 * m.ord - 23, 24), ''::bytea)""",
        tests=(f"{HISTORIES}::test_the_answers_do_not_depend_on_the_order_in_which_a_plan_returns_rows",),
    ),
    Mutant(
        name="the-gate-is-skipped",
        file="metadata/postgres/log/commit_calls.py",
        text=" LOCK TABLE commit_gate IN EXCLUSIVE MODE;",
        replacement="",
        tests=(
            f"{GATE}::test_commits_that_meet_wait_at_the_gate_without_a_snapshot",
            f"{GATE}::test_the_gate_comes_before_every_other_lock",
        ),
    ),
    Mutant(
        name="every-commit-goes-through-the-gate",
        file="metadata/postgres/log/contention.py",
        text="        return self.left > 0",
        replacement="        return True",
        tests=(f"{GATE}::test_commits_of_other_partitions_wait_for_nobody",),
    ),
    Mutant(
        name="a-blocked-gate-stops-commits",
        file="metadata/postgres/log/commit.py",
        text="        except _LockedError:\n            return await",
        replacement="        except ZeroDivisionError:\n            return await",
        tests=(f"{GATE}::test_a_gate_that_somebody_else_holds_stops_no_commit",),
    ),
    Mutant(
        name="a-tail-is-unpacked-from-its-end",
        file="metadata/rules/producer_tail.py",
        text="return [*_BATCH.iter_unpack(tail)], times_ms",
        replacement="return [*_BATCH.iter_unpack(tail)][::-1], times_ms",
        tests=(f"{USUAL}::test_what_the_rules_store_as_a_whole_is_usual_and_its_arguments_say_all", USUAL_HISTORY),
    ),
    Mutant(
        name="a-tail-keeps-four-batches",
        file=V3,
        text="greatest(octet_length(p.tail) - 63, 1))",
        replacement="greatest(octet_length(p.tail) - 47, 1))",
        tests=(USUAL_HISTORY,),
    ),
    Mutant(
        name="a-producer-that-does-not-go-on-is-stored",
        file=V3,
        text="            AND p.epoch = b.epoch AND p.next_sequence = b.sequence;",
        replacement="            AND p.epoch = b.epoch;",
        tests=(USUAL_HISTORY,),
    ),
    Mutant(
        name="a-producer-of-another-epoch-goes-on",
        file=V3,
        text="            AND p.epoch = b.epoch AND p.next_sequence = b.sequence;",
        replacement="            AND p.next_sequence = b.sequence;",
        tests=(JUDGED_ALONE,),
    ),
    Mutant(
        name="a-new-producer-begins-anywhere",
        file=V3,
        text="            WHERE b.sequence = 0 AND NOT EXISTS",
        replacement="            WHERE NOT EXISTS",
        tests=(USUAL_HISTORY,),
    ),
    Mutant(
        name="append-times-are-forgotten",
        file=V3,
        text="            append_times = CASE WHEN p.append_times IS NULL AND b.times IS NULL THEN NULL ELSE",
        replacement="            append_times = CASE WHEN true THEN NULL ELSE",
        tests=(USUAL_HISTORY,),
    ),
    Mutant(
        name="a-missing-partition-is-no-matter",
        file=V3,
        text="    IF v_moved <> cardinality(p_partition) THEN",
        replacement="    IF v_moved = 0 THEN",
        tests=(JUDGED_ALONE,),
    ),
    Mutant(
        name="a-fenced-writer-commits-usual-files",
        file=V3,
        text=" AND w.epoch = p_epoch AND w.last_seq < p_seq;",
        replacement=" AND w.last_seq < p_seq;",
        tests=(f"{UNUSUAL}::test_a_writer_of_an_older_epoch_is_fenced_whatever_its_seq",),
    ),
    Mutant(
        name="the-quick-call-takes-a-forgotten-key",
        file=V3,
        text="[1]::bigint <= (SELECT",
        replacement="[1]::bigint < (SELECT",
        tests=(f"{GATE}::test_a_key_as_old_as_forgotten_rows_is_no_usual_one",),
    ),
    Mutant(
        name="the-migration-counts-records-from-the-wrong-end",
        file="metadata/migrations/versions/0006_log.sql",
        text="(p_last::bigint - p_first + 2147483648) % 2147483648 + 1",
        replacement="(p_last::bigint - p_first + 2147483648) % 2147483648",
        tests=(f"{PACKED}::test_the_migration_packs_the_producers_that_there_are",),
    ),
    Mutant(
        name="a-sequence-that-begins-again-is-not-usual",
        file=V3,
        text="next_sequence = ((b.sequence + b.records) % 2147483648)::integer",
        replacement="next_sequence = (b.sequence + b.records)::integer",
        tests=(f"{HISTORIES}::test_a_producer_whose_sequences_begin_again_at_0_takes_the_quick_call",),
    ),
    Mutant(
        name="the-short-wait-of-a-quick-call-stays-in-its-session",
        file=V3,
        text="p_lock_timeout_ms::text, true)",
        replacement="p_lock_timeout_ms::text, false)",
        tests=(f"{GATE}::test_the_short_wait_of_a_quick_call_ends_with_it",),
    ),
    Mutant(
        name="the-short-wait-for-the-gate-holds-behind-it",
        file="metadata/postgres/log/commit_calls.py",
        text=" SET LOCAL lock_timeout TO DEFAULT;",
        replacement="",
        tests=(f"{GATE}::test_the_short_wait_for_the_gate_is_none_for_the_rows_behind_it",),
    ),
    Mutant(
        name="nobody-leaves-the-gate",
        file="metadata/postgres/log/commit.py",
        text="            self._contention.passed()\n",
        replacement="",
        tests=(f"{GATE}::test_commits_that_meet_nobody_any_more_leave_the_gate",),
    ),
    Mutant(
        name="a-producer-at-the-last-sequence-cannot-be-restored",
        file="metadata/postgres/backup/producers.py",
        text="+ 1) % SEQUENCES",
        replacement="+ 1)",
        tests=("tests/unit/metadata/test_producer_backup.py::test_a_restored_producer_goes_on_where_it_was",),
    ),
)
