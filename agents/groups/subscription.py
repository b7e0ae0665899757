"""The topics that a member of a consumer group subscribes to, read from the metadata it joined with.

To a coordinator that metadata is opaque, except for protocol type "consumer": Kafka reads the topics from it, so that
offsets of topics that no member reads can expire, and those of topics still read cannot be deleted. Every version of
ConsumerProtocolSubscription begins alike: version (int16), topics (int32 count, then strings with an int16 length). The
rest (user data, partitions owned, generation, rack) is ignored. (ClassicGroup.computeSubscribedTopics)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

PROTOCOL_TYPE = "consumer"
TOPICS_MAX = 20_000
"""Names in the subscriptions of all members of a group. They are read in one turn of the event loop, at each rebalance,
and 1 MiB has room for 500,000. Of a group with more, the topics are unknown: its offsets do not expire."""

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(subscriptions: Iterable[bytes], *, topics_max: int = TOPICS_MAX) -> frozenset[str] | None:
    """Names of the topics of all members together; None for bytes that are no subscription (clients wrote them, they
    may be anything), and for more than `topics_max` names. Names that two members in a row list alike count once."""
    topics: set[str] = set()
    left, last = topics_max, b""
    for subscription in subscriptions:
        if last and subscription.startswith(last):
            continue
        read = _read(subscription, left)
        if read is None:
            return None
        count, of_member, end = read
        left -= count
        topics |= of_member
        last = subscription[:end]
    return frozenset(topics)


def _read(subscription: bytes, topics_max: int) -> tuple[int, set[str], int] | None:
    """(count of names, the names, where they end)."""
    if len(subscription) < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(subscription)
    # The count is the client's word: compare it with the bytes before looping by it.
    if version < 0 or not 0 <= count <= topics_max or count * _LENGTH.size > len(subscription) - _HEAD.size:
        return None
    topics: set[str] = set()
    at = _HEAD.size
    for _ in range(count):
        if at + _LENGTH.size > len(subscription):
            return None
        (length,) = _LENGTH.unpack_from(subscription, at)
        at += _LENGTH.size
        if length < 0 or at + length > len(subscription):
            return None
        try:
            topics.add(subscription[at : at + length].decode("utf-8"))
        except UnicodeDecodeError:
            return None
        at += length
    return count, topics, at
