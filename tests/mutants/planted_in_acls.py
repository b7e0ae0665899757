"""Mutants in what clients may do."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

RULES = "tests/unit/security/acls/test_matcher.py"
EVERY_API = "tests/integration/agents/acls/test_every_api.py"
DATA = "tests/integration/agents/acls/test_data_apis.py"
ACL_APIS = "tests/integration/agents/acls/test_acl_apis.py"
REVOCATION = "tests/integration/agents/acls/test_revocation.py"
FOLLOWER = "tests/unit/agents/tail/test_follower.py"
FRESHNESS = "tests/unit/agents/security/test_freshness.py"
AS_KAFKA = "tests/integration/agents/acls/test_as_kafka_answers.py"
AUTHORIZER = "tests/unit/agents/security/test_authorizer.py"
ACLS = (
    Mutant(
        name="an-allow-outweighs-a-deny",
        file="security/acls/matcher.py",
        text="    return bool(held & _ALLOWS[operation]) and not held & _DENIES[operation]\n",
        replacement="    return bool(held & _ALLOWS[operation])\n",
        tests=(f"{RULES}::test_a_denial_wins_over_every_allowance",),
    ),
    Mutant(
        name="a-client-that-is-allowed-all-topics-by-star-sees-denied-ones",
        file="security/acls/matcher.py",
        text="            if table.denials:\n                return False\n",
        replacement="",
        tests=(f"{RULES}::test_a_denial_wins_over_every_allowance",),
    ),
    Mutant(
        name="a-fetch-that-waited-keeps-its-right",
        file="agents/handlers/fetch.py",
        text="        await _refuse_again(broker, rights, parts)\n",
        replacement="        pass\n",
        tests=(
            f"{DATA}::test_a_fetch_that_waits_loses_its_right_before_it_is_answered",
            f"{REVOCATION}::test_a_fetch_that_loses_its_right_while_it_reads_tells_no_records",
        ),
    ),
    Mutant(
        name="acls-are-not-taken-in-before-files",
        file="agents/tail/follower.py",
        text="""            await self._callbacks.security.take_in(tail.changes)
        # Own commits""",
        replacement="""            pass
        # Own commits""",
        tests=(f"{FOLLOWER}::test_users_and_acls_are_taken_in_before_the_files_of_the_same_answer",),
    ),
    Mutant(
        name="requests-begin-after-the-end-of-the-lease",
        file="agents/connections/connection.py",
        text="            or is_held(self._frames[0], self.client, self._gate, self._broker.freshness, now_ms)\n",
        replacement="",
        tests=(f"{REVOCATION}::test_nobody_is_judged_by_what_was_known_before_the_lease_ended",),
    ),
    Mutant(
        name="requests-go-on-while-the-store-is-away",
        file="agents/security/freshness.py",
        text="        return not self._is_away or self._binds(client)\n",
        replacement="        return not self._is_away\n",
        tests=(
            f"{FRESHNESS}::test_while_the_store_is_away_those_wait_from_whom_it_can_take_something",
            f"{REVOCATION}::test_nobody_is_judged_by_what_was_known_before_the_lease_ended",
        ),
    ),
    Mutant(
        name="a-read-from-before-the-lease-ran-again-counts",
        file="agents/security/freshness.py",
        text="LEASE_MS - MARGIN_MS and self._knowledge.heard_ms >= lease.lapsed_ms\n",
        replacement="LEASE_MS - MARGIN_MS\n",
        tests=(f"{FRESHNESS}::test_what_was_read_before_the_lease_ran_again_is_not_enough",),
    ),
    Mutant(
        name="a-fetch-that-waited-past-the-lease-tells-records",
        file="agents/handlers/fetch.py",
        text="    if broker.holds(asking):\n",
        replacement="    if False:\n",
        tests=(f"{REVOCATION}::test_a_fetch_that_waited_past_the_lease_tells_no_records",),
    ),
    Mutant(
        name="a-session-is-judged-once",
        file="agents/handlers/fetch.py",
        text="        if part.allowed_by is rights:\n",
        replacement="        if part.allowed_by is not None:\n",
        tests=(
            f"{DATA}::test_a_session_is_judged_by_the_present_acls_at_each_fetch",
            f"{DATA}::test_another_client_does_not_inherit_the_rights_of_a_session",
        ),
    ),
    Mutant(
        name="a-named-topic-that-may-not-be-described-is-told-to-be-absent",
        file="agents/handlers/metadata_api.py",
        text="    return MetadataResponseTopic(error_code=error, name=wanted.name, topic_id=ZERO_UUID)\n\n\n",
        replacement="    return None\n\n\n",
        tests=(f"{EVERY_API}::test_who_may_do_nothing_is_refused_everything_with_kafkas_codes",),
    ),
    Mutant(
        name="a-deletion-is-answered-before-others-have-heard-of-it",
        file="agents/broker.py",
        text="        if not await self.security.applied_everywhere(change_id, TAKEN_IN_MS_MAX):\n",
        replacement="        if change_id < 0:\n",
        tests=(f"{ACL_APIS}::test_a_right_is_at_every_agent_when_it_is_answered_and_gone_when_its_deletion_is",),
    ),
    Mutant(
        name="rights-outlive-a-change-of-acls",
        file="agents/security/rights.py",
        text="self._matcher is matcher and self._generation == matcher.generation and self._principal == principal",
        replacement="self._matcher is matcher and self._principal == principal",
        tests=(f"{AUTHORIZER}::test_rights_are_kept_on_the_connection_until_the_acls_change",),
    ),
    Mutant(
        name="who-may-delete-need-not-be-told-that-a-topic-is-there",
        file="agents/handlers/delete_topics.py",
        text="            _check_allowed(broker, Operation.DESCRIBE, wanted.name)\n",
        replacement="            _check_allowed(broker, Operation.DELETE, wanted.name)\n",
        tests=(f"{AS_KAFKA}::test_who_may_describe_a_topic_hears_that_there_is_none_to_delete",),
    ),
    Mutant(
        name="a-refused-group-is-answered-topic-by-topic",
        file="agents/handlers/offset_fetch.py",
        text="        if version >= _ERROR_SINCE:\n",
        replacement="        if version > 7:\n",
        tests=(f"{AS_KAFKA}::test_offsets_of_a_refused_group_are_refused_without_naming_a_topic",),
    ),
)
