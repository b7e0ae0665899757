"""A catalogue snapshot rolled forward by its increments: the newest state of the metadata in the bucket. Pure.

Changes are applied in the order of their ids. A change that the snapshot or another increment has already is skipped,
so increments may overlap, and if one cannot be read, the others are still of use.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from compactor.deletion.backup_format import Increment
from metadata.configs.broker import topic_defaults
from metadata.contract.backup import BackupInstant, Row
from metadata.contract.tail import Change, ChangeKind, Cursor
from metadata.rules.packed_index import IndexRow, iter_index
from metadata.rules.retention import retention_policy
from metadata.security.details import acl_columns, acl_id, acls_of, quota_columns, quotas_of
from metadata.transactions.rows import TxnRow, decode_txn_rows
from wire.crc import crc32c

ABOVE = 1 << 20
"""Numbers skipped in every sequence, because some may have been given after the last increment."""
PRODUCER_IDS_ABOVE = 1 << 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Catalogued:
    """The catalogue as read from `catalog/`."""

    instant: BackupInstant
    tables: Mapping[str, Sequence[Row]]
    increments: Sequence[Increment] = ()
    """Those taken since the snapshot and shortly before, ordered by name."""
    is_whole: bool = True
    """Whether every increment could be read and none between them is missing."""


class KnownL0(NamedTuple):
    """An L0 file with the offsets that its commit gave."""

    row: Row
    """The row of `files`."""
    rows: tuple[IndexRow, ...]

    @property
    def is_inline(self) -> bool:
        """Its bytes are in the row, and no object holds them."""
        return bool(self.row.get("inline"))


class Place(NamedTuple):
    """A partition as clients name it."""

    topic: str
    partition: int


@dataclass(slots=True)
class State:
    """The metadata, as far as the catalogue knows them."""

    known_ms: int
    """Later changes are not known."""
    topics: dict[uuid.UUID, Row]
    partitions: dict[int, Row]
    log_starts: dict[int, Row]
    next_offsets: dict[int, int]
    snapshot_ends: dict[int, int]
    """The next offset in the snapshot. The producers' states of the snapshot reach up to there."""
    l0_files: dict[str, KnownL0]
    """Files live in the snapshot, or committed since, by key."""
    txn_rows: list[TxnRow]
    """The transactions that began and ended in files committed since the snapshot."""
    done: dict[str, tuple[int, int]]
    """Key of an output of a merge committed since -> (job id, time). Job ids give the order, because a merge is planned
    after the commit of the merges whose outputs it reads. Times do not, because clocks may step back."""
    deleted_topics: set[uuid.UUID]
    deleted_names: dict[str, int]
    cluster: Row
    acls: dict[bytes, Row]
    """By their ids, as the next one."""
    quotas: dict[bytes, Row]
    sequences: dict[str, int]
    _ids: dict[tuple[uuid.UUID, int], int] = field(default_factory=dict[tuple[uuid.UUID, int], int])

    def partition_id(self, topic_id: uuid.UUID, partition: int) -> int | None:
        """None if the partition is deleted or unknown."""
        if not self._ids:
            self._ids = {(row["topic_id"], row["partition"]): id_ for id_, row in self.partitions.items()}
        return self._ids.get((topic_id, partition))

    def place(self, partition_id: int) -> Place:
        row = self.partitions[partition_id]
        return Place(self.topics[row["topic_id"]]["name"], row["partition"])

    def log_start(self, partition_id: int) -> int:
        return self.log_starts[partition_id]["log_start_offset"]

    def is_compacted(self, partition_id: int) -> bool:
        configs = self.topics[self.partitions[partition_id]["topic_id"]]["configs"]
        return retention_policy({**self.cluster["topic_defaults"], **configs}).compacts


def linked(instant: BackupInstant, increments: Sequence[Increment]) -> Sequence[Increment]:
    """The increments that continue the snapshot without a gap, one after another.

    The start of any other is unknown: its writer continued a snapshot that was never finished, or that was passed over.
    """
    writers, change_id = dict(instant.cursor.writers), instant.cursor.change_id
    newest = max(writers, default=-1)

    def is_heard(cursor: Cursor) -> bool:
        # An older writer that is not in the snapshot is gone: the writer of an earlier rebuild.
        return cursor.change_id <= change_id and all(
            writers.get(writer_id, (0, -1)) >= last
            for writer_id, last in cursor.writers.items()
            if writer_id in writers or writer_id > newest
        )

    found: list[Increment] = []
    left = list(increments)
    # Until nothing more is reached: the order of the names need not be the order in which increments continue each
    # other.
    while reached := [each for each in left if each.base is None or is_heard(each.base) or is_heard(each.cursor)]:
        for each in reached:
            change_id = max(change_id, each.cursor.change_id)
            for writer_id, last in each.cursor.writers.items():
                writers[writer_id] = max(last, writers.get(writer_id, (-1, -1)))
        found += reached
        left = [each for each in left if each not in reached]
    return found


def rolled_forward(catalogued: Catalogued) -> State:
    instant, tables = catalogued.instant, catalogued.tables
    next_offsets = {row["partition_id"]: int(row["next_offset"]) for row in tables["watermarks"]}
    state = State(
        known_ms=max([instant.taken_ms, *(each.taken_ms for each in linked(instant, catalogued.increments))]),
        topics={row["topic_id"]: dict(row) for row in tables["topics"]},
        partitions={row["partition_id"]: dict(row) for row in tables["partitions"]},
        log_starts={row["partition_id"]: dict(row) for row in tables["log_starts"]},
        next_offsets=next_offsets,
        snapshot_ends=dict(next_offsets),
        l0_files={
            row["key"]: KnownL0(dict(row), tuple(iter_index(row["index"])))
            for row in tables["files"]
            if row["level"] == 0 and row["state"] == "live"
        },
        txn_rows=[],
        done={},
        deleted_topics={row["topic_id"] for row in tables["changes"]},
        deleted_names={row["name"]: row["deleted_ms"] for row in tables["deleted_topics"]},
        cluster=dict(tables["cluster"][0]),
        # Backups of earlier releases have none of either.
        acls={row["acl_id"]: dict(row) for row in tables.get("acls", ())},
        quotas={row["quota_id"]: dict(row) for row in tables.get("client_quotas", ())},
        sequences=dict(instant.sequences),
    )
    changes: dict[int, tuple[Change, int]] = {}
    for each in catalogued.increments:
        _heard_files(state, instant, each)
        for change in each.changes:
            if change.change_id > instant.cursor.change_id:
                changes.setdefault(change.change_id, (change, each.taken_ms))
        for job in each.jobs:
            state.done |= dict.fromkeys(job.output_keys, (job.job_id, job.finished_ms))
            _seen(state, "job_ids", job.job_id)
    for change_id in sorted(changes):
        _apply(state, *changes[change_id])
        _seen(state, "change_ids", change_id)
    for known in state.l0_files.values():
        for row in known.rows:
            if row.partition_id in state.next_offsets:
                before = state.next_offsets[row.partition_id]
                state.next_offsets[row.partition_id] = max(before, row.last_offset + 1)
    return state


def _heard_files(state: State, instant: BackupInstant, increment: Increment) -> None:
    for file in increment.files:
        _seen(state, "file_ids", file.file_id)
        _seen(state, "node_ids", file.writer_id)
        if (file.epoch, file.seq) <= instant.cursor.writers.get(file.writer_id, (-1, -1)) or file.key in state.l0_files:
            continue
        rows = tuple(iter_index(file.index))
        state.txn_rows += decode_txn_rows(file.txn_rows)
        state.l0_files[file.key] = KnownL0(
            new_file_row(
                file_id=file.file_id,
                key=file.key,
                level=0,
                writer_id=file.writer_id,
                epoch=file.epoch,
                seq=file.seq,
                lo=file.file_id,
                hi=file.file_id,
                size_bytes=file.size_bytes,
                created_ms=file.created_ms,
                max_ts_ms=max((row.max_timestamp_ms for row in rows), default=None),
                inline=file.inline or None,
                txn=file.txn_rows or None,
                crc32c=crc32c(file.inline) if file.inline else 0,
            ),
            rows,
        )


def new_file_row(**values: Any) -> Row:
    """The row of a live file; columns that are not given are unknown or do not apply."""
    empty: Row = dict.fromkeys(
        (
            *("class", "writer_id", "epoch", "seq", "lo", "hi", "dead_ms", "max_ts_ms", "job_id", "config_version"),
            *("trouble_until_ms", "trouble", "inline", "txn"),
        )
    )
    return {**empty, "state": "live", "crc32c": 0, "live_extents": 0, "index": b"\x01", **values}


def _seen(state: State, sequence: str, number: int) -> None:
    state.sequences[sequence] = max(state.sequences.get(sequence, 0), number)


def _apply(state: State, change: Change, at_ms: int) -> None:
    """`at_ms`: the time of the increment that has the change."""
    detail, topic_id = change.detail, change.topic_id
    match change.kind:
        case ChangeKind.TOPIC_CREATED if topic_id is not None:
            state.topics[topic_id] = {
                "topic_id": topic_id,
                "name": detail["name"],
                "configs": dict(detail["configs"]),
                "config_version": 1,
                "created_ms": detail["created_ms"],
                # Releases before 0004 did not note it.
                "replication_factor": detail.get("replication_factor", 1),
            }
            _add_partitions(state, topic_id, detail["partition_ids"], detail["created_ms"])
        case ChangeKind.PARTITIONS_ADDED if topic_id is not None and topic_id in state.topics:
            _add_partitions(state, topic_id, detail["partition_ids"], at_ms)
        case ChangeKind.TOPIC_DELETED if topic_id is not None:
            _delete_topic(state, topic_id, detail["name"], at_ms)
        case ChangeKind.CONFIGS_CHANGED if topic_id is not None and topic_id in state.topics:
            topic = state.topics[topic_id]
            topic["configs"] = dict(detail["configs"])
            topic["config_version"] += 1
        case ChangeKind.LOG_START_MOVED:
            for partition_id, offset in detail["offsets"].items():
                row = state.log_starts.get(int(partition_id))
                if row is not None:
                    row["log_start_offset"] = max(row["log_start_offset"], int(offset))
                    state.next_offsets[int(partition_id)] = max(state.next_offsets[int(partition_id)], int(offset))
        case ChangeKind.BROKER_CONFIGS_CHANGED:
            state.cluster["broker_configs"] = dict(detail["configs"])
            state.cluster["topic_defaults"] = dict(topic_defaults(detail["configs"]))
            for topic in state.topics.values():
                topic["config_version"] += 1
        case ChangeKind.ACLS_CHANGED:
            added, removed = acls_of(detail)
            for acl in removed:
                state.acls.pop(acl_id(acl), None)
            state.acls |= {row["acl_id"]: row for row in map(acl_columns, added)}
        case ChangeKind.QUOTAS_CHANGED:
            for entity, values in quotas_of(detail).items():
                for key, value in values.items():
                    row = quota_columns(entity, key, value)
                    state.quotas.pop(row["quota_id"], None)
                    if value is not None:
                        state.quotas[row["quota_id"]] = row
        case _:
            # MERGED: the jobs tell more. USERS_CHANGED: users are not in the bucket. All others concern topics that are
            # deleted.
            pass


def _add_partitions(state: State, topic_id: uuid.UUID, ids: Sequence[int], at_ms: int) -> None:
    for number, partition_id in enumerate(ids):
        if partition_id in state.partitions:
            continue
        _seen(state, "partition_ids", partition_id)
        state.partitions[partition_id] = {
            "partition_id": partition_id,
            "topic_id": topic_id,
            "partition": number,
            "created_ms": at_ms,
            "predecessor_deleted_ms": state.deleted_names.get(state.topics[topic_id]["name"]),
        }
        state.log_starts[partition_id] = {
            "partition_id": partition_id,
            "log_start_offset": 0,
            "last_stable_offset": None,
            "cleaned_through_offset": 0,
            "last_cleaned_ms": None,
            "last_forced_ms": None,
            "passes_needed": 1,
            "requested_through_offset": None,
            "last_pass_took_ms": None,
        }
        state.next_offsets[partition_id] = state.snapshot_ends[partition_id] = 0


def _delete_topic(state: State, topic_id: uuid.UUID, name: str, at_ms: int) -> None:
    state.topics.pop(topic_id, None)
    state.deleted_topics.add(topic_id)
    state.deleted_names[name] = max(at_ms, state.deleted_names.get(name, 0))
    for partition_id in [id_ for id_, row in state.partitions.items() if row["topic_id"] == topic_id]:
        for of_partition in (state.partitions, state.log_starts, state.next_offsets, state.snapshot_ends):
            of_partition.pop(partition_id, None)
