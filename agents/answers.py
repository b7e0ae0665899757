"""Parts of answers that several handlers share, and the line that a connection's answers leave in."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agents.read.budget import Release
from agents.request_context import RequestTrace
from wire.schema import Message, Octets

NO_TRANSACTIONS = (
    "transactions are not supported yet: an agent or compactor of an older release may be at work; no ACL is in the way"
)


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    """An answer that holds memory until it has left: the connection calls `release` once the kernel has its bytes."""

    message: Message
    release: Release
    """Call this when the answer was sent or can no longer be sent; further calls do nothing."""


class Slot:
    """A place in the line of answers."""

    __slots__ = ("ends", "parts", "release", "started_ms")

    def __init__(self, started_ms: float) -> None:
        self.started_ms = started_ms
        self.release: Release | None = None
        self.ends = ""
        """Why the connection ends after this answer, which may be none."""
        self.parts: Sequence[Octets] | None = None
        """None until answered; empty if there is no answer to send."""


def end_trace(trace: RequestTrace, error: str, release: Release | None) -> None:
    """Called when the kernel has the answer, or when no client takes it any more."""
    trace.end(error=error)
    if release is not None:
        release()
