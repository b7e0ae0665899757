"""Parse `--offset` of `siltstone consume`, points in time, durations, and lists of partitions. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import Enum

from runtime.errors import BadInputError

REMEDY = "give start, end, N, +N, -N, N:M, @TIME or @TIME:@TIME; a TIME is a year, a date, ms, s, now, or -15m"
_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_AGO = re.compile(r"-(\d+)(ms|s|m|h|d)")
_SECONDS_BELOW = 10**11
"""A plain number below this counts seconds since 1970; others count milliseconds. In seconds it is the year 5138."""
_LIKE_A_DATE = re.compile(r"\d{4}|(19[7-9]\d|[2-9]\d{3})(0[1-9]|1[0-2])([0-2]\d|3[01])")
"""Digits that read as a year or a date: never a number of seconds."""
_INT64_MAX = 2**63 - 1


class Anchor(Enum):
    START = "start"
    """The log start, plus `number`."""
    END = "end"
    """The high watermark, minus `number`."""
    OFFSET = "offset"
    TIME = "time"
    """The first record at or after `number` ms since the epoch."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place in every partition; an agent must look up its offset."""

    anchor: Anchor
    number: int = 0


@dataclass(frozen=True, slots=True)
class OffsetRange:
    first: Place
    until: Place | None = None
    """Exclusive; None = no end."""


def parse_offsets(text: str, now_ms: int) -> OffsetRange:
    """Read the text of `--offset`. Raises BadInputError."""
    if text.startswith("@"):
        first, colon, until = text.partition(":@")
        return OffsetRange(
            Place(Anchor.TIME, parse_time(first[1:], now_ms)),
            Place(Anchor.TIME, parse_time(until, now_ms)) if colon else None,
        )
    first, colon, until = text.partition(":")
    span = OffsetRange(_place(first, text), _place(until, text) if colon else None)
    end = span.until
    if end is not None and span.first.anchor is end.anchor is Anchor.OFFSET and end.number <= span.first.number:
        raise BadInputError(
            f"the range {text!r} contains no offset", remedy="give N:M with M above N; it begins at N and ends before M"
        )
    return span


def _place(text: str, whole: str) -> Place:
    if text in ("start", "beginning", "earliest"):
        return Place(Anchor.START)
    if text in ("end", "latest"):
        return Place(Anchor.END)
    if re.fullmatch(r"[+-]?\d{1,19}", text) is None or abs(int(text)) > _INT64_MAX:
        raise BadInputError(f"{whole!r} is not an offset", remedy=REMEDY)
    anchor = {"+": Anchor.START, "-": Anchor.END}.get(text[0], Anchor.OFFSET)
    return Place(anchor, abs(int(text)))


def parse_time(text: str, now_ms: int) -> int:
    """Read a time as ms since the epoch: a year from 1970 to 9999, a number, an ISO date or time (UTC if it has no
    zone), "now", or "-15m".

    Raises BadInputError.
    """
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return max(0, now_ms - int(ago[1]) * _UNITS_MS[ago[2]])
    if text == "now":
        return now_ms
    if re.fullmatch(r"19[7-9]\d|[2-9]\d{3}", text):
        text = f"{text}-01-01"  # nobody means 34 minutes after 1970
    if re.fullmatch(r"\d{1,18}", text) and not _LIKE_A_DATE.fullmatch(text):
        return int(text) if int(text) >= _SECONDS_BELOW else int(text) * 1000
    try:
        time = datetime.fromisoformat(text)
        time_ms = int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    except (ValueError, OverflowError):
        raise BadInputError(
            f"{text!r} is not a time",
            remedy="give, for example, 2026-01-31, 2026-01-31T12:00:00Z, 1769860800000, or -15m",
        ) from None
    if time_ms < 0:
        # Kafka reads negative times as words: -1 is the end of the log.
        raise BadInputError(f"{text!r} lies before 1970", remedy="give a time from 1970-01-01 on")
    return time_ms


def parse_duration(text: str) -> int:
    """ "7d", "36h", "90m", "30s", "500ms" -> ms. Raises BadInputError."""
    found = re.fullmatch(r"(\d{1,9})(ms|s|m|h|d)", text)
    if found is None:
        raise BadInputError(f"{text!r} is not a duration", remedy="give, for example, 7d, 36h, 90m or 30s")
    return int(found[1]) * _UNITS_MS[found[2]]


def parse_partitions(text: str) -> Sequence[int]:
    """ "0,2,5-7" -> 0, 2, 5, 6, 7. Raises BadInputError."""
    numbers: set[int] = set()
    for part in text.split(","):
        found = re.fullmatch(r"\s*(\d{1,7})(?:-(\d{1,7}))?\s*", part)
        if found is None or (found[2] is not None and int(found[2]) < int(found[1])):
            raise BadInputError(f"{text!r} is not a list of partitions", remedy="give, for example, 0 or 0,2,5-7")
        numbers.update(range(int(found[1]), int(found[2] or found[1]) + 1))
    return sorted(numbers)
