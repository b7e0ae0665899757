"""The data directory of an Iceberg table, as tasks write into it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from spark_jobs.tables.errors import PlaceUnavailableError
from spark_jobs.tables.iceberg.catalog import missing

try:
    from pyiceberg.io import load_file_io
except ModuleNotFoundError as _error:
    raise missing(_error.name or "pyiceberg") from _error

_load_io: Any = load_file_io


@dataclass(frozen=True, slots=True, kw_only=True)
class IcebergPlace:
    """The data directory of a table."""

    directory: str
    properties: Mapping[str, str]
    """Properties of the file IO. They hold credentials if the catalog has some; else tasks find their own."""

    def path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    def put(self, name: str, body: memoryview) -> None:
        try:
            with self._io().new_output(self.path(name)).create() as stream:
                stream.write(body)
        except OSError as error:
            raise PlaceUnavailableError(
                f"files of the Iceberg table cannot be written to {self.directory}: {error}",
                remedy="check the rights to it, its room and that it can be reached",
            ) from error

    def remove(self, names: Sequence[str]) -> None:
        io = self._io()
        for name in names:
            try:
                with suppress(FileNotFoundError):  # an erasure of another writer may have taken it
                    io.delete(self.path(name))
            except OSError as error:
                raise PlaceUnavailableError(
                    f"files of the Iceberg table cannot be deleted from {self.directory}: {error}",
                    remedy="check the rights to it; what stays there belongs to no table",
                ) from error

    def _io(self) -> Any:
        return _load_io(dict(self.properties), self.directory)
