"""Every invariant of transactions holds on good ones, and names the fault of a bad one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from metadata.contract.operators import AbortedRow, EnteredPartition, OngoingTransaction, TransactionsView
from metadata.contract.topics import Watermarks
from metadata.rules.invariants.transactions import check_txn_1, check_txn_2, check_txn_3
from metadata.transactions.contract import AbortedTransaction


def aborted(producer_id: int, first: int, last: int, stable: int | None = None) -> AbortedRow:
    return AbortedRow(AbortedTransaction(1, producer_id, first, last), stable)


MARK = Watermarks(partition_id=1, log_start_offset=10, last_stable_offset=30, high_watermark=40)
GOOD = TransactionsView(
    watermarks=[MARK],
    ongoing=[OngoingTransaction("t", 7, 3, 5)],
    entered=[EnteredPartition(1, 7, 3, 5, 30)],
    aborted=[aborted(7, 8, 10, 11), aborted(8, 12, 20, 12), aborted(7, 12, 24, 25), aborted(9, 27, 39, 30)],
)


def said(view: TransactionsView) -> list[str]:
    return [f"{each.id} {each.message}" for check in (check_txn_1, check_txn_2, check_txn_3) for each in check(view)]


def test_transactions_as_they_should_be_break_nothing() -> None:
    assert said(GOOD) == []
    empty = replace(GOOD, entered=[EnteredPartition(1, 7, 3, 5, None)], aborted=[aborted(8, 12, 20)])
    assert said(empty) == []
    just_deleted = replace(GOOD, entered=[EnteredPartition(2, 7, 3, 5, None)])
    assert said(just_deleted) == []


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (
            EnteredPartition(1, 7, 2, 5, 30),
            "TXN-1 partition 1, producer 7: it entered transaction 5 at epoch 2, but 't' is at transaction 5, epoch 3",
        ),
        (
            EnteredPartition(1, 7, 3, 4, 30),
            "TXN-1 partition 1, producer 7: it entered transaction 4 at epoch 3, but 't' is at transaction 5, epoch 3",
        ),
        (
            EnteredPartition(1, 7, 3, 5, 40),
            "TXN-1 partition 1, producer 7: its first record is at 40, the high watermark is 40",
        ),
        (
            EnteredPartition(2, 7, 3, 5, 30),
            "TXN-1 partition 2, producer 7: it entered a partition that does not exist",
        ),
        (
            EnteredPartition(1, 8, 3, 5, 30),
            "TXN-2 partition 1, producer 8: a hanging transaction: none is ongoing that entered here, and it holds"
            " readers of committed records at 30",
        ),
        (
            EnteredPartition(1, 8, 3, 5, None),
            "TXN-2 partition 1, producer 8: a hanging transaction: none is ongoing that entered here",
        ),
    ],
)
def test_a_partition_that_does_not_belong_to_a_transaction_is_named(row: EnteredPartition, message: str) -> None:
    assert said(replace(GOOD, entered=[row], aborted=[])) == [message]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        (aborted(7, 8, 9), "from 8 to 9 ended below the log start, 10"),
        (aborted(7, 12, 40), "from 12 to 40 ends at or above the high watermark, 40"),
        (aborted(7, 12, 12), "from 12 to 12 has its marker before its records"),
        (aborted(7, 12, 24, 26), "from 12 to 24 ends a search at 26, but one that ended later begins at 25"),
        (aborted(7, 32, 35, 31), "from 32 to 35 ends a search at 31, but one that ended later begins at 30"),
    ],
)
def test_an_aborted_transaction_that_cannot_be_is_named(row: AbortedRow, message: str) -> None:
    assert said(replace(GOOD, aborted=[row])) == [f"TXN-3 partition 1: the aborted transaction of producer 7 {message}"]


def test_an_aborted_transaction_that_hides_a_later_one_is_named() -> None:
    found = said(replace(GOOD, aborted=[aborted(8, 12, 20, 21), aborted(7, 13, 24, 25)]))
    assert found == [
        "TXN-3 partition 1: the aborted transaction of producer 8 from 12 to 20 ends a search at 21, but one that"
        " ended later begins at 13"
    ]


def test_aborted_transactions_of_a_deleted_partition_are_named() -> None:
    found = said(replace(GOOD, watermarks=[], entered=[], aborted=[aborted(8, 12, 20), aborted(8, 22, 30)]))
    assert found == ["TXN-3 partition 1: 2 aborted transactions of a partition that does not exist"]
