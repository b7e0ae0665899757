"""A commit of a Delta table that removes files, as its log has it, and how later ones name it. Pure.

The library can add files, and replace all of them, but has no way to replace some. The entry is one JSON object a line,
as in Delta's protocol ("Delta Log Entries", "Actions").
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple
from urllib.parse import quote

from spark_jobs.tables.file_writer import WrittenFile

LOG = "_delta_log/"
ERASURES = "siltstone.erasures"
"""In the information of a commit that erased rows: the ids of the requests."""
UNSWEPT = "siltstone.unswept"
"""In the information of commits of ours behind that one, as long as files may be left to delete."""


class Offsets(NamedTuple):
    """The place in the log of a file's rows."""

    partition: int
    first: int
    last: int


class DataFile(NamedTuple):
    """A data file of the table."""

    path: str
    size_bytes: int
    offsets: Offsets | None
    """None if its rows may be anywhere."""


class NewFile(NamedTuple):
    written: WrittenFile
    offsets: Offsets | None


class Sweep(NamedTuple):
    """The erasure after which files are to be deleted."""

    version: int
    """The version that it made."""
    at_ms: int

    @staticmethod
    def told(commit: Mapping[str, Any]) -> Sweep | None:
        """The one that the information of a commit names."""
        if ERASURES in commit:
            return Sweep(commit["version"], commit["timestamp"])
        mark = commit.get(UNSWEPT)
        return None if mark is None else Sweep(*map(int, str(mark).split("@")))

    @property
    def mark(self) -> str:
        return f"{self.version}@{self.at_ms}"


def log_key(version: int) -> str:
    """The object of a version, below the table's directory."""
    return f"{LOG}{version:020}.json"


def replacing_entry(
    removed: Sequence[DataFile],
    added: Sequence[NewFile],
    told: Mapping[str, str],
    transaction: tuple[str, int],
    now_ms: int,
) -> bytes:
    """The entry of a commit that replaces those files. `told`: the information of the commit. `transaction`: the
    application, and its version."""
    application, version = transaction
    actions: list[dict[str, Any]] = [
        {"commitInfo": {"timestamp": now_ms, "operation": "DELETE", "operationParameters": {}, **told}},
        {"txn": {"appId": application, "version": version, "lastUpdated": now_ms}},
    ]
    for file in removed:
        remove: dict[str, Any] = {
            "path": quote(file.path),
            "deletionTimestamp": now_ms,
            "dataChange": True,
            "partitionValues": {},
        }
        actions.append({"remove": {**remove, "extendedFileMetadata": True, "size": file.size_bytes}})
    for file in added:
        add: dict[str, Any] = {"path": quote(file.written.name), "partitionValues": {}, "size": file.written.size_bytes}
        stats = statistics(file.written.rows, file.offsets)
        actions.append({"add": {**add, "modificationTime": now_ms, "dataChange": True, "stats": stats}})
    return "\n".join(map(json.dumps, actions)).encode()


def statistics(rows: int, offsets: Offsets | None) -> str:
    """The statistics of a file. The bounds are those of the offsets that it stands for, not of its rows."""
    if offsets is None:
        return json.dumps({"numRecords": rows})
    return json.dumps(
        {
            "numRecords": rows,
            "minValues": {"kafka_partition": offsets.partition, "kafka_offset": offsets.first},
            "maxValues": {"kafka_partition": offsets.partition, "kafka_offset": offsets.last},
            "nullCount": {"kafka_partition": 0, "kafka_offset": 0},
            "tightBounds": False,
        }
    )
