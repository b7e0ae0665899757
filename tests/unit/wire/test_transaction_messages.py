"""The messages of transactions in every version, compared with bytes written by hand."""

from __future__ import annotations

from uuid import UUID

import pytest

from tests.fixtures.messages import MESSAGES
from wire.compiler.compile import decode, encode
from wire.errors import EncodingError, MalformedMessageError
from wire.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from wire.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
    AddPartitionsToTxnTransaction,
)
from wire.messages.api_versions import ApiVersionsResponse, FinalizedFeatureKey, SupportedFeatureKey
from wire.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicRequest,
    TopicResponse,
)
from wire.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
    TopicData,
    TransactionState,
)
from wire.messages.end_txn import EndTxnRequest, EndTxnResponse
from wire.messages.find_coordinator import FindCoordinatorRequest
from wire.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse
from wire.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse
from wire.messages.list_transactions import TransactionState as ListedTransaction
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from wire.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)
from wire.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopic,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)
from wire.schema import Message, message_table

KEYS = {22, 24, 25, 26, 27, 28, 61, 65, 66}
PID = "00000000000003e8"
ONGOING = "08 4f6e676f696e67"
FEATURE = "14 7472616e73616374696f6e2e76657273696f6e"  # "transaction.version"
STARTED_MS, STARTED = 1_700_000_000_000, "0000018bcfe56800"
TOPIC_ID = UUID(int=7)

ADDED = [AddPartitionsToTxnTopic(name="t", partitions=[2])]
ADDED_RESULTS = [
    AddPartitionsToTxnTopicResult(
        name="t",
        results_by_partition=[AddPartitionsToTxnPartitionResult(partition_index=2, partition_error_code=51)],
    )
]
ADD_PARTITIONS = AddPartitionsToTxnRequest(
    v3_and_below_transactional_id="x",
    v3_and_below_producer_id=1000,
    v3_and_below_producer_epoch=5,
    v3_and_below_topics=ADDED,
)
ADD_MANY_PARTITIONS = AddPartitionsToTxnRequest(
    transactions=[
        AddPartitionsToTxnTransaction(
            transactional_id="x", producer_id=1000, producer_epoch=5, verify_only=True, topics=ADDED
        )
    ]
)
ADD_OFFSETS = AddOffsetsToTxnRequest(transactional_id="x", producer_id=1000, producer_epoch=5, group_id="g")
END = EndTxnRequest(transactional_id="x", producer_id=1000, producer_epoch=5, committed=True)
ENDED = EndTxnResponse(error_code=48, producer_id=1000, producer_epoch=6)
MARKERS = WriteTxnMarkersRequest(
    markers=[
        WritableTxnMarker(
            producer_id=1000,
            producer_epoch=5,
            transaction_result=True,
            topics=[WritableTxnMarkerTopic(name="t", partition_indexes=[2])],
            coordinator_epoch=7,
            transaction_version=2,
        )
    ]
)
MARKERS_WRITTEN = WriteTxnMarkersResponse(
    markers=[
        WritableTxnMarkerResult(
            producer_id=1000,
            topics=[
                WritableTxnMarkerTopicResult(
                    name="t", partitions=[WritableTxnMarkerPartitionResult(partition_index=2, error_code=47)]
                )
            ],
        )
    ]
)
OFFSETS_TOPICS = [
    TxnOffsetCommitRequestTopic(
        name="t",
        partitions=[
            TxnOffsetCommitRequestPartition(
                partition_index=2, committed_offset=9, committed_leader_epoch=4, committed_metadata="m"
            )
        ],
    )
]
OFFSETS = TxnOffsetCommitRequest(
    transactional_id="x", group_id="g", producer_id=1000, producer_epoch=5, topics=OFFSETS_TOPICS
)
MEMBERS_OFFSETS = TxnOffsetCommitRequest(
    transactional_id="x",
    group_id="g",
    producer_id=1000,
    producer_epoch=5,
    generation_id=3,
    member_id="a",
    group_instance_id="i",
    topics=OFFSETS_TOPICS,
)
OFFSETS_WRITTEN = TxnOffsetCommitResponse(
    topics=[
        TxnOffsetCommitResponseTopic(
            name="t", partitions=[TxnOffsetCommitResponsePartition(partition_index=2, error_code=22)]
        )
    ]
)
INIT = InitProducerIdRequest(transactional_id="x", transaction_timeout_ms=60_000)
INIT_AGAIN = InitProducerIdRequest(
    transactional_id="x", transaction_timeout_ms=60_000, producer_id=1000, producer_epoch=5
)
INITIALISED = InitProducerIdResponse(producer_id=1000, producer_epoch=6)
DESCRIBED = DescribeTransactionsResponse(
    transaction_states=[
        TransactionState(
            transactional_id="x",
            transaction_state="Ongoing",
            transaction_timeout_ms=60_000,
            transaction_start_time_ms=STARTED_MS,
            producer_id=1000,
            producer_epoch=5,
            topics=[TopicData(topic="t", partitions=[2])],
        )
    ]
)
LISTED = ListTransactionsResponse(
    unknown_state_filters=["odd"],
    transaction_states=[ListedTransaction(transactional_id="x", producer_id=1000, transaction_state="Ongoing")],
)
PRODUCERS = DescribeProducersResponse(
    topics=[
        TopicResponse(
            name="t",
            partitions=[
                PartitionResponse(
                    partition_index=2,
                    active_producers=[
                        ProducerState(
                            producer_id=1000,
                            producer_epoch=5,
                            last_sequence=7,
                            last_timestamp=STARTED_MS,
                            coordinator_epoch=3,
                            current_txn_start_offset=9,
                        )
                    ],
                )
            ],
        )
    ]
)
UNSTABLE_V7 = OffsetFetchResponsePartition(partition_index=2, committed_offset=-1, metadata="", error_code=88)
UNSTABLE = OffsetFetchResponsePartitions(partition_index=2, committed_offset=-1, metadata="", error_code=88)
PRODUCE = ProduceRequest(
    transactional_id="x",
    acks=-1,
    timeout_ms=1000,
    topic_data=[
        TopicProduceData(name="t", topic_id=TOPIC_ID, partition_data=[PartitionProduceData(index=2, records=b"abc")])
    ],
)
FEATURES = ApiVersionsResponse(
    supported_features=[SupportedFeatureKey(name="transaction.version", min_version=0, max_version=2)],
    finalized_features_epoch=1,
    finalized_features=[FinalizedFeatureKey(name="transaction.version", max_version_level=2, min_version_level=2)],
)

PINNED: list[tuple[Message, range, str]] = [
    (ADD_PARTITIONS, range(3), f"0001 78 {PID} 0005 00000001 0001 74 00000001 00000002"),
    (ADD_PARTITIONS, range(3, 4), f"02 78 {PID} 0005 02 02 74 02 00000002 00 00"),
    (ADD_MANY_PARTITIONS, range(4, 6), f"02 02 78 {PID} 0005 01 02 02 74 02 00000002 00 00 00"),
    (
        AddPartitionsToTxnResponse(results_by_topic_v3_and_below=ADDED_RESULTS),
        range(3),
        "00000000 00000001 0001 74 00000001 00000002 0033",
    ),
    (
        AddPartitionsToTxnResponse(results_by_topic_v3_and_below=ADDED_RESULTS),
        range(3, 4),
        "00000000 02 02 74 02 00000002 0033 00 00 00",
    ),
    (
        AddPartitionsToTxnResponse(
            error_code=31,
            results_by_transaction=[AddPartitionsToTxnResult(transactional_id="x", topic_results=ADDED_RESULTS)],
        ),
        range(4, 6),
        "00000000 001f 02 02 78 02 02 74 02 00000002 0033 00 00 00 00",
    ),
    (ADD_OFFSETS, range(3), f"0001 78 {PID} 0005 0001 67"),
    (ADD_OFFSETS, range(3, 5), f"02 78 {PID} 0005 02 67 00"),
    (AddOffsetsToTxnResponse(error_code=16), range(3), "00000000 0010"),
    (AddOffsetsToTxnResponse(error_code=16), range(3, 5), "00000000 0010 00"),
    (END, range(3), f"0001 78 {PID} 0005 01"),
    (END, range(3, 6), f"02 78 {PID} 0005 01 00"),
    # The producer to go on with is left out where it has no place.
    (ENDED, range(3), "00000000 0030"),
    (ENDED, range(3, 5), "00000000 0030 00"),
    (ENDED, range(5, 6), f"00000000 0030 {PID} 0006 00"),
    (MARKERS, range(1, 2), f"02 {PID} 0005 01 02 02 74 02 00000002 00 00000007 00 00"),
    (MARKERS, range(2, 3), f"02 {PID} 0005 01 02 02 74 02 00000002 00 00000007 02 00 00"),
    (MARKERS_WRITTEN, range(1, 3), f"02 {PID} 02 02 74 02 00000002 002f 00 00 00 00"),
    (
        OFFSETS,
        range(2),
        f"0001 78 0001 67 {PID} 0005 00000001 0001 74 00000001 00000002 0000000000000009 0001 6d",
    ),
    (
        OFFSETS,
        range(2, 3),
        f"0001 78 0001 67 {PID} 0005 00000001 0001 74 00000001 00000002 0000000000000009 00000004 0001 6d",
    ),
    (
        MEMBERS_OFFSETS,
        range(3, 6),
        f"02 78 02 67 {PID} 0005 00000003 02 61 02 69 02 02 74 02 00000002 0000000000000009 00000004 02 6d 00 00 00",
    ),
    (OFFSETS_WRITTEN, range(3), "00000000 00000001 0001 74 00000001 00000002 0016"),
    (OFFSETS_WRITTEN, range(3, 6), "00000000 02 02 74 02 00000002 0016 00 00 00"),
    (INIT, range(2), "0001 78 0000ea60"),
    (INIT, range(2, 3), "02 78 0000ea60 00"),
    (INIT, range(3, 6), "02 78 0000ea60 ffffffffffffffff ffff 00"),
    (INIT_AGAIN, range(3, 6), f"02 78 0000ea60 {PID} 0005 00"),
    (INITIALISED, range(2), f"00000000 0000 {PID} 0006"),
    (INITIALISED, range(2, 6), f"00000000 0000 {PID} 0006 00"),
    (DescribeTransactionsRequest(transactional_ids=["x"]), range(1), "02 02 78 00"),
    (
        DESCRIBED,
        range(1),
        f"00000000 02 0000 02 78 {ONGOING} 0000ea60 {STARTED} {PID} 0005 02 02 74 02 00000002 00 00 00",
    ),
    (
        ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[1000]),
        range(1),
        f"02 {ONGOING} 02 {PID} 00",
    ),
    (
        ListTransactionsRequest(state_filters=["Ongoing"], producer_id_filters=[1000], duration_filter=5000),
        range(1, 2),
        f"02 {ONGOING} 02 {PID} 0000000000001388 00",
    ),
    (
        ListTransactionsRequest(duration_filter=5000, transactional_id_pattern="a.*"),
        range(2, 3),
        "01 01 0000000000001388 04 612e2a 00",
    ),
    (ListTransactionsRequest(), range(2, 3), "01 01 ffffffffffffffff 00 00"),
    (LISTED, range(3), f"00000000 0000 02 04 6f6464 02 02 78 {PID} {ONGOING} 00 00"),
    (
        DescribeProducersRequest(topics=[TopicRequest(name="t", partition_indexes=[2])]),
        range(1),
        "02 02 74 02 00000002 00 00",
    ),
    (
        PRODUCERS,
        range(1),
        f"00000000 02 02 74 02 00000002 0000 00 02 {PID} 00000005 00000007 {STARTED} 00000003 0000000000000009"
        " 00 00 00 00",
    ),
    # What other APIs have for transactions.
    (FindCoordinatorRequest(key="x", key_type=1), range(1, 3), "0001 78 01"),
    (FindCoordinatorRequest(key="x", key_type=1), range(3, 4), "02 78 01 00"),
    (FindCoordinatorRequest(coordinator_keys=["x"], key_type=1), range(4, 6), "01 02 02 78 00"),
    (OffsetFetchRequest(group_id="g", topics=None, require_stable=True), range(7, 8), "02 67 00 01 00"),
    (
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)], require_stable=True),
        range(8, 9),
        "02 02 67 00 00 01 00",
    ),
    (
        OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id="g", topics=None)], require_stable=True),
        range(9, 10),
        "02 02 67 00 ffffffff 00 00 01 00",
    ),
    (
        OffsetFetchResponse(topics=[OffsetFetchResponseTopic(name="t", partitions=[UNSTABLE_V7])]),
        range(7, 8),
        "00000000 02 02 74 02 00000002 ffffffffffffffff ffffffff 01 0058 00 00 0000 00",
    ),
    (
        OffsetFetchResponse(
            groups=[
                OffsetFetchResponseGroup(
                    group_id="g", topics=[OffsetFetchResponseTopics(name="t", partitions=[UNSTABLE])]
                )
            ]
        ),
        range(8, 10),
        "00000000 02 02 67 02 02 74 02 00000002 ffffffffffffffff ffffffff 01 0058 00 00 0000 00 00",
    ),
    (PRODUCE, range(3, 9), "0001 78 ffff 000003e8 00000001 0001 74 00000001 00000002 00000003 616263"),
    (PRODUCE, range(9, 13), "02 78 ffff 000003e8 02 02 74 02 00000002 04 616263 00 00 00"),
    (PRODUCE, range(13, 14), f"02 78 ffff 000003e8 02 {TOPIC_ID.hex} 02 00000002 04 616263 00 00 00"),
    (
        FEATURES,
        range(3, 5),
        f"0000 01 00000000 03 00 1a 02 {FEATURE} 0000 0002 00 01 08 0000000000000001 02 1a 02 {FEATURE} 0002 0002 00",
    ),
]


@pytest.mark.parametrize(
    ("message", "versions", "expected"), PINNED, ids=[f"{type(pin[0]).__name__}-v{pin[1].start}" for pin in PINNED]
)
def test_messages_stand_on_the_wire_as_written_by_hand(message: Message, versions: range, expected: str) -> None:
    for version in versions:
        data = b"".join(encode(message, version))

        assert data.hex(" ") == bytes.fromhex(expected).hex(" "), version
        decoded, end = decode(type(message), version, memoryview(data))
        assert end == len(data)
        assert b"".join(encode(decoded, version)) == data
        for size in range(len(data)):
            with pytest.raises(MalformedMessageError):
                decode(type(message), version, memoryview(data)[:size])


def test_every_version_of_an_api_of_transactions_is_written_here() -> None:
    pinned: dict[type[Message], set[int]] = {}
    for message, versions, _ in PINNED:
        pinned.setdefault(type(message), set()).update(versions)

    declared = {found: set(message_table(found).versions) for found in MESSAGES if message_table(found).api_key in KEYS}

    assert {found: pinned.get(found) for found in declared} == declared


def test_a_version_without_room_for_it_refuses_what_the_other_side_must_know() -> None:
    for message, version in [
        (MEMBERS_OFFSETS, 2),  # the consumer's generation: unknown, it could not be fenced
        (INIT_AGAIN, 2),
        (ADD_MANY_PARTITIONS, 3),
        (ADD_PARTITIONS, 4),
        (ListTransactionsRequest(duration_filter=5000), 0),
        (ListTransactionsRequest(transactional_id_pattern="a.*"), 1),
        (OffsetFetchRequest(group_id="g", require_stable=True), 6),
    ]:
        with pytest.raises(EncodingError):
            encode(message, version)
