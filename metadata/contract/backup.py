"""The copy of the metadata in the bucket, from which it can be rebuilt without Postgres.

A *catalogue snapshot* holds all rows of the copied tables at one instant. An *increment* holds the news since then, as
every follower of the tail gets them (L0 files with their offsets, and changes), and the merges that were committed.
Both are needed because the footers of files hold neither topics, groups and log starts, nor the offsets of L0 files,
nor whether a merge was ever committed.

Neither holds a record or the key of a record. Both hold names of topics, groups and hosts.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from metadata.contract.tail import Cursor

Row = dict[str, Any]
"""A row of a table: its values by column, with SQLAlchemy's types."""

REBUILT_HOST, REBUILT_EPOCH = "siltstone-rebuild", 1
"""The host and epoch of the writer that a rebuild adds. No agent has them: they mark the database as rebuilt, and the
rebuild appends the files that it may append under them."""

JOB_IDS_IN_FLIGHT = 1_000
"""How far ids of jobs may be out of order: a job may become visible after another whose id is this much higher, because
ids are given before a transaction commits."""

SEQUENCES = ("file_ids", "partition_ids", "node_ids", "group_epochs", "change_ids", "job_ids", "transaction_epochs")
"""The sequences whose last numbers are copied. `job_ids` is the identity column of `merge_jobs`. Backups of earlier
releases lack `transaction_epochs`: they gave none."""


class BackupTable(Protocol):
    """A table that is copied: which columns, and how their values are stored."""

    @property
    def name(self) -> str: ...

    @property
    def columns(self) -> tuple[str, ...]: ...

    def kind(self, column: str) -> str:
        """How the values of a column are stored: binary, bool, int16, int32, int64, float64 or text; [] behind it for
        arrays."""
        ...

    def stored(self, column: str, value: Any) -> Any:
        """The value in the stored form of its column."""
        ...

    def loaded(self, column: str, value: Any) -> Any:
        """The inverse of `stored`. Raises ValueError, TypeError."""
        ...


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
        """Pass all rows of the copied tables at one instant to `take`, some at a time. No transaction is open any more
        when the first of them comes. Raises MetadataUnavailableError."""
        ...

    async def done_jobs(self, cursor: JobCursor | None) -> tuple[Sequence[DoneJob], JobCursor]:
        """The merges that were committed after `cursor`, by id, and the cursor for the next call. With None: no merges,
        and the cursor to begin with."""
        ...
