"""Whole frames: headers, versions, and refusals."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wire.api import (
    APIS,
    RequestHeader,
    UnsupportedVersionError,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
    read_request_header,
)
from wire.errors import EncodingError, MalformedMessageError, UnknownApiError
from wire.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from wire.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from wire.messages.metadata import MetadataRequest, MetadataResponse
from wire.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData


def hexed(parts: list[bytes | bytearray | memoryview]) -> str:
    return b"".join(parts).hex(" ")


def spaced(text: str) -> str:
    return bytes.fromhex(text).hex(" ")


@pytest.mark.parametrize(
    ("version", "client_id", "expected"),
    [
        (1, "me", "00000010 0003 0001 00000007 0002 6d65 ffffffff"),
        (1, None, "0000000e 0003 0001 00000007 ffff ffffffff"),
        # A flexible header has tagged fields, but its client id is never compact.
        (12, "me", "00000011 0003 000c 00000007 0002 6d65 00 00 01 00 00"),
    ],
)
def test_a_request_is_a_length_a_header_and_a_body(version: int, client_id: str | None, expected: str) -> None:
    body = MetadataRequest(topics=None)

    parts = encode_request(3, version, 7, client_id, body)
    frame = memoryview(b"".join(parts))[4:]
    header, position = read_request_header(frame)

    assert hexed(parts) == spaced(expected)
    assert header == RequestHeader(3, version, 7, client_id)
    assert decode_request(header, frame, position) == body


@pytest.mark.parametrize(
    ("version", "expected"),
    [
        (1, "00000010 00000007 00000000 ffffffff 00000000"),
        (9, "00000015 00000007 00 00000000 01 00 ffffffff 01 80000000 00"),
    ],
)
def test_a_response_is_a_length_a_header_and_a_body(version: int, expected: str) -> None:
    parts = encode_response(RequestHeader(3, version, 7, None), MetadataResponse())

    assert hexed(parts) == spaced(expected)
    assert decode_response(3, version, memoryview(b"".join(parts))[4:]) == (7, MetadataResponse())


@pytest.mark.parametrize("version", [0, 1, 2, 3, 4])
def test_the_header_of_an_api_versions_response_never_has_tagged_fields(version: int) -> None:
    data = b"".join(encode_response(RequestHeader(18, version, 7, None), ApiVersionsResponse(error_code=35)))

    assert data[4:10] == bytes.fromhex("00000007 0023")
    assert decode_response(18, version, memoryview(data)[4:]) == (7, ApiVersionsResponse(error_code=35))


def test_api_versions_of_the_future_is_answered_in_version_0() -> None:
    frame = memoryview(bytes.fromhex("0012 7fff 00000007 0001 63 ff ff ff"))

    with pytest.raises(UnsupportedVersionError) as caught:
        read_request_header(frame)
    header = caught.value.header

    assert header == RequestHeader(18, 32767, 7, "c")
    answer = encode_response(header, ApiVersionsResponse(error_code=35, throttle_time_ms=1))
    assert hexed(answer) == spaced("0000000a 00000007 0023 00000000")


def test_an_old_produce_request_is_refused_but_can_be_read_and_answered_in_its_own_layout() -> None:
    body = ProduceRequest(acks=1, topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData()])])
    frame = memoryview(b"".join(encode_request(0, 2, 7, "old", body)))[4:]

    with pytest.raises(UnsupportedVersionError, match="Produce v2, but only v3 to v13") as caught:
        read_request_header(frame)

    assert decode_request(caught.value.header, frame, caught.value.position) == body


@pytest.mark.parametrize(
    ("frame", "error"),
    [
        ("", MalformedMessageError),
        ("0003 0001 00000007 00", MalformedMessageError),
        ("0003 0001 00000007 0005 6d65", MalformedMessageError),
        ("0003 0001 00000007 fffe", MalformedMessageError),
        ("0003 0001 00000007 0001 ff", MalformedMessageError),
        ("0003 000c 00000007 ffff", MalformedMessageError),
        ("0003 000c 00000007 ffff 01 05 7f", MalformedMessageError),
        ("03e7 0000 00000007 ffff", UnknownApiError),
        ("ffff 0000 00000007 ffff", UnknownApiError),
        ("0003 000e 00000007 ffff 00", UnsupportedVersionError),
        ("0003 ffff 00000007 ffff", UnsupportedVersionError),
        ("0001 0003 00000007 ffff", UnsupportedVersionError),
    ],
)
def test_a_header_that_cannot_be_served_is_refused(frame: str, error: type[Exception]) -> None:
    with pytest.raises(error):
        read_request_header(memoryview(bytes.fromhex(frame)))


def test_unknown_tagged_fields_in_a_header_are_skipped() -> None:
    frame = memoryview(bytes.fromhex("0012 0003 00000007 ffff 01 63 02 aabb 02 61 02 62 00"))

    header, position = read_request_header(frame)

    assert decode_request(header, frame, position) == ApiVersionsRequest(
        client_software_name="a", client_software_version="b"
    )


def test_bytes_after_a_request_are_not_looked_at_because_clients_send_them() -> None:
    # librdkafka 2.16, "all topics": four bytes of null list where v12 has one
    frame = memoryview(bytes.fromhex("0003 000c 00000003 0007 72646b61666b61 00 00000000 01 00 00"))
    header, position = read_request_header(frame)

    body = decode_request(header, frame, position)

    assert isinstance(body, MetadataRequest)
    assert body.topics is None


def test_bytes_after_an_answer_are_refused() -> None:
    with pytest.raises(MalformedMessageError, match="leaves 2 bytes"):
        decode_response(18, 0, memoryview(bytes.fromhex("00000007 0000 00000000 0000")))


def test_the_wrong_body_for_a_header_is_our_own_error() -> None:
    with pytest.raises(EncodingError, match="cannot answer"):
        encode_response(RequestHeader(3, 1, 7, None), ApiVersionsResponse())
    with pytest.raises(EncodingError, match="cannot be sent"):
        encode_request(3, 1, 7, None, MetadataResponse())
    with pytest.raises(EncodingError, match="header cannot be written"):
        encode_request(3, 1, 7, "x" * 40_000, MetadataRequest())


def test_the_length_of_a_frame_counts_the_records_that_are_not_copied() -> None:
    records = bytes(1000)
    partition = PartitionData(aborted_transactions=None, records=[records, records])
    body = FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[partition, partition])])

    parts = encode_response(RequestHeader(1, 12, 7, None), body)

    assert sum(part is records for part in parts) == 4
    assert int.from_bytes(b"".join(parts)[:4]) == sum(map(len, parts)) - 4


@given(api_key=st.sampled_from(sorted(APIS)), version=st.integers(-1, 13), rest=st.binary(max_size=64))
def test_no_frame_does_worse_than_being_refused(api_key: int, version: int, rest: bytes) -> None:
    frame = memoryview(api_key.to_bytes(2) + version.to_bytes(2, signed=True) + bytes(4) + rest)

    try:
        header, position = read_request_header(frame)
        decode_request(header, frame, position)
    except (MalformedMessageError, UnsupportedVersionError):
        return
    assert header.correlation_id == 0
