"""AddPartitionsToTxn 0-3: partitions enter the transaction, all or none.

If one cannot, it gets its error, and all others OPERATION_NOT_ATTEMPTED. Clients of the second protocol (KIP-890) do
not send it; versions 4 and 5 are between Kafka's brokers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from agents.broker import Broker
from agents.security.rights import allowed_in_turns
from agents.topics.present import look_for
from agents.transactions.checks import as_known, refusal
from agents.yielding import LoopYielder
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopicResult,
)

Place = tuple[str, int]


async def handle(
    broker: Broker, header: RequestHeader, request: AddPartitionsToTxnRequest
) -> AddPartitionsToTxnResponse:
    refused = refusal(broker, request.v3_and_below_transactional_id)
    if refused is not None:
        return await _answer(request, lambda place: refused)
    errors, partition_ids = await _looked_up(broker, request)
    if errors:
        return await _answer(request, lambda place: errors.get(place, ErrorCode.OPERATION_NOT_ATTEMPTED))
    error = await broker.transactions.add_partitions(
        request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        partition_ids=partition_ids,
    )
    if error == int(ErrorCode.TRANSACTION_ABORTABLE):  # too many; only version 5 knows this error
        error = int(ErrorCode.INVALID_TXN_STATE)
    known = as_known(error, header.api_version)
    return await _answer(request, lambda place: known)


async def _looked_up(broker: Broker, request: AddPartitionsToTxnRequest) -> tuple[Mapping[Place, ErrorCode], list[int]]:
    """The errors of partitions that cannot enter, and the ids of the others."""
    topics = request.v3_and_below_topics
    names = {topic.name for topic in topics}
    allowed = await allowed_in_turns(broker.rights(), Operation.WRITE, ResourceType.TOPIC, names)
    places = [(topic.name, number) for topic in topics for number in topic.partitions]
    seen = await look_for(broker, (place for place in places if place[0] in allowed))
    errors: dict[Place, ErrorCode] = {}
    partition_ids: list[int] = []
    async for place in LoopYielder().through(places):
        name, number = place
        topic = broker.topic_cache.topic(name)
        if name not in allowed:
            errors[place] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif topic is not None and 0 <= number < len(topic.partition_ids):
            partition_ids.append(topic.partition_ids[number])
        else:
            # After the second, too, clients ask again.
            errors[place] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION if seen else ErrorCode.COORDINATOR_NOT_AVAILABLE
    return errors, partition_ids


async def _answer(request: AddPartitionsToTxnRequest, error_of: Callable[[Place], int]) -> AddPartitionsToTxnResponse:
    response = AddPartitionsToTxnResponse()
    yielder = LoopYielder()
    for topic in request.v3_and_below_topics:
        response.results_by_topic_v3_and_below.append(
            AddPartitionsToTxnTopicResult(
                name=topic.name,
                results_by_partition=[
                    AddPartitionsToTxnPartitionResult(
                        partition_index=number, partition_error_code=error_of((topic.name, number))
                    )
                    async for number in yielder.through(topic.partitions)
                ],
            )
        )
    return response
