"""Messages that are read and written in steps: the same values and bytes, and no step does much."""

from __future__ import annotations

from typing import TypeVar

import pytest

from tests.property.message_strategies import CASES, fullest
from wire.compiler.compile import Steps, at_once, decode, decode_in_steps, encode, encode_in_steps, encode_short
from wire.compiler.primitives import SECTION_FIELDS_MAX, uvarint
from wire.compiler.source_text import STEP_ELEMENTS
from wire.errors import EncodingError, MalformedMessageError
from wire.messages.delete_topics import DeletableTopicResult, DeleteTopicsRequest, DeleteTopicsResponse
from wire.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from wire.messages.metadata import MetadataRequest, MetadataRequestTopic
from wire.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteRequestPartition, OffsetDeleteRequestTopic
from wire.schema import Message

T = TypeVar("T")


def counted(steps: Steps[T]) -> tuple[int, T]:
    """The pauses, and the result."""
    pauses = 0
    while True:
        try:
            next(steps)
        except StopIteration as ended:
            return pauses, ended.value
        pauses += 1


def bytes_of(message: Message, version: int) -> memoryview:
    return memoryview(b"".join(encode(message, version)))


def test_every_message_is_read_and_written_alike_in_steps_and_at_once() -> None:
    for message_class, version in CASES:
        value = fullest(message_class, version)
        data = bytes_of(value, version)
        assert at_once(decode_in_steps(message_class, version, data, 0)) == decode(message_class, version, data)
        assert b"".join(at_once(encode_in_steps(value, version, bytearray()))) == data


@pytest.mark.parametrize("version", [0, 13])
def test_a_long_request_takes_a_step_for_each_few_thousand_elements(version: int) -> None:
    count = 10 * STEP_ELEMENTS
    data = bytes_of(MetadataRequest(topics=[MetadataRequestTopic(name=f"t{n}") for n in range(count)]), version)
    pauses, (value, end) = counted(decode_in_steps(MetadataRequest, version, data, 0))
    assert pauses == 10
    assert (value, end) == decode(MetadataRequest, version, data)


def test_the_elements_of_all_arrays_count_together() -> None:
    partitions = [OffsetDeleteRequestPartition(partition_index=n) for n in range(99)]
    topics = [OffsetDeleteRequestTopic(name="t", partitions=partitions)] * (STEP_ELEMENTS // 20)
    data = bytes_of(OffsetDeleteRequest(group_id="g", topics=topics), 0)
    pauses, _ = counted(decode_in_steps(OffsetDeleteRequest, 0, data, 0))
    assert pauses == 5


def test_few_elements_that_are_long_take_several_steps_too() -> None:
    topics = [MetadataRequestTopic(name="x" * 32_000) for _ in range(STEP_ELEMENTS // 16)]
    data = bytes_of(MetadataRequest(topics=topics), 12)
    pauses, _ = counted(decode_in_steps(MetadataRequest, 12, data, 0))
    assert pauses >= 3


def test_few_elements_that_are_long_are_written_in_several_steps_too() -> None:
    long = FindCoordinatorResponse(coordinators=[Coordinator(key="x" * 32_000, host="h")] * (STEP_ELEMENTS // 16))
    pauses, _ = counted(encode_in_steps(long, 5, bytearray()))
    assert pauses >= 3


def test_tagged_fields_that_nobody_knows_count_like_elements() -> None:
    fields = 500
    section = uvarint(fields) + b"".join(uvarint(tag) + b"\x00" for tag in range(fields))
    topic = bytes(16) + b"\x02t" + section
    count = 8 * STEP_ELEMENTS // fields
    data = memoryview(uvarint(count + 1) + topic * count + b"\x00\x00" + b"\x00")
    pauses, (value, _) = counted(decode_in_steps(MetadataRequest, 12, data, 0))
    assert 7 <= pauses <= 9
    assert value.topics is not None and len(value.topics) == count


def test_no_client_stands_so_many_unknown_fields_in_one_place() -> None:
    fields = SECTION_FIELDS_MAX + 1
    section = uvarint(fields) + b"".join(uvarint(tag) + b"\x00" for tag in range(fields))
    data = memoryview(b"\x01\x00\x00" + section)
    with pytest.raises(MalformedMessageError, match="more elements and tagged fields"):
        decode(MetadataRequest, 12, data)


def test_what_is_wrong_at_the_end_of_a_long_request_is_found_in_the_last_step() -> None:
    data = bytes_of(DeleteTopicsRequest(topic_names=["t"] * (2 * STEP_ELEMENTS)), 3)
    steps = decode_in_steps(DeleteTopicsRequest, 3, data[:-6], 0)
    next(steps)
    with pytest.raises(MalformedMessageError, match=r"ends early|longer than it can be"):
        at_once(steps)


def test_a_message_that_is_too_long_for_one_step_leaves_no_trace_in_its_head() -> None:
    some = FindCoordinatorResponse(coordinators=[Coordinator(key="g", host="h")] * STEP_ELEMENTS)
    more = FindCoordinatorResponse(coordinators=[Coordinator(key="g", host="h")] * (STEP_ELEMENTS + 1))
    head = bytearray(b"head")
    assert encode_short(more, 5, head) is None
    assert head == b"head"
    pauses, parts = counted(encode_in_steps(more, 5, head))
    assert pauses == 1
    assert b"".join(parts) == b"head" + bytes_of(more, 5)
    assert encode_short(some, 5, bytearray()) is not None


def test_values_that_are_null_do_not_hide_the_elements_that_hold_them() -> None:
    absent = DeletableTopicResult(name=None, error_message="there is none")
    pauses, _ = counted(encode_in_steps(DeleteTopicsResponse(responses=[absent] * 10 * STEP_ELEMENTS), 6, bytearray()))
    assert pauses == 10


def test_a_value_that_does_not_fit_is_refused_in_steps_too() -> None:
    wrong = FindCoordinatorResponse(coordinators=[Coordinator(key="x" * 40_000, host="h")])
    with pytest.raises(EncodingError, match="longer than"):
        at_once(encode_in_steps(wrong, 5, bytearray()))
