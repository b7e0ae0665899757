"""An answer that holds memory until it has left: the connection calls `release` once the bytes are with the kernel."""

from __future__ import annotations

from dataclasses import dataclass

from agents.read.budget import Release
from wire.schema import Message


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    message: Message
    release: Release
    """Call this when the answer was sent or can no longer be sent; further calls do nothing."""
