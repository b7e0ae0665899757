"""WriteTxnMarkers, key 27: between Kafka's brokers, and by its tool that aborts a hanging transaction (KIP-664).

Version 0 ended with Kafka 3. Version 2 tells the protocol of the transaction's client (KIP-1228).
"""

from __future__ import annotations

from wire.schema import (
    PARTITIONS_ELEMENTS_MAX,
    Message,
    Struct,
    array,
    boolean,
    field,
    int8,
    int16,
    int32,
    int64,
    message,
    string,
    struct,
)


@struct
class WritableTxnMarkerTopic(Struct):
    name: str = field(string, "0+")
    partition_indexes: list[int] = field(array(int32), "0+")


@struct
class WritableTxnMarker(Struct):
    producer_id: int = field(int64, "0+")
    producer_epoch: int = field(int16, "0+")
    transaction_result: bool = field(boolean, "0+")
    topics: list[WritableTxnMarkerTopic] = field(array(WritableTxnMarkerTopic), "0+")
    coordinator_epoch: int = field(int32, "0+")
    transaction_version: int = field(int8, "2+", ignorable=True)


@message(api_key=27, kind="request", versions="1-2", flexible="1+", elements_max=PARTITIONS_ELEMENTS_MAX)
class WriteTxnMarkersRequest(Message):
    markers: list[WritableTxnMarker] = field(array(WritableTxnMarker), "0+")


@struct
class WritableTxnMarkerPartitionResult(Struct):
    partition_index: int = field(int32, "0+")
    error_code: int = field(int16, "0+")


@struct
class WritableTxnMarkerTopicResult(Struct):
    name: str = field(string, "0+")
    partitions: list[WritableTxnMarkerPartitionResult] = field(array(WritableTxnMarkerPartitionResult), "0+")


@struct
class WritableTxnMarkerResult(Struct):
    producer_id: int = field(int64, "0+")
    topics: list[WritableTxnMarkerTopicResult] = field(array(WritableTxnMarkerTopicResult), "0+")


@message(api_key=27, kind="response", versions="1-2", flexible="1+")
class WriteTxnMarkersResponse(Message):
    markers: list[WritableTxnMarkerResult] = field(array(WritableTxnMarkerResult), "0+")
