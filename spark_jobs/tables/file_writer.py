"""Rows of one partition written as Parquet files, with an index of their keys where the table wants one.

Each section of the table (`spark_jobs/tables/layout/`) gets files of its own. A file is made in memory, because
`Place.put` takes a whole one: at most about `FILE_BYTES`, compressed, for all open files together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow.parquet as _parquet  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from runtime.ids import SystemIds
from spark_jobs.scan.arrow import pa
from spark_jobs.tables.keyed import key_index
from spark_jobs.tables.keyed.key_index import Hashes
from spark_jobs.tables.layout.layout import PLAIN, UNSECTIONED, Layout, Placed, Section

FILE_BYTES = 256 << 20
COMPRESSION = "zstd"
INDEXED_BYTES = 64 << 20
"""As FILE_BYTES, for a file with a key index: all of it is in memory when it is rewritten without its dead rows."""
INDEXED_ROWS = 2 << 20
"""The most rows of such a file, whose index is made in memory: 68 bytes a row."""
ROW_GROUP_BYTES = 32 << 20
"""Arrow's bytes in memory; readers decode one row group at once."""
SORTED_BYTES = 128 << 20
"""As FILE_BYTES, for a file whose rows are sorted: Arrow's bytes, three times in memory while it is written."""
OPEN_FILES = 500
"""The most files that are open at once: each has some buffers, however few its rows."""
parquet: Any = _parquet


class Place(Protocol):
    """The place for files; travels to tasks by pickle, without credentials."""

    def put(self, name: str, body: memoryview) -> None:
        """Write a file that nobody has written before."""
        ...

    def remove(self, names: Sequence[str]) -> None:
        """Remove files that no commit names, and none can name any more."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenFile:
    name: str
    partition: int
    start: int
    """The first offset it stands for."""
    end: int
    """Exclusive."""
    rows: int
    size_bytes: int
    placed: Placed = UNSECTIONED


class FileWriter:
    """Writes rows in offset order; begins another file when one is large enough.

    Where the table has sections, a file stands for the records of its section alone.
    """

    def __init__(
        self,
        *,
        place: Place,
        key_indexes: Place | None,
        schema: Any,
        partition: int,
        start: int,
        stem: str,
        layout: Layout = PLAIN,
    ) -> None:
        """`schema`: `pyarrow.Schema` of the files. `start`: the first offset that the first file stands for."""
        self._place, self._key_indexes, self._schema = place, key_indexes, schema
        self._partition, self._start, self._stem = partition, start, stem
        self._layout = layout
        self._sections: Any = None
        if self._layout.sections:
            from spark_jobs.tables.layout.sections import Sections  # loads pyiceberg

            self._sections = Sections(self._layout.sections, schema)
        self._open: dict[Section, _OpenFile] = {}
        self._starts: dict[Section, int] = {}
        """Where the next file of a section begins, for those that have one already."""
        self.written: list[WrittenFile] = []

    def write(self, batch: Any, hashes: Hashes | None, end: int) -> None:
        """Write a batch with the hashes of its keys, if they are to be indexed. It stands for the offsets below `end`.
        Raises the errors of `Place.put`.
        """
        for section, rows in self._cut(batch):
            file = self._open.setdefault(section, _OpenFile(self._schema, self._layout))
            # Copies, because a part of a batch would keep all of it in memory.
            file.add(
                batch if rows is None else batch.take(pa.array(rows)),
                hashes if hashes is None or rows is None else hashes[rows],
            )
            bytes_max = FILE_BYTES if self._key_indexes is None else INDEXED_BYTES
            if file.is_full(bytes_max):
                self._close(section, end)
        while len(self._open) > 1 and (
            len(self._open) > OPEN_FILES or sum(file.held_bytes for file in self._open.values()) > FILE_BYTES
        ):
            self._close(max(self._open, key=lambda section: self._open[section].held_bytes), end)

    def close(self, end: int) -> None:
        """Put the files that are open. They stand for the offsets below `end`. Raises as `write`."""
        for section in list(self._open):
            self._close(section, end)

    def _cut(self, batch: Any) -> Iterator[tuple[Section, NDArray[np.int64] | None]]:
        if self._sections is None:
            return iter([((), None)])
        return self._sections.cut(batch)

    def _close(self, section: Section, end: int) -> None:
        file, start = self._open.pop(section), self._starts.get(section, self._start)
        body = file.body()
        name = file_name(self._partition, start, end, self._stem)
        self._place.put(name, body)
        if self._key_indexes is not None:
            # After the file: a file without an index can be indexed, and an index without a file is nothing.
            index = key_index.encode(np.concatenate(file.hashes))
            self._key_indexes.put(key_index.index_name(name), memoryview(index))
        self.written.append(
            WrittenFile(
                name=name,
                partition=self._partition,
                start=start,
                end=end,
                rows=file.rows,
                size_bytes=body.nbytes,
                placed=Placed(self._layout.spec_id, section, self._layout.order_id),
            )
        )
        self._starts[section] = end


class _OpenFile:
    """A file in memory, of one section. One that is sorted is encoded when it is complete."""

    def __init__(self, schema: Any, layout: Layout) -> None:
        self._schema, self._order = schema, layout.order
        self._sink: Any = None
        self._writer: Any = None
        self._pending: list[Any] = []
        self._pending_bytes = 0
        self.rows = 0
        self.hashes: list[Hashes] = []

    @property
    def held_bytes(self) -> int:
        return self._pending_bytes + (0 if self._sink is None else self._sink.tell())

    def is_full(self, bytes_max: int) -> bool:
        if self._order:
            return self._pending_bytes >= SORTED_BYTES
        return (self._sink is not None and self._sink.tell() >= bytes_max) or (
            bool(self.hashes) and self.rows >= INDEXED_ROWS
        )

    def add(self, batch: Any, hashes: Hashes | None) -> None:
        self.rows += batch.num_rows
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if hashes is not None:
            self.hashes.append(hashes)
        if self._pending_bytes >= ROW_GROUP_BYTES and not self._order:
            self._flush()

    def body(self) -> memoryview:
        self._flush()
        self._writer.close()
        return memoryview(self._sink.getvalue())

    def _flush(self) -> None:
        if not self._pending:
            return
        if self._writer is None:
            self._sink = pa.BufferOutputStream()
            self._writer = parquet.ParquetWriter(self._sink, self._schema, compression=COMPRESSION)
        rows = pa.Table.from_batches(self._pending)
        if not rows.schema.equals(self._schema):  # another program made a column of ours wider, or one that may be null
            rows = rows.cast(self._schema)
        groups = max(1, self._pending_bytes // ROW_GROUP_BYTES, rows.num_rows >> 20)
        self._pending, self._pending_bytes = [], 0
        if self._order:
            from spark_jobs.tables.layout.sorting import in_order

            rows = in_order(rows, self._order)
        self._writer.write_table(rows, row_group_size=-(-rows.num_rows // groups))


def file_name(partition: int, start: int, end: int, stem: str) -> str:
    """Names sort by partition and offset; `end` is exclusive. No two attempts at one task make the same name."""
    return f"p{partition:05}-{start:019}-{end:019}-{stem}-{SystemIds().uuid4().hex[:12]}.parquet"
