"""The answers of `siltstone transactions`, made of values."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from metadata.contract.agents import AgentAddress
from metadata.contract.leases import AgentInfo
from metadata.contract.operators import EnteredPartition, HeldView
from metadata.contract.topics import Topic, Watermarks
from metadata.transactions.contract import TransactionInfo, TransactionState
from siltstone.ops.transaction_report import (
    LATE_MS,
    Held,
    by_age,
    describe_json,
    hanging_cells,
    hangs,
    held_cells,
    held_json,
    list_cells,
    shown,
    strays_of,
)

TOPIC = Topic(topic_id=uuid.UUID(int=1), name="t", partition_ids=(11, 12), configs={}, created_ms=0)
AGENTS = [
    AgentInfo(writer_id=number, epoch=1, address=AgentAddress(host=f"h{number}", port=9092)) for number in (1, 2, 3)
]


def marks(partition_id: int, start: int, stable: int, high: int) -> Watermarks:
    return Watermarks(partition_id=partition_id, log_start_offset=start, last_stable_offset=stable, high_watermark=high)


def info(state: TransactionState, started_ms: int | None) -> TransactionInfo:
    return TransactionInfo(
        transactional_id="a",
        producer_id=7,
        producer_epoch=2,
        state=state,
        txn_seq=3,
        timeout_ms=60_000,
        started_ms=started_ms,
        updated_ms=1_000,
        owner_id=1,
        coordinator_epoch=5,
        client_version=2,
        partitions={},
        group_ids=("g",),
    )


def view_of(
    *ongoing: TransactionInfo, entered: Sequence[EnteredPartition] = (), watermarks: Sequence[Watermarks] = ()
) -> HeldView:
    return HeldView(now_ms=9_000, infos=ongoing, entered=entered, watermarks=watermarks, topics=[TOPIC])


def of(producer_id: int, name: str, partitions: Mapping[int, int | None]) -> TransactionInfo:
    ongoing = info(TransactionState.ONGOING, 2_000)
    return replace(ongoing, producer_id=producer_id, transactional_id=name, partitions=partitions)


def test_the_oldest_transaction_of_a_partition_holds_its_readers_and_is_named() -> None:
    mine, other = {12: 9, 11: 4}, of(8, "b", {12: 3})
    view = view_of(
        of(7, "a", mine),
        other,
        entered=[EnteredPartition(11, 7, 2, 3, 4), EnteredPartition(12, 7, 2, 3, 9), EnteredPartition(12, 8, 2, 3, 3)],
        watermarks=[marks(11, 0, 4, 10), marks(12, 0, 3, 10)],
    )
    held = Held(view).partitions(mine)
    assert [(each.name, each.holds, each.held_back) for each in held] == [("t-0", True, 6), ("t-1", False, 7)]
    assert held_cells(held[0]) == ["t-0", "4", "4", "10", "6", "this one"]
    assert held_cells(held[1]) == ["t-1", "9", "3", "10", "7", "b"]
    assert [held_json(each)["held_by"] for each in held] == ["a", "b"]


def test_a_producer_without_a_transaction_is_named_by_its_id() -> None:
    view = view_of(
        of(7, "a", {12: 9}),
        replace(of(8, "b", {}), state=TransactionState.COMPLETE_ABORT, started_ms=None),
        entered=[EnteredPartition(12, 8, 2, 3, 3), EnteredPartition(12, 7, 2, 3, 9)],
        watermarks=[marks(12, 0, 3, 10)],
    )
    [held] = Held(view).partitions({12: 9})
    assert held_cells(held)[-1] == "producer 8" and held_json(held)["held_by"] is None


def test_a_transaction_that_begins_below_the_log_start_holds_readers_there() -> None:
    view = view_of(entered=[EnteredPartition(11, 7, 2, 3, 4)], watermarks=[marks(11, 6, 6, 10)])
    [held] = Held(view).partitions({11: 4})
    assert held.holds and held.held_back == 4


def test_a_partition_without_a_record_or_without_a_topic_is_shown_and_holds_nothing() -> None:
    entered = {99: 4, 12: None}
    rows = [EnteredPartition(id_, 7, 2, 3, first) for id_, first in entered.items()]
    gone, empty = Held(view_of(entered=rows, watermarks=[marks(12, 0, 10, 10)])).partitions(entered)
    assert held_cells(gone) == ["partition id 99", "4", "-", "-", "0", "-"]
    assert held_cells(empty) == ["t-1", "-", "10", "10", "0", "-"]


@pytest.mark.parametrize(
    ("age_ms", "timeout_ms", "hanging"),
    [
        (20 * 60_000, 3_600_000, False),
        (20 * 60_000 + 1, 3_600_000, True),
        (5_000 + LATE_MS, 5_000, False),
        (5_001 + LATE_MS, 5_000, True),
    ],
)
def test_what_is_old_or_past_its_timeout_hangs(age_ms: int, timeout_ms: int, hanging: bool) -> None:
    one = replace(info(TransactionState.ONGOING, 1_000), timeout_ms=timeout_ms)
    assert hangs(shown(one, AGENTS, 1_000 + age_ms), longer_than_ms=20 * 60_000) is hanging
    ended = replace(one, state=TransactionState.EMPTY, started_ms=None)
    assert not hangs(shown(ended, AGENTS, 1_000 + age_ms), longer_than_ms=0)


def test_a_transaction_that_holds_no_offsets_back_holds_its_groups() -> None:
    with_group = shown(info(TransactionState.ONGOING, 2_000), AGENTS, 99_000)
    without = shown(replace(with_group.info, group_ids=(), timeout_ms=97_000), AGENTS, 99_000)
    assert hanging_cells(with_group, [])[4:] == ["1m37s", "1m00s, over", "0", "1", "1 group"]
    assert hanging_cells(without, [])[4:] == ["1m37s", "1m37s", "0", "0", "0"]
    view = view_of(entered=[EnteredPartition(11, 7, 2, 3, 4)], watermarks=[marks(11, 0, 4, 10)])
    assert hanging_cells(with_group, Held(view).partitions({11: 4}))[6:] == ["1", "1", "6"]
    empty = Held(view_of(watermarks=[marks(11, 0, 10, 10)])).partitions({11: None})
    assert hanging_cells(with_group, empty)[6:] == ["1", "1", "1 group"]


def test_ongoing_ones_come_first_the_oldest_at_the_top_then_by_id() -> None:
    ages = {"a": None, "b": 5, "c": None, "d": 9, "e": 5}
    found = [
        shown(replace(info(TransactionState.ONGOING, None if age is None else 9 - age), transactional_id=name), [], 9)
        for name, age in reversed(ages.items())
    ]
    assert [each.info.transactional_id for each in by_age(found)] == ["d", "b", "e", "a", "c"]


def test_groups_are_those_of_an_ongoing_transaction_alone() -> None:
    ended = shown(info(TransactionState.COMPLETE_COMMIT, None), AGENTS, 9_000)
    going = shown(info(TransactionState.ONGOING, 2_000), AGENTS, 9_000)
    assert describe_json(ended, [])["groups"] == [] and describe_json(going, [])["groups"] == ["g"]
    assert list_cells(ended)[-1] == "-" and list_cells(going)[-1] == "7s"


def test_without_agents_nobody_coordinates() -> None:
    assert list_cells(shown(info(TransactionState.EMPTY, None), [], 0))[4] == "none"
    assert list_cells(shown(info(TransactionState.EMPTY, None), AGENTS, 0))[4] in {"h1:9092", "h2:9092", "h3:9092"}


def test_partitions_of_producers_without_an_ongoing_transaction_are_strays() -> None:
    view = view_of(
        of(7, "a", {11: 4}),
        replace(of(6, "b", {}), state=TransactionState.EMPTY, started_ms=None),
        watermarks=[marks(11, 0, 2, 9), marks(12, 0, 0, 3)],
        entered=[
            EnteredPartition(11, 5, 1, 1, 2),
            EnteredPartition(11, 7, 2, 3, 4),
            EnteredPartition(12, 5, 1, 1, 0),
            EnteredPartition(12, 6, 0, 1, None),
        ],
    )
    found = [
        (each.producer_id, each.producer_epoch, [one.name for one in each.held]) for each in strays_of(view, Held(view))
    ]
    assert found == [(5, 1, ["t-0", "t-1"]), (6, 0, ["t-1"])]
