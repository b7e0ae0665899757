"""One partition of a compacted topic as a picture: the end of its log beside the latest value of every key. Pure.

The strip shows each record with its level. A superseded record is struck out until a pass removes it, a tombstone (null
value) is marked, and a stretch that compaction emptied is one line. Another line marks cleaned-through: a pass from the
log start has seen the records above it; the head is below. Without a terminal only the marks remain: `x` superseded,
`∅` tombstone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from metadata.contract.compactors import PartitionView
from metadata.contract.leveled import LeveledExtent
from runtime.text import age_text

TEXT_MAX = 28
"""Characters shown of a key or a value, at most."""
TEXT_MIN = 6
"""Characters shown at least, even on a narrow terminal."""
GAP = 2
BETWEEN = 4
"""Columns between the log and the table."""
SUPERSEDED, TOMBSTONE, LATEST = "x", "∅", " "


class ReadRecord(NamedTuple):
    """A record as a consumer reads it."""

    offset: int
    key: bytes | None
    value: bytes | None


class StripRecord(NamedTuple):
    offset: int
    level: int
    """0, 1 or 2."""
    mark: str
    key: bytes | None
    value: bytes | None


class Removed(NamedTuple):
    """Offsets without a record, inclusive."""

    first: int
    last: int


class Boundary(NamedTuple):
    """Cleaned-through. The records above the line have lower offsets."""

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
    """Key -> (offset, value) of each key with a live value, ordered by key."""
    read_from: int
    """First offset that was read; keys last written before it are not in `latest`."""


def frame_of(
    records: Sequence[ReadRecord],
    view: PartitionView,
    *,
    dirty_ratio: float,
    now_ms: int,
    read_from: int,
    strip_lines: int,
) -> Frame:
    """`records` are all those from `read_from` to the high watermark, in offset order. The strip shows the last
    ones."""
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
    """The level of the extent that holds the offset; 0 if no extent does."""
    low, high = 0, len(extents)
    while low < high:
        middle = (low + high) // 2
        if extents[middle].last_offset < offset:
            low = middle + 1
        else:
            high = middle
    return extents[low].level if low < len(extents) and extents[low].base_offset <= offset else 0


# ---- drawing -------------------------------------------------------------------------------------------------------


def draw(frame: Frame, *, latest_lines: int) -> Picture:
    """The frame for rich."""
    return Picture(frame, latest_lines)


@dataclass(frozen=True, slots=True)
class Picture:
    """A heading, and below it the strip beside the table, each in half of the width.

    Levels, offsets and marks are never cut; keys and values share the rest of the width and are cut.
    """

    frame: Frame
    latest_lines: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        width = options.max_width
        for line in heading(self.frame):
            yield Text(line)  # wraps
        yield Text("")
        left = _drawn_strip(self.frame, (width - BETWEEN) // 2)
        left_width = max(map(_cells, left))
        right = _drawn_latest(self.frame, self.latest_lines, width - BETWEEN - left_width)
        for number in range(max(len(left), len(right))):
            line = left[number].copy() if number < len(left) else Text("")
            if number < len(right):
                line.append(" " * (left_width - _cells(line) + BETWEEN))
                line.append_text(right[number])
            line.no_wrap = True
            line.overflow = "ignore"
            yield line


def heading(frame: Frame) -> Sequence[str]:
    view = frame.view
    ago = "never" if view.last_cleaned_ms is None else f"{age_text(frame.now_ms - view.last_cleaned_ms)} ago"
    lines = [
        f"{view.topic_name}-{view.partition}  log start {view.log_start_offset}  "
        f"cleaned through {view.cleaned_through_offset}  high watermark {view.high_watermark}",
        f"dirty {frame.dirty_ratio:.2f}  last pass {ago}  {levels_text(view)}",
    ]
    if view.requested_through_offset is not None and view.requested_through_offset > view.cleaned_through_offset:
        lines.append(f"compaction is requested up to {view.requested_through_offset}")
    if frame.read_from > view.log_start_offset:
        lines.append(f"latest values: only of records from offset {frame.read_from} on")
    return lines


def levels_text(view: PartitionView) -> str:
    """ "L2 0..11  L1 12..15  L0 16..19": the level of each stretch of offsets, neighbours of one level joined."""
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


def _drawn_strip(frame: Frame, width: int) -> Sequence[Text]:
    digits = max((len(str(line[0])) for line in frame.strip), default=1)
    room = max(TEXT_MIN, width - (2 + GAP + digits + GAP + 1 + GAP))
    lines = [Text("the log", style="bold")]
    for line in frame.strip:
        match line:
            case Boundary(offset):
                level, mark, text = "──", "─", Text("─── clean above, head below ───", style="cyan")
            case Removed(offset, last):
                level, mark, text = "", " ", Text(f"… {last - offset + 1:,} removed", style="dim")
            case StripRecord(offset, of_level, mark, key, value):
                level, text = f"L{of_level}", Text(_pair(key, value), style=_STYLES[mark])
        lines.append(
            Text(f"{level:<2}{'':{GAP}}{offset:>{digits}}{'':{GAP}}{mark}{'':{GAP}}").append_text(_cut(text, room))
        )
    if not frame.strip:
        lines.append(Text("no records", style="dim"))
    return lines


_STYLES = {SUPERSEDED: "strike dim", TOMBSTONE: "red", LATEST: ""}


def _drawn_latest(frame: Frame, lines: int, width: int) -> Sequence[Text]:
    shown_rows = list(frame.latest.items())[:lines]
    digits = max((len(str(offset)) for _, (offset, _) in shown_rows), default=1)
    keys = [Text(shown(key)) for key, _ in shown_rows]
    values = [Text(shown(value)) for _, (_, value) in shown_rows]
    room = max(2 * TEXT_MIN, width - 2 * GAP - digits)
    value_cells = max(map(_cells, values), default=0)
    key_cells = min(max(map(_cells, keys), default=0), max(TEXT_MIN, room // 2, room - value_cells))
    value_cells = min(value_cells, room - key_cells)
    drawn = [_cut(Text(f"latest value of each key ({len(frame.latest):,})", style="bold"), max(width, TEXT_MIN))]
    for key, value, (_, (offset, _)) in zip(keys, values, shown_rows, strict=True):
        line = _cut(key, key_cells, pad=True).append(" " * GAP).append_text(_cut(value, value_cells, pad=True))
        drawn.append(line.append(f"{'':{GAP}}{offset:>{digits}}"))
    if len(frame.latest) > lines:
        drawn.append(Text(f"and {len(frame.latest) - lines:,} more"))
    return drawn


def _cut(text: Text, cells: int, *, pad: bool = False) -> Text:
    text.truncate(cells, overflow="ellipsis", pad=pad)
    return text


def _cells(text: Text) -> int:
    return cell_len(text.plain)


def _pair(key: bytes | None, value: bytes | None) -> str:
    return f"{'(no key)' if key is None else shown(key)} = {'∅' if value is None else shown(value)}"


def shown(data: bytes) -> str:
    """Bytes as one line of text: UTF-8, with control characters and other bytes escaped, cut to TEXT_MAX."""
    text = data[: 4 * TEXT_MAX].decode("utf-8", "backslashreplace")
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
