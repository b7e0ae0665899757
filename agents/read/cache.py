"""A bounded cache of object bytes in memory, least recently used first out. Pure: no I/O.

Two kinds of entry share the bound: whole files that this agent wrote (kept as sealed, served without copying), and
aligned blocks of files that were read. Objects never change, so no entry is ever invalid; entries of deleted files just
age out. Views that were handed out stay valid after eviction: Python keeps the bytes as long as a view exists.

A block may be expected, which means that a reader will come for it soon. Until it is released, it is evicted only if
there is nothing else. The caller that expects blocks makes sure that they are fewer than the cache holds.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from typing import TypeAlias

BLOCK_BYTES = 1 << 20

_Key: TypeAlias = tuple[str, int]
_WHOLE = -1


class BlockCache:
    def __init__(self, bytes_max: int, on_size: Callable[[int], object] | None = None) -> None:
        self._bytes_max = bytes_max
        self._entries: OrderedDict[_Key, bytes] = OrderedDict()
        self._expected: set[_Key] = set()
        """Blocks that are here or on their way."""
        self._expected_entries: OrderedDict[_Key, bytes] = OrderedDict()
        self._on_size = on_size
        self.bytes = 0

    def put_file(self, key: str, body: bytes) -> None:
        self._put((key, _WHOLE), body)

    def put_block(self, key: str, block: int, body: bytes) -> None:
        self._put((key, block), body)

    def file(self, key: str) -> memoryview | None:
        return self._get((key, _WHOLE))

    def block(self, key: str, block: int) -> memoryview | None:
        return self._get((key, block))

    def holds(self, key: str, blocks: range) -> bool:
        """Returns True if the bytes are here, without making them younger."""
        return (key, _WHOLE) in self._entries or all(
            (key, block) in self._entries or (key, block) in self._expected_entries for block in blocks
        )

    def expect(self, key: str, block: int) -> None:
        """Once the block is here, keep it until it is released."""
        self._expected.add((key, block))
        body = self._entries.pop((key, block), None)
        if body is not None:
            self._expected_entries[key, block] = body

    def release(self, key: str, block: int, *, first_to_go: bool) -> None:
        """The block is no longer expected. `first_to_go`: its reader has had it, and no other is expected."""
        self._expected.discard((key, block))
        body = self._expected_entries.pop((key, block), None)
        if body is not None:
            self._entries[key, block] = body
            self._entries.move_to_end((key, block), last=not first_to_go)

    def _get(self, key: _Key) -> memoryview | None:
        body = self._entries.get(key)
        if body is not None:
            self._entries.move_to_end(key)
        else:
            body = self._expected_entries.get(key)
        return memoryview(body) if body is not None else None

    def _put(self, key: _Key, body: bytes) -> None:
        if len(body) > self._bytes_max:
            return
        for entries in (self._entries, self._expected_entries):
            self.bytes -= len(entries.pop(key, b""))
        self.bytes += len(body)
        (self._expected_entries if key in self._expected else self._entries)[key] = body
        while self.bytes > self._bytes_max:
            # Expected blocks go only when nothing else is left.
            _, evicted = (self._entries or self._expected_entries).popitem(last=False)
            self.bytes -= len(evicted)
        if self._on_size is not None:
            self._on_size(self.bytes)
