"""InitProducerId 0-5 for idempotent producers: a new id, epoch 0. Any agent may answer; ids are unique in the cluster.

A transactional id is refused with UNSUPPORTED_VERSION until transactions exist (see `find_coordinator.py`). A producer
that asks to continue a known id gets a new one, as Kafka does without a transactional id (KIP-360).
"""

from __future__ import annotations

from agents.broker import Broker
from metadata.contract.errors import MetadataUnavailableError
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


async def handle(broker: Broker, header: RequestHeader, request: InitProducerIdRequest) -> InitProducerIdResponse:
    rights = broker.rights()
    if request.transactional_id is not None:
        if not rights.allows(Operation.WRITE, ResourceType.TRANSACTIONAL_ID, request.transactional_id):
            return InitProducerIdResponse(error_code=ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED, producer_epoch=-1)
        error = ErrorCode.UNSUPPORTED_VERSION if request.transactional_id else ErrorCode.INVALID_REQUEST
        return InitProducerIdResponse(error_code=error, producer_epoch=-1)
    # Who may write to any topic may do so as an idempotent producer (KIP-679).
    if not rights.holds_cluster(Operation.IDEMPOTENT_WRITE) and not rights.allows_any(
        Operation.WRITE, ResourceType.TOPIC
    ):
        return InitProducerIdResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED, producer_epoch=-1)
    if not broker.throttle.may_take_producer_id():
        # Each id may become a row of the store. Of the errors after which clients ask again this is the one that says
        # nothing about the agent.
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, producer_epoch=-1)
    try:
        producer_id = await broker.producer_ids.take()
    except MetadataUnavailableError:
        return InitProducerIdResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, producer_epoch=-1)
    return InitProducerIdResponse(producer_id=producer_id, producer_epoch=0)
