"""DescribeTransactions, key 65 (KIP-664)."""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    field,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@message(api_key=65, kind="request", versions="0", flexible="0+", elements_max=PARTITIONS_ELEMENTS_MAX)
class DescribeTransactionsRequest(Message):
    transactional_ids: list[str] = field(array(string), "0+")


@struct
class TopicData(Struct):
    topic: str = field(string, "0+")
    partitions: list[int] = field(array(int32), "0+")


@struct
class TransactionState(Struct):
    error_code: int = field(int16, "0+")
    transactional_id: str = field(string, "0+")
    transaction_state: str = field(string, "0+")
    transaction_timeout_ms: int = field(int32, "0+")
    transaction_start_time_ms: int = field(int64, "0+")
    producer_id: int = field(int64, "0+")
    producer_epoch: int = field(int16, "0+")
    topics: list[TopicData] = field(array(TopicData), "0+")


@message(api_key=65, kind="response", versions="0", flexible="0+")
class DescribeTransactionsResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    transaction_states: list[TransactionState] = field(array(TransactionState), "0+")
