"""Mutants in what clients are told about topics, transactions and a full disk."""

from __future__ import annotations

from tests.mutants.mutant import Mutant

FULL_DISK = "tests/integration/faults/test_full_disk.py"
UNKNOWN_TOPICS = "tests/integration/agents/test_unknown_topics.py"
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
        tests=(
            "tests/integration/agents/transactions/test_before_transactions.py::test_until_they_may_be_used_nothing_is_begun",
        ),
    ),
    Mutant(
        name="metadata-calls-a-topic-unknown-after-a-look-that-failed",
        file="agents/handlers/metadata_api.py",
        text="    if not await broker.present_topics.see():\n        return False, frozenset()\n",
        replacement="    await broker.present_topics.see()\n",
        tests=(f"{UNKNOWN_TOPICS}::test_while_the_store_does_not_answer_nothing_is_called_unknown",),
    ),
    Mutant(
        name="a-fetch-by-name-does-not-look",
        file="agents/topics/topic_ids.py",
        text="            topic = self._topic_cache.topic(key)\n",
        replacement="            return False\n",
        tests=(f"{UNKNOWN_TOPICS}::test_an_agent_that_has_not_heard_of_a_topic_looks_before_it_answers",),
    ),
    Mutant(
        name="a-partition-beyond-the-last-is-not-looked-for",
        file="agents/topics/topic_ids.py",
        text=" or highest >= len(topic.partition_ids)",
        replacement="",
        tests=(f"{UNKNOWN_TOPICS}::test_a_partition_that_was_added_elsewhere_is_looked_for",),
    ),
    Mutant(
        name="a-failed-look-counts-as-seen",
        file="agents/topics/present.py",
        text="        except (SiltstoneError, TimeoutError):\n            return False\n",
        replacement="        except (SiltstoneError, TimeoutError):\n            return True\n",
        tests=(f"{UNKNOWN_TOPICS}::test_while_the_store_does_not_answer_nothing_is_called_unknown",),
    ),
    Mutant(
        name="all-topics-are-listed-from-an-old-view",
        file="agents/handlers/metadata_api.py",
        text="if broker.follower.is_late:",
        replacement="if False:",
        tests=(
            f"{UNKNOWN_TOPICS}::test_an_agent_that_has_not_seen_the_store_for_a_while_looks_before_it_lists_all_topics",
        ),
    ),
    Mutant(
        name="a-look-under-way-is-shared-with-later-questions",
        file="agents/topics/present.py",
        text="        self._next = None\n        await self._catch_up()\n",
        replacement="        await self._catch_up()\n        self._next = None\n",
        tests=(
            "tests/unit/agents/topics/test_present.py"
            "::test_requests_that_come_together_share_a_look_and_later_ones_get_a_later_look",
        ),
    ),
    Mutant(
        name="a-wrong-name-hammers-the-store",
        file="agents/topics/present.py",
        text="if begins_ms > now_ms:",
        replacement="if False:",
        tests=(
            "tests/unit/agents/topics/test_present.py"
            "::test_a_client_that_clings_to_a_wrong_name_does_not_hammer_the_store",
        ),
    ),
    Mutant(
        name="changes-are-taken-in-twice",
        file="agents/tail/follower.py",
        text="if change.change_id > self._applied_id:",
        replacement="if True:",
        tests=(
            "tests/unit/agents/tail/test_follower.py"
            "::test_an_answer_that_was_taken_in_in_part_and_comes_again_takes_no_name_from_a_topic",
        ),
    ),
    Mutant(
        name="a-cold-start-forgets-own-commits",
        file="agents/tail/follower.py",
        text="for own in self._own_meanwhile or ():",
        replacement="for own in ():",
        tests=(
            "tests/unit/agents/tail/test_follower_snapshots.py"
            "::test_an_own_commit_that_a_snapshot_just_missed_stays_in_sight",
        ),
    ),
    Mutant(
        name="a-full-disk-is-asked-for-every-request",
        file="agents/write/full_store.py",
        text="return None if asks_again else self.reason",
        replacement="return None",
        tests=(f"{FULL_DISK}::test_producers_are_told_that_the_disk_is_full_and_writing_resumes",),
    ),
    Mutant(
        name="a-full-disk-is-for-ever",
        file="agents/write/full_store.py",
        text="return None if asks_again else self.reason",
        replacement="return self.reason",
        tests=(f"{FULL_DISK}::test_producers_are_told_that_the_disk_is_full_and_writing_resumes",),
    ),
    Mutant(
        name="records-take-the-space-of-postgres",
        file="storage/local.py",
        text="if free - size_bytes < reserve:",
        replacement="if free - size_bytes < 0:",
        tests=(f"{FULL_DISK}::test_a_directory_keeps_space_for_postgres_and_for_deletion",),
    ),
    Mutant(
        name="a-full-disk-stops-deletion",
        file="storage/local.py",
        text="if not key.startswith(_OF_RECORDS):",
        replacement="if False:",
        tests=(f"{FULL_DISK}::test_a_directory_keeps_space_for_postgres_and_for_deletion",),
    ),
)
