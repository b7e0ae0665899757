"""The features that clients may use once every program of the cluster knows them, as ApiVersions tells (KIP-584)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from wire.error_codes import ErrorCode

TRANSACTION_VERSION: Final = "transaction.version"
TRANSACTION_VERSION_MAX: Final = 2
"""Clients then use the second protocol of KIP-890: each end of a transaction gives its producer a new epoch."""


@dataclass(slots=True)
class Features:
    """The parts of an agent share one."""

    transactions: bool = False
    """They may be used. It stays so."""
    transactions_asked: bool = False
    """The metadata store has said whether they may be used."""

    @property
    def no_transactions(self) -> ErrorCode:
        """Why they may not be used now. As long as that is not known, clients are to come again: from
        UNSUPPORTED_VERSION they do not."""
        return ErrorCode.UNSUPPORTED_VERSION if self.transactions_asked else ErrorCode.COORDINATOR_NOT_AVAILABLE
