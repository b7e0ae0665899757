"""The place of a table's files in a stored plan, and the place of the plan itself. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from runtime.errors import BugError
from spark_jobs.tables.errors import BadTableError
from spark_jobs.tables.file_writer import Place
from spark_jobs.tables.parquet_table import COMMITS, ParquetPlace
from storage.urls import ObjectStoreUrl, parse_store_url

_PARQUET, _ICEBERG = "parquet", "iceberg"
_S3 = re.compile(r"s3[an]?://([^/]+)/?(.*)")
_SECRET = re.compile(r"key|secret|token|password|credential|signer", re.IGNORECASE)
_OF_TASKS = ("py-io-impl", "s3.", "client.")
"""The beginnings of the names of the properties that tasks get."""


def plans_url(place: Place) -> ObjectStoreUrl:
    """The store of the plans of a table's exports: a directory of the table that readers of tables pass over.

    Raises BadTableError.
    """
    if isinstance(place, ParquetPlace):
        return _below(parse_store_url(place.objects.url), COMMITS.strip("/"))
    from spark_jobs.tables.iceberg.place import IcebergPlace  # loads pyiceberg

    if not isinstance(place, IcebergPlace):
        raise BugError("a plan cannot name this place")
    found = _S3.fullmatch(place.directory)
    if found is not None:
        told = place.properties
        url = ObjectStoreUrl(
            scheme="s3",
            bucket=found[1],
            prefix=found[2].strip("/"),
            endpoint=told.get("s3.endpoint", "").rstrip("/"),
            region=told.get("s3.region", "") or told.get("client.region", ""),
        )
        return _below(parse_store_url(str(url)), "_siltstone")
    if place.directory.startswith("file:/"):
        path = place.directory.removeprefix("file:").lstrip("/")
        return _below(parse_store_url(f"file:///{path}"), "_siltstone")
    raise BadTableError(
        f"a cluster cannot export to {place.directory}: the plan of the export is stored beside the table's files",
        remedy="take a table in s3:// or file://, or --engine process",
    )


def _below(url: ObjectStoreUrl, name: str) -> ObjectStoreUrl:
    if url.scheme == "file":
        return replace(url, directory=url.directory / name)
    return replace(url, prefix=f"{url.prefix}/{name}".lstrip("/"))


def place_json(place: Place) -> Mapping[str, Any]:
    if isinstance(place, ParquetPlace):
        return {"kind": _PARQUET, "url": place.objects.url}
    from spark_jobs.tables.iceberg.place import IcebergPlace

    if not isinstance(place, IcebergPlace):
        raise BugError("a plan cannot name this place")
    secret = sorted(name for name in place.properties if _SECRET.search(name))
    if secret:
        raise BadTableError(
            f"the catalog gives credentials for the files ({', '.join(secret)}), which may not lie in a stored plan",
            remedy="give the cluster's tasks a role of their own and take the credentials out of the catalog's"
            " properties, or take --engine process",
        )
    kept = {name: value for name, value in place.properties.items() if name.startswith(_OF_TASKS)}
    return {"kind": _ICEBERG, "directory": place.directory, "properties": kept}


def place_of(fields: Mapping[str, Any]) -> Place:
    if fields["kind"] == _PARQUET:
        from spark_jobs.tables.objects import Objects

        return ParquetPlace(objects=Objects(str(fields["url"])))
    if fields["kind"] != _ICEBERG:
        raise ValueError(f"there is no place of kind {fields['kind']!r}")
    from spark_jobs.tables.iceberg.place import IcebergPlace

    properties = {str(name): str(value) for name, value in fields["properties"].items()}
    return IcebergPlace(directory=str(fields["directory"]), properties=properties)
