"""The bytes of one range where they lie in memory: views of the bodies that hold them, in order.

A range that lies in one GET is one view. One that lies across the border of two is two views: nobody joins them, since
the socket gathers an answer from its places anyway. Only a check that needs contiguous bytes gets a copy of those.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from agents.read.cache import BlockCache, Body

Pins: TypeAlias = list[tuple[BlockCache, Body]]


class Pieces:
    __slots__ = ("_bodies", "_length", "_views")

    def __init__(self, views: Sequence[memoryview], bodies: Sequence[Body] = ()) -> None:
        """`bodies`: those of the views, in their order; none for bytes that belong to the reader alone."""
        self._views = views
        self._bodies = bodies
        self._length = sum(map(len, views))

    def __len__(self) -> int:
        return self._length

    @property
    def known_ms(self) -> float:
        """When the file was last known to exist, for the oldest of these bytes."""
        return min(body.known_ms for body in self._bodies)

    def contiguous(self, start: int, length: int) -> tuple[memoryview, int]:
        """A buffer and the place in it of `length` bytes from `start`. They are copied if they lie across a border."""
        at = start
        for view in self._views:
            if at + length <= len(view):
                return view, at
            if at < len(view):
                break
            at -= len(view)
        return memoryview(b"".join(self.cut(start, start + length))), 0

    def cut(self, start: int, end: int) -> list[memoryview]:
        """The bytes from `start` to `end`, as views."""
        cuts: list[memoryview] = []
        for view in self._views:
            if start < len(view) and end > 0:
                cuts.append(view[max(start, 0) : end])
            start -= len(view)
            end -= len(view)
        return cuts

    def joined(self) -> memoryview:
        """All bytes in one buffer."""
        return self._views[0] if len(self._views) == 1 else memoryview(b"".join(self._views))

    def kept(self, pins: Pins) -> Pieces:
        """The same bytes for an answer that leaves later: of pinned bodies, which are added to `pins`, or copied."""
        if not self._bodies:
            return self
        views: list[memoryview] = []
        for view, body in zip(self._views, self._bodies, strict=True):
            cache = body.cache
            if cache is not None and cache.pin(body):
                pins.append((cache, body))
                views.append(view)
            else:
                views.append(memoryview(bytes(view)))
        return Pieces(views)
