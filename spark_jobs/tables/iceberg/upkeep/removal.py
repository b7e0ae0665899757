"""A removal: the files of one expiry, written down before its commit, so that a crash leaves none of them for ever.

It lies in `_siltstone/removals/` of the table's location until the files are deleted. Its files are candidates: whoever
finishes it, now or after a crash, deletes only those that the metadata of that moment does not reach.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from runtime.ids import SystemIds
from spark_jobs.tables.errors import TableError
from spark_jobs.tables.iceberg.upkeep.reach import Reached

FORMAT, ERASURE_FORMAT = 1, 2
"""The second is that of an erasure's removal, which an older release leaves alone."""


class BadRemovalError(TableError):
    """A removal that was written down cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    made_ms: int
    snapshots: tuple[int, ...]
    """If any of them is still in the table, the expiry was not committed."""
    files: Reached
    erasure: int | None = None
    """The snapshot of an erasure, after whose commit the others are to expire at once; None for a common expiry."""

    def as_json(self) -> bytes:
        row = {
            "format": FORMAT if self.erasure is None else ERASURE_FORMAT,
            "made_ms": self.made_ms,
            "snapshots": self.snapshots,
            "metadata": self.files.metadata,
            "manifests": self.files.manifests,
            "data": self.files.data,
            **({} if self.erasure is None else {"erasure": self.erasure}),
        }
        return json.dumps(row, separators=(",", ":")).encode()

    @classmethod
    def from_json(cls, text: bytes, name: str) -> Removal:
        """Raises BadRemovalError."""
        try:
            row: Any = json.loads(text)
            if row["format"] not in (FORMAT, ERASURE_FORMAT):
                raise ValueError(f"it has format {row['format']!r}, and this release reads up to {ERASURE_FORMAT}")
            return cls(
                made_ms=int(row["made_ms"]),
                snapshots=tuple(int(each) for each in row["snapshots"]),
                files=Reached(
                    metadata=tuple(map(str, row["metadata"])),
                    manifests=tuple(map(str, row["manifests"])),
                    data=tuple(map(str, row["data"])),
                ),
                erasure=row.get("erasure"),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BadRemovalError(
                f"{name} cannot be read: {error}",
                remedy="delete it; the files that it names are then left to a removal of orphan files",
            ) from error


def directory(location: str) -> str:
    return f"{location}/_siltstone/removals"


def new_name(made_ms: int) -> str:
    """Names sort by time."""
    return f"{made_ms:015}-{SystemIds().uuid4().hex[:12]}.json"
