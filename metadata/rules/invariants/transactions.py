"""The invariants of transactions in the metadata store. Predicates, as in `metadata/rules/invariants/all_levels.py`.

- TXN-1  a partition that a transaction entered belongs to it: same producer, epoch and number; its first record there
         is below the high watermark;
- TXN-2  no transaction hangs: every partition that was entered has an ongoing transaction, whose end lets readers of
         committed records go on;
- TXN-3  the marker of an aborted transaction lies in [log start, high watermark), behind its first record, and what
         ends the search for aborted transactions hides none.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from metadata.contract.operators import AbortedRow, EnteredPartition, TransactionsView
from metadata.contract.topics import Watermarks
from metadata.rules.invariants.all_levels import Violation


def check_txn_1(view: TransactionsView) -> list[Violation]:
    ongoing = {each.producer_id: each for each in view.ongoing}
    marks = {mark.partition_id: mark for mark in view.watermarks}
    violations: list[Violation] = []
    for row in view.entered:
        its = ongoing.get(row.producer_id)
        if its is not None and (row.epoch, row.txn_seq) != (its.producer_epoch, its.txn_seq):
            message = (
                f"it entered transaction {row.txn_seq} at epoch {row.epoch}, but {its.transactional_id!r} is at"
                f" transaction {its.txn_seq}, epoch {its.producer_epoch}"
            )
            violations.append(_violation("TXN-1", row, message))
        mark = marks.get(row.partition_id)
        # A client may enter a partition that was deleted a moment ago. It holds nobody back: nothing is stored there.
        if mark is None and row.first_offset is None:
            continue
        if mark is None:
            violations.append(_violation("TXN-1", row, "it entered a partition that does not exist"))
        elif row.first_offset is not None and not 0 <= row.first_offset < mark.high_watermark:
            message = f"its first record is at {row.first_offset}, the high watermark is {mark.high_watermark}"
            violations.append(_violation("TXN-1", row, message))
    return violations


def check_txn_2(view: TransactionsView) -> list[Violation]:
    ongoing = {each.producer_id for each in view.ongoing}
    return [
        _violation("TXN-2", row, f"a hanging transaction: none is ongoing that entered here{_holds(row)}")
        for row in view.entered
        if row.producer_id not in ongoing
    ]


def check_txn_3(view: TransactionsView) -> list[Violation]:
    marks = {mark.partition_id: mark for mark in view.watermarks}
    open_from: dict[int, int] = {}
    for row in view.entered:
        if row.first_offset is not None:
            open_from[row.partition_id] = min(row.first_offset, open_from.get(row.partition_id, row.first_offset))
    by_partition = groupby(sorted(view.aborted, key=lambda each: each[0][0]), key=lambda each: each[0].partition_id)
    return [
        Violation(id="TXN-3", message=f"partition {partition_id}: {message}")
        for partition_id, aborted in by_partition
        for message in _aborted_faults(list(aborted), marks.get(partition_id), open_from.get(partition_id))
    ]


def _aborted_faults(aborted: list[AbortedRow], mark: Watermarks | None, open_from: int | None) -> Iterator[str]:
    if mark is None:
        yield f"{len(aborted)} aborted transactions of a partition that does not exist"
        return
    begun_later = open_from
    """The least first offset of the transactions that end after this one."""
    for each, stable_offset in sorted(aborted, key=lambda each: each[0].last_offset, reverse=True):
        what = f"the aborted transaction of producer {each.producer_id} from {each.first_offset} to {each.last_offset}"
        if each.last_offset < mark.log_start_offset:
            yield f"{what} ended below the log start, {mark.log_start_offset}"
        if each.last_offset >= mark.high_watermark:
            yield f"{what} ends at or above the high watermark, {mark.high_watermark}"
        if each.first_offset >= each.last_offset:
            yield f"{what} has its marker before its records"
        least = each.last_offset + 1 if begun_later is None else min(begun_later, each.last_offset + 1)
        if stable_offset is not None and stable_offset > least:
            yield f"{what} ends a search at {stable_offset}, but one that ended later begins at {least}"
        begun_later = each.first_offset if begun_later is None else min(begun_later, each.first_offset)


def _holds(row: EnteredPartition) -> str:
    return "" if row.first_offset is None else f", and it holds readers of committed records at {row.first_offset}"


def _violation(id_: str, row: EnteredPartition, message: str) -> Violation:
    return Violation(id=id_, message=f"partition {row.partition_id}, producer {row.producer_id}: {message}")
