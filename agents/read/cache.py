"""A bounded cache of object bytes in memory, least recently used first out. Pure: no I/O.

An entry is a *body*: a whole file that this agent wrote, kept as sealed, or the bytes of one GET, which hold one or
more aligned blocks. Readers get views of bodies, never copies. A view keeps its whole body in memory, so bodies are
what is counted and what is evicted. Objects never change, so no entry is ever invalid. Entries of deleted files go all
the same: each entry carries the time for which its file was last known to exist, and the owner drops old ones.

A block may be expected, which means that a reader will come for it soon. Until all its expected blocks are released, a
body is evicted only if there is nothing else. The caller that expects blocks makes sure that they are fewer than the
cache holds.

A body may be pinned: an answer that is on its way to a client consists of views of it. Evicting it would free nothing,
so it stays, and counts, until the answer has left. What cannot be pinned must be copied. So the bound holds for the
memory that is really in use, however slow clients are.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

from storage.parts import Parts

BLOCK_BYTES = 1 << 20

_Place: TypeAlias = tuple[str, int]
_WHOLE = range(-1, 0)


@dataclass(slots=True, eq=False)
class Body:
    """The bytes of one GET, or of a file that was written here."""

    key: str
    blocks: range
    """The blocks that it holds; for a whole file the number -1, which is no block."""
    data: Parts
    known_ms: float = 0.0
    """When its file was last known to exist."""
    cache: BlockCache | None = None
    """Where it counts; None if it is in no cache."""
    expected: int = 0
    """Number of its blocks for which a reader will come."""
    pins: int = 0
    goes_first: bool = False
    """Once it may go: its readers have had it, and no other is expected."""

    @property
    def start(self) -> int:
        """Where in the object it begins."""
        return max(0, self.blocks.start) * BLOCK_BYTES

    @property
    def places(self) -> Iterator[_Place]:
        return ((self.key, block) for block in self.blocks)


class BlockCache:
    def __init__(self, bytes_max: int, on_size: Callable[[int], object] | None = None) -> None:
        self.bytes_max = bytes_max
        self._at: dict[_Place, Body] = {}
        self._idle: OrderedDict[Body, None] = OrderedDict()
        self._awaited: OrderedDict[Body, None] = OrderedDict()
        """Not pinned, and a block of theirs is expected."""
        self._pinned: OrderedDict[Body, None] = OrderedDict()
        self._expected: set[_Place] = set()
        """Blocks that are here or on their way."""
        self._on_size = on_size
        self.bytes = 0
        self.pinned_bytes = 0
        self.only_pinned_bytes = 0
        """Pinned, and no block of theirs is expected."""

    def put_file(self, key: str, body: Parts, known_ms: float = 0.0) -> None:
        self._put(Body(key, _WHOLE, body, known_ms))

    def put_blocks(self, key: str, blocks: range, data: bytes | memoryview, known_ms: float = 0.0) -> Body:
        """Keep the bytes of neighbouring blocks, unless there is no room. The last block may be short."""
        body = Body(key, blocks, Parts([memoryview(data)]), known_ms)
        self._put(body)
        return body

    def file(self, key: str) -> Body | None:
        return self._get((key, -1))

    def block(self, key: str, block: int) -> Body | None:
        """The body that holds the block."""
        return self._get((key, block))

    def holds(self, key: str, blocks: range) -> bool:
        """Returns True if the bytes are here, without making them younger."""
        return (key, -1) in self._at or all((key, block) in self._at for block in blocks)

    def drop_files(self, keys: Container[str]) -> None:
        """Forget all bytes of these files."""
        self._forget([body for (key, _), body in self._at.items() if key in keys])

    def drop_known_before(self, known_ms: float) -> None:
        """Forget all bytes of files that were last known to exist before `known_ms`."""
        self._forget([body for body in self._at.values() if body.known_ms < known_ms])

    def expect(self, key: str, block: int) -> None:
        """Once the block is here, keep it until it is released."""
        if (key, block) in self._expected:
            return
        self._expected.add((key, block))
        body = self._at.get((key, block))
        if body is not None:
            self._leave(body)
            body.goes_first = body.goes_first or not body.expected
            body.expected += 1
            self._settle(body)

    def release(self, key: str, block: int, *, first_to_go: bool) -> None:
        """The block is no longer expected. `first_to_go`: its reader has had it, and no other is expected."""
        if (key, block) not in self._expected:
            return
        self._expected.discard((key, block))
        body = self._at.get((key, block))
        if body is not None:
            self._leave(body)
            body.expected -= 1
            body.goes_first = body.goes_first and first_to_go
            self._settle(body)

    def pin(self, body: Body) -> bool:
        """Keep the body until `unpin`. False if it is not here, or if too much is pinned already: copy its bytes."""
        if body.cache is not self:
            return False
        if not body.pins and self.pinned_bytes + body.data.held_bytes > self.bytes_max * 3 // 4:
            return False
        self._leave(body)
        body.pins += 1
        self._settle(body)
        return True

    def unpin(self, body: Body) -> None:
        self._leave(body)
        body.pins -= 1
        self._settle(body)

    # ---- inner

    def _get(self, place: _Place) -> Body | None:
        body = self._at.get(place)
        if body is not None and body in self._idle:
            self._idle.move_to_end(body)
        return body

    def _put(self, body: Body) -> None:
        size = body.data.held_bytes
        if size > self.bytes_max - self.pinned_bytes:
            return
        for place in body.places:
            before = self._at.get(place)
            self._at[place] = body
            if before is not None:
                self._leave(before)
                before.expected -= place in self._expected
                self._settle(before)
        body.cache = self
        body.expected = sum(place in self._expected for place in body.places)
        body.goes_first = body.expected > 0
        self.bytes += size
        self._settle(body)
        while self.bytes > self.bytes_max:
            # Expected blocks go only when nothing else is left.
            self._drop(next(iter(self._idle or self._awaited)))
        if self._on_size is not None:
            self._on_size(self.bytes)

    def _forget(self, bodies: Iterable[Body]) -> None:
        """Nobody finds them any more. A body that an answer consists of counts until the answer has left."""
        for body in dict.fromkeys(bodies):
            self._leave(body)
            for place in body.places:
                if self._at.get(place) is body:
                    del self._at[place]
                    body.expected -= place in self._expected
            self._settle(body)
        if self._on_size is not None:
            self._on_size(self.bytes)

    def _leave(self, body: Body) -> None:
        """Take the body out of its line, before what decides about the line changes."""
        if body.pins:
            del self._pinned[body]
            self.pinned_bytes -= body.data.held_bytes
            self.only_pinned_bytes -= 0 if body.expected else body.data.held_bytes
        else:
            del (self._awaited if body.expected else self._idle)[body]

    def _settle(self, body: Body) -> None:
        """Put the body into the line that it belongs to. Pinned bytes count on even if nobody finds them any more."""
        if body.pins:
            self._pinned[body] = None
            self.pinned_bytes += body.data.held_bytes
            self.only_pinned_bytes += 0 if body.expected else body.data.held_bytes
        elif body.expected:
            self._awaited[body] = None
        else:
            self._idle[body] = None
            if not any(self._at.get(place) is body for place in body.places):
                self._drop(body)
            elif body.goes_first:
                self._idle.move_to_end(body, last=False)
                body.goes_first = False

    def _drop(self, body: Body) -> None:
        self._leave(body)
        for place in body.places:
            if self._at.get(place) is body:
                del self._at[place]
        body.cache = None
        self.bytes -= body.data.held_bytes
