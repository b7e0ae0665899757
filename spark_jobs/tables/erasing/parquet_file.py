"""A Parquet file of a table, read for rows to erase and written again without them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pyarrow.parquet as _parquet  # pyright: ignore[reportMissingTypeStubs]

from spark_jobs.scan.arrow import pa
from spark_jobs.tables.erasing.gone import ROW_COLUMNS, GoneRows, staying
from spark_jobs.tables.file_writer import FileWriter

BATCH_ROWS = 1 << 16
_parquet_io: Any = _parquet


def write_without(stream: Any, gone: GoneRows, writer: FileWriter, end: int) -> int:
    """Write the rows that stay, if some of a file's rows are to go; returns the number of these. `end`: the exclusive
    end of the offsets for which the file stands. Raises the errors of `Place.put`.
    """
    file: Any = _parquet_io.ParquetFile(stream)
    positions = gone.positions(_key_columns(file))
    if len(positions):
        start = 0
        for batch in file.iter_batches(batch_size=BATCH_ROWS):
            stays = staying(positions, start, batch.num_rows)
            start += batch.num_rows
            for left in pa.Table.from_batches([batch]).filter(pa.array(stays)).to_batches():
                writer.write(left, None, int(left.column("kafka_offset")[-1].as_py()) + 1)
        writer.close(end)
    return len(positions)


def schema_of(stream: Any) -> Any:
    """`pyarrow.Schema`"""
    return _parquet_io.read_schema(stream)


def _key_columns(file: Any) -> Iterator[dict[str, Any]]:
    names = [name for name in ROW_COLUMNS if name in file.schema_arrow.names]
    for batch in file.iter_batches(batch_size=BATCH_ROWS, columns=names):
        yield {name: batch.column(name) for name in names}
