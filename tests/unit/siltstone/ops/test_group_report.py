"""Lag and resets, as tables of cases."""

from __future__ import annotations

from dataclasses import replace

import pytest

from siltstone.kafka.groups.admin import Committed, GroupDescription, Member
from siltstone.ops.group_report import (
    LogEnds,
    NothingCommittedError,
    bar,
    describe_json,
    lag_cells,
    lags,
    reset_cells,
    resets,
    shifted,
    short_member_id,
    total_lag,
    total_lag_text,
)

MEMBER = Member(
    member_id="reader-80e1b562-06d3-4d9c-a1a6-6bd0f1e3c2d4",
    instance_id=None,
    client_id="reader",
    host="/127.0.0.1",
    assignment={"orders": (0, 1)},
)
GROUP = GroupDescription(
    group_id="billing",
    state="Stable",
    protocol_type="consumer",
    protocol="range",
    coordinator="127.0.0.1:9092",
    members=[MEMBER],
)
LOGS = {("orders", 0): LogEnds(start=10, end=100, stable=100), ("orders", 1): LogEnds(start=0, end=0, stable=0)}


def committed(**offsets: int) -> dict[tuple[str, int], Committed]:
    return {("orders", int(name[1:])): Committed(offset=offset, metadata="") for name, offset in offsets.items()}


@pytest.mark.parametrize(
    ("offset", "lag", "shown", "note"),
    [
        (100, 0, "█" * 16, ""),
        (99, 1, "█" * 15 + "░", ""),
        (55, 45, "█" * 8 + "░" * 8, ""),
        (10, 90, "░" * 16, ""),
        (3, 97, "░" * 16, "committed below the log start 10: the records between are gone"),
        (105, 0, "█" * 16, "committed above the log's end by 5"),
    ],
)
def test_lag_is_counted_from_the_committed_offset_to_the_end(offset: int, lag: int, shown: str, note: str) -> None:
    [row] = lags(GROUP, committed(p0=offset), LOGS)[:1]
    assert (row.lag, bar(row.fraction), row.note) == (lag, shown, note)


@pytest.mark.parametrize(
    ("offset", "stable", "note"),
    [
        (60, 60, "waits for the end of an open transaction, which holds back 40 offsets"),
        (99, 99, "waits for the end of an open transaction, which holds back 1 offset"),
        (50, 60, ""),  # it has more to read first
        (70, 60, ""),  # it reads uncommitted
        (100, 100, ""),
    ],
)
def test_a_group_that_has_read_all_that_is_committed_waits_for_a_transaction(
    offset: int, stable: int, note: str
) -> None:
    logs = {("orders", 0): LogEnds(start=10, end=100, stable=stable)}
    [row] = lags(replace(GROUP, members=()), committed(p0=offset), logs)
    assert (row.note, row.waits) == (note, bool(note))
    assert describe_json(GROUP, [row])["partitions"][0]["last_stable_offset"] == stable


def test_what_is_assigned_or_committed_is_shown_and_what_is_not_known_is_said() -> None:
    rows = lags(GROUP, committed(p0=60, p7=5), LOGS)
    assert [(each.partition, each.committed, each.lag) for each in rows] == [(0, 60, 40), (1, None, None), (7, 5, None)]
    assert rows[2].note == "the partition is gone" and bar(rows[1].fraction) == ""
    assert total_lag(rows) == 40 and total_lag_text(rows) == "40 (not counted: 1 without an offset, 1 gone)"
    assert lag_cells(rows[0]) == ["orders", "0", "60", "100", "40", "reader-80e1b562…", "reader /127.0.0.1"]
    assert lag_cells(rows[2])[-2:] == ["-", "-"]
    assert describe_json(GROUP, rows)["members"][0]["assignment"] == {"orders": [0, 1]}


def test_a_partition_that_a_group_without_members_never_read_is_shown_and_not_called_read() -> None:
    nobody = replace(GROUP, members=())
    rows = lags(nobody, committed(p0=100), LOGS, partitions={"orders": 2, "others": 9})
    assert [(each.topic, each.partition, each.lag) for each in rows] == [("orders", 0, 0), ("orders", 1, None)]
    assert total_lag_text(rows) == "0 (not counted: 1 without an offset)"


def test_a_members_id_is_cut_only_where_a_coordinator_made_it() -> None:
    assert short_member_id("static-one") == "static-one"
    assert short_member_id(MEMBER.member_id) == "reader-80e1b562…"


@pytest.mark.parametrize(
    ("asked", "after", "cells"),
    [
        (50, 50, ["orders", "0", "20", "50", "+30", "50", "10 to 100"]),
        (5, 10, ["orders", "0", "20", "10", "-10", "90", "10 to 100 (held within)"]),
        (1000, 100, ["orders", "0", "20", "100", "+80", "0", "10 to 100 (held within)"]),
    ],
)
def test_a_reset_stays_within_the_log(asked: int, after: int, cells: list[str]) -> None:
    [row] = resets({("orders", 0): asked}, committed(p0=20), LOGS)
    assert row.after == after and reset_cells(row) == cells


def test_a_shift_needs_something_to_shift() -> None:
    assert shifted([("orders", 0)], committed(p0=20), -5) == {("orders", 0): 15}
    with pytest.raises(NothingCommittedError):
        shifted([("orders", 0), ("orders", 1)], committed(p0=20), -5)
