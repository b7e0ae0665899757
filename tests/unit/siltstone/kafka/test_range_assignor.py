"""Assignments compared with those of Kafka's RangeAssignor, for which aiokafka's stands in."""

from __future__ import annotations

from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from siltstone.kafka.groups.range_assignor import assign

TOPICS = ["a", "b", "c"]
SUBSCRIPTIONS = st.dictionaries(st.sampled_from("mnopqr"), st.sets(st.sampled_from(TOPICS)), min_size=1)
COUNTS = st.dictionaries(st.sampled_from(TOPICS), st.integers(1, 9))


class Cluster:
    def __init__(self, counts: dict[str, int]) -> None:
        self._counts = counts

    def partitions_for_topic(self, topic: str) -> set[int] | None:
        return set(range(self._counts[topic])) if topic in self._counts else None


@given(SUBSCRIPTIONS, COUNTS)
def test_each_partition_that_somebody_wants_has_one_reader_the_one_that_kafka_gives_it(
    subscriptions: dict[str, set[str]], counts: dict[str, int]
) -> None:
    given = {
        member: {topic: list(numbers) for topic, numbers in topics.items()}
        for member, topics in assign(subscriptions, counts).items()
    }
    metadata = {
        member: ConsumerProtocolMemberMetadata(0, sorted(topics), b"") for member, topics in subscriptions.items()
    }
    theirs = RangePartitionAssignor.assign(Cluster(counts), metadata)
    assert given == {
        member: {topic: numbers for topic, numbers in each.assignment if numbers} for member, each in theirs.items()
    }


def test_one_more_for_the_first_where_it_does_not_come_out_even() -> None:
    assert assign({"m": {"a"}, "n": {"a"}, "o": {"b"}}, {"a": 5, "b": 1}) == {
        "m": {"a": range(3)},
        "n": {"a": range(3, 5)},
        "o": {"b": range(1)},
    }
    assert assign({"m": {"gone"}}, {}) == {"m": {}}
