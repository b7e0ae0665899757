"""The deadlines of a group: many by key, of which the soonest is wanted, and the delay of a group's first rebalance.

The keys are ids: of members, for their sessions, and of those that were given out and not used yet. A heartbeat moves
a deadline on, and heartbeats are frequent. So the heap keeps at most one useful entry per key, and checks it again when
it comes to the top. Entries of removed keys are swept once they outnumber the others.
"""

from __future__ import annotations

import heapq

_SWEEP_SLACK = 64
"""Stale entries that are tolerated on top, so that a small heap is hardly ever swept."""


class Deadlines:
    """Times are monotonic ms."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}
        self._queued: dict[str, float] = {}
        """The one heap entry of each key that counts; other entries of the key are stale."""
        self._heap: list[tuple[float, str]] = []

    def __len__(self) -> int:
        return len(self._at)

    def __contains__(self, key: str) -> bool:
        return key in self._at

    def set(self, key: str, at_ms: float) -> None:
        """Replaces the key's earlier deadline."""
        self._at[key] = at_ms
        queued = self._queued.get(key)
        # A later deadline needs no entry: the queued one comes up first and is corrected then (`soonest_ms`).
        if queued is None or at_ms < queued:
            self._queue(key, at_ms)

    def drop(self, key: str) -> None:
        """Does nothing if the key has no deadline."""
        self._at.pop(key, None)
        if len(self._heap) > 2 * len(self._at) + _SWEEP_SLACK:
            self._queued = dict(self._at)
            self._heap = [(at_ms, key) for key, at_ms in self._at.items()]
            heapq.heapify(self._heap)

    def clear(self) -> None:
        self._at.clear()
        self._queued.clear()
        self._heap.clear()

    @property
    def soonest_ms(self) -> float | None:
        while self._heap:
            entry_ms, key = self._heap[0]
            at_ms = self._at.get(key)
            if self._queued.get(key) != entry_ms:
                heapq.heappop(self._heap)
            elif at_ms is None:
                heapq.heappop(self._heap)
                del self._queued[key]
            # Heartbeats moved it on since it was queued: sink it to its true place, once, instead of at each heartbeat.
            elif at_ms > entry_ms:
                heapq.heapreplace(self._heap, (at_ms, key))
                self._queued[key] = at_ms
            else:
                return at_ms
        return None

    def take_due(self, now_ms: float) -> str | None:
        """Remove and return the key with the soonest deadline, if that has come."""
        soonest_ms = self.soonest_ms
        if soonest_ms is None or soonest_ms > now_ms:
            return None
        _, key = heapq.heappop(self._heap)
        del self._queued[key]
        del self._at[key]
        return key

    def _queue(self, key: str, at_ms: float) -> None:
        heapq.heappush(self._heap, (at_ms, key))
        self._queued[key] = at_ms


class InitialDelay:
    """The first members of a group wait for others, and longer while others keep coming."""

    def __init__(self, delay_ms: float, remaining_ms: float) -> None:
        self._delay_ms = delay_ms
        self._remaining_ms = remaining_ms
        self._others_came = False

    def note_join(self) -> None:
        self._others_came = True

    def prolong(self, delay_ms_max: float) -> float | None:
        """The next delay; None if no others came during the last one, or no time remains."""
        if not self._others_came or not self._remaining_ms:
            return None
        passed_ms = self._delay_ms
        self._others_came = False
        self._delay_ms = min(delay_ms_max, self._remaining_ms)
        # Kafka's arithmetic (tryCompleteInitialRebalanceElseSchedule): the delay that ended counts, not the new one.
        self._remaining_ms = max(self._remaining_ms - passed_ms, 0)
        return self._delay_ms
