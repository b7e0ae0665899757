"""Directories and tables into which no export is written."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NoReturn

from spark_jobs.tables.erasing.gone import ROW_COLUMNS
from spark_jobs.tables.errors import WrongTableError
from spark_jobs.tables.objects import Objects
from spark_jobs.tables.parquet_table import has_commits
from storage.objects import ObjectStore

OUR_FILE = re.compile(r"p\d{5,}-\d{19}-\d{19}-(\d{10})-[0-9a-f]{12}\.parquet", re.ASCII)
"""The name of a data file, with the first version that its commit could have."""
_WRITER_VERSIONS = (1, 2, 7)
_FEATURES = {"appendOnly", "invariants", "timestampNtz", "deletionVectors"}
"""The writer features that ask nothing of a program that adds files. Others, such as column mapping, do."""


def check_free(objects: Objects, url: str) -> None:
    """Check that a new table would have the directory for itself. Raises WrongTableError."""
    if has_commits(objects):
        raise WrongTableError(
            f"{url} is a table of Parquet files, and each of two tables would remove files of the other",
            remedy="name another directory, or write --to parquet:...",
        )

    async def of_others(store: ObjectStore) -> str | None:
        async for stat in store.list(""):
            if stat.key.endswith(".parquet") and not OUR_FILE.fullmatch(stat.key):
                return stat.key
        return None

    # An erasure would remove it as a file that is in no version of the table.
    strange = objects.call(of_others)
    if strange is not None:
        raise WrongTableError(
            f"{url} is no Delta table, and holds a file of others: {strange}",
            remedy="name an empty or missing directory",
        )


def check_features(table: Any, url: str) -> None:
    """Check that files can be added to a `deltalake.DeltaTable`. Raises WrongTableError."""
    protocol = table.protocol()
    strange = sorted(set(protocol.writer_features or ()) - _FEATURES)
    if strange or protocol.min_writer_version not in _WRITER_VERSIONS:
        what = ", ".join(strange) or f"writer version {protocol.min_writer_version}"
        _refuse(url, f"has features of Delta that this command does not write: {what}")
    if parted := table.metadata().partition_columns:
        by = ", ".join(parted)
        _refuse(url, f"was partitioned by {by}, and this command writes Delta tables without partitions")


def check_columns(names: Sequence[str], url: str) -> None:
    """Check that the table has the columns by which rows are found. Raises WrongTableError."""
    for name in ROW_COLUMNS[:3]:
        if name not in names:
            _refuse(url, f"has lost the column {name}, by which its rows are found, to another program")


def _refuse(url: str, why: str) -> NoReturn:
    raise WrongTableError(f"{url} {why}", remedy="export to another table")
