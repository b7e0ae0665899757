"""Mutants in who coordinates transactions, and how they end."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

UNIT = "tests/unit/agents/transactions"
COORDINATOR, ENDS, TIMEOUTS = (f"{UNIT}/test_{name}.py" for name in ("coordinator", "ends", "timeouts"))
REQUESTS = "tests/integration/agents/transactions/test_transaction_requests.py"
TRANSACTIONS = (
    Mutant(
        name="a-list-ends-one-id-twice",
        file="agents/transactions/ends.py",
        text="if len(taken) < limit and each.end.transactional_id not in ids:",
        replacement="if len(taken) < limit:",
        tests=(f"{ENDS}::test_a_list_has_one_end_of_an_id_and_the_others_keep_their_order",),
    ),
    Mutant(
        name="an-end-in-doubt-goes-under-a-new-key",
        file="agents/transactions/ends.py",
        text="                backoff_ms = min(backoff_ms * 2, BACKOFF_MS_MAX)\n                continue\n",
        replacement="                raise WriterFencedError(str(error)) from error\n",
        tests=(f"{ENDS}::test_an_end_in_doubt_is_repeated_under_its_key_and_the_next_list_waits",),
    ),
    Mutant(
        name="an-end-that-is-refused-takes-the-others-with-it",
        file="agents/transactions/ends.py",
        text="                if len(taken) == 1:\n",
        replacement="                if taken:\n",
        tests=(f"{ENDS}::test_one_that_is_refused_does_not_take_the_others_with_it",),
    ),
    Mutant(
        name="a-producer-that-cannot-be-spoils-the-list-of-ends",
        file="agents/transactions/coordinator.py",
        text="        if not 0 <= producer_epoch <= PRODUCER_EPOCH_MAX:\n",
        replacement="        if not -1 <= producer_epoch <= PRODUCER_EPOCH_MAX + 1:\n",
        tests=(f"{COORDINATOR}::test_a_producer_that_cannot_be_ends_nothing",),
    ),
    Mutant(
        name="a-fenced-lease-is-kept",
        file="agents/transactions/coordinator.py",
        text=(
            'another agent took it", transactional_id=transactional_id)\n'
            "            self._leases.pop(transactional_id, None)\n"
        ),
        replacement='another agent took it", transactional_id=transactional_id)\n',
        tests=(f"{COORDINATOR}::test_an_id_that_moves_and_comes_back_is_taken_again",),
    ),
    Mutant(
        name="a-lease-in-doubt-is-kept",
        file="agents/transactions/coordinator.py",
        text=('        self._leases.pop(transactional_id, None)\n        _log.warning("transactional id given up"'),
        replacement='        _log.warning("transactional id given up"',
        tests=(f"{COORDINATOR}::test_a_write_in_doubt_is_answered_so_and_the_id_is_taken_again",),
    ),
    Mutant(
        name="an-id-that-moved-during-its-take-is-coordinated",
        file="agents/transactions/coordinator.py",
        text="            if version != self._membership.version:\n",
        replacement="            if not version:\n",
        tests=(f"{COORDINATOR}::test_a_take_during_which_the_id_moved_is_answered_by_nobody",),
    ),
    Mutant(
        name="a-request-of-a-client-that-is-gone-is-given-up-half-way",
        file="agents/transactions/coordinator.py",
        text="        return await asyncio.shield(task)\n",
        replacement="        return await task\n",
        tests=(f"{COORDINATOR}::test_a_request_of_a_client_that_is_gone_is_carried_out_before_its_next",),
    ),
    Mutant(
        name="an-agent-that-goes-leaves-ends-under-way",
        file="agents/transactions/coordinator.py",
        text="        while self._tasks:\n            await asyncio.wait(self._tasks)\n",
        replacement="",
        tests=(f"{COORDINATOR}::test_an_agent_that_goes_serves_what_it_holds_until_it_is_drained_and_nothing_else",),
    ),
    Mutant(
        name="every-agent-aborts-what-is-overdue-at-once",
        file="agents/transactions/timeouts.py",
        text="each.started_ms + each.timeout_ms + ABANDONED_MS <= now_ms",
        replacement="each.started_ms + each.timeout_ms <= now_ms",
        tests=(f"{TIMEOUTS}::test_an_agent_aborts_its_own_at_once_and_those_of_others_when_they_are_abandoned",),
    ),
    Mutant(
        name="a-feature-from-0-is-told-to-clients-that-cannot-read-it",
        file="agents/handlers/api_versions.py",
        text="        if version >= 4:\n",
        replacement="        if version >= 3:\n",
        tests=(f"{REQUESTS}::test_clients_hear_that_they_may_use_the_second_protocol",),
    ),
    Mutant(
        name="a-fenced-producer-of-an-old-version-hears-a-new-error",
        file="agents/transactions/checks.py",
        text="version < fenced_since",
        replacement="version < fenced_since - 1",
        tests=(
            f"{REQUESTS}::test_a_fenced_producer_hears_it_in_words_that_its_version_knows",
            f"{REQUESTS}::test_so_it_does_when_it_adds_and_ends",
        ),
    ),
    Mutant(
        name="an-operator-aborts-a-transaction-for-a-partition-that-is-not-in-it",
        file="agents/handlers/write_txn_markers.py",
        text=" or not any(id_ in seen.partitions for id_ in named)",
        replacement="",
        tests=(f"{REQUESTS}::test_a_transaction_is_not_aborted_for_a_partition_that_is_not_in_it",),
    ),
)
