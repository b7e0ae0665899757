"""`--offset`, times and partitions as people write them."""

from __future__ import annotations

import pytest

from runtime.errors import BadInputError
from siltstone.kafka.offset_spec import Anchor, OffsetRange, Place, parse_offsets, parse_partitions, parse_time

NOW_MS = 1_769_860_800_000  # 2026-01-31T12:00:00Z


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("start", OffsetRange(Place(Anchor.START))),
        ("end", OffsetRange(Place(Anchor.END))),
        ("42", OffsetRange(Place(Anchor.OFFSET, 42))),
        ("-5", OffsetRange(Place(Anchor.END, 5))),
        ("+5", OffsetRange(Place(Anchor.START, 5))),
        ("3:7", OffsetRange(Place(Anchor.OFFSET, 3), Place(Anchor.OFFSET, 7))),
        ("start:-1", OffsetRange(Place(Anchor.START), Place(Anchor.END, 1))),
        ("@1769860800000", OffsetRange(Place(Anchor.TIME, NOW_MS))),
        ("@1769860800", OffsetRange(Place(Anchor.TIME, NOW_MS))),
        ("@-15m", OffsetRange(Place(Anchor.TIME, NOW_MS - 900_000))),
        (
            "@2026-01-31T10:00:00Z:@now",
            OffsetRange(Place(Anchor.TIME, NOW_MS - 7_200_000), Place(Anchor.TIME, NOW_MS)),
        ),
    ],
)
def test_offsets_are_read(text: str, expected: OffsetRange) -> None:
    assert parse_offsets(text, NOW_MS) == expected


@pytest.mark.parametrize(
    "text", ["", "beginnig", "7:3", "3:3", "1:2:3", "--5", "@", "@soon", "9" * 30, "@-1y", "1.5", "@1234", "@20240231"]
)
def test_what_is_no_offset_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(BadInputError) as refused:
        parse_offsets(text, NOW_MS)
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-01-31", NOW_MS - 43_200_000),
        ("2026-01-31T12:00:00", NOW_MS),
        ("2026-01-31T13:00:00+01:00", NOW_MS),
        ("2026-01-31T12:00:00.250Z", NOW_MS + 250),
        ("now", NOW_MS),
        ("0", 0),
        ("2026", parse_time("2026-01-01", 0)),
        ("20260131", NOW_MS - 43_200_000),
        ("-2d", NOW_MS - 172_800_000),
    ],
)
def test_times_are_read_and_mean_utc_where_they_name_no_zone(text: str, expected: int) -> None:
    assert parse_time(text, NOW_MS) == expected


@pytest.mark.parametrize("text", ["1969-12-31T23:59:59.999Z", "1969-12-31T23:59:59.998Z", "0001-01-01"])
def test_no_time_before_1970_becomes_a_word_of_kafka(text: str) -> None:
    with pytest.raises(BadInputError, match="lies before 1970"):
        parse_time(text, NOW_MS)


def test_partitions_are_read_as_lists_and_ranges() -> None:
    assert parse_partitions("5-7, 0,6") == [0, 5, 6, 7]
    for wrong in ("", "a", "3-1", "-1", "1,,2"):
        with pytest.raises(BadInputError):
            parse_partitions(wrong)
