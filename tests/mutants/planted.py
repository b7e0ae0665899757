"""The mutants: rules that look as if they could be spared, each with the tests that show why they cannot.

They guard the tests that run many cases in few seconds: loops over all messages, Hypothesis, random histories. Those
are the ones that get cheaper from time to time, and each has to go on finding these.
"""

from __future__ import annotations

from tests.mutants.mutant import Mutant
from tests.mutants.planted_at_borders import BORDERS
from tests.mutants.planted_in_acls import ACLS
from tests.mutants.planted_in_answers import ANSWERS
from tests.mutants.planted_in_claims import GONE
from tests.mutants.planted_in_commits import COMMITS
from tests.mutants.planted_in_committed_reads import COMMITTED_READS
from tests.mutants.planted_in_coordinators import COORDINATORS
from tests.mutants.planted_in_dead_letters import DEAD_LETTERS
from tests.mutants.planted_in_drains import DRAINS
from tests.mutants.planted_in_erase_command import ASKED
from tests.mutants.planted_in_erasures import ERASING
from tests.mutants.planted_in_heavy_plans import HEAVY_PLANS
from tests.mutants.planted_in_held_offsets import HELD_OFFSETS
from tests.mutants.planted_in_keyed_tables import KEYED_TABLES
from tests.mutants.planted_in_listeners import LISTENERS
from tests.mutants.planted_in_quotas import QUOTAS
from tests.mutants.planted_in_spark_source import SPARK_SOURCE
from tests.mutants.planted_in_sums import SUMS
from tests.mutants.planted_in_survivors import SURVIVORS
from tests.mutants.planted_in_sweeps import SWEEPS
from tests.mutants.planted_in_tls import TLS
from tests.mutants.planted_in_transactions import TRANSACTIONS
from tests.mutants.planted_in_upgrades import UPGRADES
from tests.mutants.planted_in_walks import WALKS

ORACLES = "tests/property/test_messages_against_oracles.py"
BATCHES = "tests/property/test_record_batches.py"
PLAN = "tests/property/test_plan.py"

WIRE = (
    Mutant(
        name="reads-a-string-past-the-end",
        file="wire/compiler/decoder_source.py",
        text='f"if {stop} > size{too_long}:"',
        replacement='f"if {stop} > size + 1{too_long}:"',
        tests=(f"{ORACLES}::test_every_truncation_is_refused",),
    ),
    Mutant(
        name="makes-room-for-what-a-count-says",
        file="wire/compiler/decoder_source.py",
        text='self.line(f"{value} = []")',
        replacement='self.line(f"{value} = [0] * ({count} << 14); {value}.clear()")',
        tests=(f"{ORACLES}::test_a_length_that_lies_allocates_nothing",),
    ),
    Mutant(
        name="lets-an-index-error-out",
        file="wire/compiler/compile.py",
        text="IndexError",
        replacement="KeyError",
        tests=(
            f"{ORACLES}::test_every_truncation_is_refused",
            f"{ORACLES}::test_bytes_that_are_not_the_message_are_refused_and_nothing_worse_happens",
        ),
    ),
    Mutant(
        name="misreads-lengths-of-two-bytes",
        file="wire/compiler/primitives.py",
        text="return (value | byte << 7) - 1",
        replacement="return (value | byte << 6) - 1",
        tests=(f"{ORACLES}::test_other_implementations_agree_on_any_values",),
    ),
    Mutant(
        name="writes-one-version-in-the-old-form",
        file="wire/messages/create_topics.py",
        text='@message(api_key=19, kind="response", versions="2-7", flexible="5+")',
        replacement='@message(api_key=19, kind="response", versions="2-7", flexible="6+")',
        tests=(f"{ORACLES}::test_other_implementations_read_the_same_values_and_write_the_same_bytes",),
    ),
    Mutant(
        name="ignores-bytes-behind-the-last-record",
        file="wire/records.py",
        text="    if position != end:\n",
        replacement="    if position > end:\n",
        tests=(f"{BATCHES}::test_any_bytes_are_records_to_the_end_or_an_error_of_ours",),
    ),
    Mutant(
        name="lets-fields-end-before-their-record",
        file="wire/records.py",
        text="if reached != position:",
        replacement="if reached > position:",
        tests=("tests/unit/wire/test_records.py::test_a_malformed_record_is_named_by_its_index",),
    ),
)

METADATA = (
    Mutant(
        name="members-that-end-amid-a-number",
        file="metadata/groups/members.py",
        text="except (struct.error, UnicodeDecodeError) as error:",
        replacement="except UnicodeDecodeError as error:",
        tests=("tests/unit/metadata/test_group_members.py::test_members_that_are_cut_are_refused",),
    ),
    Mutant(
        name="keeps-an-answer-that-is-old",
        file="agents/topics/topic_entries.py",
        text="kept is not None and kept.everything_version == topics_version else None",
        replacement="kept is not None else None",
        tests=("tests/property/test_metadata_answers.py::test_answers_are_those_that_would_be_made_anew",),
    ),
    Mutant(
        name="tells-a-session-no-new-log-start",
        file="agents/read/sessions.py",
        text="            and log_start == self.told_log_start\n",
        replacement="",
        tests=("tests/property/test_fetch_sessions.py::test_a_session_tells_what_full_fetches_tell_in_long_histories",),
    ),
)

SEALS = "tests/unit/agents/write/test_early_seals.py"

WRITING = (
    Mutant(
        name="a-budget-that-leaks",
        file="agents/write/budget.py",
        text="        self._tokens -= self._price(file_bytes)\n",
        replacement="        pass\n",
        tests=(f"{SEALS}::test_the_budget_bounds_the_files_by_time_and_by_bytes",),
    ),
    Mutant(
        name="takes-a-trickle-for-blocked",
        file="agents/sender.py",
        text="if self._quiet_ms >= QUIET_MS:",
        replacement="if self._quiet_ms >= 0:",
        tests=(f"{SEALS}::test_a_trickle_that_was_answered_quickly_because_of_others_keeps_its_linger_afterwards",),
    ),
    Mutant(
        name="asks-for-no-second-proof",
        file="agents/sender.py",
        text="if self._last_ms - self._proven_ms > PROOF_AGE_MS:",
        replacement="if False:",
        tests=(f"{SEALS}::test_a_client_that_stops_waiting_and_trickles_in_step_with_its_answers_is_found_out",),
    ),
    Mutant(
        name="lets-a-trickle-hold-up-clients-that-wait",
        file="agents/write/buffer.py",
        text="            self._blocked.discard(sender)\n            return\n        self._blocked.add(sender)\n",
        replacement="            self._blocked.discard(sender)\n        else:\n            self._blocked.add(sender)\n",
        tests=(f"{SEALS}::test_records_that_trickle_in_ride_along_and_have_no_say",),
    ),
    Mutant(
        name="a-file-for-each-client-out-of-step",
        file="agents/write/buffer.py",
        text="(is_small and self._on_the_way >= EARLY_ON_THE_WAY_MAX)",
        replacement="False",
        tests=(f"{SEALS}::test_fifty_writers_that_wait_share_their_files",),
    ),
)

COMPACTOR = (
    Mutant(
        name="plans-in-the-order-of-rows",
        file="compactor/planning/view.py",
        text="files=sorted(view.files, key=lambda each: (each.lo, each.hi, each.file_id)),",
        replacement="files=list(view.files),",
        tests=(f"{PLAN}::test_the_order_of_rows_does_not_matter",),
    ),
    Mutant(
        name="merges-take-no-places",
        file="compactor/planning/slots.py",
        text="    def take_merge(self) -> None:\n        self.merges -= 1\n        self.total -= 1\n",
        replacement="    def take_merge(self) -> None:\n        pass\n",
        tests=(f"{PLAN}::test_the_places_for_jobs_are_kept",),
    ),
    Mutant(
        name="merges-files-in-trouble",
        file="compactor/planning/view.py",
        text="if rests(file.trouble_until_ms, self.now_ms):",
        replacement="if False:",
        tests=(f"{PLAN}::test_nothing_forbidden_is_planned",),
    ),
    Mutant(
        name="merges-the-first-class-that-is-due",
        file="compactor/planning/runs.py",
        text="group, pool = max(found, key=lambda each: each[0].urgency)",
        replacement="group, pool = found[0]",
        tests=(
            "tests/unit/compactor/simulation/test_compactor_simulation.py"
            "::test_merges_that_are_always_due_starve_neither_a_class_nor_forced_passes",
        ),
    ),
    Mutant(
        name="a-slice-knows-no-rows-before-it",
        file="compactor/heavy/rewrite_slice.py",
        text="if (rewriting.batches, rewriting.ordinal) != (found.batches, found.rows):",
        replacement="if (rewriting.batches, rewriting.ordinal) == (found.batches, found.rows):",
        tests=("tests/property/test_slices.py::test_slices_leave_what_the_embedded_engine_leaves",),
    ),
)

STORES = (
    Mutant(
        name="looks-for-l0-in-the-wrong-store",
        file="storage/by_level.py",
        text="return await self.second.get_range(key, start, length)",
        replacement="return await self.first.get_range(key, start, length)",
        tests=(
            "tests/unit/storage/test_by_level.py::test_an_l0_file_is_found_read_and_deleted_wherever_it_was_written",
        ),
    ),
    Mutant(
        name="forgets-l0-of-before-the-second-store",
        file="storage/by_level.py",
        text="        except ObjectNotFoundError:\n            return await self.first.get_range(key, start, length)",
        replacement="        except ObjectNotFoundError:\n            raise",
        tests=(
            "tests/unit/storage/test_by_level.py::test_an_l0_file_is_found_read_and_deleted_wherever_it_was_written",
        ),
    ),
)

READING = (
    Mutant(
        name="the-latest-view-counts-past-a-full-table",
        file="spark_jobs/scan/latest.py",
        text="full_at = number + done if done < count else -1",
        replacement="full_at = -1",
        tests=("tests/property/test_scan.py::test_the_latest_view_holds_the_last_record_of_each_key",),
    ),
)

ZONE_FRAMES, ZONE_SERVER = "tests/unit/agents/zone/test_frames.py", "tests/unit/agents/zone/test_server.py"
ZONE_BLOCKS = "tests/integration/agents/test_zone_blocks.py"

ZONES = (
    Mutant(
        name="a-neighbours-bytes-pass-for-any-place",
        file="agents/zone/frames.py",
        text="value = crc32c(_PLACE.pack(len(key), asked.file_bytes, asked.start, asked.length, age_ms) + key)",
        replacement="value = crc32c(b'')",
        tests=(
            f"{ZONE_FRAMES}::test_right_bytes_of_another_place_have_another_crc",
            f"{ZONE_BLOCKS}::test_a_bad_neighbour_costs_gets_and_no_record",
        ),
    ),
    Mutant(
        name="a-neighbours-bytes-are-not-checked",
        file="agents/zone/client.py",
        text="answer_crc(request, head.age_ms, [body]) != head.crc",
        replacement="answer_crc(request, head.age_ms, [body]) < 0",
        tests=(f"{ZONE_BLOCKS}::test_a_bad_neighbour_costs_gets_and_no_record",),
    ),
    Mutant(
        name="a-neighbours-bytes-are-taken-for-new",
        file="agents/zone/client.py",
        text="asked_ms - head.age_ms",
        replacement="asked_ms",
        tests=(f"{ZONE_BLOCKS}::test_bytes_from_a_neighbour_are_as_old_as_they_are_there",),
    ),
    Mutant(
        name="two-owners-wait-for-each-other",
        file="agents/zone/server.py",
        text="if full or self._is_asking(",
        replacement="if full or False and self._is_asking(",
        tests=(f"{ZONE_SERVER}::test_one_that_asks_another_for_a_block_serves_it_to_nobody_meanwhile",),
    ),
)

GOLDEN_PLANS = "tests/unit/compactor/planning/test_plan_golden.py::test_a_view_is_planned_as_its_table_says"
EXTENT_FACTS = "tests/integration/merging/test_extent_facts.py"

CLOCKWORK = (
    Mutant(
        name="asks-the-interval-before-the-lag",
        file="compactor/planning/dirtiness.py",
        text="is_over(partition.last_forced_ms, pause_ms, now_ms)",
        replacement="is_over(partition.last_forced_ms, options.forced_interval_ms, now_ms)",
        tests=(GOLDEN_PLANS,),
    ),
    Mutant(
        name="lets-passes-over-a-late-partition-follow-each-other",
        file="compactor/planning/dirtiness.py",
        text="    return max(took_ms, min(",
        replacement="    return max(0, min(",
        tests=(GOLDEN_PLANS,),
    ),
    Mutant(
        name="judges-age-by-timestamps-of-records",
        file="compactor/planning/dirtiness.py",
        text="        each.committed_ms\n        if each.committed_ms is not None\n",
        replacement="        each.committed_ms\n        if False and each.committed_ms is not None\n",
        tests=(GOLDEN_PLANS,),
    ),
    Mutant(
        name="counts-the-dirty-hour-from-the-last-pass-alone",
        file="compactor/planning/dirtiness.py",
        text="if is_over(max(known, default=None),",
        replacement="if is_over(min(known, default=None),",
        tests=(GOLDEN_PLANS,),
    ),
    Mutant(
        name="late-partitions-take-every-place",
        file="compactor/planning/forced.py",
        text="    pairs = zip_longest(*((others, late) if late_had_last else (late, others)))",
        replacement="    pairs = ((each,) for each in [*late, *others])",
        tests=(GOLDEN_PLANS,),
    ),
    Mutant(
        name="of-late-partitions-the-dirtiest-go-first",
        file="compactor/planning/forced.py",
        text="    late = sorted((each for each in in_order if each.due.is_late), key=lambda each: each.late_since_ms)",
        replacement="    late = [each for each in in_order if each.due.is_late]",
        tests=(GOLDEN_PLANS,),
    ),
    Mutant(
        name="an-idle-partition-keeps-its-tombstones",
        file="compactor/planning/dirtiness.py",
        text="at_ms is None or horizon is None or now_ms < at_ms or",
        replacement="True or at_ms is None or horizon is None or now_ms < at_ms or",
        tests=(
            GOLDEN_PLANS,
            "tests/integration/compactor/test_forgotten_bytes.py"
            "::test_a_deleted_key_is_in_the_end_in_no_object_though_nobody_asked",
        ),
    ),
    Mutant(
        name="tombstones-rewrite-a-partition-whenever-one-is-due",
        file="compactor/planning/dirtiness.py",
        text="max(known) + options.horizon_interval_ms if known else 0",
        replacement="0",
        tests=(GOLDEN_PLANS,),
    ),
    Mutant(
        name="the-cap-counts-stored-bytes",
        file="compactor/planning/forced.py",
        text="full = sum(each.cap_bytes for each in candidate.stretch)",
        replacement="full = size",
        tests=(GOLDEN_PLANS,),
    ),
    Mutant(
        name="l0-waits-past-the-lag",
        file="compactor/planning/l0.py",
        text="        wait_ms_max=lag_wait_ms,\n",
        replacement="        wait_ms_max=None,\n",
        tests=(GOLDEN_PLANS,),
    ),
    Mutant(
        name="a-merge-forgets-the-commit-of-its-oldest-input",
        file="compactor/merging/extent_facts.py",
        text="min(known) if known and len(known) == len(committed) else None",
        replacement="max(known) if known and len(known) == len(committed) else None",
        tests=(
            f"{EXTENT_FACTS}::test_an_output_is_as_old_as_its_oldest_input_and_erased_as_far_as_the_least",
            f"{EXTENT_FACTS}::test_records_of_l0_were_committed_with_their_file_and_the_earliest_counts",
        ),
    ),
    Mutant(
        name="a-copy-counts-compressed-bytes",
        file="compactor/merging/partition_merge.py",
        text="                with_known_sizes(window),\n",
        replacement="                window.table,\n",
        tests=(f"{EXTENT_FACTS}::test_a_dedupe_knows_the_uncompressed_size_and_copies_carry_it",),
    ),
    Mutant(
        name="an-output-is-erased-as-far-as-the-best-input",
        file="compactor/merging/extent_facts.py",
        text="min(erased, default=0)",
        replacement="max(erased, default=0)",
        tests=(f"{EXTENT_FACTS}::test_an_output_is_as_old_as_its_oldest_input_and_erased_as_far_as_the_least",),
    ),
    Mutant(
        name="four-million-keys-share-entries",
        file="compactor/cleaning/dedupe_buffer.py",
        text="_ENTRY_BITS = 24\n_ENTRY_MASK, _TAG_MASK = (1 << 24) - 1, (1 << 8) - 1",
        replacement="_ENTRY_BITS = 22\n_ENTRY_MASK, _TAG_MASK = (1 << 22) - 1, (1 << 10) - 1",
        tests=("tests/unit/compactor/cleaning/test_dedupe_buffer.py::test_more_than_four_million_keys_are_told_apart",),
    ),
)

MUTANTS = (
    *ACLS,
    *ANSWERS,
    *COMMITS,
    *DRAINS,
    *HEAVY_PLANS,
    *DEAD_LETTERS,
    *KEYED_TABLES,
    *HELD_OFFSETS,
    *BORDERS,
    *LISTENERS,
    *QUOTAS,
    *SPARK_SOURCE,
    *SUMS,
    *SURVIVORS,
    *TRANSACTIONS,
    *WIRE,
    *METADATA,
    *WRITING,
    *COMPACTOR,
    *STORES,
    *READING,
    *ZONES,
    *GONE,
    *SWEEPS,
    *TLS,
    *COORDINATORS,
    *UPGRADES,
    *WALKS,
    *COMMITTED_READS,
    *CLOCKWORK,
    *ERASING,
    *ASKED,
)
