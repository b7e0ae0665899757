"""The parts of an export and the values between them: the topic to read, the table to fill, the engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from metadata.contract.readers import TopicSnapshot
from metadata.erasures.contract import KeyMark, TopicErasure
from spark_jobs.scan.contract import AtTimestamp, Edge
from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.erasing.gone import Erased, GoneRows
from spark_jobs.tables.file_task import SliceReader, WriteResult, WriteTask
from spark_jobs.tables.file_writer import Place, WrittenFile
from spark_jobs.tables.keyed.key_index import SoughtKeys
from spark_jobs.tables.layout.layout import Layout
from spark_jobs.tables.progress import Progress

SLICE_BYTES = 64 << 20
COMMIT_BYTES = 4 << 30
"""The bytes of the log in one commit."""
From = Edge | AtTimestamp | Mapping[int, int] | int


class DeadRows(NamedTuple):
    """Rows of a data file that the table is to hold no more."""

    path: str
    positions: NDArray[np.int64] | None
    """In any order; some may be dead already. None: all, so that the file goes."""


class KeyedFile(NamedTuple):
    """A data file of a table whose rows are deleted one by one."""

    path: str
    partition: int | None
    """None if it has rows of several."""
    section: str
    """Equal for files of one section."""
    first_offset: int
    last_offset: int
    rows: int
    """Dead ones too."""
    dead: int
    size_bytes: int


class KeyedFiles(Protocol):
    """The data files of such a table, as of `load` or the last commit."""

    @property
    def files(self) -> Sequence[KeyedFile]: ...

    def find(self, file: KeyedFile, wanted: SoughtKeys) -> NDArray[np.int64]:
        """The positions of the rows with these keys, rising, dead rows among them."""
        ...

    def offsets(self, file: KeyedFile) -> NDArray[np.int64]:
        """The offset of each row."""
        ...


class Table(Protocol):
    """One writer's view of a table: Parquet files or Iceberg."""

    @property
    def name(self) -> str: ...
    @property
    def columns(self) -> Any: ...
    @property
    def stem(self) -> str: ...
    @property
    def place(self) -> Place: ...
    @property
    def key_indexes(self) -> Place | None:
        """The place for key indexes; None if rows of the table cannot be deleted one by one."""
        ...

    @property
    def file_count(self) -> int:
        """The number of data files; 0 if files of the table are never written again."""
        ...

    def keyed_files(self) -> KeyedFiles | None:
        """None if rows of the table cannot be deleted one by one."""
        ...

    @property
    def layout(self) -> Layout: ...

    def load(self) -> Progress | None: ...
    def ensure(self, columns: Any, sampled: Any, topic: str) -> None:
        """Make the table, if it must exist before its first commit. `sampled`: its columns and those of a sample, some
        of which it may need at once."""
        ...

    def file_schema(self, columns: Any) -> Any: ...
    def commit(
        self,
        files: Sequence[WrittenFile],
        columns: Any,
        progress: Progress,
        *,
        replaces: bool,
        dead: Sequence[DeadRows] = (),
    ) -> str: ...
    def held_rows(self, low: int, high: int) -> Any:
        """A `pyarrow.Table` with `kafka_partition` and `kafka_offset` of the rows with offsets from `low` to below
        `high`. Raises the errors of the table's store."""
        ...

    def rewrite(self, groups: Sequence[Sequence[KeyedFile]], progress: Progress) -> None:
        """Write each group of files, of one partition and in the order of offsets, again as one, without dead rows."""
        ...

    def erase(self, gone: GoneRows, progress: Progress, *, by_index: bool, now_ms: int) -> Erased | None:
        """Write each file that has some of these rows, dead ones too, again without them, in one commit with
        `progress`. Then delete all that no longer belongs to the table, its past included. None: rows of this table
        cannot be erased, and a warning said so. `by_index`: each file has a key index, or may get one.

        Raises as `commit`. What cannot be deleted is tried again by the next run.
        """
        ...

    def finish_erasures(self, now_ms: int) -> None:
        """Delete what an earlier run should have, and tell what cannot be deleted."""
        ...


class Pinned(Protocol):
    @property
    def snapshot(self) -> TopicSnapshot: ...

    def check(self) -> None:
        """Raises PinLostError when files of the snapshot may be gone."""
        ...

    def topic_erasures(self) -> Sequence[TopicErasure]:
        """The erasures of the topic. The snapshot has no record of one that is done. Raises RightsMissingError."""
        ...

    def erasure_marks(self, erasure_id: int) -> Mapping[int, Sequence[KeyMark]]: ...


class Source(Protocol):
    """The topic to read."""

    @property
    def object_store_url(self) -> str: ...

    @property
    def reader(self) -> SliceReader: ...

    def pinned(self) -> AbstractContextManager[Pinned]:
        """A snapshot that can be read as long as the block lasts."""
        ...

    def at_time(self, snapshot: TopicSnapshot, timestamp_ms: int) -> Mapping[int, int]: ...


class Engine(Protocol):
    """The engine that runs tasks."""

    name: str
    shuffles: bool
    """Whether it runs tasks `by_key`: the latest records of a partition may then come from many slices."""

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> Sequence[WriteResult]:
        """Run all tasks; results are in the same order, and `done` is called with the number of finished ones."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """The result of one run."""

    commits: tuple[str, ...] = ()
    files: int = 0
    rows: int = 0
    errors: int = 0
    """The rows among them with something in `kafka_error`."""
    dead_letters: int = 0
    """The records that went into the table of dead letters instead."""
    size_bytes: int = 0
    fenced: int = 0
    """The number of times that another writer was quicker."""
    offsets: Mapping[int, tuple[int, int]] | None = None
    """Partition -> from, up to: the offsets that this run read. After a fence, records that another writer committed in
    between may lie in the range."""
    added_columns: tuple[str, ...] = ()
    held: Mapping[int, int] | None = None
    """Partition -> the table's present end."""
    behind: int = 0
    """The offsets above it when the run began: those of open transactions."""
    erased: Erased = field(default_factory=Erased)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """The request for an export."""

    topic: str
    mode: str
    values: ValueFormat
    begin: From = Edge.EARLIEST
    """The begin of a table that holds nothing yet."""
    recreated: bool = False
    skip_lost: bool = False
    slice_bytes: int = SLICE_BYTES
    commit_bytes: int = COMMIT_BYTES


ShowProgress = Callable[[int, int], None]
"""Slices done, of all slices."""
