"""FindCoordinator 0-5: which agent coordinates a group or a transactional id, by the id alone. Any agent answers, from
its list of live agents.

Until transactions may be used, a transactional id is answered UNSUPPORTED_VERSION, as everywhere: many clients show
only the name of an error, and one about authorization would send their users to look for ACLs. With a retriable error,
`init_transactions()` would silently wait until its time is up. librdkafka does so after any error but
TRANSACTIONAL_ID_AUTHORIZATION_FAILED. It alone asks in version 2, so it gets that one, and shows our message beside it.
"""

from __future__ import annotations

from agents.answers import NO_TRANSACTIONS
from agents.broker import Broker
from agents.groups.checks import check_allowed, check_id
from agents.groups.held import GroupRefusedError
from agents.listeners.endpoints import endpoint_at
from agents.request_context import client_listener
from agents.security.refusals import not_allowed
from agents.yielding import LoopYielder
from metadata.contract.leases import AgentInfo
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.find_coordinator import Coordinator, FindCoordinatorRequest, FindCoordinatorResponse

_GROUP, _TRANSACTION = 0, 1
_LIBRDKAFKA_VERSION = 2


async def handle(broker: Broker, header: RequestHeader, request: FindCoordinatorRequest) -> FindCoordinatorResponse:
    if header.api_version >= 4:
        return FindCoordinatorResponse(
            coordinators=[
                _find(broker, header.api_version, request.key_type, key)
                async for key in LoopYielder().through(request.coordinator_keys)
            ]
        )
    found = _find(broker, header.api_version, request.key_type, request.key)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(broker: Broker, version: int, key_type: int, key: str) -> Coordinator:
    if key_type == _TRANSACTION:
        if not broker.rights().allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, key):
            refused = not_allowed(ResourceType.TRANSACTIONAL_ID, key)
            return _none(key, refused.code, str(refused))
        if broker.features.transactions:
            return _at(key, broker.transactions.owner(key))
        if not broker.features.transactions_asked:
            return _none(key, broker.features.no_transactions, "the agent has not heard yet whether there are any")
        of_librdkafka = version == _LIBRDKAFKA_VERSION
        error = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED if of_librdkafka else ErrorCode.UNSUPPORTED_VERSION
        return _none(key, error, NO_TRANSACTIONS)
    if key_type != _GROUP:
        return _none(key, ErrorCode.INVALID_REQUEST, f"coordinator type {key_type} is not known")
    try:
        check_allowed(broker.rights(), Operation.DESCRIBE, key)
        check_id(key, may_be_empty=True)
    except GroupRefusedError as refused:
        return _none(key, refused.code, str(refused))
    return _at(key, broker.groups.owner(key))


def _at(key: str, owner: AgentInfo | None) -> Coordinator:
    if owner is None:
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "no agent is alive")
    # All listeners have one coordinator, because all members of a group have to meet there.
    endpoint = endpoint_at(owner.address, client_listener())
    if endpoint is None:
        return _none(key, ErrorCode.COORDINATOR_NOT_AVAILABLE, "the coordinator has no listener of this name")
    return Coordinator(key=key, node_id=owner.writer_id, host=endpoint.host, port=endpoint.port, error_message=None)


def _none(key: str, error: ErrorCode, message: str) -> Coordinator:
    return Coordinator(key=key, node_id=-1, port=-1, error_code=error, error_message=message)
