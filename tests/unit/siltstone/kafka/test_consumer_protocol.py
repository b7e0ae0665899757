"""Subscriptions and assignments as other clients write and read them, and bytes that are neither."""

from __future__ import annotations

from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from siltstone.kafka.groups.consumer_protocol import assignment as encoded_assignment
from siltstone.kafka.groups.consumer_protocol import parse_assignment, parse_subscription, subscription

NAMES = st.text(st.characters(codec="ascii", exclude_categories=["C"]), min_size=1, max_size=12)
ASSIGNMENTS = st.dictionaries(NAMES, st.lists(st.integers(0, 2**31 - 1), max_size=5), max_size=4)


@given(ASSIGNMENTS, st.binary(max_size=8))
def test_what_another_client_writes_is_read(assignment: dict[str, list[int]], user_data: bytes) -> None:
    written = ConsumerProtocolMemberAssignment(0, list(assignment.items()), user_data).encode()
    assert parse_assignment(written) == {topic: tuple(numbers) for topic, numbers in assignment.items()}


def test_no_bytes_are_an_empty_assignment() -> None:
    assert parse_assignment(b"") == {}


@given(st.binary(max_size=80))
def test_other_bytes_are_none_and_no_error(data: bytes) -> None:
    found = parse_assignment(data)
    assert found is None or all(isinstance(topic, str) for topic in found)


@given(ASSIGNMENTS.filter(bool), st.integers(0, 400))
def test_an_assignment_that_is_cut_short_is_none(assignment: dict[str, list[int]], cut: int) -> None:
    written = ConsumerProtocolMemberAssignment(0, list(assignment.items()), None).encode()[:-4]  # user data, null
    kept = written[: min(cut, len(written) - 1)]
    assert not kept or parse_assignment(kept) is None


@given(ASSIGNMENTS)
def test_another_client_reads_what_is_written(assignment: dict[str, list[int]]) -> None:
    read = ConsumerProtocolMemberAssignment.decode(encoded_assignment(assignment))
    assert dict(read.assignment) == assignment
    topics = ConsumerProtocolMemberMetadata.decode(subscription(assignment))
    assert topics.subscription == sorted(assignment)


@given(st.lists(NAMES, max_size=4), st.binary(max_size=8), st.integers(0, 3))
def test_a_subscription_of_another_client_is_read(topics: list[str], user_data: bytes, version: int) -> None:
    written = ConsumerProtocolMemberMetadata(version, topics, user_data).encode()
    assert parse_subscription(written + b"what later versions add"[: 8 * version]) == topics


@given(st.binary(max_size=80))
def test_other_bytes_are_no_subscription_and_no_error(data: bytes) -> None:
    found = parse_subscription(data)
    assert found is None or all(isinstance(topic, str) for topic in found)
