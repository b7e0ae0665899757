"""Position delete files: Parquet with the path of a data file and the numbers of its rows that are dead.

Each one of ours is about one data file, which its bounds say, so that a reader opens it for that file alone. Files of
other programs may be about several, and deletion vectors (Puffin) are read too.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias, cast

import numpy as np
import pyarrow.parquet as _parquet  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from spark_jobs.scan.arrow import pa
from spark_jobs.tables.errors import WrongTableError
from spark_jobs.tables.file_writer import COMPRESSION
from spark_jobs.tables.iceberg.catalog import missing

try:
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.table.deletion_vector import deletion_vectors_from_puffin_file
    from pyiceberg.table.puffin import PuffinFile
except ModuleNotFoundError as _error:
    raise missing(_error.name or "pyiceberg") from _error

Positions: TypeAlias = NDArray[np.int64]
"""Row numbers in one data file, from 0 on."""

PATH_ID, POSITION_ID = 2147483546, 2147483545
"""The ids of the two columns, by Iceberg's specification."""
NO_POSITIONS: Positions = np.zeros(0, np.int64)
_parquet_io: Any = _parquet
_data_file: Any = DataFile.from_args


def write(io: Any, path: str, data_file: Any, positions: Positions) -> Any:
    """The `DataFile` of a new delete file at `path`, about one data file. Positions are sorted and distinct, and there
    is one at least.
    """
    about = str(data_file.file_path)
    count = len(positions)
    body = _encoded(about, positions)
    with io.new_output(path).create() as stream:
        stream.write(body)
    first, last = (int(each).to_bytes(8, "little") for each in (positions[0], positions[-1]))
    written = _data_file(
        content=DataFileContent.POSITION_DELETES,
        file_path=path,
        file_format=FileFormat.PARQUET,
        partition=data_file.partition,
        record_count=count,
        file_size_in_bytes=len(body),
        value_counts={PATH_ID: count, POSITION_ID: count},
        null_value_counts={PATH_ID: 0, POSITION_ID: 0},
        # Bounds that are equal name the data file; only the newer format has a field for it.
        lower_bounds={PATH_ID: about.encode(), POSITION_ID: first},
        upper_bounds={PATH_ID: about.encode(), POSITION_ID: last},
    )
    written.spec_id = data_file.spec_id
    return written


def read(io: Any, delete_file: Any) -> Mapping[str, Positions]:
    """The positions in a delete file, by the path of their data file. Raises WrongTableError."""
    with io.new_input(delete_file.file_path).open() as stream:
        if delete_file.file_format == FileFormat.PUFFIN:
            vectors: Any = deletion_vectors_from_puffin_file(PuffinFile(stream.read()))
            return {each.referenced_data_file: _positions(each.to_vector()) for each in vectors}
        if delete_file.file_format != FileFormat.PARQUET:
            raise WrongTableError(
                f"the table has rows deleted by a file in the format {delete_file.file_format.value}, "
                f"which is not read here: {delete_file.file_path}",
                remedy="compact the table's data files with the program that wrote it",
            )
        rows = _parquet_io.read_table(stream, columns=["file_path", "pos"], read_dictionary=["file_path"])
    return _by_path(rows)


def union(*parts: Positions) -> Positions:
    """All positions, sorted and distinct. (`numpy.union1d` takes ten times as long for what is sorted.)"""
    positions = np.sort(np.concatenate([NO_POSITIONS, *parts]), kind="stable")
    first = np.ones(len(positions), np.bool_)
    np.not_equal(positions[1:], positions[:-1], out=first[1:])
    return positions[first]


def _encoded(about: str, positions: Positions) -> memoryview:
    paths = pa.DictionaryArray.from_arrays(np.zeros(len(positions), np.int32), [about])
    schema = pa.schema([_field("file_path", paths.type, PATH_ID), _field("pos", pa.int64(), POSITION_ID)])
    sink = pa.BufferOutputStream()
    _parquet_io.write_table(
        pa.Table.from_arrays([paths, pa.array(positions)], schema=schema),
        sink,
        compression=COMPRESSION,
        use_dictionary=["file_path"],
        store_schema=False,  # it would say that the paths are no plain strings
    )
    return memoryview(sink.getvalue())


def _field(name: str, kind: Any, field_id: int) -> Any:
    return pa.field(name, kind, nullable=False, metadata={b"PARQUET:field_id": str(field_id).encode()})


def _by_path(rows: Any) -> dict[str, Positions]:
    if not rows.num_rows:
        return {}
    paths = rows.column("file_path").unify_dictionaries().combine_chunks()
    if isinstance(paths, pa.ChunkedArray):
        paths = paths.chunk(0)
    numbers = paths.indices.to_numpy(zero_copy_only=False)
    positions = _positions(rows.column("pos"))
    if len(paths.dictionary) == 1:
        return {paths.dictionary[0].as_py(): positions}
    order = np.argsort(numbers, kind="stable")
    ends = np.searchsorted(numbers[order], np.arange(len(paths.dictionary)), side="right")
    parts = np.split(positions[order], ends[:-1])
    return {path.as_py(): part for path, part in zip(paths.dictionary, parts, strict=True)}


def _positions(column: Any) -> Positions:
    return cast("Positions", column.to_numpy().astype(np.int64, copy=False))
