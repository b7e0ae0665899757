"""Slices of answers: in order, bounded, and uncopied."""

from __future__ import annotations

from collections import deque

from agents.connections.sending import WRITE_BYTES, WRITE_PARTS, after, next_parts
from agents.read.budget import Release
from wire.schema import Octets


def test_slices_are_bounded_in_bytes_and_pieces_and_end_before_a_release() -> None:
    long, released = bytes(range(256)) * (WRITE_BYTES // 128), list[int]()
    line: deque[Octets | Release] = deque([b"head", long, lambda: released.append(1), *[b"x"] * (WRITE_PARTS + 1)])
    sent: list[bytes] = []
    while line:
        if callable(line[0]):
            line.popleft()
            assert b"".join(sent) == b"head" + long
            continue
        parts = next_parts(line)
        assert sum(map(len, parts)) <= WRITE_BYTES
        assert len(parts) <= WRITE_PARTS
        sent += map(bytes, parts)
    assert b"".join(sent) == b"head" + long + b"x" * (WRITE_PARTS + 1)


def test_what_the_socket_did_not_take_is_what_remains() -> None:
    parts = [b"ab", b"cde", b"f"]
    for taken in range(7):
        assert b"".join(after(parts, taken)) == b"abcdef"[taken:]
