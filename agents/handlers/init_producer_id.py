"""InitProducerId 0-5. Without a transactional id: a new producer id, epoch 0, from any agent; ids are unique in the
cluster. A producer that asks to continue a known id gets a new one, as in Kafka (KIP-360).

With a transactional id, its coordinator gives the producer of the id its next epoch. A transaction that is ongoing is
aborted first, and the client waits for that: Kafka lets it ask again (CONCURRENT_TRANSACTIONS). Until transactions may
be used, such an id is answered UNSUPPORTED_VERSION (see `find_coordinator.py`).
"""

from __future__ import annotations

from agents.broker import Broker
from agents.transactions.checks import as_known, refusal
from metadata.contract.errors import MetadataUnavailableError
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse

FENCED_KNOWN_SINCE = 4


async def handle(broker: Broker, header: RequestHeader, request: InitProducerIdRequest) -> InitProducerIdResponse:
    if request.transactional_id is not None:
        return await _transactional(broker, header, request, request.transactional_id)
    rights = broker.rights()
    # Who may write to any topic may do so as an idempotent producer (KIP-679).
    if not rights.holds_cluster(Operation.IDEMPOTENT_WRITE) and not rights.allows_any(
        Operation.WRITE, ResourceType.TOPIC
    ):
        return _refused(ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    if not broker.throttle.may_take_producer_id():
        # Each id may become a row of the store. Of the errors after which clients ask again this is the one that says
        # nothing about the agent.
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)
    try:
        producer_id = await broker.producer_ids.take()
    except MetadataUnavailableError:
        return _refused(ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)


async def _transactional(
    broker: Broker, header: RequestHeader, request: InitProducerIdRequest, transactional_id: str
) -> InitProducerIdResponse:
    if (refused := refusal(broker, transactional_id)) is not None:
        is_one = transactional_id or refused is not ErrorCode.UNSUPPORTED_VERSION
        return _refused(refused if is_one else ErrorCode.INVALID_REQUEST)
    # A client knows both or none.
    if (request.producer_id == -1) != (request.producer_epoch == -1) or not transactional_id:
        return _refused(ErrorCode.INVALID_REQUEST)
    if not 0 < request.transaction_timeout_ms <= broker.settings.transaction_max_timeout_ms:
        return _refused(ErrorCode.INVALID_TRANSACTION_TIMEOUT)
    if not broker.throttle.may_take_producer_id():
        return _refused(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS)  # each id is a row of the store
    made = await broker.transactions.init(
        transactional_id,
        timeout_ms=request.transaction_timeout_ms,
        producer_id=request.producer_id,
        producer_epoch=request.producer_epoch,
    )
    return InitProducerIdResponse(
        error_code=as_known(made.error, header.api_version, fenced_since=FENCED_KNOWN_SINCE),
        producer_id=made.producer_id,
        producer_epoch=made.producer_epoch,
    )


def _refused(error: ErrorCode) -> InitProducerIdResponse:
    return InitProducerIdResponse(error_code=error, producer_epoch=-1)
