"""What clients may use only when every program of the cluster knows it, as ApiVersions tells it (KIP-584)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

TRANSACTION_VERSION: Final = "transaction.version"
TRANSACTION_VERSION_MAX: Final = 2
"""Clients then use the second protocol of KIP-890: each end of a transaction gives its producer a new epoch."""


@dataclass(slots=True)
class Features:
    """The parts of an agent share one."""

    transactions: bool = False
    """They may be used. It stays so."""
