"""UnregisterBroker 0 (KIP-500): refused in words. An agent registers by its lease in Postgres and is gone when that has
run out."""

from __future__ import annotations

from agents.broker import Broker
from agents.security.refusals import cluster_refusal
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse


def handle(broker: Broker, header: RequestHeader, request: UnregisterBrokerRequest) -> UnregisterBrokerResponse:
    if (refused := cluster_refusal(broker.rights(), Operation.ALTER)) is not None:
        return UnregisterBrokerResponse(error_code=refused.code, error_message=str(refused))
    if all(agent.writer_id != request.broker_id for agent in broker.membership.agents):
        return UnregisterBrokerResponse(
            error_code=ErrorCode.BROKER_ID_NOT_REGISTERED, error_message=f"no live agent {request.broker_id}"
        )
    return UnregisterBrokerResponse(
        error_code=ErrorCode.INVALID_REQUEST,
        error_message=f"agent {request.broker_id} is alive: stop its process, and its lease in Postgres ends",
    )
