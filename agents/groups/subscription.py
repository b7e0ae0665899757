"""The topics that a member of a consumer group subscribes to, read from the metadata it joined with.

To a coordinator that metadata is opaque, except for protocol type "consumer": Kafka reads the topics from it, so that
offsets of topics that no member reads can expire, and those of topics still read cannot be deleted. Every version of
ConsumerProtocolSubscription begins alike: version (int16), topics (int32 count, then strings with an int16 length). The
rest (user data, partitions owned, generation, rack) is ignored. (ClassicGroup.computeSubscribedTopics)
"""

from __future__ import annotations

import struct

PROTOCOL_TYPE = "consumer"

_HEAD = struct.Struct(">hi")
_LENGTH = struct.Struct(">h")


def subscribed_topics(subscription: bytes) -> frozenset[str] | None:
    """Names of topics; None for bytes that are no subscription: the client wrote them, they may be anything."""
    if len(subscription) < _HEAD.size:
        return None
    version, count = _HEAD.unpack_from(subscription)
    # The count is the client's word: compare it with the bytes before looping by it.
    if version < 0 or count < 0 or count * _LENGTH.size > len(subscription) - _HEAD.size:
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
    return frozenset(topics)
