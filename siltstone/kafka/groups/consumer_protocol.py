"""The messages that members of a consumer group exchange through their coordinator: the topics that a member wants to
read (subscription), and the partitions that the leader gives to a member (assignment). Pure.

The coordinator does not read these bytes, so a client may send anything. For the protocol type "consumer" every version
begins in the same way. A subscription: version (int16), then topics (int32 count; each with an int16 length). An
assignment: version, then topics (int32 count; each a name, an int32 count and int32 partitions). User data and the
additions of later versions follow; this module ignores them. (ConsumerProtocolSubscription, ConsumerProtocolAssignment)
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence

PROTOCOL_TYPE = "consumer"

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")
_NO_USER_DATA = _INT32.pack(-1)


def subscription(topics: Iterable[str]) -> bytes:
    """The bytes of a subscription, version 0, without user data."""
    names = sorted(set(topics))
    return _INT16.pack(0) + _INT32.pack(len(names)) + b"".join(map(_text, names)) + _NO_USER_DATA


def assignment(partitions: Mapping[str, Sequence[int]]) -> bytes:
    """The bytes of an assignment, version 0, without user data."""
    topics = b"".join(
        _text(name) + struct.pack(f">i{len(numbers)}i", len(numbers), *numbers)
        for name, numbers in sorted(partitions.items())
    )
    return _INT16.pack(0) + _INT32.pack(len(partitions)) + topics + _NO_USER_DATA


def parse_subscription(data: bytes | memoryview) -> Sequence[str] | None:
    """The names of the topics; None for bytes that are not a subscription."""
    try:
        reader = _Reader(memoryview(data))
        return [reader.text() for _ in range(reader.count(_INT16.size))]
    except (struct.error, UnicodeDecodeError, _MalformedError):
        return None


def parse_assignment(data: bytes | memoryview) -> Mapping[str, tuple[int, ...]] | None:
    """Partitions by topic; None for bytes that are not an assignment. No bytes at all are an empty assignment."""
    if not len(data):
        return {}
    try:
        reader = _Reader(memoryview(data))
        found: dict[str, tuple[int, ...]] = {}
        for _ in range(reader.count(_INT16.size + _INT32.size)):
            topic = reader.text()
            found[topic] = (*found.get(topic, ()), *reader.numbers())
    except (struct.error, UnicodeDecodeError, _MalformedError):
        return None
    return found


class _MalformedError(Exception):
    pass


class _Reader:
    """Raises struct.error, UnicodeDecodeError and _MalformedError."""

    def __init__(self, data: memoryview) -> None:
        self._data = data
        self._at = _INT16.size
        (version,) = _INT16.unpack_from(data)
        if version < 0:
            raise _MalformedError

    def count(self, each_bytes: int) -> int:
        """Read a count of items of at least `each_bytes` each. A count that the data cannot hold is malformed."""
        (number,) = _INT32.unpack_from(self._data, self._at)
        self._at += _INT32.size
        if not 0 <= number <= (len(self._data) - self._at) // each_bytes:
            raise _MalformedError
        return number

    def text(self) -> str:
        (length,) = _INT16.unpack_from(self._data, self._at)
        self._at += _INT16.size
        if not 0 <= length <= len(self._data) - self._at:
            raise _MalformedError
        self._at += length
        return str(self._data[self._at - length : self._at], "utf-8")

    def numbers(self) -> tuple[int, ...]:
        count = self.count(_INT32.size)
        self._at += count * _INT32.size
        return struct.unpack_from(f">{count}i", self._data, self._at - count * _INT32.size)


def _text(text: str) -> bytes:
    encoded = text.encode()
    return _INT16.pack(len(encoded)) + encoded
