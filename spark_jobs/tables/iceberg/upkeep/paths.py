"""The places of a table's files, and their names."""

from __future__ import annotations

import re
from typing import Any

from pyiceberg.table import TableProperties
from pyiceberg.utils.properties import property_as_bool

from spark_jobs.tables.iceberg.keyed_files import KEYS_DIRECTORY
from spark_jobs.tables.iceberg.upkeep.reach import name_of
from spark_jobs.tables.iceberg.upkeep.removal import directory
from spark_jobs.tables.keyed.key_index import index_name

OUR_FILE = re.compile(r"(p\d{5,}-\d{19}-\d{19}-[a-z-]+-[0-9a-f]{12})\.(parquet|keys)")
"""The names that `file_writer.file_name` makes, and those of key indexes beside them."""
KEY_INDEX = re.compile(r"(.+)\.keys")
"""All of them are ours, those of other programs' data files too."""


def data_of(table: Any) -> str:
    return f"{table.location()}/data"


def metadata_of(table: Any) -> str:
    return f"{table.location()}/metadata"


def keys_of(table: Any) -> str:
    return f"{table.location()}/{KEYS_DIRECTORY}"


def note_path(table: Any, name: str) -> str:
    return f"{directory(table.location())}/{name}"


def index_beside(table: Any, path: str) -> str:
    """The key index of a data file, which may be one of another program; empty for what is no data file."""
    name = name_of(path)
    return f"{keys_of(table)}/{index_name(name)}" if name.endswith(".parquet") else ""


def loaded_again(table: Any) -> Any:
    return table.catalog.load_table(table.name())


def drops_log(metadata: Any) -> bool:
    """Whether metadata files that fall out of the log are to be deleted."""
    return property_as_bool(metadata.properties, TableProperties.METADATA_DELETE_AFTER_COMMIT_ENABLED, default=False)
