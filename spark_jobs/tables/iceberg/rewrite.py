"""Files of an Iceberg table written again: as one, without dead rows, with the columns that the table has now."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from spark_jobs.scan.arrow import pa
from spark_jobs.tables.file_writer import FileWriter, Place, WrittenFile
from spark_jobs.tables.iceberg.catalog import missing
from spark_jobs.tables.iceberg.keyed_files import KEY_COLUMNS, row_hashes
from spark_jobs.tables.iceberg.live_files import LiveFile

try:
    from pyiceberg.expressions import AlwaysTrue
    from pyiceberg.io.pyarrow import ArrowScan
    from pyiceberg.table import FileScanTask
except ModuleNotFoundError as _error:
    raise missing(_error.name or "pyiceberg") from _error


def rewritten(
    table: Any, files: Sequence[LiveFile], partition: int, schema: Any, place: Place, indexes: Place
) -> Sequence[WrittenFile]:
    """New files with the living rows of these, which are of one partition and in the order of their offsets.

    `table`: `pyiceberg.table.Table`; `schema`: `pyarrow.Schema` of its files. Raises the errors of `Place.put`.
    """
    writer: FileWriter | None = None
    end = 0
    for batch in _living(table, files, schema):
        offsets = batch.column("kafka_offset")
        end = int(offsets[-1].as_py()) + 1
        if writer is None:
            start = int(offsets[0].as_py())
            writer = FileWriter(
                place=place, key_indexes=indexes, schema=schema, partition=partition, start=start, stem="data"
            )
        keys = {name: batch.column(name) for name in KEY_COLUMNS if name in batch.schema.names}
        writer.write(batch, row_hashes(keys), end)
    if writer is None:
        return []
    writer.close(end)
    return writer.written


def _living(table: Any, files: Sequence[LiveFile], schema: Any) -> Iterator[Any]:
    """pyiceberg reads columns by their ids and leaves out the dead rows, as every reader of the table does."""
    scan: Any = ArrowScan(table.metadata, table.io, table.schema(), AlwaysTrue())
    for file in files:
        task = FileScanTask(data_file=file.file, delete_files={each.file for each in file.deletes})
        for batch in scan.to_record_batches([task]):
            if batch.num_rows:
                # Text and lists come in their large forms.
                yield from pa.Table.from_batches([batch]).select(schema.names).cast(schema).to_batches()
