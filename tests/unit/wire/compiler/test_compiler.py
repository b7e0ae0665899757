"""The codec compiler, on messages that contain every type and rule once, with bytes written by hand."""

from __future__ import annotations

from uuid import UUID

import pytest

from wire.compiler.compile import decode, encode
from wire.compiler.primitives import uvarint
from wire.errors import EncodingError, MalformedMessageError
from wire.messages.acls import AclCreationResult, CreateAclsResponse
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wire.schema import (
    ELEMENTS_MAX,
    PARTITIONS_ELEMENTS_MAX,
    ZERO_UUID,
    Message,
    Octets,
    RecordData,
    Struct,
    array,
    boolean,
    field,
    float64,
    int8,
    int16,
    int32,
    int64,
    message,
    nested,
    octets,
    records,
    string,
    struct,
    uint16,
    uint32,
    uuid,
)


@struct
class Point(Struct):
    x: int = field(int8, "0+")
    label: str = field(string, "0+")


@message(api_key=1000, kind="request", versions="0-2", flexible="2+")
class Everything(Message):
    flag: bool = field(boolean, "0+")
    small: int = field(int16, "0+", default=7)
    port: int = field(uint16, "0+")
    count: int = field(uint32, "0+")
    ratio: float = field(float64, "0+")
    id: UUID = field(uuid, "0+")
    blob: Octets | None = field(octets, "0+", nullable="0+")
    numbers: list[int] = field(array(int64), "0+")
    names: list[str] | None = field(array(string), "0+", nullable="0+")
    ids: list[UUID] = field(array(uuid), "0+")
    point: Point | None = field(nested(Point), "0+", nullable="1+", default=None)
    added: int = field(int32, "1+", default=-1)
    hint: int = field(int32, "1+", default=-1, ignorable=True)
    tagged_number: int = field(int32, "2+", default=5, tag=0)
    tagged_names: list[str] = field(array(string), "2+", tag=1)
    tagged_point: Point | None = field(nested(Point), "2+", default=None, tag=3)


@message(api_key=1001, kind="response", versions="0-1", flexible="1+")
class Batches(Message):
    before: int = field(int8, "0+")
    first: RecordData | None = field(records, "0+", nullable="0+")
    between: int = field(int8, "0+")
    second: RecordData | None = field(records, "0+")
    after: int = field(int8, "0+")


FULL = Everything(
    flag=True,
    small=-2,
    port=65535,
    count=2**32 - 1,
    ratio=1.5,
    id=UUID("00112233-4455-6677-8899-aabbccddeeff"),
    blob=b"\x01\x02",
    numbers=[1, -1],
    names=["ä"],
    ids=[ZERO_UUID],
    point=Point(x=3, label="p"),
)
FIXED_PART = bytes.fromhex("01 fffe ffff ffffffff 3ff8000000000000 00112233445566778899aabbccddeeff")
LEGACY = FIXED_PART + bytes.fromhex(
    "00000002 0102  00000002 0000000000000001 ffffffffffffffff  00000001 0002 c3a4"
    "00000001 00000000000000000000000000000000  03 0001 70"
)
NULLABLE_POINT = LEGACY[:-4] + bytes.fromhex("01 03 0001 70")
COMPACT = FIXED_PART + bytes.fromhex(
    "03 0102  03 0000000000000001 ffffffffffffffff  02 03 c3a4"
    "02 00000000000000000000000000000000  01 03 02 70 00  ffffffff ffffffff"
)


def written(value: Message, version: int) -> bytes:
    return b"".join(encode(value, version))


def read(version: int, data: bytes) -> Everything:
    value, end = decode(Everything, version, memoryview(data))
    assert end == len(data)
    return value


@pytest.mark.parametrize(
    ("version", "expected"), [(0, LEGACY), (1, NULLABLE_POINT + b"\xff" * 8), (2, COMPACT + b"\x00")]
)
def test_every_type_stands_on_the_wire_as_kafka_lays_it_out(version: int, expected: bytes) -> None:
    assert written(FULL, version).hex(" ") == expected.hex(" ")
    assert read(version, expected) == FULL


def test_nulls_are_minus_one_or_zero() -> None:
    empty = Everything(blob=None, names=None, point=None)

    legacy = written(empty, 1)
    compact = written(empty, 2)

    assert legacy[33:] == bytes.fromhex("ffffffff 00000000 ffffffff 00000000 ff ffffffff ffffffff")
    assert compact[33:] == bytes.fromhex("00 01 00 01 ff ffffffff ffffffff 00")
    assert read(1, legacy) == empty
    assert read(2, compact) == empty


def test_tagged_fields_are_written_in_order_and_only_when_they_are_not_the_default() -> None:
    none = Everything(point=Point(), tagged_number=5, tagged_names=[], tagged_point=Point())
    some = Everything(point=Point(), tagged_point=Point(x=1, label="q"), tagged_number=6)

    base = written(none, 2)

    assert base[-1:] == b"\x00"
    assert written(some, 2) == base[:-1] + bytes.fromhex("02  00 04 00000006  03 04 01 02 71 00")
    assert read(2, written(some, 2)) == some


def test_unknown_tagged_fields_are_skipped_wherever_they_stand() -> None:
    with_unknown = COMPACT.replace(bytes.fromhex("03 02 70 00 "), bytes.fromhex("03 02 70 01 05 02 aaaa"))
    with_unknown += bytes.fromhex("03  00 04 00000006  02 00  09 01 ff")

    assert with_unknown != COMPACT
    value = read(2, with_unknown)
    assert value.tagged_number == 6
    assert value.point == Point(x=3, label="p")


@pytest.mark.parametrize(
    ("section", "complaint"),
    [
        ("02  00 04 00000006  00 04 00000006", "comes after tag 0"),
        ("02  01 01 01  00 04 00000006", "comes after tag 1"),
        ("02  09 00  09 00", "comes after tag 9"),
        ("01  00 05 00000006 00", "does not fill"),
        ("01  00 03 00000006", "does not fill"),
        ("01  09 7f 00", "beyond the end"),
        ("01  00", "ends early"),
        ("ff ff ff ff ff 01", "longer than 5 bytes"),
        ("ff ff ff ff 1f", "32 bits"),
        ("ff ff ff ff 0f", f"more than {ELEMENTS_MAX}"),
    ],
)
def test_a_malformed_section_of_tagged_fields_is_refused(section: str, complaint: str) -> None:
    with pytest.raises(MalformedMessageError, match=complaint):
        read(2, COMPACT + bytes.fromhex(section))


@pytest.mark.parametrize(
    ("version", "data", "complaint"),
    [
        (0, FIXED_PART + bytes.fromhex("fffffffe"), "blob has a negative length"),
        (0, FIXED_PART + bytes.fromhex("7fffffff"), "blob is longer"),
        (0, FIXED_PART + bytes.fromhex("ffffffff ffffffff"), "numbers is null"),
        (0, FIXED_PART + bytes.fromhex("ffffffff 00000002 0000000000000001"), "numbers has more elements"),
        (0, FIXED_PART + bytes.fromhex("ffffffff 7fffffff"), "numbers has more elements"),
        (2, FIXED_PART + bytes.fromhex("00 ffffffff0f"), "numbers has more elements"),
        (2, FIXED_PART + bytes.fromhex("00 ffffffff7f"), "32 bits"),
        (2, FIXED_PART + bytes.fromhex("00 ffffffffff01"), "longer than 5 bytes"),
        (2, FIXED_PART + bytes.fromhex("00 00"), "numbers is null"),
        (2, FIXED_PART + bytes.fromhex("00 01 02 00"), r"names\[\] is null"),
        (2, FIXED_PART + bytes.fromhex("00 01 02 03 ff"), r"names\[\] is longer"),
        (2, FIXED_PART + bytes.fromhex("00 01 02 03 ffff"), "not UTF-8"),
        (2, FIXED_PART + bytes.fromhex("00 01 02 818002") + bytes(32768), r"names\[\] is longer"),
        (0, b"", "ends early"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_malformed_body_is_refused_with_the_name_of_the_field(version: int, data: bytes, complaint: str) -> None:
    with pytest.raises(MalformedMessageError, match=complaint):
        decode(Everything, version, memoryview(data))


def test_a_request_of_more_elements_than_any_client_sends_is_refused() -> None:
    empty_names = b"\x01" * (ELEMENTS_MAX + 1)
    too_many = FIXED_PART + b"\x00\x01" + uvarint(ELEMENTS_MAX + 2) + empty_names + bytes(64)

    with pytest.raises(MalformedMessageError, match=f"more than {ELEMENTS_MAX} elements"):
        decode(Everything, 2, memoryview(too_many))


def test_an_api_may_have_a_bound_of_elements_of_its_own() -> None:
    body = b"".join(encode(OffsetDeleteRequest(group_id="g", topics=[topic_of(100_000)]), 0))
    assert len(decode(OffsetDeleteRequest, 0, memoryview(body))[0].topics[0].partitions) == 100_000

    body = b"".join(encode(OffsetDeleteRequest(group_id="g", topics=[topic_of(PARTITIONS_ELEMENTS_MAX)]), 0))
    with pytest.raises(MalformedMessageError, match=f"more than {PARTITIONS_ELEMENTS_MAX} elements"):
        decode(OffsetDeleteRequest, 0, memoryview(body))


def topic_of(partitions: int) -> OffsetDeleteRequestTopic:
    each = OffsetDeleteRequestPartition(partition_index=1)
    return OffsetDeleteRequestTopic(name="t", partitions=[each] * partitions)


@pytest.mark.parametrize(
    ("value", "version", "complaint"),
    [
        (Everything(point=Point(), added=3), 0, "added is not in this version"),
        (Everything(point=Point(), tagged_names=["x"]), 1, "tagged_names is not in this version"),
        (Everything(point=Point(), port=65536), 0, "cannot be written"),
        (Everything(point=Point(), names=["x" * 32768]), 2, "longer than 32767"),
        (Everything(point=Point(), names=["\ud800"]), 2, "cannot be written"),
        (Everything(point=None), 0, "cannot be written"),
        (Everything(point=Point(), numbers=None), 1, "numbers is None"),  # pyright: ignore[reportArgumentType]
        (Batches(second=None), 0, "second is None"),
        (Everything(point=Point()), 3, "not declared for version 3"),
    ],
)
def test_a_value_that_the_version_cannot_carry_is_refused(value: Message, version: int, complaint: str) -> None:
    with pytest.raises(EncodingError, match=complaint):
        encode(value, version)


def test_an_ignorable_value_is_dropped_in_versions_without_the_field() -> None:
    assert written(Everything(point=Point(), hint=9), 0) == written(Everything(point=Point()), 0)


def test_records_go_into_the_parts_and_come_out_of_the_buffer_without_a_copy() -> None:
    first, left, right = bytes(300), bytearray(b"left"), memoryview(b"right")
    value = Batches(before=1, first=first, between=2, second=[left, right], after=3)

    parts = encode(value, 1, bytearray(b"head"))
    data = b"".join(parts)
    decoded, _ = decode(Batches, 1, memoryview(data), 4)

    assert [part for part in parts if part in (first, left, right)] == [first, left, right]
    assert any(part is left for part in parts)
    assert data == b"head\x01" + uvarint(301) + first + b"\x02\x0a" + b"leftright" + b"\x03\x00"
    assert isinstance(decoded.second, memoryview)
    assert decoded.second.obj is data
    assert decoded == Batches(before=1, first=first, between=2, second=b"leftright", after=3)


def test_null_and_empty_records_differ() -> None:
    value = Batches(first=None, second=b"")

    assert written(value, 0) == bytes.fromhex("00 ffffffff 00 00000000 00")
    assert decode(Batches, 0, memoryview(written(value, 0)))[0] == value


def test_long_arrays_of_numbers_are_written_like_short_ones() -> None:
    value = Everything(point=Point(), numbers=list(range(100)))

    assert read(2, written(value, 2)) == value


def test_every_message_has_lists_of_its_own() -> None:
    one, other = Everything(), read(2, written(Everything(point=Point()), 2))
    one.numbers.append(1)
    other.tagged_names.append("x")

    assert Everything().numbers == []
    assert read(2, written(Everything(point=Point()), 2)).tagged_names == []


@pytest.mark.parametrize(("letter", "length"), [("x", 32_767), ("\u00e9", 32_766)])
def test_the_text_of_an_error_is_cut_where_it_is_too_long(letter: str, length: int) -> None:
    """It may repeat what a client sent: the answer must not fail by that."""
    parts = encode(CreateAclsResponse(results=[AclCreationResult(error_message=letter * 40_000)]), 2)
    answer, _ = decode(CreateAclsResponse, 2, memoryview(b"".join(parts)))
    said = answer.results[0].error_message
    assert said is not None and set(said) == {letter} and len(said.encode()) == length
