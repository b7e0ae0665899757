"""Sizes, ages and counts in few characters, for messages, reports and tables."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import groupby

RANGES_SHOWN_MAX = 12
"""Ranges of numbers in one line."""


def size_text(size_bytes: float) -> str:
    """1536 -> "1.5 KiB"."""
    size = float(size_bytes)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" or size >= 100 else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def age_text(age_ms: float) -> str:
    """90_000 -> "1m30s". Below zero (another clock is ahead of ours) is shown as 0s."""
    seconds = max(0, int(age_ms / 1000))
    if seconds < 60:
        return f"{seconds}s"
    if seconds < 3600:
        return f"{seconds // 60}m{seconds % 60:02d}s"
    if seconds < 86_400:
        return f"{seconds // 3600}h{seconds % 3600 // 60:02d}m"
    return f"{seconds // 86_400}d{seconds % 86_400 // 3600:02d}h"


def plural(count: int, what: str) -> str:
    """2, "file" -> "2 files"; 2, "batch" -> "2 batches"."""
    ending = "" if count == 1 else "es" if what.endswith(("ch", "s", "x")) else "s"
    return f"{count:,} {what}{ending}"


def numbers_text(numbers: Iterable[int]) -> str:
    """[0, 1, 2, 5] -> "0-2, 5"; the numbers beyond RANGES_SHOWN_MAX ranges are counted."""
    ordered = sorted(set(numbers))
    # number minus position is the same throughout a run of consecutive numbers
    runs = [[each for _, each in run] for _, run in groupby(enumerate(ordered), key=lambda pair: pair[1] - pair[0])]
    shown = [str(run[0]) if len(run) == 1 else f"{run[0]}-{run[-1]}" for run in runs[:RANGES_SHOWN_MAX]]
    left = sum(map(len, runs[RANGES_SHOWN_MAX:]))
    return ", ".join(shown) + (f" and {left:,} more" if left else "")


def first_line(error: BaseException) -> str:
    """The first line of an error's message; its class if it has none."""
    return (str(error).strip() or type(error).__name__).splitlines()[0]


def printable(text: str, *, keep: str = "\n") -> str:
    """The text with every character escaped that is not printable, except those in `keep`.

    Names of groups, clients and hosts are other people's text: an escape sequence in one would steer the terminal.
    """
    if text.isprintable():
        return text
    return "".join(
        each if each in keep or each.isprintable() else each.encode("unicode_escape").decode() for each in text
    )
