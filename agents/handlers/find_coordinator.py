"""FindCoordinator 0-4. There are no coordinators yet.

A group is answered COORDINATOR_NOT_AVAILABLE: clients that only `assign()` ask now and then and go on without one. A
transactional id is answered TRANSACTIONAL_ID_AUTHORIZATION_FAILED, as everywhere until transactions exist: a retriable
error would leave `init_transactions()` waiting until its time is up, with nothing said.
"""

from __future__ import annotations

from agents.broker import Broker
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

_GROUP, _TRANSACTION = 0, 1
_REFUSALS = {
    _GROUP: (ErrorCode.COORDINATOR_NOT_AVAILABLE, "consumer groups are not supported yet; assign() partitions"),
    _TRANSACTION: (ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, "transactions are not supported yet"),
}


def handle(broker: Broker, header: RequestHeader, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    error, message = _REFUSALS.get(
        request.key_type, (ErrorCode.INVALID_REQUEST, f"coordinator type {request.key_type} is not known")
    )
    if header.api_version < 4:
        return FindCoordinatorResponse(error_code=error, error_message=message, node_id=-1, port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=message)
            for key in request.coordinator_keys
        ]
    )
