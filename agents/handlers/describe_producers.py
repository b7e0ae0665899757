"""DescribeProducers 0 (KIP-664): the idempotent producers whose state the metadata store keeps for a partition.

Any agent answers for any partition. `last_timestamp` is the time of the last batch's commit; Kafka has the largest
timestamp in that batch. The epoch of a coordinator is known while a transaction is open on the partition.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence

from agents.broker import Broker
from agents.security.refusals import not_allowed
from agents.security.rights import allowed_in_turns
from agents.topics.present import look_for, not_there
from agents.topics.rules import code_of
from agents.yielding import LoopYielder, chunks_with_yields
from metadata.contract.l0_commit import ProducerState as StoredState
from runtime.errors import SiltstoneError
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)


async def handle(broker: Broker, header: RequestHeader, request: DescribeProducersRequest) -> DescribeProducersResponse:
    names = {asked.name for asked in request.topics}
    allowed = await allowed_in_turns(broker.rights(), Operation.READ, ResourceType.TOPIC, names)
    places = [
        (asked.name, number) for asked in request.topics if asked.name in allowed for number in asked.partition_indexes
    ]
    seen = await look_for(broker, places)
    ids: dict[tuple[str, int], int] = {}
    async for some in chunks_with_yields(places):
        ids.update({each: found for each in some if (found := _partition_id(broker, *each)) is not None})
    states: defaultdict[int, list[StoredState]] = defaultdict(list)
    opened: dict[tuple[int, int], tuple[int, int]] = {}
    failure: SiltstoneError | None = None
    try:
        for state in await broker.metadata.agents.producer_states(list(ids.values())) if ids else ():
            states[state.partition_id].append(state)
        for each, epoch in await broker.metadata.transactions.open_transactions(list(ids.values())) if ids else ():
            opened[each.partition_id, each.producer_id] = each.first_offset, epoch
    except SiltstoneError as error:
        failure = error
    response = DescribeProducersResponse()
    yielder = LoopYielder()
    async for asked in yielder.through(request.topics):
        answered = TopicResponse(name=asked.name)
        async for number in yielder.through(asked.partition_indexes):
            partition_id = ids.get((asked.name, number))
            if asked.name not in allowed:
                answered.partitions.append(_refused(number, not_allowed(ResourceType.TOPIC, asked.name)))
            elif partition_id is None:
                answered.partitions.append(_refused(number, not_there("such partition", seen=seen)))
            elif failure is not None:
                answered.partitions.append(_refused(number, failure))
            else:
                answered.partitions.append(_partition(number, states[partition_id], opened))
        response.topics.append(answered)
    return response


def _partition_id(broker: Broker, name: str, number: int) -> int | None:
    topic = broker.topic_cache.topic(name)
    if topic is None or not 0 <= number < len(topic.partition_ids):
        return None
    return topic.partition_ids[number]


def _refused(number: int, error: SiltstoneError) -> PartitionResponse:
    return PartitionResponse(partition_index=number, error_code=code_of(error), error_message=str(error))


def _partition(
    number: int, states: Sequence[StoredState], opened: Mapping[tuple[int, int], tuple[int, int]]
) -> PartitionResponse:
    """`opened`: by partition and producer id, the first offset of the transaction and its coordinator's epoch."""
    return PartitionResponse(
        partition_index=number,
        active_producers=[
            ProducerState(
                producer_id=state.producer_id,
                producer_epoch=state.epoch,
                last_sequence=state.batches[-1][1] if state.batches else -1,
                last_timestamp=state.last_seen_ms,
                coordinator_epoch=epoch,
                current_txn_start_offset=first_offset,
            )
            for state in states
            for first_offset, epoch in [opened.get((state.partition_id, state.producer_id), (-1, -1))]
        ],
    )
