"""The tables in `wire.messages` compared with Kafka's definitions, and with bytes written by hand."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints
from uuid import UUID

import pytest

from tests.fixtures.messages import MESSAGES
from wire.api import APIS
from wire.compiler.compile import decode, encode
from wire.messages.api_versions import ApiVersion, ApiVersionsResponse
from wire.messages.describe_configs import (
    DescribeConfigsRequest,
    DescribeConfigsResource,
    DescribeConfigsResourceResult,
    DescribeConfigsResponse,
    DescribeConfigsResult,
)
from wire.messages.fetch import FetchableTopicResponse, FetchResponse, LeaderIdAndEpoch, PartitionData
from wire.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
    ListOffsetsTopicResponse,
)
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from wire.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
    OffsetFetchResponse,
    OffsetFetchResponsePartition,
    OffsetFetchResponseTopic,
)
from wire.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
    OffsetForLeaderTopicResult,
)
from wire.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)
from wire.schema import Array, FieldTable, Fixed, Message, Nested, Struct, Variable, VersionRange, message_table

RENAMED = {"AlteredEntryData": "EntryData"}
"""Our name of a struct, where Kafka's is taken by another struct of the same module."""
UNKNOWN_TO_KAFKA_PYTHON = re.compile(r"(\w+DelegationToken|UnregisterBroker)(Request|Response)")
"""Messages that kafka-python ships no definition of; kio's bytes judge them (`test_messages_against_oracles.py`)."""
DEFINED = [found for found in MESSAGES if not UNKNOWN_TO_KAFKA_PYTHON.fullmatch(found.__name__)]


def kafka_definition(name: str) -> dict[str, Any]:
    """Kafka's own definition of a message, which kafka-python ships as a resource."""
    found = importlib.util.find_spec("kafka")  # found, not imported: its import causes a warning
    assert found is not None
    assert found.origin is not None
    path = Path(found.origin).parent / "protocol" / "schemas" / "resources" / f"{name}.json"
    return json.loads(re.sub(r"^\s*//.*$", "", path.read_text(), flags=re.M))


def snake_case(name: str) -> str:
    return re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).lower()


def type_name(row: FieldTable) -> str:
    element = row.type.element if isinstance(row.type, Array) else row.type
    prefix = "[]" if isinstance(row.type, Array) else ""
    match element:
        case Nested(struct_class):
            return prefix + RENAMED.get(struct_class.__name__, struct_class.__name__)
        case Fixed(name=name) | Variable(name=name):
            return prefix + name
        case _:
            raise TypeError(element)


def default_of(definition: dict[str, Any]) -> object:
    """The default that Kafka gives a field, spelled as in our tables."""
    kind, default = definition["type"], definition.get("default")
    if kind.startswith("[]"):
        return () if default is None else None
    if default == "null" or kind == "records" or kind[0].isupper():
        return None
    match kind:
        case "string":
            return default or ""
        case "bytes":
            return b""
        case "bool":
            return default in ("true", True)
        case "uuid":
            return UUID(int=0)
        case _:
            return int(str(default or 0), 0)


@pytest.mark.parametrize("message_class", DEFINED, ids=lambda found: found.__name__)
def test_the_tables_are_kafkas_in_every_version_we_declare(message_class: type[Message]) -> None:
    table = message_table(message_class)
    definition = kafka_definition(message_class.__name__)
    assert (definition["apiKey"], definition["type"]) == (table.api_key, table.kind)
    flexible = VersionRange.parse(definition["flexibleVersions"].replace("none", ""))
    shared = {found["name"]: found["fields"] for found in definition.get("commonStructs", ())}

    def compare(struct_class: type[Struct], definitions: list[dict[str, Any]], version: int) -> None:
        ours = [row for row in struct_class.wire_table.fields if version in row.versions]
        theirs = [found for found in definitions if version in VersionRange.parse(found["versions"])]
        assert [row.name for row in ours] == [snake_case(found["name"]) for found in theirs]
        for row, found in zip(ours, theirs, strict=True):
            tagged = VersionRange.parse(found.get("taggedVersions", ""))
            assert type_name(row) == found["type"], row
            assert row.default == default_of(found), row
            assert (version in row.nullable) == (version in VersionRange.parse(found.get("nullableVersions", ""))), row
            assert (version in row.tagged) == (version in tagged), row
            assert row.tag == found.get("tag"), row
            assert row.ignorable == found.get("ignorable", False), row
            element = row.type.element if isinstance(row.type, Array) else row.type
            if isinstance(element, Nested):
                inner = found.get("fields") or shared[found["type"].removeprefix("[]")]
                compare(element.struct_class, inner, version)

    for version in table.versions:
        assert (version in table.flexible) == (version in flexible)
        compare(message_class, definition["fields"], version)


def structs_of(struct_class: type[Struct]) -> set[type[Struct]]:
    found = {struct_class}
    for row in struct_class.wire_table.fields:
        element = row.type.element if isinstance(row.type, Array) else row.type
        if isinstance(element, Nested):
            found |= structs_of(element.struct_class)
    return found


@pytest.mark.parametrize("message_class", MESSAGES, ids=lambda found: found.__name__)
def test_a_field_is_declared_optional_exactly_when_it_can_be_none(message_class: type[Message]) -> None:
    for struct_class in structs_of(message_class):
        hints = get_type_hints(struct_class)
        for row in struct_class.wire_table.fields:
            can_be_none = row.nullable.low <= row.nullable.high or row.default is None
            assert (type(None) in get_args(hints[row.name])) == can_be_none, (struct_class, row.name)


def test_every_request_has_one_answer_with_the_same_versions() -> None:
    requests, responses = (
        [message_table(found) for found in MESSAGES if message_table(found).kind == kind]
        for kind in ("request", "response")
    )
    for request, response in zip(requests, responses, strict=True):
        assert (request.api_key, request.versions, request.flexible) == (
            response.api_key,
            response.versions,
            response.flexible,
        )
        name = request.struct_class.__name__.removesuffix("Request")
        assert response.struct_class.__name__ == f"{name}Response"


def test_the_advertised_versions_are_declared() -> None:
    for api in APIS.values():
        for message_class in (api.request, api.response):
            versions = message_table(message_class).versions
            assert message_table(message_class).api_key == api.key
            assert versions.low <= api.advertised[0] <= api.accepted[0] <= api.accepted[1] <= versions.high
            assert api.advertised[1] == api.accepted[1]


PRODUCE_RESPONSE = ProduceResponse(
    throttle_time_ms=5,
    responses=[
        TopicProduceResponse(
            name="t", partition_responses=[PartitionProduceResponse(index=1, error_code=35, base_offset=-1)]
        )
    ],
)
PRODUCE_REQUEST = ProduceRequest(
    acks=1,
    timeout_ms=1000,
    topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=2, records=b"abc")])],
)
OFFSET_COMMIT_RESPONSE = OffsetCommitResponse(
    topics=[
        OffsetCommitResponseTopic(
            name="t", partitions=[OffsetCommitResponsePartition(partition_index=2, error_code=16)]
        )
    ]
)
EPOCH_REQUEST = OffsetForLeaderEpochRequest(
    topics=[OffsetForLeaderTopic(topic="t", partitions=[OffsetForLeaderPartition(partition=2, leader_epoch=4)])]
)
EPOCH_RESPONSE = OffsetForLeaderEpochResponse(
    topics=[
        OffsetForLeaderTopicResult(
            topic="t", partitions=[EpochEndOffset(error_code=3, partition=2, leader_epoch=4, end_offset=9)]
        )
    ]
)
PINNED: list[tuple[Message, int, str]] = [
    # Versions that both oracles lack, or have only by chance.
    (PRODUCE_REQUEST, 0, "0001 000003e8 00000001 0001 74 00000001 00000002 00000003 616263"),
    (PRODUCE_REQUEST, 2, "0001 000003e8 00000001 0001 74 00000001 00000002 00000003 616263"),
    (PRODUCE_RESPONSE, 0, "00000001 0001 74 00000001 00000001 0023 ffffffffffffffff"),
    (PRODUCE_RESPONSE, 1, "00000001 0001 74 00000001 00000001 0023 ffffffffffffffff 00000005"),
    (PRODUCE_RESPONSE, 2, "00000001 0001 74 00000001 00000001 0023 ffffffffffffffff ffffffffffffffff 00000005"),
    (
        ListOffsetsRequest(
            replica_id=-1,
            topics=[
                ListOffsetsTopic(
                    name="t", partitions=[ListOffsetsPartition(partition_index=1, timestamp=-2, max_num_offsets=3)]
                )
            ],
        ),
        0,
        "ffffffff 00000001 0001 74 00000001 00000001 fffffffffffffffe 00000003",
    ),
    (
        ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name="t", partitions=[ListOffsetsPartitionResponse(partition_index=1, old_style_offsets=[9, 0])]
                )
            ]
        ),
        0,
        "00000001 0001 74 00000001 00000001 0000 00000002 0000000000000009 0000000000000000",
    ),
    (
        DescribeConfigsRequest(
            resources=[DescribeConfigsResource(resource_type=2, resource_name="t", configuration_keys=None)]
        ),
        0,
        "00000001 02 0001 74 ffffffff",
    ),
    (
        DescribeConfigsResponse(
            results=[
                DescribeConfigsResult(
                    resource_type=2,
                    resource_name="t",
                    error_message=None,
                    configs=[DescribeConfigsResourceResult(name="k", value="v", is_default=True)],
                )
            ]
        ),
        0,
        "00000000 00000001 0000 ffff 02 0001 74 00000001 0001 6b 0001 76 00 01 00",
    ),
    (
        OffsetCommitRequest(
            group_id="g",
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        OffsetCommitRequestPartition(partition_index=2, committed_offset=9, committed_metadata="x")
                    ],
                )
            ],
        ),
        0,
        "0001 67 00000001 0001 74 00000001 00000002 0000000000000009 0001 78",
    ),
    (
        OffsetCommitRequest(
            group_id="g",
            generation_id_or_member_epoch=3,
            member_id="m",
            topics=[
                OffsetCommitRequestTopic(
                    name="t",
                    partitions=[
                        OffsetCommitRequestPartition(
                            partition_index=2, committed_offset=9, commit_timestamp=5, committed_metadata=None
                        )
                    ],
                )
            ],
        ),
        1,
        "0001 67 00000003 0001 6d 00000001 0001 74 00000001 00000002 0000000000000009 0000000000000005 ffff",
    ),
    (OFFSET_COMMIT_RESPONSE, 0, "00000001 0001 74 00000001 00000002 0010"),
    (OFFSET_COMMIT_RESPONSE, 1, "00000001 0001 74 00000001 00000002 0010"),
    (
        OffsetFetchRequest(group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[2])]),
        0,
        "0001 67 00000001 0001 74 00000001 00000002",
    ),
    (
        OffsetFetchResponse(
            topics=[
                OffsetFetchResponseTopic(
                    name="t",
                    partitions=[OffsetFetchResponsePartition(partition_index=2, committed_offset=9, metadata="x")],
                )
            ]
        ),
        0,
        "00000001 0001 74 00000001 00000002 0000000000000009 0001 78 0000",
    ),
    (EPOCH_REQUEST, 0, "00000001 0001 74 00000001 00000002 00000004"),
    (EPOCH_REQUEST, 1, "00000001 0001 74 00000001 00000002 00000004"),
    (EPOCH_RESPONSE, 0, "00000001 0001 74 00000001 0003 00000002 0000000000000009"),
    (EPOCH_RESPONSE, 1, "00000001 0001 74 00000001 0003 00000002 00000004 0000000000000009"),
    # The messages with which every client begins.
    (MetadataRequest(topics=[]), 0, "00000000"),
    (MetadataRequest(topics=None), 1, "ffffffff"),
    (
        MetadataRequest(topics=[MetadataRequestTopic(name="t")], allow_auto_topic_creation=False),
        12,
        "02 00000000000000000000000000000000 02 74 00 00 00 00",
    ),
    (
        ApiVersionsResponse(error_code=35, api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)]),
        0,
        "0023 00000001 0012 0000 0004",
    ),
    (
        ApiVersionsResponse(
            api_keys=[ApiVersion(api_key=18, min_version=0, max_version=4)], finalized_features_epoch=1
        ),
        3,
        "0000 02 0012 0000 0004 00 00000000 01 01 08 0000000000000001",
    ),
    (
        FetchResponse(
            responses=[
                FetchableTopicResponse(
                    topic="t",
                    partitions=[
                        PartitionData(
                            partition_index=1,
                            high_watermark=2,
                            last_stable_offset=2,
                            log_start_offset=0,
                            current_leader=LeaderIdAndEpoch(leader_id=4, leader_epoch=0),
                            aborted_transactions=None,
                            records=b"abc",
                        )
                    ],
                )
            ]
        ),
        12,
        "00000000 0000 00000000 02 02 74 02 00000001 0000 0000000000000002 0000000000000002 0000000000000000"
        "00 ffffffff 04 616263 01 01 09 00000004 00000000 00 00 00",
    ),
]


@pytest.mark.parametrize(
    ("message", "version", "expected"), PINNED, ids=[f"{type(pin[0]).__name__}-v{pin[1]}" for pin in PINNED]
)
def test_messages_stand_on_the_wire_as_written_by_hand(message: Message, version: int, expected: str) -> None:
    data = b"".join(encode(message, version))

    assert data.hex(" ") == bytes.fromhex(expected).hex(" ")
    decoded, end = decode(type(message), version, memoryview(data))
    assert end == len(data)
    assert b"".join(encode(decoded, version)) == data
