"""Mutants in what an agent tells clients about topics."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

SEVERAL_AGENTS = "tests/integration/agents/test_several_agents.py"
ANSWERS = (
    Mutant(
        name="every-topic-has-one-replica",
        file="agents/placement.py",
        text="found.append([node_id, *others[: count - 1]] if node_id >= 0 else [])",
        replacement="found.append([node_id] if node_id >= 0 else [])",
        tests=(
            f"{SEVERAL_AGENTS}::test_replicas_are_as_many_as_asked_for_and_no_more_than_live_agents",
            "tests/unit/agents/test_placement.py::test_replicas_are_the_leader_and_the_next_in_line_in_any_order_of_the_list",
        ),
    ),
    Mutant(
        name="a-replica-of-another-zone-is-shown-after-it-left",
        file="agents/topics/topic_entries.py",
        text="if topic.replication_factor > 1]",
        replacement="if topic.replication_factor > 5]",
        tests=(
            "tests/property/test_metadata_answers.py::test_agents_of_another_zone_change_little_for_a_zone_and_old_views_go",
        ),
    ),
    Mutant(
        name="the-number-of-replicas-is-not-stored",
        file="metadata/postgres/log/topics.py",
        text="                replication_factor=replication_factor,\n            )\n            try:",
        replacement="            )\n            try:",
        tests=("tests/contract/test_metadata_topics.py::test_a_topic_is_made_described_changed_and_deleted",),
    ),
    Mutant(
        name="librdkafka-waits-for-transactions",
        file="agents/handlers/find_coordinator.py",
        text="_LIBRDKAFKA_VERSION = 2",
        replacement="_LIBRDKAFKA_VERSION = 99",
        tests=("tests/integration/agents/test_bad_input.py::test_a_transactional_id_is_refused",),
    ),
)
