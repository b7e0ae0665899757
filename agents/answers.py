"""Parts of answers that several handlers share."""

from __future__ import annotations

from dataclasses import dataclass

from agents.read.budget import Release
from wire.schema import Message

NO_TRANSACTIONS = "transactions are not supported yet: unset transactional.id; no ACL is in the way"


@dataclass(frozen=True, slots=True)
class HeldAnswer:
    """An answer that holds memory until it has left: the connection calls `release` once the kernel has its bytes."""

    message: Message
    release: Release
    """Call this when the answer was sent or can no longer be sent; further calls do nothing."""
