"""What a member of a consumer group was given to read, from the bytes its leader wrote for it. Pure.

The bytes are the clients' affair, so that a client may write anything there; protocol type "consumer" has the same
beginning in every version: version (int16), topics (int32 count; each a name of an int16 length and int32 partitions
behind an int32 count), then user data, which is not looked at. (ConsumerProtocolAssignment)
"""

from __future__ import annotations

import struct
from collections.abc import Mapping

PROTOCOL_TYPE = "consumer"

_INT16, _INT32 = struct.Struct(">h"), struct.Struct(">i")


def parse_assignment(data: bytes | memoryview) -> Mapping[str, tuple[int, ...]] | None:
    """Topic -> partitions; None for bytes that are no assignment. No bytes at all are an empty one."""
    if not len(data):
        return {}
    try:
        return _parse(memoryview(data))
    except (struct.error, UnicodeDecodeError, _NoAssignment):
        return None


class _NoAssignment(Exception):
    pass


def _parse(data: memoryview) -> Mapping[str, tuple[int, ...]]:
    def count(at: int, each_bytes: int) -> int:
        (number,) = _INT32.unpack_from(data, at)
        if not 0 <= number <= (len(data) - at - _INT32.size) // each_bytes:
            raise _NoAssignment
        return number

    (version,) = _INT16.unpack_from(data)
    if version < 0:
        raise _NoAssignment
    at = _INT16.size
    topics = count(at, _INT16.size + _INT32.size)
    at += _INT32.size
    found: dict[str, tuple[int, ...]] = {}
    for _ in range(topics):
        (length,) = _INT16.unpack_from(data, at)
        at += _INT16.size
        if not 0 <= length <= len(data) - at:
            raise _NoAssignment
        topic = str(data[at : at + length], "utf-8")
        at += length
        partitions = count(at, _INT32.size)
        at += _INT32.size
        numbers = struct.unpack_from(f">{partitions}i", data, at)
        at += partitions * _INT32.size
        found[topic] = (*found.get(topic, ()), *numbers)
    return found
