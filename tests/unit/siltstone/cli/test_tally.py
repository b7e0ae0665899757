"""`siltstone produce` names each record that was not written in a line, or counts it as not shown."""

from __future__ import annotations

import json

import pytest

from siltstone.cli.records.produce import ERRORS_SHOWN, Tally, print_tally
from siltstone.kafka.producing import Refused
from siltstone.kafka.record_format import InputRecord


def refused(*numbers: int) -> Refused:
    return Refused([InputRecord(number, None, b"v") for number in numbers], "stopped", "")


def test_every_group_of_a_few_partitions_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally(topic="t", verbose=False)
    for start in (6, 7, 8):
        tally.refused(refused(*range(start, start + 3 * ERRORS_SHOWN, 3)))
    tally.refused(refused(90, 91))
    tally.refused(refused(92))
    print_tally(tally, as_json=False)
    told = capsys.readouterr()
    assert told.err.splitlines() == [
        "error: 20 records from 6 to 63: stopped",
        "error: 20 records from 7 to 64: stopped",
        "error: 20 records from 8 to 65: stopped",
        "error: records 90 to 91: stopped",
        "error: record 92: stopped",
    ]
    assert told.out == "wrote 0 records to t; 63 records failed\n"


def test_waits_for_a_quota_are_in_the_sum_and_long_ones_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally(topic="t", verbose=False)
    tally.throttled(400)
    tally.throttled(2_400)
    assert capsys.readouterr().err == "throttled: over a quota, the next records wait up to 2.4 s\n"
    print_tally(tally, as_json=True)
    assert json.loads(capsys.readouterr().out)["throttled_seconds"] == 2.8
    print_tally(tally, as_json=False)
    assert capsys.readouterr().err.startswith("throttled for up to 2.8 s in all; ")


def test_the_records_of_errors_that_are_not_shown_are_counted(capsys: pytest.CaptureFixture[str]) -> None:
    tally = Tally(topic="t", verbose=False)
    for number in range(0, 2 * ERRORS_SHOWN + 4, 2):
        tally.refused(refused(number, number + 1))
    print_tally(tally, as_json=False)
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == ERRORS_SHOWN + 1 and lines[-1] == "and 4 more records failed"
