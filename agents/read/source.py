"""Where blocks come from that are not in memory: the object store, or a neighbour that has them (`agents/zone/`)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from runtime.clock import Clock
from storage.objects import ObjectStore


@dataclass(frozen=True, slots=True)
class Fetched:
    data: bytes | memoryview
    known_ms: float
    """When the file was last known to exist, by our monotonic clock: a GET proves it, for the moment it was sent."""


class BlockSource(Protocol):
    async def ask(self, key: str, size_bytes: int, start: int, length: int) -> Fetched | None:
        """Whole blocks of a file of `size_bytes`, from a neighbour; None: `get_range` has to bring them."""
        ...

    async def get_range(self, key: str, start: int, length: int) -> Fetched:
        """As `ObjectStore.get_range`."""
        ...


class StoreSource:
    def __init__(self, store: ObjectStore, clock: Clock) -> None:
        self._store = store
        self._clock = clock

    async def ask(self, key: str, size_bytes: int, start: int, length: int) -> Fetched | None:
        return None

    async def get_range(self, key: str, start: int, length: int) -> Fetched:
        sent_ms = self._clock.monotonic_ms()
        return Fetched(await self._store.get_range(key, start, length), sent_ms)
