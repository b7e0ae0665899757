"""One partition of a compacted topic as a picture: the end of its log beside the latest value of every key. Pure.

The strip shows each record with its level. A superseded record is struck out until a pass removes it, a tombstone (null
value) is marked, and a stretch that compaction emptied is one line. Another line marks cleaned-through: a pass from the
log start has seen the records above it; the head is below. Without a terminal only the marks remain: `x` superseded,
`∅` tombstone.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import NamedTuple

from rich.console import Console, ConsoleOptions, RenderResult
from rich.text import Text

from metadata.contract.compactors import PartitionView
from metadata.contract.leveled import LeveledExtent
from runtime.text import age_text

TEXT_MAX = 28
"""Characters shown of a key or a value, at most."""
TEXT_MIN = 6
"""Characters shown at least, even on a narrow terminal."""
GAP = "  "
BETWEEN = 4
"""Columns between the log and the table."""
SUPERSEDED, TOMBSTONE, LATEST = "x", "∅", " "
_STYLES = {SUPERSEDED: "strike dim", TOMBSTONE: "red", LATEST: ""}


class ReadRecord(NamedTuple):
    """A record as a consumer reads it."""

    offset: int
    key: bytes | None
    value: bytes | None


class StripLine(NamedTuple):
    """A record, a stretch of offsets without one, or the border of cleaned-through."""

    level: str
    offset: int
    mark: str
    text: str
    style: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A heading, and below it the strip beside the table, each in half of the width.

    Levels, offsets and marks are never cut; keys and values share the rest of the width and are cut.
    """

    records: Sequence[ReadRecord]
    """All those from `read_from` to the high watermark, in offset order."""
    view: PartitionView
    dirty_ratio: float
    now_ms: int
    read_from: int
    """First offset that was read; keys last written before it are not in `latest`."""
    lines: int
    """Lines of the strip (its last ones), and keys of the table (its first ones)."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for line in _heading(self):
            yield Text(line)  # wraps
        yield Text("")
        left = _drawn_strip(strip(self)[-self.lines :], (options.max_width - BETWEEN) // 2)
        left_cells = max(line.cell_len for line in left)
        right = _drawn_latest(self, options.max_width - BETWEEN - left_cells)
        for line, beside in zip_longest(left, right):
            drawn = Text() if line is None else line
            if beside is not None:
                drawn.append(" " * (left_cells - drawn.cell_len + BETWEEN)).append_text(beside)
            drawn.no_wrap, drawn.overflow = True, "ignore"
            yield drawn


def latest(records: Sequence[ReadRecord]) -> Mapping[bytes, tuple[int, bytes]]:
    """Key -> (offset, value) of each key with a live value, ordered by key."""
    newest = {record.key: record for record in records if record.key is not None}
    return {key: (record.offset, record.value) for key, record in sorted(newest.items()) if record.value is not None}


def strip(frame: Frame) -> Sequence[StripLine]:
    """All lines, in offset order."""
    view, boundary, following = frame.view, frame.view.cleaned_through_offset, frame.read_from
    newest = {record.key: record.offset for record in frame.records}
    lines: list[StripLine] = []

    def skip_to(offset: int) -> None:
        if following < offset:
            lines.append(StripLine("", following, " ", f"… {offset - following:,} removed", "dim"))

    for record in (*frame.records, None):
        end = view.high_watermark if record is None else record.offset
        if frame.read_from < boundary and following <= boundary <= end:
            skip_to(boundary)
            lines.append(StripLine("──", boundary, "─", "─── clean above, head below ───", "cyan"))
            following = boundary
        skip_to(end)
        if record is not None:
            is_latest = record.key is None or newest[record.key] == end
            mark = SUPERSEDED if not is_latest else TOMBSTONE if record.value is None else LATEST
            key = "(no key)" if record.key is None else shown(record.key)
            text = f"{key} = {'∅' if record.value is None else shown(record.value)}"
            lines.append(StripLine(f"L{level_of(end, view.extents)}", end, mark, text, _STYLES[mark]))
            following = end + 1
    return lines


def level_of(offset: int, extents: Sequence[LeveledExtent]) -> int:
    """The level of the extent that holds the offset; 0 if no extent does."""
    at = bisect_left(extents, offset, key=lambda each: each.last_offset)
    return extents[at].level if at < len(extents) and extents[at].base_offset <= offset else 0


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
    return GAP.join(f"L{level} {first}..{last}" for level, first, last in parts)


def _heading(frame: Frame) -> Iterator[str]:
    view, start, through = frame.view, frame.view.log_start_offset, frame.view.cleaned_through_offset
    ago = "never" if view.last_cleaned_ms is None else f"{age_text(frame.now_ms - view.last_cleaned_ms)} ago"
    name = f"{view.topic_name}-{view.partition}"
    yield f"{name}  log start {start}  cleaned through {through}  high watermark {view.high_watermark}"
    yield f"dirty {frame.dirty_ratio:.2f}  last pass {ago}  {levels_text(view)}"
    if view.requested_through_offset is not None and view.requested_through_offset > through:
        yield f"compaction is requested up to {view.requested_through_offset}"
    if frame.read_from > start:
        yield f"latest values: only of records from offset {frame.read_from} on"


def _drawn_strip(lines: Sequence[StripLine], width: int) -> Sequence[Text]:
    digits = max((len(str(line.offset)) for line in lines), default=1)
    starts = [Text(f"{line.level:<2}{GAP}{line.offset:>{digits}}{GAP}{line.mark}{GAP}") for line in lines]
    drawn = [
        start.append_text(_cut(Text(line.text, style=line.style), max(TEXT_MIN, width - start.cell_len)))
        for start, line in zip(starts, lines, strict=True)
    ]
    return [Text("the log", style="bold"), *(drawn or [Text("no records", style="dim")])]


def _drawn_latest(frame: Frame, width: int) -> Sequence[Text]:
    found = [(Text(shown(key)), Text(shown(value)), offset) for key, (offset, value) in latest(frame.records).items()]
    rows = found[: frame.lines]
    digits = max((len(str(offset)) for _, _, offset in rows), default=1)
    room = max(2 * TEXT_MIN, width - 2 * len(GAP) - digits)
    value_cells = max((value.cell_len for _, value, _ in rows), default=0)
    key_cells = max((key.cell_len for key, _, _ in rows), default=0)
    key_cells = min(key_cells, max(TEXT_MIN, room // 2, room - value_cells))
    value_cells = min(value_cells, room - key_cells)
    drawn = [_cut(Text(f"latest value of each key ({len(found):,})", style="bold"), max(width, TEXT_MIN))]
    for key, value, offset in rows:
        line = _cut(key, key_cells, pad=True).append(GAP).append_text(_cut(value, value_cells, pad=True))
        drawn.append(line.append(f"{GAP}{offset:>{digits}}"))
    return drawn if len(found) == len(rows) else [*drawn, Text(f"and {len(found) - len(rows):,} more")]


def _cut(text: Text, cells: int, *, pad: bool = False) -> Text:
    text.truncate(cells, overflow="ellipsis", pad=pad)
    return text


def shown(data: bytes) -> str:
    """Bytes as one line of text: UTF-8, with control characters and other bytes escaped, cut to TEXT_MAX."""
    text = data[: 4 * TEXT_MAX].decode("utf-8", "backslashreplace")
    text = "".join(each if each.isprintable() else repr(each)[1:-1] for each in text)
    return text if len(text) <= TEXT_MAX else text[: TEXT_MAX - 1] + "…"
