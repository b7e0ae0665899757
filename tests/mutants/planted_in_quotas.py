"""Mutants in what holds clients to their quotas."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

UNIT = "tests/unit/agents/quotas/test_throttle.py"
ENFORCED = "tests/integration/agents/quotas/test_quotas_enforced.py"
SHARING = "tests/unit/agents/quotas/test_sharing.py"
SHARED = "tests/property/test_quota_sharing.py"
QUOTAS = (
    Mutant(
        name="a-fetch-that-waited-is-read-over-the-quota",
        file="agents/handlers/fetch.py",
        text="    if not broker.throttle.fetch_bytes_max():\n",
        replacement="    if False:\n",
        tests=(f"{ENFORCED}::test_a_fetch_that_waited_reads_nothing_if_the_quota_is_used_up_meanwhile",),
    ),
    Mutant(
        name="an-empty-answer-opens-a-session",
        file="agents/read/sessions.py",
        text="        context.opens = None\n        for part",
        replacement="        for part",
        tests=(f"{ENFORCED}::test_a_fetch_over_the_quota_reads_nothing_and_goes_on_when_it_may",),
    ),
    Mutant(
        name="who-waits-is-served-all-the-same",
        file="agents/connections/connection.py",
        text="            or self.client.mute.on\n",
        replacement="",
        tests=(f"{ENFORCED}::test_who_waits_is_not_read_and_others_are_served",),
    ),
    Mutant(
        name="a-mute-that-was-made-longer-ends-at-its-first-time",
        file="agents/quotas/mute.py",
        text="        left_ms = self.left_ms()\n        if left_ms > 0:\n",
        replacement="        left_ms = self.left_ms()\n        if left_ms < 0:\n",
        tests=(
            "tests/unit/agents/quotas/test_mute.py::test_a_mute_that_is_made_longer_ends_once_and_not_before_its_time",
        ),
    ),
    Mutant(
        name="a-change-of-quotas-leaves-the-old-waits",
        file="agents/quotas/throttle.py",
        text="            mute.end()\n",
        replacement="            pass\n",
        tests=(f"{UNIT}::test_a_change_of_quotas_ends_the_waits_under_the_old_ones",),
    ),
    Mutant(
        name="partitions-are-forgiven-after-ten-seconds",
        file="agents/quotas/throttle.py",
        text="Buckets(math.inf if key in _LASTING else BURST_S, ",
        replacement="Buckets(",
        tests=(f"{UNIT}::test_partitions_are_owed_in_full_and_refused_only_to_clients_that_know_the_error",),
    ),
    Mutant(
        name="the-steps-of-a-handler-after-its-first-count-nothing",
        file="agents/quotas/meter.py",
        text="        return _Steps(result, self) if asyncio.iscoroutine(result) else result\n",
        replacement="        return result\n",
        tests=(f"{UNIT}::test_the_time_of_the_loop_counts_and_waits_do_not",),
    ),
    Mutant(
        name="a-client-that-waits-asks-for-no-more-than-it-gets",
        file="security/quotas/bucket.py",
        text="        is_short = self._was_short or self._tokens < 0\n",
        replacement="        is_short = False\n",
        tests=(f"{SHARED}::test_a_small_demand_that_becomes_a_large_one_has_as_much_within_some_beats",),
    ),
    Mutant(
        name="what-is-owed-is-no-demand",
        file="security/quotas/bucket.py",
        text="        is_short = self._was_short or self._tokens < 0\n",
        replacement="        is_short = self._was_short\n",
        tests=(f"{SHARING}::test_a_client_that_owes_wants_all_until_it_is_even",),
    ),
    Mutant(
        name="a-quota-is-shared-in-proportion-to-demand",
        file="security/quotas/sharing.py",
        text="    fair = own / total if total <= 1 else min(own, level)\n",
        replacement="    fair, level = own / total, own / total\n",
        tests=(f"{SHARED}::test_modest_demands_are_met_and_nothing_swings",),
    ),
    Mutant(
        name="a-part-that-grew-leaves-the-old-waits",
        file="agents/quotas/throttle.py",
        text="                mute.shorten(",
        replacement="                (",
        tests=(f"{SHARING}::test_the_wait_is_shorter_when_the_part_has_grown_and_no_longer_when_it_shrinks",),
    ),
    Mutant(
        name="a-share-that-rests-keeps-its-part",
        file="security/quotas/bucket.py",
        text="            bucket.divide(self.part, now_ms)\n            self._active",
        replacement="            self._active",
        tests=(f"{SHARING}::test_shares_at_rest_are_not_looked_at_again",),
    ),
    Mutant(
        name="parts-stand-for-ever-while-the-store-is-away",
        file="agents/quotas/sharing.py",
        text="        if now_ms - self._heard_ms > LEASE_MS:\n",
        replacement="        if False:\n",
        tests=(f"{SHARED}::test_parts_stand_while_the_store_is_away_and_are_even_after_a_lease",),
    ),
    Mutant(
        name="the-demands-of-a-lease-before-count",
        file="metadata/postgres/security/demands.py",
        text=" AND q.epoch = a.epoch",
        replacement="",
        tests=("tests/contract/test_demands.py::test_an_agent_counts_for_as_long_as_its_lease_runs",),
    ),
)
