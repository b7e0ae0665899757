"""DescribeTransactions 0 and ListTransactions 0-2 (KIP-664): of the ids that this agent coordinates, because clients
ask every agent and join the answers.

The list comes from the store, so it includes ids that no client has asked for since their coordinator changed. Ids that
the client may not describe are left out. The filter of a duration (KIP-994) keeps transactions that have run for
longer: those that are not ongoing do not run. The pattern (KIP-1152) must match a whole id.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from agents.broker import Broker
from agents.transactions.patterns import Pattern, PatternError, compiled
from agents.yielding import LoopYielder
from metadata.contract.errors import MetadataUnavailableError
from metadata.transactions.contract import TransactionInfo
from security.acls.values import Operation, ResourceType
from wire.api import RequestHeader
from wire.error_codes import ErrorCode
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from wire.messages.list_transactions import TransactionState as ListedTransaction

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
"""Kafka's. Here a transaction is never prepared, and no id is dead."""
PAGE_IDS = 10_000


def filter_of(request: ListTransactionsRequest, *, now_ms: int) -> Callable[[TransactionInfo], bool]:
    """All filters but the pattern. `now_ms`: the store's time."""
    states, producer_ids = set(request.state_filters), set(request.producer_id_filters)
    duration_ms = request.duration_filter

    def keeps(each: TransactionInfo) -> bool:
        return (
            (not states or each.state.kafka_name in states)
            and (not producer_ids or each.producer_id in producer_ids)
            and (duration_ms < 0 or (each.started_ms is not None and now_ms - each.started_ms > duration_ms))
        )

    return keeps


async def handle(broker: Broker, header: RequestHeader, request: ListTransactionsRequest) -> ListTransactionsResponse:
    unknown = [state for state in request.state_filters if state not in _STATES]
    if not broker.features.transactions and broker.features.transactions_asked:
        return ListTransactionsResponse(unknown_state_filters=unknown)
    # With an outdated list of agents, ids would be missing from every answer, or stand in two.
    if not (broker.transactions.lease_runs and broker.features.transactions):
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, unknown_state_filters=unknown)
    try:
        pattern = compiled(request.transactional_id_pattern) if request.transactional_id_pattern else None
    except PatternError:
        return ListTransactionsResponse(error_code=ErrorCode.INVALID_REGULAR_EXPRESSION, unknown_state_filters=unknown)
    try:
        found = await _found(broker, request, pattern)
    except MetadataUnavailableError:
        return ListTransactionsResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE, unknown_state_filters=unknown)
    return ListTransactionsResponse(unknown_state_filters=unknown, transaction_states=found)


async def _found(broker: Broker, request: ListTransactionsRequest, pattern: Pattern | None) -> list[ListedTransaction]:
    """Raises MetadataUnavailableError."""
    rights = broker.rights()
    keeps = filter_of(request, now_ms=broker.membership.now_ms())
    found: list[ListedTransaction] = []
    yielder = LoopYielder()
    after: str | None = None
    while True:
        page = await broker.transactions.metadata.list_transactions(after=after, limit=PAGE_IDS)
        async for each in yielder.through(page):
            name = each.transactional_id
            if (
                broker.transactions.owns(name)
                and rights.sees(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name)
                and keeps(each)
                and (pattern is None or await pattern.matches(name))
            ):
                found.append(
                    ListedTransaction(
                        transactional_id=name,
                        producer_id=each.producer_id,
                        transaction_state=each.state.kafka_name,
                    )
                )
        if len(page) < PAGE_IDS:
            return found
        after = page[-1].transactional_id


async def describe(
    broker: Broker, header: RequestHeader, request: DescribeTransactionsRequest
) -> DescribeTransactionsResponse:
    rights = broker.rights()
    errors: dict[str, ErrorCode] = {}
    async for name in LoopYielder().through(request.transactional_ids):
        if not rights.allows(Operation.DESCRIBE, ResourceType.TRANSACTIONAL_ID, name):
            errors[name] = ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
        elif not name:
            errors[name] = ErrorCode.INVALID_REQUEST
        elif not broker.features.transactions:
            is_known = broker.features.transactions_asked
            errors[name] = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND if is_known else broker.features.no_transactions
        elif not broker.transactions.owns(name):
            errors[name] = ErrorCode.NOT_COORDINATOR
    asked = [name for name in request.transactional_ids if name not in errors]
    missing = ErrorCode.TRANSACTIONAL_ID_NOT_FOUND
    found: dict[str, TransactionInfo] = {}
    try:
        infos = await broker.transactions.metadata.transactions(asked) if asked else ()
        found = {each.transactional_id: each for each in infos}
    except MetadataUnavailableError:
        missing = ErrorCode.COORDINATOR_NOT_AVAILABLE
    if any(broker.topic_cache.partition(id_) is None for each in found.values() for id_ in each.partitions):
        await broker.present_topics.see()
    return DescribeTransactionsResponse(
        transaction_states=[
            await _described(broker, found[name])
            if name in found
            else TransactionState(
                transactional_id=name, error_code=errors.get(name, missing), producer_id=-1, producer_epoch=-1
            )
            async for name in LoopYielder().through(request.transactional_ids)
        ]
    )


async def _described(broker: Broker, info: TransactionInfo) -> TransactionState:
    return TransactionState(
        transactional_id=info.transactional_id,
        transaction_state=info.state.kafka_name,
        transaction_timeout_ms=info.timeout_ms,
        transaction_start_time_ms=-1 if info.started_ms is None else info.started_ms,
        producer_id=info.producer_id,
        producer_epoch=info.producer_epoch,
        topics=await _topics(broker, list(info.partitions)),
    )


async def _topics(broker: Broker, partition_ids: Sequence[int]) -> list[TopicData]:
    """By name. Partitions of topics that are gone, or that the client may not describe, are left out, as in Kafka."""
    numbers: dict[str, list[int]] = {}
    async for partition_id in LoopYielder().through(partition_ids):
        place = broker.topic_cache.partition(partition_id)
        if place is not None:
            numbers.setdefault(place.topic.name, []).append(place.number)
    rights = broker.rights()
    return [
        TopicData(topic=name, partitions=sorted(numbers[name]))
        for name in sorted(numbers)
        if rights.sees(Operation.DESCRIBE, ResourceType.TOPIC, name)
    ]
