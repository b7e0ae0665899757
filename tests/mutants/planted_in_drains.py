"""Mutants in how an agent that stops parts from its clients."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SENT_AWAY = "tests/integration/agents/test_sent_away.py"
DRAINING = "tests/unit/agents/test_draining.py"
MEMBERSHIP = "tests/unit/agents/test_membership.py"
DRAINS = (
    Mutant(
        name="an-agent-that-stops-takes-records-to-its-end",
        file="agents/handlers/produce.py",
        text="    if broker.draining.sends_away and request.acks:\n        return _MOVED\n",
        replacement="",
        tests=(
            f"{SENT_AWAY}::test_records_and_fetches_are_refused_and_all_else_is_answered",
            f"{SENT_AWAY}::test_answers_keep_their_order_so_that_no_refusal_overtakes_an_acknowledgement",
        ),
    ),
    Mutant(
        name="an-agent-that-stops-refuses-records-without-acks",
        file="agents/handlers/produce.py",
        text="    if broker.draining.sends_away and request.acks:\n",
        replacement="    if broker.draining.sends_away:\n",
        tests=(f"{SENT_AWAY}::test_a_writer_without_acks_is_served_and_then_cut_off",),
    ),
    Mutant(
        name="a-writer-without-acks-is-never-sent-away",
        file="agents/handlers/produce.py",
        text="    if refused or broker.draining.sends_away:\n",
        replacement="    if refused:\n",
        tests=(f"{SENT_AWAY}::test_a_writer_without_acks_is_served_and_then_cut_off",),
    ),
    Mutant(
        name="a-fetch-that-waits-is-not-let-go",
        file="agents/agent.py",
        text="            self._parked_readers.wake_all()\n",
        replacement="",
        tests=(f"{SENT_AWAY}::test_records_and_fetches_are_refused_and_all_else_is_answered",),
    ),
    Mutant(
        name="an-agent-that-stops-serves-fetches-to-its-end",
        file="agents/handlers/fetch.py",
        text="    if broker.draining.sends_away:\n        # The first",
        replacement="    if False:\n        # The first",
        tests=(f"{SENT_AWAY}::test_records_and_fetches_are_refused_and_all_else_is_answered",),
    ),
    Mutant(
        name="a-client-with-an-unread-refusal-counts-as-told",
        file="agents/draining.py",
        text="talks[index].works and not talks[index].is_told for index in close",
        replacement="False for index in close",
        tests=(f"{DRAINING}::test_one_that_may_not_know_the_others_is_closed_and_may_come_back_to_the_end",),
    ),
    Mutant(
        name="a-client-that-was-cut-off-is-owed-nothing",
        file="agents/connections/connection.py",
        text="            self._broker.draining.owes = True\n",
        replacement="            pass\n",
        tests=(f"{SENT_AWAY}::test_a_reader_that_sleeps_is_cut_off_and_finds_the_agent_again_to_ask",),
    ),
    Mutant(
        name="a-connection-is-silent-from-its-request-on",
        file="agents/connections/connection.py",
        text="        elapsed_ms = self.activity.talked_ms - slot.started_ms\n",
        replacement="        elapsed_ms = self.activity.talked_ms - slot.started_ms\n"
        "        self.activity.talked_ms = slot.started_ms\n",
        tests=(f"{SENT_AWAY}::test_a_connection_is_not_silent_while_its_client_takes_in_an_answer_that_took_long",),
    ),
    Mutant(
        name="after-an-outage-an-agent-takes-itself-for-the-last",
        file="agents/membership.py",
        text="            if self._lists_to_pass is None:\n                self._see(others)\n",
        replacement="            self._see(others)\n",
        tests=(
            f"{MEMBERSHIP}::test_after_an_outage_longer_than_a_lease_one_that_drains_does_not_take_itself_for_the_last",
        ),
    ),
    Mutant(
        name="a-third-process-of-one-address-waits-for-ever",
        file="agents/registration.py",
        text="            seen = taken\n",
        replacement="            seen = seen or taken\n",
        tests=(
            "tests/unit/agents/test_registration.py::test_of_two_that_wait_for_a_killed_one_one_runs_and_one_gives_up",
        ),
    ),
    Mutant(
        name="clients-of-the-last-agent-are-sent-to-itself",
        file="agents/draining.py",
        text="while not (self._hurry.is_set() or self._others.is_last):",
        replacement="while not self._hurry.is_set():",
        tests=(f"{DRAINING}::test_the_last_agent_sends_nobody_to_itself",),
    ),
    Mutant(
        name="a-second-signal-changes-nothing",
        file="agents/draining.py",
        text="while not (self._hurry.is_set() or self._others.is_last):",
        replacement="while not self._others.is_last:",
        tests=(f"{DRAINING}::test_a_second_signal_ends_it",),
    ),
    Mutant(
        name="tools-ask-the-load-balancer-as-a-broker",
        file="agents/handlers/metadata_api.py",
        text="        yield BOOTSTRAP_NODE_ID, bootstrap.host,",
        replacement="        yield asked.agents[0].writer_id, bootstrap.host,",
        tests=(f"{SENT_AWAY}::test_the_load_balancer_is_one_more_broker_that_leads_nothing",),
    ),
    Mutant(
        name="a-command-stays-at-an-agent-that-stops",
        file="siltstone/kafka/retrying.py",
        text="                elif _is_sent_away(error):\n                    await self._move()\n",
        replacement="",
        tests=(f"{SENT_AWAY}::test_commands_go_on_at_another_agent",),
    ),
)
