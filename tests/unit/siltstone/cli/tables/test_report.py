"""The lines of `siltstone tables follow`."""

from __future__ import annotations

from dataclasses import replace

import pytest
from click.testing import CliRunner

from runtime.clock import ManualClock
from siltstone.cli.tables.report import (
    QUIET_MS,
    TELL_MS,
    Rounds,
    offsets_text,
    print_report,
    report_json,
    shown_progress,
)
from spark_jobs.tables.contract import Report
from spark_jobs.tables.erasing.gone import Erased

START_MS = 1_700_000_000_000
"""22:13:20 UTC."""


def wrote(rows: int, end: int, behind: int = 0) -> Report:
    return Report(commits=("1",), rows=rows, files=1, size_bytes=2048, held={0: end}, behind=behind)


def test_rounds_are_told_with_their_time_and_offsets_and_summed_up_at_the_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    # given a table that ends at offset 3
    clock = ManualClock(START_MS)
    rounds = Rounds("bookings", "demo.bookings", "5s", clock, as_json=False)
    rounds.began({0: 3}, "start")
    # when records arrive, then none for more than a minute, and one round fails
    rounds.ended(wrote(2, 5, behind=1))
    for _ in range(13):
        clock.advance_ms(5_000)
        rounds.ended(Report(held={0: 5}))
    # an erasure and an upkeep are always told
    rounds.ended(Report(held={0: 5}, erased=Erased(3, 2, frozenset({7}))))
    rounds.ended(Report(held={0: 5}), "expired 13 snapshots")
    rounds.failed(OSError("away"))
    rounds.stopped()
    # then each round with records prints a line, quiet time prints one line a minute, and the end prints a sum
    told = capsys.readouterr()
    assert told.out.splitlines() == [
        "following bookings -> demo.bookings every 5s, from offsets 0:3; Ctrl-C stops",
        "22:13:20Z 2 rows in 1 file, 2.0 KiB, at offsets 0:5, 1 behind its end",
        "22:14:20Z nothing new, at offsets 0:5",
        "22:14:25Z erased 3 rows of 1 request from 2 files, at offsets 0:5",
        "22:14:25Z nothing new, at offsets 0:5; expired 13 snapshots",
        "stopped after 16 rounds: 2 rows in 1 file, 2.0 KiB; the table ends at offsets 0:5",
    ]
    assert told.err == "22:14:25Z round failed, the next one in 5s tries again: away\n"
    assert QUIET_MS == 60_000


def test_for_programs_stdout_holds_the_reports_alone(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = Rounds("t", "a.b", "5s", ManualClock(START_MS), as_json=True)
    rounds.began(None, "@2026-01-31")
    rounds.ended(wrote(2, 5))
    rounds.stopped()
    told = capsys.readouterr()
    assert told.out == ""
    assert "from --from @2026-01-31" not in told.err and "from @2026-01-31" in told.err
    assert told.err.splitlines()[-1].startswith("stopped after 1 round: 2 rows in 1 file")


def test_dead_letters_are_told_in_a_round_and_in_the_sum(capsys: pytest.CaptureFixture[str]) -> None:
    rounds = Rounds("t", "a.b", "5s", ManualClock(START_MS), as_json=False)
    rounds.began(None, "start")
    rounds.ended(replace(wrote(2, 5), dead_letters=3))
    rounds.ended(replace(wrote(1, 6), dead_letters=1))
    rounds.stopped()
    said = capsys.readouterr().out.splitlines()
    assert said[1] == "22:13:20Z 2 rows in 1 file, 2.0 KiB, 3 dead letters, at offsets 0:5"
    assert said[3].startswith("stopped after 2 rounds: 3 rows in 2 files, 4.0 KiB, 4 dead letters;")


def test_where_there_is_no_terminal_slices_are_told_every_ten_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    clock = ManualClock(START_MS)
    with shown_progress("t -> a.b", clock) as show:
        for done in range(4):
            show(done, 12)
            clock.advance_ms(TELL_MS * 0.6)
    assert capsys.readouterr().err.splitlines() == ["t -> a.b: 2 of 12 slices"]


def test_of_many_partitions_the_sum_is_told() -> None:
    assert offsets_text({1: 7, 0: 3}) == "0:3 1:7"
    assert offsets_text(dict.fromkeys(range(9), 1000)) == "9,000 over 9 partitions"


def test_an_export_that_only_erased_says_what() -> None:
    report = Report(erased=Erased(3, 2, frozenset({7})))
    with CliRunner().isolation() as (out, *_):
        print_report(report, "demo.t", as_json=False)
        said = out.getvalue().decode()
    assert "erased" in said and "3 rows of 1 request from 2 files" in said and "up to date" not in said
    assert report_json(report, "demo.t")["erased"] == {"rows": 3, "files": 2, "requests": [7]}
