"""Bytes in several buffers: they read as if joined, and keep no more memory than they say."""

from __future__ import annotations

import os

from hypothesis import given
from hypothesis import strategies as st

from storage.parts import VIEW_BYTES_MIN, VIEWS_MAX, Parts, crc32c_of, packed, stretches, views_of
from wire.crc import crc32c

LONG = VIEW_BYTES_MIN


@given(chunks=st.lists(st.binary(max_size=5), max_size=6), start=st.integers(0, 35), length=st.integers(0, 35))
def test_parts_read_as_their_bytes_joined(chunks: list[bytes], start: int, length: int) -> None:
    parts, whole = Parts(map(memoryview, chunks)), b"".join(chunks)
    assert (len(parts), bytes(parts), crc32c_of(parts, 7)) == (len(whole), whole, crc32c(whole, 7))
    cuts = parts.cut(start, length)
    assert b"".join(cuts) == whole[start : start + length]
    assert all(len(view) for view in cuts)


@given(chunks=st.lists(st.binary(max_size=5), max_size=6), bytes_max=st.integers(1, 9))
def test_stretches_are_all_the_bytes_in_order_and_within_their_bound(chunks: list[bytes], bytes_max: int) -> None:
    found = list(stretches(Parts(map(memoryview, chunks)), bytes_max))
    assert b"".join(view for stretch in found for view in stretch) == b"".join(chunks)
    assert all(0 < sum(map(len, stretch)) <= bytes_max for stretch in found)
    assert [bytes(view) for stretch in stretches(b"abcde", 2) for view in stretch] == [b"ab", b"cd", b"e"]


def test_a_stretch_has_no_more_views_than_the_kernel_takes() -> None:
    many = Parts([memoryview(b"x")] * (VIEWS_MAX + 1))
    assert [len(stretch) for stretch in stretches(many, 1 << 30)] == [VIEWS_MAX, 1]


def test_long_chunks_stay_where_they_are_and_short_ones_are_copied_together() -> None:
    long, other = os.urandom(LONG), bytearray(os.urandom(LONG))
    parts = packed([b"a", b"b", long, memoryview(other), b"c", bytes(LONG - 1), b""])
    assert bytes(parts) == b"ab" + long + other + b"c" + bytes(LONG - 1)
    assert [view.obj is buffer for view, buffer in zip(parts.views[1:3], (long, other), strict=True)] == [True, True]
    assert [len(view) for view in parts.views] == [2, LONG, LONG, LONG]
    assert parts.held_bytes == len(parts)


def test_a_chunk_that_is_the_lesser_part_of_its_buffer_is_copied() -> None:
    """Most of a request may have been refused, or be short batches, which are copied: the rest must not keep it."""
    request = bytearray(4 * LONG)
    view = memoryview(request)
    short = [view[at : at + 100] for at in range(2 * LONG, 3 * LONG, 100)]
    parts = packed([view[:LONG], view[LONG : 2 * LONG], *short])
    assert len(parts.views) == 1
    assert parts.held_bytes == len(parts)
    # nothing keeps the buffer, or it could not be emptied
    del view, short
    request.clear()


def test_a_buffer_that_is_kept_counts_whole_and_once() -> None:
    request = bytearray(4 * LONG)
    view = memoryview(request)
    parts = packed([view[:LONG], view[LONG : 2 * LONG], view[2 * LONG : 3 * LONG]])
    assert (len(parts), parts.held_bytes) == (3 * LONG, 4 * LONG)
    assert all(each.obj is request for each in parts.views)


def test_any_buffer_is_a_body() -> None:
    for body in (b"ab", bytearray(b"ab"), memoryview(b"ab"), Parts([memoryview(b"a"), memoryview(b"b")])):
        assert b"".join(views_of(body)) == b"ab"
        assert crc32c_of(body) == crc32c(b"ab")
