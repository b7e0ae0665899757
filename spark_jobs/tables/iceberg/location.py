"""The directory of a new table.

A catalog names it after the table. But a table that was renamed keeps its directory, one that was dropped may leave its
files there, and two catalogs may share a warehouse. Tables in one directory would take each other's files for those of
killed writers, and remove them. So where files lie already, the new table gets a directory beside.

A REST catalog makes the choice itself, on its server.
"""

from __future__ import annotations

from typing import Any, cast

from pyiceberg.catalog import MetastoreCatalog
from pyiceberg.io import load_file_io

from runtime.errors import BugError
from runtime.ids import SystemIds
from spark_jobs.tables.iceberg.upkeep.place import listed

_RESOLVE = "_resolve_table_location"
"""pyiceberg's private name: there is no public one for the directory that a catalog would choose."""
if not hasattr(MetastoreCatalog, _RESOLVE):
    raise BugError(f"this pyiceberg does not tell where a new table goes: it no longer has {_RESOLVE}")
_load_io: Any = load_file_io


def free_location(catalog: Any, namespace: str, name: str) -> str | None:
    """The URL of a directory without files for a table that is to be made; None: the catalog's own choice."""
    if not isinstance(catalog, MetastoreCatalog):
        return None
    chosen = str(getattr(catalog, _RESOLVE)(None, namespace, name))
    io = _load_io(dict(cast("Any", catalog).properties), chosen)
    if not any(listed(io, f"{chosen}/{folder}") for folder in ("metadata", "data")):
        return None
    return f"{chosen}-{SystemIds().uuid4().hex[:12]}"
