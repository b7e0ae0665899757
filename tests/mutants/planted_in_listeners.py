"""Bugs of listeners: clients are told what only others can reach, or served what was set to be secured."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

_AGENTS = "tests/integration/agents/test_listeners.py"
_ANSWERS = "tests/property/test_metadata_answers.py"
_ENTRIES = "tests/unit/agents/topics/test_topic_entries.py"
_SETTINGS = "tests/unit/runtime/test_settings_listeners.py"


LISTENERS = (
    Mutant(
        name="coordinators-are-told-at-the-address-of-the-agent",
        file="agents/handlers/find_coordinator.py",
        text="node_id=owner.writer_id, host=endpoint.host, port=endpoint.port",
        replacement="node_id=owner.writer_id, host=owner.address.host, port=owner.address.port",
        tests=(f"{_AGENTS}::test_a_coordinator_without_the_listener_is_not_available_by_it",),
    ),
    Mutant(
        name="brokers-are-told-at-the-address-of-the-agent",
        file="agents/handlers/metadata_api.py",
        text="yield agent.writer_id, endpoint.host, endpoint.port,",
        replacement="yield agent.writer_id, agent.address.host, agent.address.port,",
        tests=(
            f"{_AGENTS}::test_real_clients_work_by_the_endpoints_of_their_listener_alone",
            f"{_ANSWERS}::test_answers_are_those_that_would_be_made_anew",
        ),
    ),
    Mutant(
        name="partitions-are-led-by-agents-that-the-client-cannot-reach",
        file="agents/handlers/metadata_api.py",
        text="    named = eligible(agents, ",
        replacement="    named = eligible(broker.membership.agents, ",
        tests=(f"{_AGENTS}::test_an_agent_without_the_listener_is_left_out_of_what_its_clients_are_told",),
    ),
    Mutant(
        name="the-load-balancer-is-told-on-every-listener",
        file="agents/handlers/metadata_api.py",
        text=" and asked.listener == asked.broker.listeners[0]",
        replacement="",
        tests=(f"{_AGENTS}::test_the_load_balancer_is_told_to_clients_of_the_first_listener",),
    ),
    Mutant(
        name="replicas-of-before-stay-in-a-listeners-answers",
        file="agents/topics/topic_entries.py",
        text="            self._drop_replicated(kept)\n",
        replacement="",
        tests=(f"{_ENTRIES}::test_an_agent_of_another_zone_costs_a_listener_its_replicated_topics_alone",),
    ),
    Mutant(
        name="what-a-listener-does-not-reach-empties-its-answers",
        file="agents/topics/topic_entries.py",
        text="            if old.live_ids in live:\n                continue\n",
        replacement="",
        tests=(f"{_ENTRIES}::test_an_agent_that_clients_of_a_listener_cannot_reach_changes_nothing_for_them",),
    ),
    Mutant(
        name="authenticated-clients-need-no-encryption",
        file="runtime/settings/listener_checks.py",
        text="insecure or (listener.authenticates and listener.encrypts)",
        replacement="insecure or listener.authenticates or listener.encrypts",
        tests=(f"{_SETTINGS}::test_an_address_for_other_machines_wants_authentication_and_encryption_or_insecure",),
    ),
    Mutant(
        name="asked-for-certificates-count-as-required",
        file="runtime/settings/listeners.py",
        text='self.tls_client_auth == "required"',
        replacement='self.tls_client_auth != "none"',
        tests=(f"{_SETTINGS}::test_an_address_for_other_machines_wants_authentication_and_encryption_or_insecure",),
    ),
)
