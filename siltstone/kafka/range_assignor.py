"""Who of a consumer group reads which partitions, as Kafka's own default would have it. Pure.

Topic by topic, the members that want it, by their ids, get partitions that follow each other, the first members one
more where it does not come out even (RangeAssignor). So partitions of the same number of two topics that the same
members want come to the same member, if the topics are of one size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

PROTOCOL = "range"


def assign(
    subscriptions: Mapping[str, Collection[str]], partition_counts: Mapping[str, int]
) -> Mapping[str, Mapping[str, Sequence[int]]]:
    """Member -> topic -> partitions, for every member. `subscriptions`: member -> topics. A topic without a count
    is not there: nobody gets it."""
    given: dict[str, dict[str, Sequence[int]]] = {member: {} for member in subscriptions}
    for topic, count in partition_counts.items():
        members = sorted(member for member, topics in subscriptions.items() if topic in topics)
        if not members:
            continue
        first = 0
        for number, member in enumerate(members):
            share = count // len(members) + (number < count % len(members))
            if share:
                given[member][topic] = range(first, first + share)
            first += share
    return given
