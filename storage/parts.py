"""Bytes in several buffers, one after another, so that nobody has to join them. Pure.

A view keeps its whole buffer in memory. `packed` therefore copies chunks that are small, or that are a small part of
their buffer; so parts never keep much more than they have. What they keep is `held_bytes`.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate
from typing import TypeAlias, cast

from wire.crc import Body as Octets
from wire.crc import crc32c

VIEW_BYTES_MIN = 64 << 10
"""The least chunk that stays where it is. A view has some 0.3 KB of bookkeeping and takes a place in each `writev`."""
VIEWS_MAX = 1024
"""Views that writev(2) takes at a time: Linux's IOV_MAX."""


class Parts:
    """A run of bytes. Nobody changes its buffers. `len` tells its bytes; `bytes` joins them, which copies."""

    __slots__ = ("_ends", "held_bytes", "views")

    def __init__(self, views: Iterable[memoryview]) -> None:
        """The views must be contiguous and of format 'B'."""
        self.views = tuple([view for view in views if len(view)])
        self._ends = list(accumulate(map(len, self.views)))
        self.held_bytes = sum({id(view.obj): buffer_bytes(view) for view in self.views}.values())
        """Bytes of memory that stay in use for these parts: their buffers, whole."""

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __bytes__(self) -> bytes:
        return b"".join(self.views)

    def cut(self, start: int, length: int) -> list[memoryview]:
        """Views of `length` bytes from `start`; fewer where the bytes end."""
        cuts: list[memoryview] = []
        end = min(start + length, len(self))
        number = bisect_right(self._ends, start)
        while start < end:
            view = self.views[number]
            skip = start - (self._ends[number] - len(view))
            cuts.append(view[skip : skip + end - start] if skip or end < self._ends[number] else view)
            start = self._ends[number]
            number += 1
        return cuts


AnyBody: TypeAlias = Octets | Parts


def packed(chunks: Iterable[Octets]) -> Parts:
    """The chunks as parts: large ones where they lie, small ones copied together."""
    views = [memoryview(chunk) for chunk in chunks]
    used: Counter[int] = Counter()
    for view in views:
        if len(view) >= VIEW_BYTES_MIN:
            used[id(view.obj)] += len(view)
    parts: list[memoryview] = []
    small: list[memoryview] = []
    for view in views:
        # Views of more than half of the buffer keep it: less than twice their bytes.
        if len(view) >= VIEW_BYTES_MIN and 2 * used[id(view.obj)] > buffer_bytes(view):
            if small:
                parts.append(memoryview(b"".join(small)))
                small = []
            parts.append(view)
        else:
            small.append(view)
    if small:
        parts.append(memoryview(b"".join(small)))
    return Parts(parts)


def buffer_bytes(view: memoryview) -> int:
    """The size of the buffer that the view is of, and keeps in memory."""
    return memoryview(cast(bytes, view.obj)).nbytes


def views_of(body: AnyBody) -> Sequence[memoryview]:
    return body.views if isinstance(body, Parts) else (memoryview(body).cast("B"),)


def crc32c_of(body: AnyBody, value: int = 0) -> int:
    """The CRC-32C of the body, behind bytes whose CRC is `value`."""
    for view in views_of(body):
        value = crc32c(view, value)
    return value


def stretches(body: AnyBody, bytes_max: int) -> Iterator[list[memoryview]]:
    """The body in order, at most `bytes_max` bytes and VIEWS_MAX views at a time."""
    stretch: list[memoryview] = []
    room = bytes_max
    for view in views_of(body):
        while len(view) > 0:
            if stretch and (len(view) > room or len(stretch) == VIEWS_MAX):
                yield stretch
                stretch, room = [], bytes_max
            stretch.append(view[:room])
            view = view[room:]
            room -= len(stretch[-1])
    if stretch:
        yield stretch
