"""What is copied of the metadata into the bucket, so that it can be rebuilt without Postgres: contract and tables.

A *catalogue snapshot* is all rows of `TABLES` at one instant. An *increment* is what happened since, as any follower of
the tail hears it (L0 files with the offsets they were given, changes), and which merges were committed. Footers of
files tell neither who may read what, nor offsets of L0, nor whether a merge was ever committed: so these two do.

No record, and so no key of a record, is in either. Names of topics, groups and hosts are.
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
"""A row of a table, by column, as SQLAlchemy has it."""

REBUILT_HOST, REBUILT_EPOCH = "siltstone-rebuild", 1
"""Of a writer that no agent is: it says that a database was rebuilt, and appends what may be appended."""

JOB_IDS_IN_FLIGHT = 1_000
"""A job may show up after another whose id is so much higher: ids are given before a transaction commits."""

SEQUENCES = ("file_ids", "partition_ids", "node_ids", "group_epochs", "change_ids", "job_ids")
"""`job_ids` is the identity of `merge_jobs`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupTable:
    table: sa.Table
    columns: tuple[str, ...]
    condition: str = ""
    """SQL over the table; "" = all rows."""

    @property
    def name(self) -> str:
        return self.table.name

    def kind(self, column: str) -> str:
        """How its values are stored: binary, bool, int16, int32, int64 or text; [] behind it for arrays."""
        return _kind(self.table.c[column].type)

    def stored(self, column: str, value: Any) -> Any:
        """A value as its kind has it."""
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
        """The way back. Raises ValueError, TypeError."""
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
"""Those of which there is an object, or may be; and the last that each writer committed: unknown files that it sealed
before were never committed."""

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
        # what was answered to a writer is for its repeat alone, and writers do not outlive their Postgres
        BackupTable(table=FILES, columns=_all_but(FILES, "results"), condition=_FILES_KEPT),
        BackupTable(
            table=EXTENTS,
            columns=_all_but(EXTENTS),
            condition="EXISTS (SELECT FROM files f WHERE f.file_id = extents.file_id AND f.state = 'live')",
        ),
        BackupTable(table=PRODUCERS, columns=_all_but(PRODUCERS)),
        BackupTable(table=PRODUCER_ID_BLOCKS, columns=_all_but(PRODUCER_ID_BLOCKS)),
        # members join again
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
    """Which merges somebody has heard the end of. By ids alone: a clock that steps back hides none."""

    highest: int
    """Of all ids so far."""
    live: frozenset[int]
    """Had not ended."""
    told: frozenset[int]
    """Were done, of the last `JOB_IDS_IN_FLIGHT` ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackupInstant:
    """When a snapshot was taken."""

    taken_ms: int
    """By the metadata store's clock."""
    cluster_id: str
    cursor: Cursor
    """What happened later is what `tail` tells from here."""
    sequences: Mapping[str, int]
    """The last number that each has given."""


TakeRows = Callable[[BackupTable, Sequence[Sequence[Any]]], Awaitable[None]]
"""Told some rows of a table, values in the order of its columns; tables come one after another, each first without
rows."""


def has_heard(cursor: Cursor, of: Cursor) -> bool:
    """Whether nothing up to `of` is news for `cursor`."""
    seen = cursor.writers
    return cursor.change_id >= of.change_id and all(
        seen.get(writer_id, (0, -1)) >= last for writer_id, last in of.writers.items()
    )


class BackupMetadata(Protocol):
    """Kept by metadata stores that outlive their process."""

    async def rows(self, take: TakeRows) -> BackupInstant:
        """All rows of `TABLES` at one instant, some at a time. No commit waits for it, but dead versions of hot rows
        stay for as long as it takes: `take` must wait for nothing but this machine. Raises MetadataUnavailableError."""
        ...

    async def done_jobs(self, cursor: JobCursor | None) -> tuple[Sequence[DoneJob], JobCursor]:
        """Merges that were committed since, in the order of their ids, and where to go on. None: no merges, and where
        to begin."""
        ...
