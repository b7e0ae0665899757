"""AddOffsetsToTxn 0-4: a group enters the transaction. Clients of the second protocol (KIP-890) do not send it."""

from __future__ import annotations

from agents.broker import Broker
from agents.groups.checks import check_allowed, check_id
from agents.groups.held import GroupRefusedError
from agents.transactions.checks import as_known, refusal
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse


async def handle(broker: Broker, header: RequestHeader, request: AddOffsetsToTxnRequest) -> AddOffsetsToTxnResponse:
    if (refused := refusal(broker, request.transactional_id)) is not None:
        return AddOffsetsToTxnResponse(error_code=refused)
    try:
        check_allowed(broker.rights(), Operation.READ, request.group_id)
        check_id(request.group_id)
    except GroupRefusedError as not_allowed:
        return AddOffsetsToTxnResponse(error_code=not_allowed.code)
    error = await broker.transactions.add_group(
        request.transactional_id,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
        group_id=request.group_id,
    )
    return AddOffsetsToTxnResponse(error_code=as_known(error, header.api_version))
