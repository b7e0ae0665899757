"""What a rebuild makes of the transactions that it knows: rows of the aborted ones, and the end of those still open.

No client can end a transaction that was open: its coordinator is gone, and its last news may be lost. So all are
aborted, by one file of markers, before anybody reads or writes. **A transaction that committed after the last increment
looks open, and is aborted with them**: its markers were in Postgres alone. So each counts as a loss.

Every transactional id gets a new producer id. A producer from before the loss hears INVALID_PRODUCER_ID_MAPPING or
PRODUCER_FENCED, and none of its batches can enter a transaction that begins later.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from metadata.contract.backup import REBUILT_EPOCH, Row
from metadata.rules.packed_index import IndexRow, encode_index
from metadata.transactions.contract import MARKER_BYTES, PRODUCER_EPOCH_MAX
from metadata.transactions.rows import TxnRow, TxnRowKind, encode_txn_rows
from runtime.ids import IdSource
from siltstone.ops.rebuild.plan import INT31, Lost, RebuildPlan
from siltstone.ops.rebuild.state import new_file_row
from siltstone.ops.rebuild.transactions import Heard, KnownTransactions, known_transactions
from storage.keys import file_key
from wire.crc import crc32c
from wire.markers import build_marker

OPEN_TRANSACTION = "transaction"
LOST_MARKER = "marker"
"""The kinds of losses."""


@dataclass(slots=True)
class WalkedLog:
    """What the shell has read of the merged files and of L0."""

    batches: list[Heard] = field(default_factory=list[Heard])
    """The transactional batches above the snapshot's end."""
    markers: set[tuple[int, int]] = field(default_factory=set[tuple[int, int]])
    """(partition id, offset) of the markers that were met."""
    is_walked: bool = False
    """False: nothing was read, so every marker is taken to be there."""


class AbortedNow(NamedTuple):
    """An open transaction that the rebuild aborts."""

    transactional_id: str | None
    """None: it is not in the snapshot."""
    producer_id: int
    partitions: int
    groups: tuple[str, ...]
    """Whose offsets it held back; they are lost with it."""


def abort_open(plan: RebuildPlan, walked: WalkedLog, *, ids: IdSource, now_ms: int) -> list[AbortedNow]:
    """Write the rows of transactions into the plan. `plan.tables` must have everything else."""
    known = known_transactions(plan.given_tables, plan.state, walked.batches)
    names = _names(plan)
    _drop_without_marker(plan, known, walked)
    _lose(plan, known, names)
    if known.open:
        _write_markers(plan, known, ids, now_ms)
    plan.tables["aborted_transactions"] = aborted_rows(known)
    plan.tables["transaction_partitions"] = []
    plan.tables["transaction_offsets"] = []
    plan.tables["transactions"] = _renewed(plan, now_ms)
    return _aborted_now(plan, known, names)


def _names(plan: RebuildPlan) -> dict[int, str]:
    return {row["producer_id"]: row["transactional_id"] for row in plan.given_tables.get("transactions", ())}


def _drop_without_marker(plan: RebuildPlan, known: KnownTransactions, walked: WalkedLog) -> None:
    for at in list(known.aborted):
        if at in plan.markers.lost:
            producer_id, first = known.aborted.pop(at)
            place = plan.places[at[0]]
            detail = f"the marker at {at[1]}, so records of producer {producer_id} from {first} on look committed"
            plan.losses.append(Lost(LOST_MARKER, place.topic, place.partition, at[1] - first, detail))
        elif walked.is_walked and at in plan.markers.merged and at not in walked.markers:
            del known.aborted[at]


def _lose(plan: RebuildPlan, known: KnownTransactions, names: dict[int, str]) -> None:
    ends = {row["partition_id"]: row["next_offset"] for row in plan.tables["watermarks"]}
    for (partition_id, producer_id), first in sorted(known.open.items()):
        place, who = plan.places[partition_id], names.get(producer_id)
        named = f"of producer {producer_id}" if who is None else f"{who!r}"
        detail = f"{named} from {first} on had not ended when the catalogue was written: it is aborted"
        plan.losses.append(Lost(OPEN_TRANSACTION, place.topic, place.partition, ends[partition_id] - first, detail))


def _write_markers(plan: RebuildPlan, known: KnownTransactions, ids: IdSource, now_ms: int) -> None:
    """One inline file, as `end_transactions_v1` leaves it."""
    epoch = _next_epoch(plan)
    positions: dict[int, int] = {}
    body = b""
    for _, producer_id in sorted(known.open):
        if producer_id not in positions:
            positions[producer_id] = len(body)
            body += build_marker(
                producer_id,
                min(known.epochs.get(producer_id, 0), PRODUCER_EPOCH_MAX) + 1,
                commit=False,
                coordinator_epoch=epoch,
                timestamp_ms=now_ms,
            )
    marks = {row["partition_id"]: row for row in plan.tables["watermarks"]}
    index: list[IndexRow] = []
    rows: list[TxnRow] = []
    for (partition_id, producer_id), first in sorted(known.open.items()):
        at = marks[partition_id]["next_offset"]
        marks[partition_id]["next_offset"] = at + 1
        index.append(IndexRow(partition_id, at, at, positions[producer_id], MARKER_BYTES, now_ms, now_ms))
        rows.append(TxnRow(TxnRowKind.ABORT, partition_id, producer_id, first, at))
        known.aborted[partition_id, at] = producer_id, first
    writer = plan.tables["writers"][-1]
    writer["last_seq"] += 1
    plan.sequences["file_ids"] += 1
    file_id = plan.sequences["file_ids"]
    plan.tables["files"].append(
        new_file_row(
            file_id=file_id,
            key=file_key(
                level=0,
                writer_id=writer["writer_id"],
                epoch=REBUILT_EPOCH,
                created_ms=now_ms,
                file_uuid=ids.uuid7(now_ms),
            ),
            level=0,
            writer_id=writer["writer_id"],
            epoch=REBUILT_EPOCH,
            seq=writer["last_seq"],
            lo=file_id,
            hi=file_id,
            size_bytes=len(body),
            crc32c=crc32c(body),
            created_ms=now_ms,
            max_ts_ms=now_ms,
            live_extents=len(index),
            index=encode_index(index),
            inline=body,
            txn=encode_txn_rows(rows),
        )
    )


def _next_epoch(plan: RebuildPlan) -> int:
    plan.sequences["transaction_epochs"] = min(plan.sequences["transaction_epochs"] + 1, INT31)
    return plan.sequences["transaction_epochs"]


def aborted_rows(known: KnownTransactions) -> list[Row]:
    found: list[Row] = []
    by_partition: defaultdict[int, list[tuple[int, int, int]]] = defaultdict(list)
    for (partition_id, last), (producer_id, first) in known.aborted.items():
        by_partition[partition_id].append((last, producer_id, first))
    for partition_id, ended in sorted(by_partition.items()):
        begun_later = max(ended)[0] + 1
        for last, producer_id, first in sorted(ended, reverse=True):
            stable = min(begun_later, last + 1)
            found.append(
                {
                    "partition_id": partition_id,
                    "last_offset": last,
                    "producer_id": producer_id,
                    "first_offset": first,
                    "stable_offset": stable,
                }
            )
            begun_later = min(begun_later, first)
    return found


def _renewed(plan: RebuildPlan, now_ms: int) -> list[Row]:
    cluster, writer = plan.tables["cluster"][0], plan.tables["writers"][-1]
    found: list[Row] = []
    for row in plan.given_tables.get("transactions", ()):
        producer_id = cluster["next_producer_id"]
        cluster["next_producer_id"] += 1
        found.append(
            {
                **row,
                "producer_id": producer_id,
                "producer_epoch": 0,
                "prev_producer_id": -1,
                "last_producer_epoch": -1,
                "state": 0,
                "deadline_ms": None,
                "started_ms": None,
                "updated_ms": now_ms,
                "group_ids": [],
                "owner_id": writer["writer_id"],
                "coordinator_epoch": _next_epoch(plan),
            }
        )
    return found


def _aborted_now(plan: RebuildPlan, known: KnownTransactions, names: dict[int, str]) -> list[AbortedNow]:
    """With those that have entered no partition, but hold back offsets."""
    groups: defaultdict[int, set[str]] = defaultdict(set)
    for row in plan.given_tables.get("transaction_offsets", ()):
        groups[row["producer_id"]].add(row["group_id"])
    partitions: defaultdict[int, int] = defaultdict(int)
    for _, producer_id in known.open:
        partitions[producer_id] += 1
    return [
        AbortedNow(names.get(id_), id_, partitions[id_], tuple(sorted(groups[id_])))
        for id_ in sorted(partitions.keys() | groups.keys())
    ]


def groups_of(aborted: Iterable[AbortedNow]) -> list[str]:
    return sorted({group for each in aborted for group in each.groups})
