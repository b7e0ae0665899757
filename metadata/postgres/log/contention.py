"""Whether a commit goes through the gate: it does for a while after a row that it needed was locked. Pure.

Agents of which each writes partitions of its own never meet, and a gate would make them wait for each other. Agents
that write the same partitions wait anyway, and do so at the gate, without a snapshot.
"""

from __future__ import annotations

from dataclasses import dataclass

LOCK_TIMEOUT_MS = 5
"""How long a commit without the gate waits for a row. A row is locked for a few milliseconds, so most waits that last
are those of several commits in a queue."""
GATED_MIN, GATED_MAX = 4, 64
"""Commits through the gate after a lock was met: at first, and when it was met again and again."""


@dataclass(slots=True)
class Contention:
    left: int = 0
    """Commits that still go through the gate."""
    stretch: int = GATED_MIN

    def met_lock(self) -> None:
        """A commit without the gate gave up on a locked row."""
        self.left = self.stretch
        self.stretch = min(2 * self.stretch, GATED_MAX)

    def passed(self) -> None:
        """A commit was answered."""
        if self.left:
            self.left -= 1
        else:
            self.stretch = GATED_MIN

    @property
    def uses_gate(self) -> bool:
        return self.left > 0
