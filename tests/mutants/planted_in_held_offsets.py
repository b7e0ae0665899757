"""Mutants in the offsets that transactions hold for groups."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

COMMITS = "tests/unit/agents/groups/test_offset_commits.py"
JUDGED = "tests/unit/agents/groups/test_requests.py"
HELD = "tests/contract/test_transaction_offsets.py"
REQUESTS = "tests/integration/groups/test_transactional_offsets.py"

HELD_OFFSETS = (
    Mutant(
        name="a-new-generation-overtakes-offsets-on-their-way-into-a-transaction",
        file="agents/groups/offset_commits.py",
        text="        held = (each.commit for each in (*self._held_now, *self._to_hold))\n",
        replacement="        held = ()\n",
        tests=(
            f"{COMMITS}::test_a_group_is_settled_when_its_offsets_are_held",
            f"{REQUESTS}::test_a_new_generation_is_told_only_when_older_offsets_are_held",
        ),
    ),
    Mutant(
        name="a-group-that-was-taken-holds-offsets-for-its-last-owner",
        file="metadata/transactions/rules.py",
        text="    if group_epoch != request.group.epoch:\n",
        replacement="    if group_epoch is None:\n",
        tests=(
            f"{HELD}::test_the_owner_of_a_group_that_was_taken_writes_nothing",
            f"{REQUESTS}::test_a_fenced_owner_holds_nothing_and_forgets_the_group",
        ),
    ),
    Mutant(
        name="who-asks-for-stable-offsets-gets-the-old-ones",
        file="agents/handlers/offset_fetch.py",
        text="    if wanted.require_stable:\n",
        replacement="    if False:\n",
        tests=(
            f"{REQUESTS}::test_offsets_are_unstable_until_their_transaction_ends",
            f"{REQUESTS}::test_after_a_rebalance_the_offsets_are_unstable_until_the_end_and_the_zombie_is_out",
        ),
    ),
    Mutant(
        name="a-transaction-takes-offsets-of-any-member",
        file="agents/groups/group.py",
        text="        if event.generation < 0 and not event.member_id and event.instance_id is None:\n",
        replacement="        if event.producer is not None or (\n"
        "            event.generation < 0 and not event.member_id and event.instance_id is None\n        ):\n",
        tests=(
            f"{JUDGED}::test_who_says_which_member_it_is_is_checked_in_transactions_too",
            f"{JUDGED}::test_a_zombie_commits_nothing_once_the_next_generation_has_begun",
            f"{REQUESTS}::test_after_a_rebalance_the_offsets_are_unstable_until_the_end_and_the_zombie_is_out",
        ),
    ),
    Mutant(
        name="the-time-of-held-offsets-is-what-the-clock-says",
        file="metadata/postgres/transactions/offsets.py",
        text='                "written_ms": written_ms,\n',
        replacement='                "written_ms": sa.text("clock_ms()"),\n',
        tests=(
            f"{HELD}::test_offsets_count_although_the_clock_was_set_back",
            f"{HELD}::test_of_two_transactions_the_offset_that_was_written_later_stays",
        ),
    ),
    Mutant(
        name="a-transaction-wins-the-millisecond",
        file="metadata/migrations/versions/end_transactions_v1.sql",
        text="            WHERE group_offsets.committed_ms < excluded.committed_ms;\n",
        replacement="            WHERE group_offsets.committed_ms <= excluded.committed_ms;\n",
        tests=(f"{HELD}::test_a_plain_commit_in_the_same_millisecond_stays",),
    ),
    Mutant(
        name="deleted-offsets-come-back-when-the-transaction-ends",
        file="metadata/postgres/groups/offsets.py",
        text='    for table in ("transaction_offsets", "group_offsets")\n',
        replacement='    for table in ("group_offsets",)\n',
        tests=(
            f"{HELD}::test_deleted_offsets_do_not_come_back_at_the_end",
            f"{REQUESTS}::test_a_deleted_group_and_deleted_offsets_do_not_come_back_at_the_end",
        ),
    ),
    Mutant(
        name="an-offset-expires-under-a-transaction",
        file="metadata/postgres/groups/groups.py",
        text='        WHERE x.group_id = o.group_id AND x.topic_id = o.topic_id AND x.partition = o.partition)"""\n',
        replacement='        WHERE x.group_id = o.group_id AND x.topic_id = o.topic_id AND x.partition < 0)"""\n',
        tests=(f"{HELD}::test_an_offset_does_not_expire_while_a_transaction_holds_another_for_its_place",),
    ),
)
