"""A bounded cache of object bytes in memory, least recently used first out. Pure: no I/O.

Two kinds of entry share the bound: whole files that this agent wrote (kept as sealed, served without copying), and
aligned blocks of files that were read. Objects never change, so nothing is ever invalid; entries of deleted files just
age out. Views handed out stay good after eviction: Python keeps the bytes as long as somebody holds them.
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
        """Whether the bytes are here; asking does not make them any younger."""
        return (key, _WHOLE) in self._entries or all((key, block) in self._entries for block in blocks)

    def demote(self, key: str, block: int) -> None:
        """Make a block the first to go: whoever it was read for has had it."""
        if (key, block) in self._entries:
            self._entries.move_to_end((key, block), last=False)

    def _get(self, key: _Key) -> memoryview | None:
        body = self._entries.get(key)
        if body is None:
            return None
        self._entries.move_to_end(key)
        return memoryview(body)

    def _put(self, key: _Key, body: bytes) -> None:
        if len(body) > self._bytes_max:
            return
        replaced = self._entries.pop(key, None)
        self.bytes += len(body) - (len(replaced) if replaced is not None else 0)
        self._entries[key] = body
        while self.bytes > self._bytes_max:
            _, evicted = self._entries.popitem(last=False)
            self.bytes -= len(evicted)
        if self._on_size is not None:
            self._on_size(self.bytes)
