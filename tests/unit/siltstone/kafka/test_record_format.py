"""Formats of `siltstone produce` and `consume`: written records are read back unchanged, and no record controls a
terminal."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.errors import BadInputError
from siltstone.kafka.record_format import (
    Field,
    InputRecord,
    OutputRecord,
    RecordReader,
    UnreadRecord,
    json_record,
    parse_format,
    readable,
    render,
    safe_text,
)

TIME_MS = 1_769_860_800_000
RECORD = OutputRecord("orders", 3, 42, TIME_MS, b"alice", b"7 apples", (("trace", b"x1"), ("none", None)))


def read_all(text: str, data: bytes, *, chunk: int = 1 << 20, **options: object) -> list[InputRecord | UnreadRecord]:
    reader = RecordReader(parse_format(text), **options)  # type: ignore[arg-type]
    found = [each for at in range(0, len(data), chunk) for each in reader.feed(data[at : at + chunk])]
    return found + list(reader.finish())


def test_a_format_is_text_and_fields() -> None:
    assert parse_format(r"%k{hex}\t100%%\x00%s\n") == (Field("k", "hex"), b"\t100%\0", Field("v"), b"\n")


@pytest.mark.parametrize("text", ["%x", "%k%", "\\", r"\q", "%k{hx}", "%p{hex}"])
def test_a_format_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(BadInputError) as refused:
        parse_format(text)
    assert refused.value.remedy


@pytest.mark.parametrize("text", ["", "\n", "%k%v", "%v %v", "%o %v"])
def test_a_format_that_cannot_be_read_with_is_refused(text: str) -> None:
    with pytest.raises(BadInputError):
        RecordReader(parse_format(text))


@pytest.mark.parametrize("chunk", [1, 2, 3, 100])
def test_lines_are_records_however_they_come(chunk: int) -> None:
    assert read_all("%v\\n", b"a\n\nb c\nlast", chunk=chunk) == [
        InputRecord(1, None, b"a"),
        InputRecord(2, None, b""),
        InputRecord(3, None, b"b c"),
        InputRecord(4, None, b"last"),
    ]


@pytest.mark.parametrize("chunk", [1, 100])
def test_an_end_of_several_bytes_is_found_across_chunks(chunk: int) -> None:
    found = read_all(r"<%k|%v>\r\n", b"<a|1>\r\n<b|2>3>\r\n", chunk=chunk)
    assert found == [InputRecord(1, b"a", b"1"), InputRecord(2, b"b", b"2>3")]


def test_fields_end_where_the_text_behind_them_begins() -> None:
    [found] = read_all(r"%T %p %h %k=%v\n", b"99 7 a=1,b=2=3 key=v=w\n")
    assert found == InputRecord(1, b"key", b"v=w", (("a", b"1"), ("b", b"2=3")), 7, 99)


def test_what_is_no_record_is_told_by_number_and_the_rest_is_read() -> None:
    found = read_all(r"%p:%k:%v\n", b"1:a:x\nno\n-1:b:y\n2:c:z\n")
    assert [each.number for each in found] == [1, 2, 3, 4]
    assert [each.why for each in found if isinstance(each, UnreadRecord)] == [
        "no ':' after its partition",
        "its partition is '-1', which is not a number from 0 to 2147483647",
    ]


def test_encoded_fields_are_decoded_or_refused() -> None:
    assert read_all(r"%k{hex} %v{base64}\n", b"00ff aGk=\nxx aGk=\n00 !!\n") == [
        InputRecord(1, b"\x00\xff", b"hi"),
        UnreadRecord(2, "its key is not hex"),
        UnreadRecord(3, "its value is not base64"),
    ]


def test_an_empty_value_is_null_only_where_that_is_asked_for() -> None:
    assert read_all("%v\\n", b"\nx\n", key=b"k", empty_is_null=True) == [
        InputRecord(1, b"k", None),
        InputRecord(2, b"k", b"x"),
    ]
    assert read_all("%k\\n", b"a\n") == [InputRecord(1, b"a", b"")]
    assert read_all("%k\\n", b"a\n", empty_is_null=True) == [InputRecord(1, b"a", None)]


def test_a_record_is_written_by_its_format() -> None:
    pieces = parse_format(r"%t %p@%o %T %D %k=%v %K %V %h %k{hex}\n")
    assert render(pieces, RECORD) == (
        b"orders 3@42 1769860800000 2026-01-31T12:00:00.000Z alice=7 apples 5 8 trace=x1,none= 616c696365\n"
    )
    assert render(parse_format("[%k|%v|%K]"), RECORD._replace(key=None, value=None)) == b"[||-1]"


@given(
    st.lists(
        st.tuples(st.binary(max_size=20), st.binary(max_size=40), st.integers(0, 2**31 - 1), st.integers(0, 2**62)),
        max_size=8,
    ),
    st.integers(1, 30),
)
def test_what_is_written_is_read_back(records: list[tuple[bytes, bytes, int, int]], chunk: int) -> None:
    text = r"%p\t%T\t%k{hex}\t%v{base64}\n"
    data = b"".join(
        render(parse_format(text), OutputRecord("t", partition, 0, time_ms, key, value, ()))
        for key, value, partition, time_ms in records
    )
    assert read_all(text, data, chunk=chunk) == [
        InputRecord(number, key, value, (), partition, time_ms)
        for number, (key, value, partition, time_ms) in enumerate(records, 1)
    ]


@given(st.binary(max_size=60))
def test_nothing_that_is_shown_steers_a_terminal(data: bytes) -> None:
    record = RECORD._replace(key=data, value=data, headers=(("\x1b[2J", data),))
    assert readable(record, with_topic=True).isprintable()
    shown = render(parse_format("%k%v"), record, for_terminal=True).decode()
    assert all(each.isprintable() or each in "\n\t" for each in shown)
    assert safe_text(data).isprintable()


def test_a_readable_line_says_where_when_and_what() -> None:
    assert (
        readable(RECORD, with_topic=True)
        == "orders 3@42  2026-01-31T12:00:00.000Z  alice =  7 apples  [trace: x1, none: ∅]"
    )
    bare = RECORD._replace(key=None, value=b"\xff\x00", headers=(), timestamp_ms=-1)
    assert readable(bare, with_topic=False) == "3@42  -  0xff00"


def test_json_tells_bytes_from_text_and_null() -> None:
    found = json_record(RECORD._replace(key=None, value=b"\xff"))
    assert (found["key"], found["value_base64"], "value" in found) == (None, "/w==", False)
    assert json.loads(json.dumps(found))["headers"] == [
        {"name": "trace", "value": "x1"},
        {"name": "none", "value": None},
    ]
