"""When a connection last did anything. Pure.

Bytes alone are no sign of life: a byte a second would keep a connection open for ever, and all those out that wait for
it. A request that arrives makes *progress* when it is whole, or by another PROGRESS_BYTES.
"""

from __future__ import annotations

PROGRESS_BYTES = 64 << 10


class Activity:
    __slots__ = ("_progress_at", "_resumed_ms", "last_bytes_ms", "progress_ms", "talked_ms")

    def __init__(self, now_ms: float) -> None:
        self.talked_ms = self.progress_ms = self._resumed_ms = now_ms
        """`talked_ms`: when a request last began or was answered."""
        self.last_bytes_ms = 0.0
        self._progress_at = PROGRESS_BYTES
        """The request that arrives has made progress when it holds so many bytes."""

    def requests_came(self) -> None:
        """The bytes of `last_bytes_ms` completed a request at least."""
        self.progress_ms, self._progress_at = self.last_bytes_ms, PROGRESS_BYTES

    def part_came(self, buffered_bytes: int) -> None:
        """The bytes of `last_bytes_ms` completed none; that is what has come of it so far."""
        if buffered_bytes >= self._progress_at:
            self.progress_ms, self._progress_at = self.last_bytes_ms, buffered_bytes + PROGRESS_BYTES

    def resumed(self, now_ms: float) -> None:
        """We read again: its silence while we did not is not its own."""
        self._resumed_ms = now_ms

    def is_silent(self, since_ms: float) -> bool:
        return max(self.talked_ms, self.progress_ms, self._resumed_ms) <= since_ms
