"""A transaction from the side of an operator, over the Kafka protocol: look it up at its coordinator, and abort it.

Looking is repeated while the coordinator moves. An abort is sent once: after one that may have been carried out, a
second one would be refused, as if somebody else had ended the transaction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from runtime.clock import Clock
from siltstone.kafka.client import ConnectionLostError, KafkaClient, KafkaError, connected
from siltstone.kafka.retrying import RetryNotice, address_of, is_passing
from wire.errors import MalformedMessageError
from wire.messages import describe_transactions, find_coordinator, write_txn_markers

PATIENCE_MS = 15_000
BACKOFF_MS = 100
_TRANSACTION_KEY = 1
"""FindCoordinator's key type of transactional ids."""
_ALLOW = "`siltstone acls create --allow-principal User:NAME "
_REMEDIES: Mapping[str, str] = MappingProxyType(
    {
        "TRANSACTIONAL_ID_NOT_FOUND": "`siltstone transactions list` shows the ids",
        "TRANSACTIONAL_ID_AUTHORIZATION_FAILED": f"{_ALLOW}--operation Describe --transactional-id ID` lets a user look"
        " at a transaction; to abort it takes `--operation Alter --cluster` too",
        "CLUSTER_AUTHORIZATION_FAILED": f"{_ALLOW}--operation Alter --cluster` lets a user abort transactions",
        "INVALID_TXN_STATE": "it ended meanwhile: there is nothing to abort",
        "INVALID_PRODUCER_EPOCH": "its producer began anew meanwhile, which ended the transaction; look again",
        "INVALID_PRODUCER_ID_MAPPING": "its producer began anew meanwhile, which ended the transaction; look again",
    }
)


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
    bootstrap: str, transactional_id: str, clock: Clock, *, told: Callable[[str], None] = lambda _: None
) -> Described:
    """Raises KafkaError, UnavailableError. `told` gets a line when looking is repeated for over a second."""
    notice = RetryNotice(told, clock, PATIENCE_MS)
    while True:
        try:
            return await _look(bootstrap, transactional_id)
        except KafkaError as error:
            if not is_passing(error.code) or not notice.failed(error, is_lost=False, wait_ms=BACKOFF_MS):
                raise
        await clock.sleep_ms(BACKOFF_MS)


async def _look(bootstrap: str, transactional_id: str) -> Described:
    async with connected(bootstrap) as client:
        coordinator = await _coordinator(client, transactional_id)
    async with connected(coordinator) as client:
        answer = await client.call(
            describe_transactions.DescribeTransactionsRequest(transactional_ids=[transactional_id]),
            describe_transactions.DescribeTransactionsResponse,
        )
    for each in answer.transaction_states:
        _check(each.error_code, f"describe transactional id {transactional_id!r}")
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


async def _coordinator(client: KafkaClient, transactional_id: str) -> str:
    answer = await client.call(
        find_coordinator.FindCoordinatorRequest(key_type=_TRANSACTION_KEY, coordinator_keys=[transactional_id]),
        find_coordinator.FindCoordinatorResponse,
    )
    for each in answer.coordinators:
        _check(each.error_code, f"find the coordinator of transactional id {transactional_id!r}", each.error_message)
        return address_of(each.host, each.port)
    raise MalformedMessageError("FindCoordinator was answered with no coordinator")


async def abort(transaction: Described) -> None:
    """By WriteTxnMarkers, as Kafka's tool does. One of its partitions would do: an agent aborts the whole transaction.

    Raises KafkaError, UnavailableError, and ConnectionLostError: it may be aborted."""
    marker = write_txn_markers.WritableTxnMarker(
        producer_id=transaction.producer_id,
        producer_epoch=transaction.producer_epoch,
        transaction_result=False,
        topics=[
            write_txn_markers.WritableTxnMarkerTopic(name=name, partition_indexes=list(numbers))
            for name, numbers in transaction.topics.items()
        ],
    )
    async with connected(transaction.coordinator) as client:
        try:
            answer = await client.call(
                write_txn_markers.WriteTxnMarkersRequest(markers=[marker]), write_txn_markers.WriteTxnMarkersResponse
            )
        except ConnectionLostError as error:
            error.remedy = "it may be aborted: `siltstone transactions describe` tells; if it is ongoing, abort again"
            raise
    for of_producer in answer.markers:
        for of_topic in of_producer.topics:
            for each in of_topic.partitions:
                _check(each.error_code, f"abort the transaction of {transaction.transactional_id!r}")


def _check(code: int, what: str, detail: str | None = None) -> None:
    if code:
        raise KafkaError(code, what, detail, remedies=_REMEDIES)
