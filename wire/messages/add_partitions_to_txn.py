"""AddPartitionsToTxn, key 24. Clients send versions 0 to 3, which name one transaction in fields of their own.

Versions 4 and 5 are between Kafka's brokers (KIP-890): many transactions, which may be only looked at (`verify_only`).
PRODUCER_FENCED may be answered from v2, TRANSACTION_ABORTABLE from v5.
"""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    boolean,
    field,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@struct
class AddPartitionsToTxnTopic(Struct):
    name: str = field(string, "0+")
    partitions: list[int] = field(array(int32), "0+")


@struct
class AddPartitionsToTxnTransaction(Struct):
    transactional_id: str = field(string, "4+")
    producer_id: int = field(int64, "4+")
    producer_epoch: int = field(int16, "4+")
    verify_only: bool = field(boolean, "4+")
    topics: list[AddPartitionsToTxnTopic] = field(array(AddPartitionsToTxnTopic), "4+")


@message(api_key=24, kind="request", versions="0-5", flexible="3+", elements_max=PARTITIONS_ELEMENTS_MAX)
class AddPartitionsToTxnRequest(Message):
    transactions: list[AddPartitionsToTxnTransaction] = field(array(AddPartitionsToTxnTransaction), "4+")
    v3_and_below_transactional_id: str = field(string, "0-3")
    v3_and_below_producer_id: int = field(int64, "0-3")
    v3_and_below_producer_epoch: int = field(int16, "0-3")
    v3_and_below_topics: list[AddPartitionsToTxnTopic] = field(array(AddPartitionsToTxnTopic), "0-3")


@struct
class AddPartitionsToTxnPartitionResult(Struct):
    partition_index: int = field(int32, "0+")
    partition_error_code: int = field(int16, "0+")


@struct
class AddPartitionsToTxnTopicResult(Struct):
    name: str = field(string, "0+")
    results_by_partition: list[AddPartitionsToTxnPartitionResult] = field(
        array(AddPartitionsToTxnPartitionResult), "0+"
    )


@struct
class AddPartitionsToTxnResult(Struct):
    transactional_id: str = field(string, "4+")
    topic_results: list[AddPartitionsToTxnTopicResult] = field(array(AddPartitionsToTxnTopicResult), "4+")


@message(api_key=24, kind="response", versions="0-5", flexible="3+")
class AddPartitionsToTxnResponse(Message):
    throttle_time_ms: int = field(int32, "0+")
    error_code: int = field(int16, "4+", ignorable=True)
    results_by_transaction: list[AddPartitionsToTxnResult] = field(array(AddPartitionsToTxnResult), "4+")
    results_by_topic_v3_and_below: list[AddPartitionsToTxnTopicResult] = field(
        array(AddPartitionsToTxnTopicResult), "0-3"
    )
