"""Slices of the answers in line: what a connection gives to its socket at a time. They are views, not copies."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

from agents.read.budget import Release
from wire.schema import Octets

WRITE_BYTES = 256 << 10
"""Bytes handed to the socket per write."""
WRITE_PARTS = 512
"""Pieces per write; the kernel takes 1,024."""
COPIED_BYTES = 64 << 10
"""Bytes that the transport is given, and copies, when the socket is full; it then reports when there is room again."""
TURN_BYTES = 2 << 20
"""Bytes that a connection sends per turn of the event loop: a millisecond's work. A client that reads as fast as we
write would otherwise get its 50 MB in one turn, and all other clients would wait for it."""


def next_parts(unsent: deque[Octets | Release], bytes_max: int = WRITE_BYTES) -> list[Octets]:
    """Take the next slice off the line: at most `bytes_max` in WRITE_PARTS pieces, up to the next release."""
    parts: list[Octets] = []
    room = bytes_max
    while unsent and room > 0 and len(parts) < WRITE_PARTS:
        item = unsent[0]
        if callable(item):
            break
        if len(item) > room:
            unsent[0] = memoryview(item)[room:]
            item = memoryview(item)[:room]
        else:
            unsent.popleft()
        parts.append(item)
        room -= len(item)
    return parts


def after(parts: Sequence[Octets], taken: int) -> list[Octets]:
    """The parts that remain after the first `taken` bytes."""
    for number, part in enumerate(parts):
        if taken < len(part):
            return [memoryview(part)[taken:] if taken else part, *parts[number + 1 :]]
        taken -= len(part)
    return []
