"""The keys, marks and times of a request."""

from __future__ import annotations

import hashlib
import io

import pytest

from compactor.planning.erasure_times import TimePart
from metadata.erasures.contract import ERASURE_KEYS_MAX, KeyMark
from runtime.errors import BadInputError
from siltstone.ops.erasure.request import (
    DEADLINE_MAX_MS,
    Newest,
    begin_of,
    check_count,
    check_deadline,
    compacted_marks,
    draft,
    hash_of,
    plain_marks,
    read_keys,
)

PARTS = [TimePart("gc.grace.ms", 60_000), TimePart("the rewrite of files", 30_000)]


def test_a_key_is_known_by_its_sha_512_256() -> None:
    assert hash_of(b"ada") == hashlib.new("sha512_256", b"ada").digest()


def test_keys_come_once_in_the_order_of_options_and_then_lines() -> None:
    # given a key twice, blanks, and a last line without an end
    lines = [b"bob\n", b"ada\n", b" e\tve \n", "m\u00fcller".encode()]
    assert read_keys([b"ada"], lines, "f") == [b"ada", b"bob", b" e\tve ", "m\u00fcller".encode()]
    assert read_keys([], [b"bob\r\n", b"ada\r\n", b"eve"], "f") == [b"bob", b"ada", b"eve"]


def test_a_byte_order_mark_is_no_part_of_the_first_key() -> None:
    mark = b"\xef\xbb\xbf"
    assert read_keys([], [mark + b"ada\r\n", mark + b"bob\r\n"], "f") == [b"ada", mark + b"bob"]
    assert read_keys([mark], [], "") == [mark]


@pytest.mark.parametrize(
    "data",
    [
        b"\0\0\0\r\n",  # the integer 13, of which three bytes would be left: the key of somebody else
        b"\0\0\0\x0b\n",
        b"m\xfcller\n",
        "ada\nbob".encode("utf-16"),
        "\u043c\u044e\u043b\u043b\u0435\u0440\n".encode("utf-16"),
        "\u043c\u044e\u043b\u043b\u0435\u0440\n".encode("utf-16-le"),
    ],
)
def test_a_file_of_keys_that_are_no_text_is_refused(data: bytes) -> None:
    with pytest.raises(BadInputError, match="line 1 of f is no text in UTF-8") as refused:
        read_keys([], io.BytesIO(data), "f")
    assert "--keys-format hex" in refused.value.remedy


def test_lines_that_end_in_two_ways_are_refused() -> None:
    for lines in ([b"ada\n", b"bob\r\n"], [b"ada\r\n", b"bob\n"]):
        with pytest.raises(BadInputError, match="line 2 of f ends in another way"):
            read_keys([], lines, "f")


def test_any_key_can_be_written_in_hex() -> None:
    lines = [b"0000000d\r\n", b"0000000A\n", b"00 00 00"]
    assert read_keys([b"ff"], lines, "f", as_hex=True) == [b"\xff", b"\0\0\0\r", b"\0\0\0\n", b"\0\0\0"]
    for wrong in (b"0\n", b"ada\n", b"\xff\n"):
        with pytest.raises(BadInputError, match="line 1 of f is not in hex digits"):
            read_keys([], [wrong], "f", as_hex=True)
    with pytest.raises(BadInputError, match="--key is not in hex digits"):
        read_keys([b"ada"], [], "", as_hex=True)


def test_an_empty_line_is_refused_with_its_number() -> None:
    with pytest.raises(BadInputError, match=r"line 2 of gone\.txt is empty"):
        read_keys([], [b"a\n", b"\n", b"b\n"], "gone.txt")


def test_no_key_an_empty_one_and_too_many_are_refused() -> None:
    with pytest.raises(BadInputError, match="no key was given"):
        read_keys([], [], "gone.txt")
    with pytest.raises(BadInputError, match="a key is empty"):
        read_keys([b""], [], "gone.txt")
    many = [b"%d" % number for number in range(ERASURE_KEYS_MAX + 1)]
    with pytest.raises(BadInputError, match="100,001 keys are more"):
        read_keys(many, [], "gone.txt")
    assert len(read_keys(many[1:], [], "gone.txt")) == ERASURE_KEYS_MAX


def test_every_key_counts_in_every_partition() -> None:
    check_count(50_000, 2)
    with pytest.raises(BadInputError) as refused:
        check_count(50_001, 2)
    assert "at most 50,000 keys" in refused.value.remedy


def test_a_plain_topic_marks_every_key_in_every_partition_that_has_a_record() -> None:
    marks = plain_marks([b"a", b"b"], {0: 7, 1: 0, 2: 1})
    both = [hash_of(b"a"), hash_of(b"b")]
    assert marks == {0: [KeyMark(each, 7) for each in both], 2: [KeyMark(each, 1) for each in both]}


def test_only_a_value_gets_a_tombstone() -> None:
    # given a key with a value in partition 0, one with a tombstone there, and one that is nowhere
    newest = {(0, b"value"): Newest(4, False), (0, b"deleted"): Newest(5, True)}
    plan = draft([b"value", b"deleted", b"absent"], newest, {0: 9}, None)
    # then
    assert plan.to_delete == [(0, b"value")]
    assert plan.has_tombstones
    assert compacted_marks(plan, {(0, b"value"): 12}) == {
        0: [
            KeyMark(hash_of(b"deleted"), 5, tombstone=True),
            KeyMark(hash_of(b"absent"), 9),
            KeyMark(hash_of(b"value"), 12, tombstone=True),
        ]
    }


def test_a_record_from_the_time_of_before_on_stays_and_gets_no_tombstone() -> None:
    newest = {(0, b"old"): Newest(3, False), (0, b"new"): Newest(4, False), (0, b"new tombstone"): Newest(6, True)}
    plan = draft([b"old", b"new", b"new tombstone", b"absent"], newest, {0: 9}, {0: 4})
    assert plan.to_delete == [(0, b"old")]
    stays = [KeyMark(hash_of(each), 4) for each in (b"new", b"new tombstone", b"absent")]
    assert list(plan.marks.values()) == stays


def test_a_key_with_a_record_that_decides_nothing_gets_a_tombstone_behind_it() -> None:
    # given records of aborted or open transactions behind a tombstone, before it, behind a value that stays, and alone
    newest = {
        (0, b"behind"): Newest(3, True, 5),
        (0, b"before"): Newest(5, True, 3),
        (0, b"stays"): Newest(7, False, 8),
        (0, b"alone"): Newest(-1, False, 2),
    }
    plan = draft([b"behind", b"before", b"stays", b"alone"], newest, {0: 9}, {0: 6})
    assert plan.to_delete == [(0, b"behind"), (0, b"alone")]
    assert plan.marks == {
        (0, b"before"): KeyMark(hash_of(b"before"), 5, tombstone=True),
        (0, b"stays"): KeyMark(hash_of(b"stays"), 6),
    }


def test_a_tombstone_at_offset_0_goes_but_below_it_there_is_nothing() -> None:
    plan = draft([b"a", b"b"], {(0, b"a"): Newest(0, True)}, {0: 1}, {0: 1})
    assert compacted_marks(plan, {})[0][0] == KeyMark(hash_of(b"a"), 0, tombstone=True)
    nothing = draft([b"a"], {}, {0: 0}, None)
    assert compacted_marks(nothing, {}) == {}
    assert not nothing.has_tombstones


def test_a_deadline_that_cannot_be_kept_is_refused_with_the_earliest_and_its_parts() -> None:
    check_deadline(90_000, PARTS)
    with pytest.raises(BadInputError) as refused:
        check_deadline(89_999, PARTS)
    assert "1m30s (gc.grace.ms 1m00s + the rewrite of files 30s)" in refused.value.message
    assert refused.value.remedy.startswith("give --deadline 2m")


def test_no_deadline_is_longer_than_a_year() -> None:
    check_deadline(DEADLINE_MAX_MS, PARTS)
    with pytest.raises(BadInputError, match="366d00h, is too far away") as refused:
        check_deadline(DEADLINE_MAX_MS + 86_400_000, PARTS)
    assert refused.value.remedy == "give --deadline 365d or less"
    with pytest.raises(BadInputError, match="longer than any deadline"):
        check_deadline(DEADLINE_MAX_MS, [TimePart("delete.retention.ms", DEADLINE_MAX_MS + 1)])


@pytest.mark.parametrize(("minutes", "told"), [(61, "61m"), (121, "3h"), (26 * 60 + 1, "27h"), (48 * 60 + 1, "3d")])
def test_the_earliest_deadline_is_told_in_a_unit_that_people_read(minutes: int, told: str) -> None:
    with pytest.raises(BadInputError) as refused:
        check_deadline(1, [TimePart("delete.retention.ms", minutes * 60_000)])
    assert refused.value.remedy.startswith(f"give --deadline {told} or later")


def test_merges_begin_at_once_when_somebody_waits() -> None:
    assert begin_of(100_000, PARTS, waits=True) == 0
    assert begin_of(100_000, PARTS, waits=False) == 5_000
