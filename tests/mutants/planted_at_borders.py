"""Bugs at borders: the last record of an extent, the older of two pins, the fifth batch, the very age of retention."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_BORDERS = "tests/contract/test_borders.py"
_CLEANER = "tests/property/test_cleaner.py"
_HISTORIES = "tests/integration/metadata/test_metadata_histories.py"
_TWINS = f"{_HISTORIES}::test_after_every_call_of_a_history_both_stores_hold_the_same"
_SEAL = "tests/unit/agents/write/test_seal.py"
_STUCK = "tests/integration/compactor/test_lag_in_l0.py"
_TAKEN = "tests/contract/test_taken_addresses.py"
_SPARES = (f"{_BORDERS}::test_delete_records_spares_the_extent_of_the_first_record_that_stays",)
_PINS = (f"{_BORDERS}::test_of_two_pins_the_older_protects_what_died_between_them",)
_SEEN = (f"{_BORDERS}::test_every_commit_of_a_producer_shows_that_it_is_not_silent",)

BORDERS = (
    Mutant(
        name="delete-records-kills-a-live-extent-in-sql",
        file="metadata/postgres/log/delete_records.py",
        text="EXTENTS.c.last_offset < wanted",
        replacement="EXTENTS.c.last_offset <= wanted",
        tests=(*_SPARES, _TWINS),
    ),
    Mutant(
        name="delete-records-kills-a-live-extent-in-memory",
        file="metadata/memory/agents.py",
        text="if row.last_offset < wanted]",
        replacement="if row.last_offset <= wanted]",
        tests=_SPARES,
    ),
    Mutant(
        name="a-dead-holder-keeps-its-address-for-a-moment-longer",
        file="metadata/rules/refusals.py",
        text="now_ms >= beat_ms + ALIVE_MS",
        replacement="now_ms > beat_ms + ALIVE_MS",
        tests=(f"{_TAKEN}::test_an_address_is_taken_as_soon_as_a_living_holder_would_have_beaten",),
    ),
    Mutant(
        name="an-address-is-taken-unseen-in-sql",
        file="metadata/postgres/log/leases.py",
        text="            former_until_ms = await _take_over(connection, address, row.writer_id, instead_of)\n",
        replacement="            former_until_ms = 0\n",
        tests=(f"{_TAKEN}::test_of_many_that_register_one_address_at_once_one_gets_it", _TWINS),
    ),
    Mutant(
        name="a-late-registration-of-the-dead-looks-alive",
        file="agents/registration.py",
        text="taken.holder == seen.holder and taken.beat_ms != seen.beat_ms",
        replacement="taken.beat_ms != seen.beat_ms",
        tests=(
            "tests/unit/agents/test_registration.py::"
            "test_a_late_registration_of_a_dead_process_ends_neither_a_start_nor_a_running_agent",
        ),
    ),
    Mutant(
        name="an-error-of-accept-ends-the-listener",
        file="agents/listeners/acceptor.py",
        text="        self._resumes = self._loop.call_later(pause_ms / 1000, self._resume)\n",
        replacement="",
        tests=("tests/integration/agents/listeners/test_descriptors.py::test_no_error_of_accept_ends_the_listener",),
    ),
    Mutant(
        name="a-byte-at-a-time-is-progress",
        file="agents/listeners/activity.py",
        text="        if buffered_bytes >= self._progress_at:\n",
        replacement="        if buffered_bytes:\n",
        tests=("tests/unit/agents/listeners/test_activity.py::test_a_byte_at_a_time_is_silence_and_a_request_is_not",),
    ),
    Mutant(
        name="the-younger-pin-decides-in-sql",
        file="metadata/postgres/deletion.py",
        text="SELECT min(p.created_ms) FROM pins p",
        replacement="SELECT max(p.created_ms) FROM pins p",
        tests=(*_PINS, _TWINS),
    ),
    Mutant(
        name="the-younger-pin-decides-in-memory",
        file="metadata/memory/deletion.py",
        text="pinned_ms = min((pin.created_ms",
        replacement="pinned_ms = max((pin.created_ms",
        tests=_PINS,
    ),
    Mutant(
        name="an-active-producer-looks-silent-in-sql",
        file="metadata/migrations/versions/commit_l0_v1_packed.sql",
        text="                last_seen_ms = v_now,\n",
        replacement="",
        tests=(_TWINS,),
    ),
    Mutant(
        name="an-active-producer-looks-silent-in-memory",
        file="metadata/memory/agents.py",
        text="db.producers_seen_ms.update(dict.fromkeys(judgement.producers, now_ms))",
        replacement="db.producers_seen_ms = dict.fromkeys(judgement.producers, now_ms) | db.producers_seen_ms",
        tests=_SEEN,
    ),
    Mutant(
        name="four-batches-of-a-file-are-known",
        file="metadata/migrations/versions/commit_l0_v1_packed.sql",
        text="a.from_end <= 5",
        replacement="a.from_end <= 4",
        tests=(_TWINS,),
    ),
    Mutant(
        name="an-agent-of-a-used-seq-hears-of-an-index",
        file="metadata/postgres/log/commit.py",
        text="            await self._check_writer(connection, request)\n",
        replacement="",
        tests=(
            "tests/contract/test_metadata.py::test_an_older_epoch_is_fenced_although_it_used_the_seq_itself",
            "tests/contract/test_metadata.py"
            "::test_a_seq_that_is_not_above_the_writers_last_is_refused_and_leaves_nothing",
            _TWINS,
        ),
    ),
    Mutant(
        name="a-pin-that-ends-now-still-protects",
        file="metadata/postgres/deletion.py",
        text="FROM pins p WHERE p.expires_ms > clock_ms()",
        replacement="FROM pins p WHERE p.expires_ms >= clock_ms()",
        tests=(_TWINS,),
    ),
    Mutant(
        name="a-file-lives-on-without-extents",
        file="metadata/postgres/rows.py",
        text="state = CASE WHEN f.live_extents = c.deaths THEN 'dead' ELSE f.state END",
        replacement="state = CASE WHEN f.live_extents < c.deaths THEN 'dead' ELSE f.state END",
        tests=(_TWINS,),
    ),
    Mutant(
        name="records-as-old-as-the-retention-go",
        file="metadata/rules/retention.py",
        text="now_ms - extent.max_timestamp_ms > policy.retention_ms",
        replacement="now_ms - extent.max_timestamp_ms >= policy.retention_ms",
        tests=(
            "tests/unit/metadata/test_retention_rules.py::test_records_as_old_as_the_retention_stay_and_older_ones_go",
        ),
    ),
    Mutant(
        name="a-record-in-l0-is-never-late",
        file="siltstone/ops/compaction/reasons.py",
        text="(dirty.is_over_lag(now_ms) or is_l0_over)",
        replacement="dirty.is_over_lag(now_ms)",
        tests=(f"{_STUCK}::test_a_record_that_is_stuck_in_l0_past_its_lag_is_told_by_both",),
    ),
    Mutant(
        name="diagnose-knows-no-commit-of-l0",
        file="siltstone/ops/record_trace.py",
        text="                committed_ms=file.created_ms,\n",
        replacement="",
        tests=(f"{_STUCK}::test_a_record_that_is_stuck_in_l0_past_its_lag_is_told_by_both",),
    ),
    Mutant(
        name="retention-keeps-to-the-interval-of-its-start",
        file="compactor/compactor.py",
        text="interval_ms = self._settings.retention_check_interval_ms if asked_ms is None else asked_ms",
        replacement="interval_ms = self._settings.retention_check_interval_ms",
        tests=(
            "tests/integration/compactor/test_retention_interval.py"
            "::test_a_shorter_interval_is_followed_without_a_restart",
        ),
    ),
    Mutant(
        name="a-pass-that-was-asked-for-comes-last",
        file="compactor/planning/forced.py",
        text="    yield from (each for each in in_order if each.due.requested)\n",
        replacement="",
        tests=(
            "tests/unit/compactor/planning/test_plan.py"
            "::test_the_pass_that_somebody_asked_for_is_planned_before_dirtier_partitions",
        ),
    ),
    Mutant(
        name="the-least-time-of-a-batch-is-its-greatest",
        file="agents/write/seal.py",
        text="min_timestamp_ms = min(header.base_timestamp_ms, max_timestamp_ms)",
        replacement="min_timestamp_ms = max(header.base_timestamp_ms, max_timestamp_ms)",
        tests=(f"{_SEAL}::test_rows_and_extents_have_the_least_and_the_greatest_time_of_their_batches",),
    ),
    Mutant(
        name="the-least-time-of-an-extent-is-its-greatest",
        file="agents/write/seal.py",
        text="min_timestamp_ms=min([row.min_timestamp_ms for row in rows])",
        replacement="min_timestamp_ms=max([row.min_timestamp_ms for row in rows])",
        tests=(f"{_SEAL}::test_rows_and_extents_have_the_least_and_the_greatest_time_of_their_batches",),
    ),
    Mutant(
        name="the-first-batch-of-an-aborted-transaction-stays",
        file="compactor/cleaning/rules.py",
        text="bisect_right(firsts, base_offset) - 1",
        replacement="bisect_right(firsts, base_offset - 1) - 1",
        tests=(f"{_CLEANER}::test_a_cleaned_partition_keeps_what_a_compacted_log_promises",),
    ),
    Mutant(
        name="horizons-count-beyond-the-whole-stretch",
        file="compactor/cleaning/rules.py",
        text="end = min(bounds.first_uncleanable_offset, bounds.whole_through_offset)",
        replacement="end = bounds.first_uncleanable_offset",
        tests=(f"{_CLEANER}::test_a_cleaned_partition_keeps_what_a_compacted_log_promises",),
    ),
    Mutant(
        name="a-partition-is-due-daily-for-a-batch-that-nobody-reads",
        file="compactor/merging/partition_merge.py",
        text="output.horizons_end_offset = cleaner.unreadable.first_offset",
        replacement="pass",
        tests=(
            "tests/integration/merging/test_merge_engine_unreadable.py"
            "::test_a_partition_is_not_due_for_the_horizon_of_a_batch_that_no_pass_can_read",
        ),
    ),
)
