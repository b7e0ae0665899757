"""FindCoordinator 0-4: there are no coordinators yet, so every key is answered COORDINATOR_NOT_AVAILABLE
(retriable)."""

from __future__ import annotations

from agents.broker import Broker
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

_MESSAGE = "consumer groups and transactions are not supported yet"


def handle(broker: Broker, header: RequestHeader, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    error = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if header.api_version < 4:
        return FindCoordinatorResponse(error_code=error, error_message=_MESSAGE, node_id=-1, port=-1)
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=_MESSAGE)
            for key in request.coordinator_keys
        ]
    )
