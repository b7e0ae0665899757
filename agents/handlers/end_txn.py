"""EndTxn 0-5. Clients of version 5 speak the second protocol of KIP-890: each end gives their producer a new epoch."""

from __future__ import annotations

from agents.broker import Broker
from agents.transactions.checks import as_known, refusal
from wire.api import RequestHeader
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse

SECOND_PROTOCOL_SINCE = 5


async def handle(broker: Broker, header: RequestHeader, request: EndTxnRequest) -> EndTxnResponse:
    if (refused := refusal(broker, request.transactional_id)) is not None:
        return EndTxnResponse(error_code=refused)
    ended = await broker.transactions.end(
        request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        commit=request.committed,
        client_version=2 if header.api_version >= SECOND_PROTOCOL_SINCE else 1,
    )
    return EndTxnResponse(
        error_code=as_known(ended.error, header.api_version),
        producer_id=ended.producer_id,
        producer_epoch=ended.producer_epoch,
    )
