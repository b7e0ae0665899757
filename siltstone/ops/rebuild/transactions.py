"""The transactions of a rebuild: which were open at the end of what is known, and which were aborted. Pure.

The snapshot's rows are continued by all that tells of a begin or an end since: the rows of transactions in the L0 files
that increments name, and the batches above the snapshot's end. Neither is enough: a marker that was merged after the
last increment is only in the merged file, and a merge may have dropped a marker that an increment names.

**An aborted transaction is kept only if its marker is in the log.** Readers drop the records of a listed producer until
they meet its marker; without one they would drop its later transactions too. A merge drops a marker only after another
removed all records of the transaction, and its row in Postgres; a rebuild hears of neither. So a row without its marker
hides no record any more. A row that is kept too long, with its marker, does no harm: there is nothing between them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from metadata.contract.backup import Row
from metadata.transactions.rows import TxnRowKind
from siltstone.ops.rebuild.state import Catalogued, State
from siltstone.ops.rebuild.tiling import Stretch, Taken


class Heard(NamedTuple):
    """A transactional batch in the log: data, or a marker."""

    partition_id: int
    offset: int
    producer_id: int
    epoch: int
    ends: TxnRowKind | None
    """COMMIT or ABORT for a marker; None for data."""


@dataclass(slots=True)
class KnownTransactions:
    open: dict[tuple[int, int], int] = field(default_factory=dict[tuple[int, int], int])
    """(partition id, producer id) -> offset of the first record."""
    aborted: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict[tuple[int, int], tuple[int, int]])
    """(partition id, offset of the marker) -> (producer id, offset of the first record)."""
    epochs: dict[int, int] = field(default_factory=dict[int, int])
    """The newest known epoch by producer id."""

    def saw(self, producer_id: int, epoch: int) -> None:
        self.epochs[producer_id] = max(epoch, self.epochs.get(producer_id, 0))

    def begins(self, partition_id: int, producer_id: int, offset: int) -> None:
        self.open[partition_id, producer_id] = offset

    def ends(self, partition_id: int, producer_id: int, offset: int, kind: TxnRowKind, first: int | None) -> None:
        begun = self.open.pop((partition_id, producer_id), None)
        first = begun if first is None else first
        if kind is TxnRowKind.ABORT and first is not None:
            self.aborted[partition_id, offset] = producer_id, first


def known_transactions(
    tables: Mapping[str, Sequence[Row]], state: State, batches: Iterable[Heard]
) -> KnownTransactions:
    """`tables`: of the snapshot; those of earlier releases have no transactions. `batches`: those above its end."""
    known = KnownTransactions()
    for row in tables.get("transactions", ()):
        known.saw(row["producer_id"], row["producer_epoch"])
    for row in tables.get("producers", ()):
        known.saw(row["producer_id"], row["epoch"])
    for row in tables.get("transaction_partitions", ()):
        known.saw(row["producer_id"], row["epoch"])
        if row["first_offset"] is not None:
            known.begins(row["partition_id"], row["producer_id"], row["first_offset"])
    for row in tables.get("aborted_transactions", ()):
        known.aborted[row["partition_id"], row["last_offset"]] = row["producer_id"], row["first_offset"]
    rows = {(each.partition_id, each.at_offset, each.producer_id): each for each in state.txn_rows}
    heard = {(each.partition_id, each.offset, each.producer_id): each for each in batches}
    for place in sorted(rows.keys() | heard.keys()):
        partition_id, offset, producer_id = place
        batch, row = heard.get(place), rows.get(place)
        if batch is not None:
            known.saw(producer_id, batch.epoch)
        if row is not None and row.kind is not TxnRowKind.BEGIN:
            known.ends(partition_id, producer_id, offset, row.kind, row.first_offset)
        elif batch is not None and batch.ends is not None:
            known.ends(partition_id, producer_id, offset, batch.ends, None)
        elif row is not None or (partition_id, producer_id) not in known.open:
            known.begins(partition_id, producer_id, offset)
    for at in [at for at in known.open if at[0] not in state.partitions]:
        del known.open[at]
    for partition_id, last in list(known.aborted):
        if partition_id not in state.partitions or last < state.log_start(partition_id):
            del known.aborted[partition_id, last]
    return known


class MarkerPlaces(NamedTuple):
    """Where the markers of aborted transactions are, as far as the catalogue tells."""

    merged: Mapping[tuple[int, int], Stretch]
    """By (partition id, offset): in a merged file that the snapshot does not have. Only the file tells whether it holds
    the marker."""
    lost: frozenset[tuple[int, int]]
    """In no file at all."""


def marker_places(catalogued: Catalogued, state: State, taken: Mapping[int, Taken]) -> MarkerPlaces:
    """Elsewhere the marker is there: in an L0 file, or in a file of the snapshot, which has its row too."""
    merged: dict[tuple[int, int], Stretch] = {}
    lost: set[tuple[int, int]] = set()
    for partition_id, offset in known_transactions(catalogued.tables, state, ()).aborted:
        stretch = next(iter(taken[partition_id].overlapping(offset, offset)), None)
        if stretch is None:
            lost.add((partition_id, offset))
        # A flagged extent was copied as it is, and nothing was dropped from it.
        elif stretch.extent is not None and stretch.extent.flagged_reason is None:
            merged[partition_id, offset] = stretch
    return MarkerPlaces(merged, frozenset(lost))
