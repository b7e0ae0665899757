"""Assign partitions to the members of a consumer group, as Kafka's default RangeAssignor does. Pure.

For each topic, the members that want it, sorted by id, get consecutive partitions; if the division leaves a rest, the
first members get one more. So if the same members want two topics of the same size, partitions with the same number go
to the same member.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

PROTOCOL = "range"


def assign(
    subscriptions: Mapping[str, Collection[str]], partition_counts: Mapping[str, int]
) -> Mapping[str, Mapping[str, Sequence[int]]]:
    """The partitions by topic, by member, for every member. `subscriptions`: topics by member. A topic without a count
    does not exist, so nobody gets it."""
    given: dict[str, dict[str, Sequence[int]]] = {member: {} for member in subscriptions}
    for topic, count in partition_counts.items():
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        if not members:
            continue
        first = 0
        for number, member in enumerate(members):
            # The first members take the rest of the division, one partition each, as Kafka's assignor does.
            share = count // len(members) + (number < count % len(members))
            if share:
                given[member][topic] = range(first, first + share)
            first += share
    return given
