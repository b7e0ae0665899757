"""DescribeTransactions 0 and ListTransactions 0-2 (KIP-664): agents refuse transactional ids, so there are no
transactions."""

from __future__ import annotations

from agents.broker import Broker
from agents.yielding import LoopYielder
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TransactionState,
)
from wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

_STATES = {
    "Empty",
    "Ongoing",
    "PrepareCommit",
    "PrepareAbort",
    "CompleteCommit",
    "CompleteAbort",
    "Dead",
    "PrepareEpochFence",
}


def handle(broker: Broker, header: RequestHeader, request: ListTransactionsRequest) -> ListTransactionsResponse:
    return ListTransactionsResponse(
        unknown_state_filters=[state for state in request.state_filters if state not in _STATES]
    )


async def describe(
    broker: Broker, header: RequestHeader, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    rights = broker.rights()
    return DescribeTransactionsResponse(
        transaction_states=[
            TransactionState(
                transactional_id=name,
                error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
                if rights.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
                else ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED,
                producer_id=-1,
                producer_epoch=-1,
            )
            async for name in LoopYielder().through(request.transactional_ids)
        ]
    )
