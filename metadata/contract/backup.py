"""The copy of the metadata in the bucket, from which it can be rebuilt without Postgres: contract and tables.

A *catalogue snapshot* holds all rows of `TABLES` at one instant. An *increment* holds the news since then, as every
follower of the tail gets them (L0 files with their offsets, and changes), and the merges that were committed. Both are
needed because the footers of files hold neither topics, groups and log starts, nor the offsets of L0 files, nor whether
a merge was ever committed.

Neither holds a record or the key of a record. Both hold names of topics, groups and hosts.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, cast

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql as pg

from metadata.contract.tail import Cursor
from metadata.postgres.tables import (
    CHANGES,
    CLUSTER,
    DELETED_TOPICS,
    EXTENTS,
    FILES,
    GROUP_OFFSETS,
    GROUPS,
    LOG_STARTS,
    PARTITIONS,
    PRODUCER_ID_BLOCKS,
    PRODUCERS,
    TOPICS,
    WATERMARKS,
    WRITERS,
    Utf8,
)

Row = dict[str, Any]
"""A row of a table: its values by column, with SQLAlchemy's types."""

REBUILT_HOST, REBUILT_EPOCH = "siltstone-rebuild", 1
"""The host and epoch of the writer that a rebuild adds. No agent has them: they mark the database as rebuilt, and the
rebuild appends the files that it may append under them."""

JOB_IDS_IN_FLIGHT = 1_000
"""How far ids of jobs may be out of order: a job may become visible after another whose id is this much higher, because
ids are given before a transaction commits."""

SEQUENCES = ("file_ids", "partition_ids", "node_ids", "group_epochs", "change_ids", "job_ids")
"""The sequences whose last numbers are copied. `job_ids` is the identity column of `merge_jobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupTable:
    table: sa.Table
    columns: tuple[str, ...]
    condition: str = ""
    """Which rows are copied: SQL over the table; "" = all."""

    @property
    def name(self) -> str:
        return self.table.name

    def kind(self, column: str) -> str:
        """How the values of a column are stored: binary, bool, int16, int32, int64 or text, with [] appended for
        arrays."""
        return _kind(self.table.c[column].type)

    def stored(self, column: str, value: Any) -> Any:
        """A value from Postgres as its `kind` stores it."""
        if value is None:
            return None
        match self.table.c[column].type:
            case Utf8():
                return str(value).encode("utf-8", "surrogatepass")
            case pg.JSONB():
                return json.dumps(value, sort_keys=True)
            case sa.Uuid():
                return str(value)
            case _:
                return value

    def loaded(self, column: str, value: Any) -> Any:
        """A stored value as Postgres takes it: the reverse of `stored`. Raises ValueError, TypeError."""
        if value is None:
            return None
        match self.table.c[column].type:
            case Utf8():
                return bytes(value).decode("utf-8", "surrogatepass")
            case pg.JSONB():
                return json.loads(value)
            case sa.Uuid():
                return uuid.UUID(value)
            case _:
                return value


def _kind(type_: Any) -> str:
    match type_:
        case Utf8() | sa.LargeBinary():
            return "binary"
        case sa.Boolean():
            return "bool"
        case sa.BigInteger():
            return "int64"
        case sa.SmallInteger():
            return "int16"
        case sa.Integer():
            return "int32"
        case pg.ARRAY():
            return _kind(cast("Any", type_).item_type) + "[]"
        case _:  # text, uuid and JSON
            return "text"


def _all_but(table: sa.Table, *left_out: str) -> tuple[str, ...]:
    return tuple(column.name for column in table.columns if column.name not in left_out)


_FILES_KEPT = """state IN ('live', 'dead', 'aborted')
    OR (writer_id, epoch, seq) IN (SELECT w.writer_id, w.epoch, w.last_seq FROM writers w)"""
"""The files whose object exists or may exist, and the last file that each writer committed. An unknown file that the
writer sealed before that one was never committed."""

TABLES: Mapping[str, BackupTable] = {
    each.name: each
    for each in (
        BackupTable(table=CLUSTER, columns=_all_but(CLUSTER, "id")),
        BackupTable(table=WRITERS, columns=_all_but(WRITERS)),
        BackupTable(table=TOPICS, columns=_all_but(TOPICS)),
        BackupTable(table=DELETED_TOPICS, columns=_all_but(DELETED_TOPICS)),
        BackupTable(table=PARTITIONS, columns=_all_but(PARTITIONS)),
        BackupTable(table=WATERMARKS, columns=_all_but(WATERMARKS)),
        BackupTable(table=LOG_STARTS, columns=_all_but(LOG_STARTS)),
        # `results` serves only a writer that repeats its commit, and no writer outlives its Postgres.
        BackupTable(table=FILES, columns=_all_but(FILES, "results"), condition=_FILES_KEPT),
        BackupTable(
            table=EXTENTS,
            columns=_all_but(EXTENTS),
            condition="EXISTS (SELECT FROM files f WHERE f.file_id = extents.file_id AND f.state = 'live')",
        ),
        BackupTable(table=PRODUCERS, columns=_all_but(PRODUCERS)),
        BackupTable(table=PRODUCER_ID_BLOCKS, columns=_all_but(PRODUCER_ID_BLOCKS)),
        # Without the members: they join again.
        BackupTable(table=GROUPS, columns=("group_id", "epoch", "owner_id", "protocol_type", "generation")),
        BackupTable(table=GROUP_OFFSETS, columns=_all_but(GROUP_OFFSETS)),
        BackupTable(table=CHANGES, columns=("change_id", "kind", "topic_id"), condition="kind = 'topic_deleted'"),
    )
}


class DoneJob(NamedTuple):
    """A merge that was committed."""

    job_id: int
    epoch: int
    finished_ms: int
    output_keys: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class JobCursor:
    """Which ended merges a follower has seen. It holds ids and no times, so a clock that steps back hides no merge."""

    highest: int
    """The highest job id so far."""
    live: frozenset[int]
    """Jobs that had not ended."""
    told: frozenset[int]
    """Jobs that were done, among the last `JOB_IDS_IN_FLIGHT` ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupInstant:
    """The instant of a snapshot: its time and the cursors that continue from it."""

    taken_ms: int
    """By the metadata store's clock."""
    cluster_id: str
    cursor: Cursor
    """`tail` continues from here."""
    sequences: Mapping[str, int]
    """The last number that each of `SEQUENCES` has given."""


TakeRows = Callable[[BackupTable, Sequence[Sequence[Any]]], Awaitable[None]]
"""Receives some rows of a table, their values in the order of its columns. Tables come one after another; the first
call for each table has no rows."""


def has_heard(cursor: Cursor, of: Cursor) -> bool:
    """Whether `cursor` has seen everything that `of` has seen."""
    seen = cursor.writers
    return cursor.change_id >= of.change_id and all(
        seen.get(writer_id, (0, -1)) >= last for writer_id, last in of.writers.items()
    )


class BackupMetadata(Protocol):
    """Implemented by the metadata stores that outlive their process."""

    async def rows(self, take: TakeRows) -> BackupInstant:
        """Pass all rows of `TABLES` at one instant to `take`, some at a time. No commit waits for this, but Postgres
        keeps dead versions of hot rows until it ends: `take` must wait for nothing outside this machine. Raises
        MetadataUnavailableError."""
        ...

    async def done_jobs(self, cursor: JobCursor | None) -> tuple[Sequence[DoneJob], JobCursor]:
        """The merges that were committed after `cursor`, by id, and the cursor for the next call. With None: no merges,
        and the cursor to begin with."""
        ...
