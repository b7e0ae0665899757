"""Mutants in what holds clients to their quotas."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

UNIT = "tests/unit/agents/quotas/test_throttle.py"
ENFORCED = "tests/integration/agents/quotas/test_quotas_enforced.py"
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
        text="Buckets(math.inf if key in _LASTING else BURST_S)",
        replacement="Buckets()",
        tests=(f"{UNIT}::test_partitions_are_owed_in_full_and_refused_only_to_clients_that_know_the_error",),
    ),
    Mutant(
        name="the-steps-of-a-handler-after-its-first-count-nothing",
        file="agents/quotas/meter.py",
        text="        return _Steps(result, self) if asyncio.iscoroutine(result) else result\n",
        replacement="        return result\n",
        tests=(f"{UNIT}::test_the_time_of_the_loop_counts_and_waits_do_not",),
    ),
)
