"""Wakes readers that wait at the end of a partition: a long poll parks here and costs nothing until records come."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable


class ParkedReaders:
    def __init__(self) -> None:
        # In order of arrival: the reader that waited longest is woken first, and the order is deterministic.
        self._waiting: dict[int, dict[asyncio.Event, None]] = {}

    def wake(self, partition_ids: Iterable[int]) -> None:
        for partition_id in partition_ids:
            for event in self._waiting.get(partition_id, ()):
                event.set()

    def wake_all(self) -> None:
        self.wake(list(self._waiting))

    async def wait(self, partition_ids: Iterable[int], timeout_ms: float) -> bool:
        """True if one of the partitions moved, False after `timeout_ms`."""
        event = asyncio.Event()
        partition_ids = set(partition_ids)  # a request may name one twice
        for partition_id in partition_ids:
            self._waiting.setdefault(partition_id, {})[event] = None
        try:
            async with asyncio.timeout(max(timeout_ms, 0) / 1000):
                await event.wait()
            return True
        except TimeoutError:
            return False
        finally:
            for partition_id in partition_ids:
                waiting = self._waiting[partition_id]
                waiting.pop(event, None)
                if not waiting:
                    del self._waiting[partition_id]
