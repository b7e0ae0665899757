"""One partition of a compacted topic as a picture: the end of its log beside the latest value of every key. Pure.

The strip shows each record with its level; one that a later record supersedes is struck out until a pass removes it,
a tombstone (null value) is marked, a stretch that compaction emptied is one line, and a line shows where
cleaned-through lies: above it a pass from the log start has been, below it is the head. Where output is no terminal
the marks alone say the same: `x` superseded, `∅` tombstone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from metadata.compaction import LeveledExtent, PartitionView
from siltstone.cli.output import age_text

TEXT_MAX = 28
"""Characters of a key or a value that are shown."""
SUPERSEDED, TOMBSTONE, LATEST = "x", "∅", " "


class ReadRecord(NamedTuple):
    """A record as a consumer gets it."""

    offset: int
    key: bytes | None
    value: bytes | None


class StripRecord(NamedTuple):
    offset: int
    level: int
    """0, 1 or 2: where it lies."""
    mark: str
    key: bytes | None
    value: bytes | None


class Removed(NamedTuple):
    """Offsets that hold no record (any more)."""

    first: int
    last: int


class Boundary(NamedTuple):
    """Cleaned-through: records above the line are at lower offsets."""

    offset: int


StripLine = StripRecord | Removed | Boundary


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    view: PartitionView
    dirty_ratio: float
    now_ms: int
    strip: Sequence[StripLine]
    """In offset order."""
    latest: Mapping[bytes, tuple[int, bytes]]
    """Key -> (offset, value) of keys that live, by key."""
    read_from: int
    """Offset at which reading began; keys last written before it are not in `latest`."""


def frame_of(
    records: Sequence[ReadRecord],
    view: PartitionView,
    *,
    dirty_ratio: float,
    now_ms: int,
    read_from: int,
    strip_lines: int,
) -> Frame:
    """`records` in offset order, all from `read_from` to the high watermark; the strip is their last lines."""
    newest: dict[bytes, ReadRecord] = {}
    for record in records:
        if record.key is not None:
            newest[record.key] = record
    lines = list(_strip(records, newest, view, read_from))
    latest = {key: (record.offset, record.value) for key, record in sorted(newest.items()) if record.value is not None}
    return Frame(
        view=view,
        dirty_ratio=dirty_ratio,
        now_ms=now_ms,
        strip=lines[-strip_lines:],
        latest=latest,
        read_from=read_from,
    )


def _strip(
    records: Sequence[ReadRecord], newest: Mapping[bytes, ReadRecord], view: PartitionView, read_from: int
) -> Iterator[StripLine]:
    following, boundary = read_from, view.cleaned_through_offset
    is_drawn = boundary <= read_from
    for record in records:
        if not is_drawn and record.offset >= boundary:
            if following < boundary:
                yield Removed(following, boundary - 1)
                following = boundary
            yield Boundary(boundary)
            is_drawn = True
        if record.offset > following:
            yield Removed(following, record.offset - 1)
        is_latest = record.key is None or newest[record.key].offset == record.offset
        mark = SUPERSEDED if not is_latest else TOMBSTONE if record.value is None else LATEST
        yield StripRecord(record.offset, level_of(record.offset, view.extents), mark, record.key, record.value)
        following = record.offset + 1
    if following < view.high_watermark:
        yield Removed(following, view.high_watermark - 1)
    if not is_drawn:
        yield Boundary(boundary)


def level_of(offset: int, extents: Sequence[LeveledExtent]) -> int:
    """Of the extent that holds the offset; 0 where none does."""
    low, high = 0, len(extents)
    while low < high:
        middle = (low + high) // 2
        if extents[middle].last_offset < offset:
            low = middle + 1
        else:
            high = middle
    return extents[low].level if low < len(extents) and extents[low].base_offset <= offset else 0


# ---- drawing -------------------------------------------------------------------------------------------------------


def draw(frame: Frame, *, latest_lines: int) -> RenderableType:
    """The frame for rich: a heading, and the strip beside the table."""
    both = Table.grid(padding=(0, 4))
    for _ in range(2):
        both.add_column(no_wrap=True)
    both.add_row(_drawn_strip(frame), _drawn_latest(frame, latest_lines))
    return Group(*(Text(line) for line in heading(frame)), Text(""), both)


def heading(frame: Frame) -> Sequence[str]:
    view = frame.view
    ago = "never" if view.last_cleaned_ms is None else f"{age_text(frame.now_ms - view.last_cleaned_ms)} ago"
    lines = [
        f"{view.topic_name}-{view.partition}  log start {view.log_start_offset}  "
        f"cleaned through {view.cleaned_through_offset}  high watermark {view.high_watermark}",
        f"dirty {frame.dirty_ratio:.2f}  last pass {ago}  {levels_text(view)}",
    ]
    if view.requested_through_offset is not None and view.requested_through_offset > view.cleaned_through_offset:
        lines.append(f"compaction is asked for up to {view.requested_through_offset}")
    return lines


def levels_text(view: PartitionView) -> str:
    """ "L2 0..11  L1 12..15  L0 16..19": which offsets lie where; stretches of one level are joined."""
    parts: list[tuple[int, int, int]] = []
    for extent in view.extents:
        if parts and parts[-1][0] == extent.level and parts[-1][2] + 1 == extent.base_offset:
            parts[-1] = (extent.level, parts[-1][1], extent.last_offset)
        else:
            parts.append((extent.level, extent.base_offset, extent.last_offset))
    reached = parts[-1][2] + 1 if parts else view.log_start_offset
    if reached < view.high_watermark:
        parts.append((0, reached, view.high_watermark - 1))
    return "  ".join(f"L{level} {first}..{last}" for level, first, last in parts)


def _drawn_strip(frame: Frame) -> RenderableType:
    table = Table(box=None, show_header=False, pad_edge=False)
    for column in ("level", "offset", "mark", "record"):
        table.add_column(justify="right" if column == "offset" else "left", no_wrap=True)
    for line in frame.strip:
        match line:
            case Boundary(offset):
                table.add_row("──", str(offset), "─", Text("─── clean above, head below ───", style="cyan"))
            case Removed(first, last):
                count = last - first + 1
                table.add_row("", str(first), "", Text(f"… {count:,} removed", style="dim"))
            case StripRecord(offset, level, mark, key, value):
                table.add_row(f"L{level}", str(offset), mark, Text(_pair(key, value), style=_STYLES[mark]))
    if not frame.strip:
        table.add_row("", "", "", Text("no records", style="dim"))
    return Group(Text("the log", style="bold"), table)


_STYLES = {SUPERSEDED: "strike dim", TOMBSTONE: "red", LATEST: ""}


def _drawn_latest(frame: Frame, lines: int) -> RenderableType:
    count = len(frame.latest)
    title = f"latest value of each key ({count:,})"
    if frame.read_from > frame.view.log_start_offset:
        title += f", of those written since offset {frame.read_from}"
    table = Table(box=None, show_header=False, pad_edge=False)
    for column in ("key", "value", "offset"):
        table.add_column(justify="right" if column == "offset" else "left", no_wrap=True)
    for key, (offset, value) in list(frame.latest.items())[:lines]:
        table.add_row(Text(shown(key)), Text(shown(value)), str(offset))
    if count > lines:
        table.add_row(f"and {count - lines:,} more", "", "")
    return Group(Text(title, style="bold"), table)


def _pair(key: bytes | None, value: bytes | None) -> str:
    return f"{'(no key)' if key is None else shown(key)} = {'∅' if value is None else shown(value)}"


def shown(data: bytes) -> str:
    """Bytes as text in one line: UTF-8 where it is, control characters and the rest escaped, cut to TEXT_MAX."""
    text = data[: 4 * TEXT_MAX].decode("utf-8", "backslashreplace")
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
