"""The data files of an Iceberg table with one row per key, and their key indexes.

The index of `<location>/data/X.parquet` is `<location>/_siltstone/keys/X.keys`. Programs that remove orphan files leave
names alone that begin with an underscore. An index that is gone all the same, or damaged, is made again from the keys
in the data file, and so is that of a file that another program or an older release wrote.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Any, cast

import numpy as np
import pyarrow.parquet as _parquet  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from runtime.logging import get_logger
from spark_jobs.tables.columns.kinds import Field
from spark_jobs.tables.contract import KeyedFile
from spark_jobs.tables.erasing.gone import ROW_COLUMNS, GoneRows
from spark_jobs.tables.errors import WrongTableError
from spark_jobs.tables.file_writer import Place
from spark_jobs.tables.iceberg.live_files import LiveFile, live_files
from spark_jobs.tables.iceberg.position_deletes import NO_POSITIONS
from spark_jobs.tables.keyed.key_index import (
    HASH_WORDS,
    KEY_COLUMNS,
    KeyIndex,
    KeyIndexError,
    SoughtKeys,
    encode,
    index_name,
    row_hashes,
)

KEYS_DIRECTORY = "_siltstone/keys"
FIELD_ID = b"PARQUET:field_id"
BATCH_ROWS = 1 << 16
OFFSET_MAX = (1 << 63) - 1
parquet: Any = _parquet
_log = get_logger(__name__)


class KeyedFiles:
    """A `spark_jobs.tables.contract.KeyedFiles` of one snapshot."""

    def __init__(self, table: Any, indexes: Place) -> None:
        """`table`: a `pyiceberg.table.Table`. Raises WrongTableError."""
        self._table, self._indexes = table, indexes
        self._live: Mapping[str, LiveFile] = {each.path: each for each in live_files(table)}
        self._files = [self._keyed(each) for each in self._live.values()]

    @property
    def files(self) -> Sequence[KeyedFile]:
        return self._files

    def live(self, path: str) -> LiveFile:
        return self._live[path]

    def paths_without(self, removed: Container[str]) -> list[str]:
        """The paths of all data files but these, and of the delete files that may be about them."""
        left = [each for path, each in self._live.items() if path not in removed]
        deletes = [each.file.file_path for live in left for each in live.deletes]
        return [*(each.path for each in left), *dict.fromkeys(deletes)]

    def offsets(self, file: KeyedFile) -> NDArray[np.int64]:
        columns = [each["kafka_offset"].to_numpy() for each in self._columns(file.path, ("kafka_offset",))]
        return np.concatenate([np.zeros(0, dtype=np.int64), *columns])

    def find(self, file: KeyedFile, wanted: SoughtKeys) -> NDArray[np.int64]:
        """Raises WrongTableError if there is neither an index nor the column of the keys."""
        name = index_name(file.path.rpartition("/")[2])
        source = self._table.io.new_input(f"{self._table.location()}/{KEYS_DIRECTORY}/{name}")
        try:
            index = KeyIndex(_reader(source.open()), len(source))
            if index.rows != file.rows:
                raise KeyIndexError(f"the key index has {index.rows} rows, and the file {file.rows}")
            return index.find(wanted)
        except FileNotFoundError:
            _log.warning("a data file has no key index: it is made from the file", file=file.path)
        except KeyIndexError as error:
            _log.warning("a key index is made again from its data file", file=file.path, reason=error.message)
            self._indexes.remove([name])  # no file is written over another
        return self._indexed(file, name).find(wanted)

    def gone(self, file: KeyedFile, rows: GoneRows, *, by_index: bool) -> NDArray[np.int64]:
        """The positions of those rows, rising, dead ones among them. Raises WrongTableError."""
        if not rows.may_be_in(file.partition, file.first_offset, file.last_offset):
            return NO_POSITIONS
        if by_index and file.partition is not None and not len(self.find(file, rows.wanted[file.partition])):
            return NO_POSITIONS
        return rows.positions(self._columns(file.path, ROW_COLUMNS))

    def _indexed(self, file: KeyedFile, name: str) -> KeyIndex:
        batches = self._columns(file.path, KEY_COLUMNS)
        body = encode(np.concatenate([np.zeros((0, HASH_WORDS), dtype=np.uint64), *map(row_hashes, batches)]))
        self._indexes.put(name, memoryview(body))
        return KeyIndex(lambda position, length: body[position : position + length], len(body))

    def _columns(self, path: str, names: Sequence[str]) -> Iterator[Mapping[str, Any]]:
        """Arrow arrays of these columns, by batches; kafka_key_bytes is left out if the file does not have it."""
        file = parquet.ParquetFile(self._table.io.new_input(path).open())
        fields: Sequence[Field] = list(file.schema_arrow)
        by_id = {int(told[FIELD_ID]): field.name for field in fields if (told := field.metadata) and FIELD_ID in told}
        known = {name: by_id[id_] for name, id_ in self._ids() if id_ in by_id}
        wanted = {name: known[name] for name in names if name in known}
        missing = [name for name in names if name not in wanted and name != KEY_COLUMNS[1]]
        if missing:
            raise WrongTableError(
                f"{path} has no column {missing[0]}, without which no row of the table can be superseded or erased",
                remedy="export to another table",
            )
        for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=list(wanted.values())):
            yield {name: batch.column(own) for name, own in wanted.items()}

    def _ids(self) -> list[tuple[str, int]]:
        """The ids that each name of a column has had, the present ones last: another program may have renamed or
        dropped a column that older files still have."""
        schemas: list[Any] = [*self._table.metadata.schemas, self._table.schema()]
        return [(field.name, field.field_id) for schema in schemas for field in schema.fields]

    def _keyed(self, live: LiveFile) -> KeyedFile:
        schema: Any = self._table.schema()
        partition = _bounds(live, schema, "kafka_partition")
        offsets = _bounds(live, schema, "kafka_offset")
        return KeyedFile(
            path=live.path,
            partition=partition[0] if partition is not None and partition[0] == partition[1] else None,
            section=str((live.file.spec_id, live.file.partition)),
            first_offset=0 if offsets is None else offsets[0],
            last_offset=OFFSET_MAX if offsets is None else offsets[1],
            rows=live.rows,
            dead=sum(each.file.record_count for each in live.own_deletes),
            size_bytes=live.size_bytes,
        )


def _bounds(live: LiveFile, schema: Any, name: str) -> tuple[int, int] | None:
    column = next((field for field in schema.fields if field.name == name), None)
    return None if column is None else cast("tuple[int, int] | None", live.bounds(column))


def _reader(stream: Any) -> Any:
    def read(position: int, length: int) -> bytes:
        stream.seek(position)
        return stream.read(length)

    return read
