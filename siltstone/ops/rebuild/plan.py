"""Decides, from the content of the bucket, the rows that `siltstone rebuild` writes into an empty database. Pure.

`plan_rebuild` takes the newest catalogue snapshot with its increments, the listing of the files, and the footers of the
merged files that the snapshot does not have. It rolls the state forward (`state.py`), chooses the stretch that holds
each offset (`tiling.py`), and makes rows of both. `losses` lists acknowledged records that cannot come back.

Offsets between log start and high watermark that no stretch holds are a *hole*. A hole at the log start moves the log
start; others are filled by empty extents, so that readers go on after them and no offset is given twice.
"""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from metadata.contract.backup import REBUILT_EPOCH, REBUILT_HOST, Row
from metadata.rules.packed_index import IndexRow, encode_index
from siltstone.ops.rebuild.state import (
    ABOVE,
    PRODUCER_IDS_ABOVE,
    Catalogued,
    Place,
    State,
    new_file_row,
    rolled_forward,
)
from siltstone.ops.rebuild.tiling import (
    FILLED_KIND,
    Footer,
    FooterExtent,
    Material,
    Stretch,
    Taken,
    inferred_done,
    tilings,
)
from siltstone.ops.rebuild.transactions import MarkerPlaces, marker_places
from siltstone.ops.rebuild.uncommitted import uncommitted_l0

INT31 = 2**31 - 1
NEWER_L0 = "newer L0"
"""The kind of loss where only the offsets are lost; the records may be appended."""


class Lost(NamedTuple):
    """Acknowledged records that do not come back."""

    what: str
    topic: str
    partition: int
    records: int
    """An upper bound: dedupe may have removed some."""
    detail: str


class Hole(NamedTuple):
    """Offsets that no file holds; an empty extent will stand for them."""

    partition_id: int
    topic_id: uuid.UUID
    partition: int
    base_offset: int
    last_offset: int
    is_compacted: bool


class L0Extent(NamedTuple):
    """An extent in the footer of an L0 file: it tells the number of records, but no offsets."""

    topic_id: uuid.UUID
    partition: int
    records: int


class NewStretch(NamedTuple):
    """A stretch above the end in the snapshot, whose batches continue the states of their producers and transactions;
    or one below it whose markers must be looked for."""

    partition_id: int
    stretch: Stretch
    row: IndexRow
    """Its place in the file."""
    known_end: int
    """The snapshot's next offset: batches below it are in its producers' states."""


@dataclass(slots=True)
class RebuildPlan:
    cluster_id: str
    known_ms: int
    """Changes and deletions after this are not known."""
    tables: dict[str, list[Row]]
    sequences: dict[str, int]
    holes: list[Hole]
    losses: list[Lost]
    new_stretches: list[NewStretch]
    newer_l0: dict[str, list[int]]
    """Keys of L0 files with unknown offsets, in the order in which their writers sealed them -> the ids of the
    partitions in them that do not come back otherwise."""
    unknown_topics: list[str]
    """Files of topics or partitions that the catalogue does not know."""
    uncommitted_l0: list[str]
    """Keys of L0 files that were never committed, so that no client got an acknowledgement."""
    given_tables: Mapping[str, Sequence[Row]]
    """Of the snapshot."""
    state: State
    markers: MarkerPlaces
    superseded: int = 0
    """Number of merged files that nothing needs; their rows are dead."""
    places: dict[int, Place] = field(default_factory=dict[int, Place])

    @property
    def is_complete(self) -> bool:
        return not (self.losses or self.unknown_topics)


def plan_rebuild(
    catalogued: Catalogued,
    listing: Mapping[str, int],
    footers: Sequence[Footer],
    l0_footers: Mapping[str, Sequence[L0Extent]],
    *,
    now_ms: int,
) -> RebuildPlan:
    """`listing`: sizes by key under l0/, l1/ and l2/. `footers`: those of all readable merged files that the snapshot
    does not have; `l0_footers`: those of L0 files that the catalogue does not have. New rows get the time `now_ms`.
    """
    state = rolled_forward(catalogued)
    of_snapshot = {row["key"]: row for row in catalogued.tables["files"]}
    by_key = {footer.key: footer for footer in footers if footer.key not in of_snapshot}
    there = {key for key, row in of_snapshot.items() if listing.get(key) == row["size_bytes"]}
    there |= {
        key for key, known in state.l0_files.items() if known.is_inline or listing.get(key) == known.row["size_bytes"]
    }
    missing = [key for key, row in of_snapshot.items() if row["state"] == "live" and key not in there]
    missing += [key for key in state.l0_files if key not in there and key not in of_snapshot]
    key_of = {row["file_id"]: row["key"] for row in of_snapshot.values()}
    live: defaultdict[int, list[tuple[Row, str]]] = defaultdict(list)
    for row in catalogued.tables["extents"]:
        key = key_of.get(row["file_id"], "")
        if row["state"] == "live" and key in there:
            live[row["partition_id"]].append((row, key))
    material = Material(
        state=state,
        live_extents=live,
        footers=by_key,
        done={key: when for key, when in state.done.items() if key in by_key},
        present=frozenset(there),
    )
    taken = tilings(material)
    unexplained = _unexplained(state, catalogued, frozenset(missing), taken)
    if unexplained:
        material = replace(material, done=inferred_done(by_key, material.done, unexplained))
        taken = tilings(material)
    _move_ends(state, by_key.values())
    plan = RebuildPlan(
        cluster_id=catalogued.instant.cluster_id,
        known_ms=state.known_ms,
        tables={name: [] for name in catalogued.tables if name != "changes"},
        sequences={},
        holes=[],
        losses=[],
        new_stretches=[],
        newer_l0={},
        unknown_topics=[],
        uncommitted_l0=uncommitted_l0(catalogued, l0_footers),
        given_tables=catalogued.tables,
        state=state,
        markers=marker_places(catalogued, state, taken),
        places={partition_id: state.place(partition_id) for partition_id in state.partitions},
    )
    _find_holes(plan, state, taken)
    _Files(plan, catalogued, material, taken, now_ms).write()
    _find_newer_l0(plan, state, material, taken, l0_footers)
    _write_others(plan, state, catalogued, listing, now_ms)
    return plan


def _unexplained(
    state: State, catalogued: Catalogued, missing: frozenset[str], taken: Mapping[int, Taken]
) -> Sequence[str]:
    """The missing files that held offsets which no stretch holds now."""
    keys = {row["file_id"]: row["key"] for row in catalogued.tables["files"] if row["key"] in missing}
    held = [
        (keys[row["file_id"]], row["partition_id"], row["base_offset"], row["last_offset"])
        for row in catalogued.tables["extents"]
        if row["state"] == "live" and row["file_id"] in keys
    ]
    held += [
        (key, row.partition_id, row.base_offset, row.last_offset)
        for key in missing & state.l0_files.keys()
        for row in state.l0_files[key].rows
    ]
    found: dict[str, None] = {}
    for key, partition_id, base, last in held:
        if partition_id in taken and not taken[partition_id].covers(max(base, state.log_start(partition_id)), last):
            found[key] = None
    return list(found)


def _move_ends(state: State, footers: Iterable[Footer]) -> None:
    """Raise the next offsets and the job ids above all that any footer names, used or not, so that none is given
    twice."""
    for footer in footers:
        state.sequences["job_ids"] = max(state.sequences["job_ids"], footer.job_id)
        for extent in footer.extents:
            partition_id = state.partition_id(extent.topic_id, extent.partition)
            if partition_id is not None:
                state.next_offsets[partition_id] = max(state.next_offsets[partition_id], extent.last_offset + 1)


def _find_holes(plan: RebuildPlan, state: State, taken: Mapping[int, Taken]) -> None:
    for partition_id, of_partition in taken.items():
        row = state.partitions[partition_id]
        place, starts = plan.places[partition_id], state.log_starts[partition_id]
        for base, last in list(of_partition.gaps(starts["log_start_offset"], state.next_offsets[partition_id])):
            detail = f"offsets {base} to {last} are in no file"
            plan.losses.append(Lost("offsets", place.topic, place.partition, last - base + 1, detail))
            # Nothing lies below such a hole, so moving the log start loses no more and needs no empty extent.
            if base == starts["log_start_offset"]:
                starts["log_start_offset"] = last + 1
                continue
            is_compacted = state.is_compacted(partition_id)
            plan.holes.append(Hole(partition_id, row["topic_id"], row["partition"], base, last, is_compacted))


class _Files:
    """Rows of `files` and `extents`."""

    def __init__(
        self,
        plan: RebuildPlan,
        catalogued: Catalogued,
        material: Material,
        taken: Mapping[int, Taken],
        now_ms: int,
    ) -> None:
        self._plan, self._catalogued, self._taken, self._now_ms = plan, catalogued, taken, now_ms
        self._state, self._footers, self._there = material.state, material.footers, material.present
        self._of_key: defaultdict[str, list[tuple[int, Stretch]]] = defaultdict(list)
        for partition_id, of_partition in taken.items():
            for stretch in of_partition.stretches:
                self._of_key[stretch.key].append((partition_id, stretch))
        self._files, self._extents = plan.tables["files"], plan.tables["extents"]
        self._spans: dict[str, tuple[int, int]] = {}
        self._lossy = {(loss.topic, loss.partition) for loss in plan.losses}

    def write(self) -> None:
        alive = {stretch.row["extent_id"] for each in self._of_key.values() for _, stretch in each if stretch.row}
        files = self._catalogued.tables["files"]
        for row in files:
            is_kept = row["state"] in {"live", "dead"} and row["key"] in self._there
            if is_kept and row["key"] not in self._state.l0_files:
                self._of_snapshot(row)
        live_ids = {row["file_id"] for row in self._files if row["state"] == "live"}
        for row in self._catalogued.tables["extents"]:
            if row["file_id"] in live_ids:
                dead_ms = None if row["extent_id"] in alive else row["dead_ms"] or self._now_ms
                self._extents.append({**row, "state": "dead" if dead_ms else "live", "dead_ms": dead_ms})
        for key, known in self._state.l0_files.items():
            if key in self._there:
                self._of_l0(key, known.row)
        self._spans = {row["key"]: (row["lo"], row["hi"]) for row in self._files if row["lo"] is not None}
        numbers = [row["file_id"] for row in files] + [known.row["file_id"] for known in self._state.l0_files.values()]
        numbers += [id_ for footer in self._footers.values() for id_, _ in footer.inputs]
        next_id = max([*numbers, self._state.sequences["file_ids"]], default=0) + ABOVE
        for footer in sorted(self._footers.values(), key=lambda each: (each.created_ms, each.key)):
            next_id += self._of_footer(footer, next_id)
        self._state.sequences["file_ids"] = next_id
        self._find_new()

    def _of_snapshot(self, row: Row) -> None:
        """A file of L1 or L2, or a dead one."""
        live = len(self._of_key[row["key"]])
        is_live = live > 0 and row["state"] == "live"
        # A file that dies now, or was dead before, waits for a whole grace, because it may still have readers.
        dead_ms = None if is_live else self._now_ms
        state = "live" if is_live else "dead"
        self._files.append({**row, "state": state, "dead_ms": dead_ms, "live_extents": live if is_live else 0})

    def _of_l0(self, key: str, row: Row) -> None:
        rows = sorted(stretch.l0_row for _, stretch in self._of_key[key] if stretch.l0_row is not None)
        rows.sort(key=lambda each: each.position)
        changed: Row = {"index": encode_index(rows), "live_extents": len(rows)}
        if not rows:
            changed = {"state": "dead", "dead_ms": self._now_ms, "live_extents": 0}
        self._files.append({**row, **changed})

    def _of_footer(self, footer: Footer, file_id: int) -> int:
        """Returns the number of rows made."""
        live = {stretch.extent: id_ for id_, stretch in self._of_key[footer.key] if stretch.extent is not None}
        if not live and not self._is_superseded(footer):
            return 0
        lo, hi = self._span(footer.key, file_id)
        self._plan.superseded += not live
        self._files.append(
            new_file_row(
                file_id=file_id,
                key=footer.key,
                level=footer.level,
                state="live" if live else "dead",
                dead_ms=None if live else self._now_ms,
                lo=lo,
                hi=hi,
                size_bytes=footer.size_bytes,
                crc32c=footer.crc32c,
                created_ms=footer.created_ms,
                max_ts_ms=max((extent.max_ts_ms for extent in footer.extents), default=None),
                job_id=footer.job_id,
                live_extents=len(live),
                config_version=footer.config_version,
                **{"class": footer.file_class},
            )
        )
        for extent in footer.extents if live else ():
            partition_id = self._state.partition_id(extent.topic_id, extent.partition)
            if partition_id is not None:
                dead_ms = None if extent in live else self._now_ms
                self._extents.append(extent_row(extent, partition_id, file_id, dead_ms=dead_ms))
        return 1

    def _is_superseded(self, footer: Footer) -> bool:
        """Whether other stretches hold all its offsets, or they were deleted."""
        for extent in footer.extents:
            if extent.topic_id not in self._state.topics and extent.topic_id not in self._state.deleted_topics:
                return False
            partition_id = self._state.partition_id(extent.topic_id, extent.partition)
            if partition_id is None or footer.kind == FILLED_KIND:
                continue
            if self._plan.places[partition_id] in self._lossy:
                return False  # kept as an unknown object: a person may recover records from it
            start = max(extent.base_offset, self._state.log_start(partition_id))
            if not self._taken[partition_id].covers(start, extent.last_offset):
                return False
        return True

    def _span(self, key: str, otherwise: int) -> tuple[int, int]:
        """The range of L0 file ids from which it was merged, as far as its inputs tell. Only a hint for the planner."""
        footer = self._footers.get(key)
        if footer is None or key in self._spans:
            return self._spans.get(key, (otherwise, otherwise))
        # Set before the inputs are followed, so that footers that name each other in a circle end the walk.
        self._spans[key] = (otherwise, otherwise)
        spans = [self._span(name, id_) for id_, name in footer.inputs]
        if spans:
            self._spans[key] = (min(lo for lo, _ in spans), max(hi for _, hi in spans))
        return self._spans[key]

    def _find_new(self) -> None:
        for partition_id, of_partition in self._taken.items():
            end = self._state.snapshot_ends[partition_id]
            # A merged file may have replaced older ones, and dropped markers of theirs.
            asked = [each for (id_, _), each in self._plan.markers.merged.items() if id_ == partition_id]
            for stretch in of_partition.stretches:
                extent, row = stretch.extent, stretch.l0_row
                if extent is not None:
                    place = (extent.position, extent.length, extent.min_ts_ms, extent.max_ts_ms)
                    row = IndexRow(partition_id, stretch.base_offset, stretch.last_offset, *place)
                # The increment tells of markers that no object holds.
                elif row is not None and self._state.l0_files[stretch.key].is_inline:
                    continue
                if row is not None and row.length and (stretch.last_offset >= end or stretch in asked):
                    self._plan.new_stretches.append(NewStretch(partition_id, stretch, row, end))


def extent_row(extent: FooterExtent, partition_id: int, file_id: int, *, dead_ms: int | None = None) -> Row:
    values = extent._asdict()
    del values["topic_id"], values["partition"]
    state = "live" if dead_ms is None else "dead"
    # A footer does not tell these. A row without them would cost all others theirs: one INSERT has one set of columns.
    untold = {"uncompressed_bytes": None, "committed_ms": None, "earliest_horizon_ms": None, "erased_through": 0}
    where = {"partition_id": partition_id, "file_id": file_id, "state": state, "dead_ms": dead_ms}
    return {**values, **untold, **where}


def _find_newer_l0(
    plan: RebuildPlan,
    state: State,
    material: Material,
    taken: Mapping[int, Taken],
    l0_footers: Mapping[str, Sequence[L0Extent]],
) -> None:
    """Find L0 files whose commits, if any, the catalogue does not have, and merged files of unknown topics."""
    copied = {
        (name, partition_id)
        for partition_id, of_partition in taken.items()
        for stretch in of_partition.stretches
        if stretch.extent is not None
        for _, name in material.footers[stretch.key].inputs
    }
    read_by_done = {name for key in material.done for _, name in material.footers[key].inputs}
    never = frozenset(plan.uncommitted_l0)
    records: defaultdict[Place, list[int]] = defaultdict(lambda: [0, 0])
    known, unknown = state.topics.keys() | state.deleted_topics, dict[str, None]()
    for key in sorted(
        l0_footers, key=lambda key: key.rpartition("/")[2].split("-", 2)[-1]
    ):  # by the time in their keys
        for extent in () if key in never else l0_footers[key]:
            partition_id = state.partition_id(extent.topic_id, extent.partition)
            if extent.topic_id not in known or (partition_id is None and extent.topic_id in state.topics):
                unknown[key] = None
            if partition_id is None or key in read_by_done or (key, partition_id) in copied:
                continue
            plan.newer_l0.setdefault(key, []).append(partition_id)
            counted = records[plan.places[partition_id]]
            counted[0] += extent.records
            counted[1] += 1
    for place, (number, files) in sorted(records.items()):
        detail = f"in {files} L0 file{'' if files == 1 else 's'} with unknown offsets"
        plan.losses.append(Lost(NEWER_L0, place.topic, place.partition, number, detail))
    plan.unknown_topics += unknown
    for footer in material.footers.values():
        is_unknown = any(extent.topic_id not in known for extent in footer.extents)
        if is_unknown and footer.created_ms > state.known_ms:
            plan.unknown_topics.append(footer.key)


def _write_others(
    plan: RebuildPlan, state: State, catalogued: Catalogued, listing: Mapping[str, int], now_ms: int
) -> None:
    """Make the rows of all tables but files and extents."""
    tables, given = plan.tables, catalogued.tables
    sequences = state.sequences
    sequences.setdefault("transaction_epochs", 0)
    for name in sequences:
        sequences[name] += ABOVE
    # Ids are int32; the numbers skipped must not overflow them.
    for name in ("partition_ids", "transaction_epochs"):
        sequences[name] = min(sequences[name], INT31 - 1)
    epochs: defaultdict[int, int] = defaultdict(int)
    for key in listing:
        writer, epoch, *_ = key.rpartition("/")[2].split("-", 2)
        if writer.isdecimal() and epoch.isdecimal():
            epochs[int(writer)] = max(epochs[int(writer)], int(epoch))
    sequences["node_ids"] = min(max([sequences["node_ids"], *(id_ + ABOVE for id_ in epochs)]), INT31 - 2)
    tables["cluster"] = [
        {
            **state.cluster,
            "next_producer_id": state.cluster["next_producer_id"] + PRODUCER_IDS_ABOVE,
            # an agent that knows only an older change loads everything again
            "forgotten_change_id": sequences["change_ids"],
        }
    ]
    tables["writers"] = [
        # Above every epoch that the snapshot or a key names: a writer of the lost history can never commit again.
        {**row, "epoch": max(row["epoch"], epochs[row["writer_id"]]) + 1, "last_seq": -1}
        for row in given["writers"]
        if row["host"]
        != REBUILT_HOST  # the writer of an earlier rebuild: it writes no more, and the new one takes its name
    ]
    sequences["node_ids"] += 1
    tables["writers"].append(
        {
            "writer_id": sequences["node_ids"],
            "host": REBUILT_HOST,
            "port": 0,
            "epoch": REBUILT_EPOCH,
            "last_seq": -1,
            "forgotten_epoch": -1,
            "forgotten_seq": -1,
        }
    )
    tables["topics"] = list(state.topics.values())
    names = {row["topic_id"]: row["name"] for row in tables["topics"]}
    tables["deleted_topics"] = [{"name": name, "deleted_ms": ms} for name, ms in state.deleted_names.items()]
    tables["partitions"] = list(state.partitions.values())
    tables["watermarks"] = [{"partition_id": id_, "next_offset": offset} for id_, offset in state.next_offsets.items()]
    tables["log_starts"] = [{**row, "last_stable_offset": None} for row in state.log_starts.values()]
    tables["producers"] = [dict(row) for row in given["producers"] if row["partition_id"] in state.partitions]
    tables["producer_id_blocks"] = [dict(row) for row in given["producer_id_blocks"]]
    tables["groups"] = [
        # Above any generation given since the snapshot, so that commits of members from before the loss are refused.
        {**row, "generation": min(row["generation"] + 1_000, INT31), "empty_since_ms": now_ms}
        for row in given["groups"]
    ]
    groups = {row["group_id"] for row in tables["groups"]}
    tables["group_offsets"] = [
        dict(row)
        for row in given["group_offsets"]
        if row["group_id"] in groups
        and row["topic_id"] in names
        and state.partition_id(row["topic_id"], row["partition"]) is not None
    ]
    tables["acls"], tables["client_quotas"] = list(state.acls.values()), list(state.quotas.values())
    plan.sequences = sequences
