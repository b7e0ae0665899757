"""The checks of a request before its coordinator is asked, and errors as the versions of an API know them."""

from __future__ import annotations

from agents.broker import Broker
from security.acls.values import Operation, ResourceType
from wire.error_codes import ErrorCode

FENCED_KNOWN_SINCE = 2
"""AddPartitionsToTxn, AddOffsetsToTxn and EndTxn know PRODUCER_FENCED from this version on."""


def refusal(broker: Broker, transactional_id: str) -> ErrorCode | None:
    """Why a client may not work with its transactional id; None if it may."""
    if not broker.rights().allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, transactional_id):
        return ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    return None if broker.features.transactions else broker.features.no_transactions


def as_known(error: int, version: int, *, fenced_since: int = FENCED_KNOWN_SINCE) -> int:
    """The error in a version of an API."""
    if error == int(ErrorCode.PRODUCER_FENCED) and version < fenced_since:
        return int(ErrorCode.INVALID_PRODUCER_EPOCH)
    return error
