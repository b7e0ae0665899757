"""The directory of a table, seen by its upkeep: listing, deleting, and small objects of our own."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, cast

import pyarrow.fs as _fs  # pyright: ignore[reportMissingTypeStubs]
from pyiceberg.io import pyarrow as _pyarrow_io

from runtime.logging import get_logger
from spark_jobs.tables.iceberg.upkeep.reach import in_threads

_arrow_fs: Any = _fs
_ArrowIO: Any = cast("Any", _pyarrow_io).PyArrowFileIO
_log = get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Listed:
    name: str
    written_ms: int


def listed(io: Any, directory: str) -> list[Listed]:
    """The files right in a directory, none if there is no such directory or it cannot be listed."""
    if not isinstance(io, _ArrowIO):
        _log.debug("a directory of the table is not listed: its file IO cannot", directory=directory)
        return []
    arrow_io: Any = io
    scheme, host, path = arrow_io.parse_location(directory, arrow_io.properties)
    try:
        found: Any = arrow_io.fs_by_scheme(scheme, host).get_file_info(
            _arrow_fs.FileSelector(path, allow_not_found=True)
        )
    except OSError as error:
        _log.debug("a directory of the table cannot be listed", directory=directory, reason=str(error))
        return []
    return [
        Listed(name=each.base_name, written_ms=each.mtime_ns // 1_000_000)
        for each in found
        if each.type == _arrow_fs.FileType.File
    ]


def remove(io: Any, paths: Collection[str]) -> tuple[int, OSError | None]:
    """Delete them all: the number of those that were there, and the first error. A missing file is no error."""

    def delete(path: str) -> OSError | bool:
        try:
            io.delete(path)
        except FileNotFoundError:
            return False
        except OSError as error:
            return error
        return True

    outcomes = list(in_threads(delete, list(paths)))
    errors = [each for each in outcomes if isinstance(each, OSError)]
    return sum(each is True for each in outcomes), errors[0] if errors else None


def put(io: Any, path: str, body: bytes) -> None:
    with io.new_output(path).create() as stream:
        stream.write(body)


def get(io: Any, path: str) -> bytes:
    with io.new_input(path).open() as stream:
        return bytes(stream.read())
