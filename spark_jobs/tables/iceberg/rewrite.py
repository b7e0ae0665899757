"""Files of an Iceberg table written again: as one, without dead rows, with the columns that the table has now."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

import pyarrow.compute as _compute  # pyright: ignore[reportMissingTypeStubs]

from runtime.errors import BugError
from spark_jobs.scan.arrow import pa
from spark_jobs.tables.erasing.gone import staying
from spark_jobs.tables.file_writer import FileWriter, Place, WrittenFile
from spark_jobs.tables.iceberg.catalog import missing
from spark_jobs.tables.iceberg.live_files import LiveFile, dead_positions
from spark_jobs.tables.iceberg.position_deletes import NO_POSITIONS, Positions, union
from spark_jobs.tables.keyed.key_index import KEY_COLUMNS, row_hashes
from spark_jobs.tables.layout.layout import Layout

try:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io import pyarrow as _pyarrow_io
    from pyiceberg.io.pyarrow import ArrowProjectionVisitor, ArrowScan
    from pyiceberg.table import FileScanTask
except ModuleNotFoundError as _error:
    raise missing(_error.name or "pyiceberg") from _error

compute: Any = _compute
_NESTED = (pa.ListArray, pa.LargeListArray, pa.MapArray)
_ROWS_OF = "_record_batches_from_scan_tasks_and_deletes"
"""pyiceberg's private name: its public one holds all rows of a file in memory."""
if not hasattr(ArrowScan, _ROWS_OF):
    raise BugError(f"this pyiceberg reads no file bit by bit: its ArrowScan no longer has {_ROWS_OF}")


class _Whole(ArrowProjectionVisitor):
    """As pyiceberg's, which reads lists of objects, and maps to objects, that are null as empty ones, and objects in
    lists of lists by the names of their fields."""

    def list(self, list_type: Any, list_array: Any, value_array: Any) -> Any:
        held = list_array
        if isinstance(value_array, _NESTED):
            held = pa.LargeListArray.from_arrays(list_array.offsets, value_array)
        return _with_nulls_of(list_array, cast("Any", super()).list(list_type, held, value_array))

    def map(self, map_type: Any, map_array: Any, key_result: Any, value_result: Any) -> Any:
        held = map_array
        if isinstance(value_result, _NESTED):
            held = pa.MapArray.from_arrays(map_array.offsets, key_result, value_result)
        return _with_nulls_of(map_array, cast("Any", super()).map(map_type, held, key_result, value_result))


def _with_nulls_of(before: Any, found: Any) -> Any:
    if found is None or before.null_count == found.null_count:
        return found
    return compute.if_else(before.is_valid(), found, pa.scalar(None, found.type))


cast("Any", _pyarrow_io).ArrowProjectionVisitor = _Whole


def rewritten(
    table: Any,
    files: Sequence[LiveFile],
    schema: Any,
    place: Place,
    indexes: Place | None,
    layout: Layout,
    gone: Mapping[str, Positions],
) -> Sequence[WrittenFile]:
    """New files with the living rows of these, which are of one partition and in the order of their offsets, or with
    those of one file. `gone`: by path, rows that are left out too.

    `table`: `pyiceberg.table.Table`; `schema`: `pyarrow.Schema` of its files. Raises the errors of `Place.put`.
    """
    writer: FileWriter | None = None
    end = 0
    for batch in _living(table, files, schema, gone):
        offsets = batch.column("kafka_offset").to_numpy()
        end = max(end, int(offsets.max()) + 1)
        if writer is None:
            writer = FileWriter(
                place=place,
                key_indexes=indexes,
                schema=schema,
                partition=int(batch.column("kafka_partition")[0].as_py()),
                start=int(offsets.min()),
                stem="data",
                layout=layout,
            )
        keys = {name: batch.column(name) for name in KEY_COLUMNS if name in batch.schema.names}
        writer.write(batch, None if indexes is None else row_hashes(keys), end)
    if writer is None:
        return []
    writer.close(end)
    return writer.written


def _living(table: Any, files: Sequence[LiveFile], schema: Any, gone: Mapping[str, Positions]) -> Iterator[Any]:
    """The rows that stay; pyiceberg reads columns by their ids."""
    scan: Any = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    for file in files:
        dead = union(dead_positions(table.io, file), gone.get(file.path, NO_POSITIONS))
        start = 0
        for batch in getattr(scan, _ROWS_OF)([FileScanTask(data_file=file.file)], {}):
            stays = staying(dead, start, batch.num_rows)
            start += batch.num_rows
            if stays.any():
                rows = pa.Table.from_batches([batch]).filter(pa.array(stays))
                # Text and lists come in their large forms.
                yield from rows.select(schema.names).cast(schema).to_batches()
