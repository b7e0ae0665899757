"""A transaction from the side of an operator, over the Kafka protocol: look it up at its coordinator, and abort it.

Looking is repeated while the coordinator moves. An abort is sent once: after one that may have been carried out, a
second one would be refused, as if somebody else had ended the transaction.

WriteTxnMarkers names a transaction by its partitions. One that has none, but offsets of groups, is ended as Kafka's
`Admin.fenceProducers` does it: a producer of its id begins (InitProducerId), which aborts what is ongoing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from runtime.clock import Clock
from siltstone.kafka.client import ConnectionLostError, KafkaClient, KafkaError, connected
from siltstone.kafka.retrying import RetryNotice, address_of, is_passing
from wire.error_codes import ErrorCode
from wire.errors import MalformedMessageError
from wire.messages import describe_transactions, find_coordinator, init_producer_id, write_txn_markers

PATIENCE_MS = 15_000
BACKOFF_MS = 100
_TRANSACTION_KEY = 1
"""FindCoordinator's key type of transactional ids."""
TIMEOUT_MS_MAX = 60_000
"""The time-out of a producer that begins only to abort: Kafka's default, which agents hardly refuse."""
_ALLOW = "`siltstone acls create --allow-principal User:NAME "
_CHANGED = "it ended or went on to a partition meanwhile; nothing was done: look again"
_BEGAN_ANEW = "its producer began anew meanwhile, which ended the transaction; look again"


def _remedies(places: str) -> Mapping[str, str]:
    return {
        "TRANSACTIONAL_ID_NOT_FOUND": f"`siltstone transactions list{places}` shows the ids",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": f"{_ALLOW}--operation Describe --transactional-id ID` lets a user look"
        " at a transaction; to abort it takes `--operation Alter --cluster` too",
        "CLUSTER_AUTHORIZATION_FAILED": f"{_ALLOW}--operation Alter --cluster` lets a user abort transactions",
        "INVALID_TXN_STATE": "it ended meanwhile: there is nothing to abort",
        "INVALID_PRODUCER_EPOCH": _BEGAN_ANEW,
        "INVALID_PRODUCER_ID_MAPPING": _BEGAN_ANEW,
        "PRODUCER_FENCED": _BEGAN_ANEW,
    }


_WRITE_REMEDIES: Mapping[str, str] = {
    **_remedies(""),
    "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": "you see no partition of it. Only who may write by the id can end such a"
    f" transaction: {_ALLOW}--operation Write --transactional-id ID`. If it is on a topic, Describe on the topic and"
    " Alter on the cluster do too",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    transactional_id: str
    state: str
    producer_id: int
    producer_epoch: int
    timeout_ms: int
    started_ms: int
    """-1 unless it is ongoing."""
    topics: Mapping[str, Sequence[int]]
    """The partitions that it entered, those that the user may see."""
    coordinator: str
    """HOST:PORT"""


async def look(
    bootstrap: str,
    transactional_id: str,
    clock: Clock,
    *,
    told: Callable[[str], None] = lambda _: None,
    places: str = "",
) -> Described:
    """Raises KafkaError, UnavailableError. `told` gets a line when looking is repeated for over a second. `places`: the
    options of a command that a remedy names."""
    notice = RetryNotice(told, clock, PATIENCE_MS)
    while True:
        try:
            return await _look(bootstrap, transactional_id, _remedies(places))
        except KafkaError as error:
            if not is_passing(error.code) or not notice.failed(error, is_lost=False, wait_ms=BACKOFF_MS):
                raise
        await clock.sleep_ms(BACKOFF_MS)


async def _look(bootstrap: str, transactional_id: str, remedies: Mapping[str, str]) -> Described:
    async with connected(bootstrap) as client:
        coordinator = await _coordinator(client, transactional_id, remedies)
    async with connected(coordinator) as client:
        return await _described(client, coordinator, transactional_id, remedies)


async def _described(
    client: KafkaClient, coordinator: str, transactional_id: str, remedies: Mapping[str, str]
) -> Described:
    answer = await client.call(
        describe_transactions.DescribeTransactionsRequest(transactional_ids=[transactional_id]),
        describe_transactions.DescribeTransactionsResponse,
    )
    for each in answer.transaction_states:
        _check(each.error_code, f"describe transactional id {transactional_id!r}", remedies)
        return Described(
            transactional_id=transactional_id,
            state=each.transaction_state,
            producer_id=each.producer_id,
            producer_epoch=each.producer_epoch,
            timeout_ms=each.transaction_timeout_ms,
            started_ms=each.transaction_start_time_ms,
            topics={topic.topic: tuple(topic.partitions) for topic in each.topics},
            coordinator=coordinator,
        )
    raise MalformedMessageError(f"{coordinator} answered DescribeTransactions with no transaction")


async def _coordinator(client: KafkaClient, transactional_id: str, remedies: Mapping[str, str]) -> str:
    answer = await client.call(
        find_coordinator.FindCoordinatorRequest(key_type=_TRANSACTION_KEY, coordinator_keys=[transactional_id]),
        find_coordinator.FindCoordinatorResponse,
    )
    for each in answer.coordinators:
        what = f"find the coordinator of transactional id {transactional_id!r}"
        _check(each.error_code, what, remedies, each.error_message)
        return address_of(each.host, each.port)
    raise MalformedMessageError("FindCoordinator was answered with no coordinator")


async def abort(transaction: Described, *, places: str = "") -> None:
    """By WriteTxnMarkers, as Kafka's tool does. One of its partitions would do: an agent aborts the whole transaction.
    Without any, by InitProducerId. `places`: as of `look`.

    Raises KafkaError, UnavailableError, and ConnectionLostError: it may be aborted."""
    async with connected(transaction.coordinator) as client:
        try:
            await (_abort_by_markers if transaction.topics else _abort_by_producer)(client, transaction)
        except ConnectionLostError as error:
            error.remedy = (
                f"it may be aborted: `siltstone transactions describe ID{places}` tells; if it is ongoing, abort again"
            )
            raise


async def _abort_by_markers(client: KafkaClient, transaction: Described) -> None:
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_result=False,
        topics=[
            write_txn_markers.WritableTxnMarkerTopic(name=name, partition_indexes=list(numbers))
            for name, numbers in transaction.topics.items()
        ],
    )
    answer = await client.call(
        write_txn_markers.WriteTxnMarkersRequest(markers=[marker]), write_txn_markers.WriteTxnMarkersResponse
    )
    for of_producer in answer.markers:
        for of_topic in of_producer.topics:
            for each in of_topic.partitions:
                _check(each.error_code, _aborting(transaction), _remedies(""))


async def _abort_by_producer(client: KafkaClient, transaction: Described) -> None:
    """As the producer that was seen, so that no later one is fenced (KIP-360)."""
    name, what = transaction.transactional_id, _aborting(transaction)
    # This request does not say whether there was anything to abort, so look once more.
    if await _described(client, transaction.coordinator, name, _WRITE_REMEDIES) != transaction:
        raise KafkaError(int(ErrorCode.INVALID_TXN_STATE), what, remedies={"INVALID_TXN_STATE": _CHANGED})
    answer = await client.call(
        init_producer_id.InitProducerIdRequest(
            transactional_id=name,
            transaction_timeout_ms=min(transaction.timeout_ms, TIMEOUT_MS_MAX),
            producer_id=transaction.producer_id,
            producer_epoch=transaction.producer_epoch,
        ),
        init_producer_id.InitProducerIdResponse,
    )
    _check(answer.error_code, what, _WRITE_REMEDIES)


def _aborting(transaction: Described) -> str:
    return f"abort the transaction of {transaction.transactional_id!r}"


def _check(code: int, what: str, remedies: Mapping[str, str], detail: str | None = None) -> None:
    if code:
        raise KafkaError(code, what, detail, remedies=remedies)
