"""What a rebuild finds of transactions, against a plain model: each begin and end is told by an increment, by the
batches of the log, or by both."""

from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from metadata.contract.operators import AbortedRow, TransactionsView
from metadata.contract.topics import Watermarks
from metadata.rules.invariants.transactions import check_txn_3
from metadata.transactions.contract import AbortedTransaction
from metadata.transactions.rows import TxnRow, TxnRowKind
from siltstone.ops.rebuild.aborting import aborted_rows
from siltstone.ops.rebuild.state import State
from siltstone.ops.rebuild.transactions import Heard, KnownTransactions, known_transactions
from tests.fixtures.chance import examples

PARTITIONS, PRODUCERS = (1, 2), (7, 8, 9)


class Log:
    """Transactions on two partitions, as Postgres keeps them."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.truth = KnownTransactions()
        self.ends = dict.fromkeys(PARTITIONS, 0)
        self.rows: list[TxnRow] = []
        self.batches: list[Heard] = []

    def step(self) -> None:
        partition_id, producer_id = self.chance.choice(PARTITIONS), self.chance.choice(PRODUCERS)
        first = self.truth.open.get((partition_id, producer_id))
        at = self.ends[partition_id]
        if first is None or self.chance.random() < 0.5:
            self._write(partition_id, producer_id, at)
            return
        kind = self.chance.choice([TxnRowKind.COMMIT, TxnRowKind.ABORT])
        self.ends[partition_id] += 1
        self.truth.ends(partition_id, producer_id, at, kind, first)
        self._tell(Heard(partition_id, at, producer_id, 0, kind), TxnRow(kind, partition_id, producer_id, first, at))

    def _write(self, partition_id: int, producer_id: int, at: int) -> None:
        self.ends[partition_id] += self.chance.randint(1, 3)
        data = Heard(partition_id, at, producer_id, 0, None)
        if (partition_id, producer_id) in self.truth.open:
            self.batches += [data] if self.chance.random() < 0.5 else []
            return
        self.truth.begins(partition_id, producer_id, at)
        self._tell(data, TxnRow(TxnRowKind.BEGIN, partition_id, producer_id, at, at))

    def _tell(self, batch: Heard, row: TxnRow) -> None:
        """At least one of the two tells of it."""
        by = self.chance.randrange(3)
        self.batches += [batch] if by != 1 else []
        self.rows += [row] if by != 2 else []

    def tables(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "transaction_partitions": [
                {"partition_id": at, "producer_id": producer_id, "epoch": 0, "first_offset": first}
                for (at, producer_id), first in self.truth.open.items()
            ],
            "aborted_transactions": [
                {"partition_id": at, "last_offset": last, "producer_id": producer_id, "first_offset": first}
                for (at, last), (producer_id, first) in self.truth.aborted.items()
            ],
        }


@given(seed=st.integers(0, 2**32), before=st.integers(0, 20), after=st.integers(0, 20))
@settings(max_examples=examples(400))
def test_all_that_anything_tells_of_is_known_and_nothing_else(seed: int, before: int, after: int) -> None:
    log = Log(random.Random(seed))
    for _ in range(before):
        log.step()
    tables = log.tables()
    log.rows.clear()
    log.batches.clear()
    for _ in range(after):
        log.step()
    starts = {at: min(log.chance.choice([0, 0, 3]), end) for at, end in log.ends.items()}
    values = SimpleNamespace(txn_rows=log.rows, partitions=dict.fromkeys(PARTITIONS), log_start=starts.get)
    state = cast("State", values)
    log.chance.shuffle(log.rows)
    log.chance.shuffle(log.batches)

    known = known_transactions(tables, state, log.batches)

    assert known.open == log.truth.open
    assert known.aborted == {at: each for at, each in log.truth.aborted.items() if at[1] >= starts[at[0]]}
    # when all that is open is aborted, as a rebuild does, then no list of aborted transactions hides one
    for (partition_id, producer_id), first in list(known.open.items()):
        known.ends(partition_id, producer_id, log.ends[partition_id], TxnRowKind.ABORT, first)
        log.ends[partition_id] += 1
    rows = aborted_rows(known)
    view = TransactionsView(
        watermarks=[
            Watermarks(partition_id=at, log_start_offset=starts[at], last_stable_offset=end, high_watermark=end)
            for at, end in log.ends.items()
        ],
        ongoing=(),
        entered=(),
        aborted=[
            AbortedRow(AbortedTransaction(*(each[name] for name in AbortedTransaction._fields)), each["stable_offset"])
            for each in rows
        ],
    )
    assert check_txn_3(view) == []
    for partition_id in PARTITIONS:
        of_one = [row for row in rows if row["partition_id"] == partition_id]
        in_order = [row["stable_offset"] for row in sorted(of_one, key=lambda row: row["last_offset"])]
        assert in_order == sorted(in_order)
