"""WriteTxnMarkers 1-2: how an operator aborts a transaction that hangs (KIP-664). Any agent answers.

Kafka's brokers end transactions by it, partition by partition. Here a transaction ends as a whole, by its coordinator.
So the marker of an operator aborts the whole transaction of its producer, if one of the partitions that it names is in
it, and fences the producer. A COMMIT would make records visible that the producer's client did not commit: it is
refused with INVALID_REQUEST. An error about authorization would send its user to look for ACLs.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Sequence

from agents.broker import Broker
from agents.request_context import client_principal
from agents.topics.present import look_for
from agents.yielding import LoopYielder
from metadata.contract.errors import MetadataUnavailableError
from metadata.transactions.contract import TransactionInfo, TransactionState
from runtime.logging import get_logger
from security.acls.values import Operation
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

_log = get_logger(__name__)


def judged(marker: WritableTxnMarker, seen: TransactionInfo | None, named: Collection[int]) -> ErrorCode:
    """NONE: abort the transaction. `seen`: the one of the producer; `named`: the partitions that the marker is for."""
    if marker.transaction_result:
        return ErrorCode.INVALID_REQUEST
    if seen is None:
        return ErrorCode.INVALID_PRODUCER_ID_MAPPING
    if seen.producer_epoch != marker.producer_epoch:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if seen.state is not TransactionState.ONGOING or not any(id_ in seen.partitions for id_ in named):
        return ErrorCode.INVALID_TXN_STATE
    return ErrorCode.NONE


async def handle(broker: Broker, header: RequestHeader, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
    rights = broker.rights()
    markers = request.markers
    # Either is enough (KIP-1037); what is asked second is told to the audit log.
    if not rights.holds_cluster(Operation.ALTER) and not rights.allows_cluster(Operation.CLUSTER_ACTION):
        return await _answer(broker, markers, [ErrorCode.CLUSTER_AUTHORIZATION_FAILED] * len(markers), looked=False)
    if not broker.features.transactions:
        return await _answer(broker, markers, [broker.features.no_transactions] * len(markers), looked=False)
    places = [
        (topic.name, number) for marker in markers for topic in marker.topics for number in topic.partition_indexes
    ]
    seen = await look_for(broker, places)
    if not seen:
        return await _answer(broker, markers, [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(markers), looked=False)
    try:
        found = await broker.transactions.metadata.transactions_of([each.producer_id for each in markers])
    except MetadataUnavailableError:
        return await _answer(broker, markers, [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(markers), looked=False)
    return await _answer(broker, markers, await _outcomes(broker, markers, found), looked=True)


async def _outcomes(
    broker: Broker, markers: Sequence[WritableTxnMarker], found: Sequence[TransactionInfo]
) -> Sequence[int]:
    by_producer = {each.producer_id: each for each in found}
    outcomes: list[int] = []
    to_abort: dict[int, TransactionInfo] = {}
    yielder = LoopYielder()
    async for marker in yielder.through(markers):
        named = [
            id_
            for topic in marker.topics
            async for number in yielder.through(topic.partition_indexes)
            if (id_ := _partition_id(broker, topic.name, number)) is not None
        ]
        seen = by_producer.get(marker.producer_id)
        error = judged(marker, seen, named)
        if seen is not None and not error:
            to_abort[len(outcomes)] = seen
        outcomes.append(error)
    ended = await asyncio.gather(*(broker.transactions.abort(each) for each in to_abort.values()))
    for (at, seen), each in zip(to_abort.items(), ended, strict=True):
        outcomes[at] = each.error
        if not each.error:
            _log.warning(
                "transaction aborted by an operator",
                transactional_id=seen.transactional_id,
                producer_id=seen.producer_id,
                principal=client_principal(),
            )
    return outcomes


async def _answer(
    broker: Broker, markers: Sequence[WritableTxnMarker], outcomes: Sequence[int], *, looked: bool
) -> WriteTxnMarkersResponse:
    """`looked`: partitions that are not known do not exist."""
    response = WriteTxnMarkersResponse()
    yielder = LoopYielder()
    async for marker, outcome in yielder.through(zip(markers, outcomes, strict=True)):
        result = WritableTxnMarkerResult(producer_id=marker.producer_id)
        for topic in marker.topics:
            answered = WritableTxnMarkerTopicResult(name=topic.name)
            async for number in yielder.through(topic.partition_indexes):
                is_gone = looked and _partition_id(broker, topic.name, number) is None
                error = int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION) if is_gone else int(outcome)
                answered.partitions.append(WritableTxnMarkerPartitionResult(partition_index=number, error_code=error))
            result.topics.append(answered)
        response.markers.append(result)
    return response


def _partition_id(broker: Broker, name: str, number: int) -> int | None:
    topic = broker.topic_cache.topic(name)
    if topic is None or not 0 <= number < len(topic.partition_ids):
        return None
    return topic.partition_ids[number]
