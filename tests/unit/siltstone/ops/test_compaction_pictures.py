"""The pictures of levels and of a partition's log, from hand-made views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from io import StringIO
from typing import Any

from rich.cells import cell_len
from rich.console import Console

from compactor.planning.spec import MIB
from metadata.contract.compactors import PartitionView
from metadata.contract.leveled import FileClass
from siltstone.ops.compaction.frame import Frame, ReadRecord, latest, level_of, levels_text, shown, strip
from siltstone.ops.levels_report import bar, levels_json, levels_of, picture, share
from tests.fixtures.compaction_views import NOW_MS, extent, file, partition, view

# ---- levels


def test_runs_are_bars_as_long_as_their_bytes_with_their_dead_share_shaded() -> None:
    drawn = picture(
        levels_of(
            view(
                file(1, 0, size=MIB // 2),
                file(2, 0, size=MIB // 2),
                file(10, 1, file_class=FileClass.COMPACTED, size=2 * MIB, run_id=3, lo=1, hi=32),
                file(11, 2, file_class=FileClass.COMPACTED, size=4 * MIB, live=MIB, run_id=4, lo=33, hi=64),
                file(12, 2, file_class=FileClass.COMPACTED, size=4 * MIB, live=3 * MIB, run_id=4, lo=33, hi=64),
                busy_files=[10],
            )
        ),
        NOW_MS,
    )
    assert drawn.splitlines() == [
        "L0  2 files  1.0 MiB  L0 ids 1..2  oldest 5s",
        "  " + 5 * "█",
        "",
        "L1 compacted  1 run  1 file  2.0 MiB  100 % live  L0 ids 1..32  oldest 5s  1 being merged",
        "  run 3  " + 10 * "█" + " 2.0 MiB  100 % live  lo..hi 1..32  being merged",
        "",
        "L2 compacted  1 run  2 files  8.0 MiB  50 % live  L0 ids 33..64  oldest 5s",
        "  run 4  " + 20 * "█" + 20 * "░" + " 8.0 MiB  2 files  50 % live  lo..hi 33..64",
    ]


def test_plain_and_compacted_runs_are_apart_and_in_order_of_lo() -> None:
    levels = levels_of(
        view(
            file(3, 1, file_class=FileClass.COMPACTED, run_id=9, lo=5),
            file(2, 1, file_class=FileClass.COMPACTED, run_id=8, lo=1),
            file(1, 1, file_class=FileClass.PLAIN),
        )
    )
    assert [each.name for each in levels] == ["L1 plain", "L1 compacted"]
    assert [run.run_id for run in levels[1].runs] == [8, 9]
    as_json = levels_json(levels)
    assert as_json[0]["class"] == "plain" and as_json[1]["runs"][0]["job_id"] == 8


def test_the_largest_runs_are_shown_and_the_rest_is_counted() -> None:
    files = [file(each, 1, file_class=FileClass.PLAIN, size=each * MIB) for each in range(1, 6)]
    lines = picture(levels_of(view(*files)), NOW_MS, runs_shown=2).splitlines()
    assert [line.split()[1] for line in lines[1:3]] == ["4", "5"]
    assert lines[3] == "  and 3 smaller runs, 6.0 MiB"


def test_nothing_that_is_there_is_drawn_as_nothing() -> None:
    assert bar(1, 1.0, 10**9) == "█" and bar(1, 0.0, 10**9) == "░" and bar(0, 0.0, 1) == ""
    assert bar(10, 0.1, 10, cells=4) == "█░░░"
    assert share(0, 0) == "-" and share(1, 3) == "33 %"
    assert picture([], NOW_MS) == "no live files"


def test_a_file_of_which_nothing_died_lives_whole_whatever_its_own_index_takes() -> None:
    # given a small file, a third of which is its footer
    (fresh,) = levels_of(view(replace(file(1, 1, file_class=FileClass.COMPACTED, size=900), live_bytes=600)))
    assert "100 % live" in picture([fresh], NOW_MS) and "░" not in picture([fresh], NOW_MS)
    assert (fresh.live_bytes, fresh.payload_bytes) == (600, 600)
    # and one of which a part is dead
    (worn,) = levels_of(view(file(1, 1, file_class=FileClass.COMPACTED, size=900, live=300)))
    assert "33 % live" in picture([worn], NOW_MS)


def test_bars_are_shorter_where_the_terminal_is_narrow() -> None:
    levels = levels_of(view(file(10, 2, file_class=FileClass.COMPACTED, size=400 * MIB, run_id=3, lo=1000, hi=2000)))
    assert max(map(len, picture(levels, NOW_MS, columns=80).splitlines())) <= 80
    assert picture(levels, NOW_MS).count("█") == 40


# ---- watch


def records(*triples: tuple[int, str, str | None]) -> Sequence[ReadRecord]:
    return [ReadRecord(at, key.encode(), None if value is None else value.encode()) for at, key, value in triples]


WRITTEN = records(
    (0, "alice", "1"), (1, "bob", "1"), (2, "alice", "2"), (3, "carol", "1"), (4, "bob", None), (5, "alice", "3")
)


def frame(read: Sequence[ReadRecord], seen: PartitionView, *, read_from: int = 0, lines: int = 20) -> Frame:
    return Frame(records=read, view=seen, dirty_ratio=0.5, now_ms=NOW_MS, read_from=read_from, lines=lines)


def strip_of(read: Sequence[ReadRecord], seen: PartitionView) -> list[tuple[int, str]]:
    """(offset, text) of each line."""
    return [(line.offset, line.text) for line in strip(frame(read, seen))]


def test_superseded_records_are_struck_and_the_latest_values_stand_beside() -> None:
    # given alice, bob and carol, none of them compacted
    before = frame(WRITTEN, partition(end=6))
    assert [line.mark for line in strip(before)] == ["x", "x", "x", " ", "∅", " "]
    assert latest(WRITTEN) == {b"alice": (5, b"3"), b"carol": (3, b"1")}
    # when a pass went over them, then one line stands for the removed records, in their place, and the table is the
    # same
    after = strip_of(WRITTEN[3:], partition(extent(0, 5), end=6, cleaned_through=6))
    assert after[0] == (0, "… 3 removed")
    assert latest(WRITTEN[3:]) == latest(WRITTEN)


BORDER = "─── clean above, head below ───"


def test_the_line_between_clean_and_head_is_drawn_once_where_it_belongs() -> None:
    cleaned = partition(extent(0, 3), end=6, cleaned_through=4)
    assert [line for line in strip_of(WRITTEN, cleaned) if line[1] == BORDER] == [(4, BORDER)]
    assert strip_of(WRITTEN, cleaned)[4] == (4, BORDER)
    # in the middle of the removed records
    assert strip_of(WRITTEN[5:], cleaned)[:3] == [(0, "… 4 removed"), (4, BORDER), (4, "… 1 removed")]
    assert strip_of([], cleaned) == [(0, "… 4 removed"), (4, BORDER), (4, "… 2 removed")]
    # at the very end, and where nothing is read
    assert strip_of(WRITTEN, partition(extent(0, 5), end=6, cleaned_through=6))[-1] == (6, BORDER)
    assert strip_of([], partition(end=0)) == []


def test_reading_that_begins_late_is_said() -> None:
    late = frame(WRITTEN[4:], partition(end=6), read_from=4)
    assert drawn(late).count("only of records from offset 4") == 1
    assert latest(WRITTEN[4:]) == {b"alice": (5, b"3")}


def test_a_frame_shows_levels_marks_and_values() -> None:
    seen = partition(extent(0, 1), extent(2, 3, level=1), end=6, cleaned_through=2, last_cleaned_ms=NOW_MS - 3000)
    text = drawn(frame(WRITTEN, seen))
    assert "users-0  log start 0  cleaned through 2  high watermark 6" in text
    assert "last pass 3s ago  L2 0..1  L1 2..3  L0 4..5" in text
    assert "bob = ∅" in text and "latest value of each key (2)" in text
    lines = [line.split() for line in text.splitlines()]
    assert ["L2", "0", "x", "alice", "=", "1", "alice", "3", "5"] in lines


def drawn(what: Any, *, width: int = 140) -> str:
    console = Console(file=StringIO(), width=width)
    console.print(what)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_offsets_and_levels_stay_whole_at_80_columns_however_long_keys_and_values_are() -> None:
    # given long keys, wide characters too, at large offsets
    first = 1_234_567
    key, value = "a-key-that-goes-on-and-on-and-on-and-on", "値" * 40
    written = records(*((first + each, f"{each}-{key}", value) for each in range(12)), (first + 12, "0-" + key, value))
    seen = partition(extent(first, first + 8), log_start=first, end=first + 13, cleaned_through=first + 9)
    lines = drawn(frame(written, seen, read_from=first + 1), width=80).splitlines()
    # then nothing is wider than the terminal, each record has its level and offset, each key its offset
    assert max(map(cell_len, lines)) <= 80
    strip = [line.split() for line in lines if line.startswith("L")]
    levels = ["L2"] * 9 + ["L0"] * 4
    assert [words[:2] for words in strip[:13]] == [[level, str(first + at)] for at, level in enumerate(levels)]
    offsets = [line.split()[-1] for line in lines[lines.index(next(each for each in lines if "the log" in each)) + 1 :]]
    assert offsets[:10] == [str(first + at) for at in (12, 1, 10, 11, 2, 3, 4, 5, 6, 7)]
    assert "…" in lines[-1] or "…" in lines[-3]
    # and headings are whole, on lines of their own
    text = " ".join(lines)
    assert f"high watermark {first + 13}" in text and f"only of records from offset {first + 1}" in text


def test_the_last_lines_of_the_strip_are_kept() -> None:
    text = drawn(frame(WRITTEN, partition(end=6), lines=2))
    assert "bob = ∅" in text and "alice = 3" in text and "carol = 1" not in text


def test_an_offset_lies_in_the_extent_that_holds_it_or_in_l0() -> None:
    extents = [extent(0, 1), extent(5, 9, level=1)]
    assert [level_of(offset, extents) for offset in (0, 1, 2, 5, 9, 10)] == [2, 2, 0, 1, 1, 0]
    assert levels_text(partition(extent(0, 4), extent(5, 9), end=10)) == "L2 0..9"


def test_bytes_are_shown_in_one_line_whatever_they_are() -> None:
    assert shown(b"plain") == "plain" and shown(b"\xff\n\x00") == "\\xff\\n\\x00"
    assert len(shown(b"x" * 100)) == 28 and shown(b"x" * 100).endswith("…")
