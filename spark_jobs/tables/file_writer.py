"""Rows of one partition written as Parquet files, with an index of their keys where the table wants one.

A file is made in memory, because `Place.put` takes a whole one: at most about `FILE_BYTES`, compressed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow.parquet as _parquet  # pyright: ignore[reportMissingTypeStubs]

from runtime.ids import SystemIds
from spark_jobs.scan.arrow import pa
from spark_jobs.tables.keyed import key_index
from spark_jobs.tables.keyed.key_index import Hashes

FILE_BYTES = 256 << 20
COMPRESSION = "zstd"
INDEXED_BYTES = 64 << 20
"""As FILE_BYTES, for a file with a key index: all of it is in memory when it is rewritten without its dead rows."""
INDEXED_ROWS = 2 << 20
"""The most rows of such a file, whose index is made in memory: 68 bytes a row."""
ROW_GROUP_BYTES = 32 << 20
"""Arrow's bytes in memory; readers decode one row group at once."""
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


class FileWriter:
    """Writes rows in offset order; begins another file when one is large enough."""

    def __init__(
        self, *, place: Place, key_indexes: Place | None, schema: Any, partition: int, start: int, stem: str
    ) -> None:
        """`schema`: `pyarrow.Schema` of the files. `start`: the first offset that the first file stands for."""
        self._place, self._key_indexes, self._schema = place, key_indexes, schema
        self._partition, self._start, self._stem = partition, start, stem
        self._sink: Any = None
        self._writer: Any = None
        self._pending: list[Any] = []
        self._pending_bytes = self._rows = 0
        self._hashes: list[Hashes] = []
        self.written: list[WrittenFile] = []

    def write(self, batch: Any, hashes: Hashes | None, end: int) -> None:
        """Write a batch with the hashes of its keys, if they are to be indexed. It stands for the offsets below `end`.
        Raises the errors of `Place.put`.
        """
        if self._writer is None:
            self._sink = pa.BufferOutputStream()
            self._writer = parquet.ParquetWriter(self._sink, self._schema, compression=COMPRESSION)
        self._rows += batch.num_rows
        self._pending.append(batch)
        self._pending_bytes += batch.nbytes
        if hashes is not None:
            self._hashes.append(hashes)
        if self._pending_bytes >= ROW_GROUP_BYTES:
            self._flush()
        bytes_max = FILE_BYTES if self._key_indexes is None else INDEXED_BYTES
        if self._sink.tell() >= bytes_max or (self._hashes and self._rows >= INDEXED_ROWS):
            self.close(end)

    def close(self, end: int) -> None:
        """Put the file that is open, if there is one. It stands for the offsets below `end`. Raises as `write`."""
        if self._writer is None:
            return
        self._flush()
        self._writer.close()
        body = memoryview(self._sink.getvalue())
        name = file_name(self._partition, self._start, end, self._stem)
        self._place.put(name, body)
        if self._key_indexes is not None:
            # After the file: a file without an index can be indexed, and an index without a file is nothing.
            index = key_index.encode(np.concatenate(self._hashes))
            self._key_indexes.put(key_index.index_name(name), memoryview(index))
        self.written.append(
            WrittenFile(
                name=name,
                partition=self._partition,
                start=self._start,
                end=end,
                rows=self._rows,
                size_bytes=body.nbytes,
            )
        )
        self._sink = self._writer = None
        self._start, self._rows = end, 0
        self._hashes.clear()

    def _flush(self) -> None:
        if self._pending:
            self._writer.write_table(pa.Table.from_batches(self._pending))
            self._pending, self._pending_bytes = [], 0


def file_name(partition: int, start: int, end: int, stem: str) -> str:
    """Names sort by partition and offset; `end` is exclusive. No two attempts at one task make the same name."""
    return f"p{partition:05}-{start:019}-{end:019}-{stem}-{SystemIds().uuid4().hex[:12]}.parquet"
