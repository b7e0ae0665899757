"""Bugs in what agents know of transactions, and in what readers of committed records get."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_INDEX = "tests/unit/agents/tail/test_transactions.py"
_MODEL = "tests/property/test_transactions_in_the_index.py::test_the_index_knows_what_a_plain_model_knows"
_FOLLOWER = "tests/unit/agents/tail/test_follower_transactions.py"
_PLANS = "tests/unit/agents/read/test_committed_plans.py"
_READS = "tests/unit/agents/read/test_committed_reads.py"
_HISTORIES = "tests/property/test_committed_reads.py::test_committed_records_arrive_and_no_others"
_WIRE = "tests/integration/write_and_read/test_read_committed.py"

COMMITTED_READS = (
    Mutant(
        name="what-is-stable-ends-at-the-end",
        file="agents/tail/log_index.py",
        text="        return min(self.end, max(self.start, self.transactions.first_open))\n",
        replacement="        return self.end\n",
        tests=(_MODEL, _HISTORIES),
    ),
    Mutant(
        name="dead-files-begin-and-end-no-transactions",
        file="agents/tail/log_index.py",
        text="rows_by_partition(txn_rows) if txn_rows else _NO_ROWS",
        replacement="rows_by_partition(txn_rows) if txn_rows and live else _NO_ROWS",
        tests=(f"{_INDEX}::test_the_rows_of_files_that_were_merged_before_they_were_heard_of_count", _MODEL),
    ),
    Mutant(
        name="transactions-end-before-the-gap-in-front-of-their-marker-is-closed",
        file="agents/tail/log_index.py",
        text="_transactions_of(log).waiting[row.base_offset] = transactions[row.partition_id]",
        replacement="_transactions_of(log).apply(transactions[row.partition_id])",
        tests=(f"{_INDEX}::test_markers_that_are_heard_of_first_end_nothing_before_their_records_are_seen", _MODEL),
    ),
    Mutant(
        name="a-cold-start-keeps-what-was-merged-meanwhile",
        file="agents/tail/follower.py",
        text="        for _ in index.drop_files(merged):\n",
        replacement="        for _ in index.drop_files(()):\n",
        tests=(f"{_FOLLOWER}::test_what_was_merged_and_forgotten_during_a_cold_start_is_not_read_from_l0",),
    ),
    Mutant(
        name="an-old-look-up-says-all-that-was-aborted",
        file="agents/read/leveled.py",
        text="(offset < self.from_offset or aborted_from > self.aborted_to)",
        replacement="offset < self.from_offset",
        tests=(f"{_PLANS}::test_once_the_index_has_forgotten_what_was_aborted_since_merged_files_are_looked_up_again",),
    ),
    Mutant(
        name="a-look-up-from-further-up-says-all-that-was-aborted",
        file="agents/read/leveled.py",
        text="(offset < self.from_offset or aborted_from > self.aborted_to)",
        replacement="aborted_from > self.aborted_to",
        tests=(f"{_PLANS}::test_a_look_up_from_further_up_says_nothing_of_what_ended_below", _HISTORIES),
    ),
    Mutant(
        name="the-index-speaks-for-merged-files-too",
        file="agents/read/plan.py",
        text="plan.add_aborted(aborted, max(offset, merged.aborted_to), found.next_offset)",
        replacement="plan.add_aborted(aborted, offset, found.next_offset)",
        tests=(f"{_PLANS}::test_of_a_merged_extent_the_index_says_nothing_that_the_look_up_did_not_say",),
    ),
    Mutant(
        name="the-list-goes-on-behind-the-answer",
        file="agents/read/plan.py",
        text="(self._aborted or {}).values() if each.first_offset < end]",
        replacement="(self._aborted or {}).values()]",
        tests=(f"{_READS}::test_the_list_ends_where_the_answer_ends", _HISTORIES),
    ),
    Mutant(
        name="the-list-is-in-the-order-of-markers",
        file="agents/read/plan.py",
        text="        return sorted(found, key=_first_offset)\n",
        replacement="        return found\n",
        tests=(f"{_PLANS}::test_the_list_names_what_may_have_records_in_the_answer_by_first_offset", _HISTORIES),
    ),
    Mutant(
        name="markers-are-read-ahead-from-the-store",
        file="agents/read/pools.py",
        text="        return not where.inline and not self.is_hot(where)\n",
        replacement="        return not self.is_hot(where)\n",
        tests=(f"{_READS}::test_markers_come_from_memory_however_old_they_are_and_carry_their_own_offsets",),
    ),
    Mutant(
        name="bytes-above-what-is-stable-end-the-wait",
        file="agents/handlers/fetch.py",
        text="_bytes_at_hand(parts, bytes_min, committed_only=committed_only)",
        replacement="_bytes_at_hand(parts, bytes_min, committed_only=False)",
        tests=(f"{_WIRE}::test_a_reader_at_the_last_stable_offset_waits_until_the_transaction_ends",),
    ),
    Mutant(
        name="a-timestamp-is-found-above-what-is-stable",
        file="agents/handlers/list_offsets.py",
        text="asking.committed_only and found is not None and found.offset >= end",
        replacement="asking.committed_only and found is not None and found.offset > end",
        tests=(f"{_WIRE}::test_offsets_are_listed_up_to_the_last_stable_offset",),
    ),
)
