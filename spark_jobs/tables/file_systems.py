"""pyarrow's file systems and pyiceberg's properties for the URLs of our object stores.

Neither holds credentials: pyarrow finds them as the AWS chain does (environment, profile, role).
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from spark_jobs.tables.errors import BadTableError
from storage.objects import StoreMisconfiguredError
from storage.urls import ObjectStoreUrl, parse_store_url

FILE_IO = "pyiceberg.io.pyarrow.PyArrowFileIO"


def parse_place(url: str, option: str) -> ObjectStoreUrl:
    """Read a place for tables. The BadTableError names `option`."""
    forms = "DIR, s3://BUCKET/PREFIX?endpoint=http://HOST:PORT&region=NAME or file:///DIR"
    try:
        place = parse_store_url(url)
    except StoreMisconfiguredError as error:
        message = error.message.replace("object.store.url", option)
        remedy = f"write {forms}" if "scheme" in message else error.remedy or f"write {forms}"
        raise BadTableError(message, remedy=remedy) from None
    if place.scheme == "memory":
        raise BadTableError(
            f"{option} is memory://, which holds no files that others could read", remedy=f"write {forms}"
        )
    return place


def file_system(url: str) -> tuple[Any, str]:
    """A `pyarrow.fs.FileSystem`, and the path of the URL's directory in it. Raises StoreMisconfiguredError,
    BadTableError.
    """
    import pyarrow.fs as _fs  # pyright: ignore[reportMissingTypeStubs]

    fs: Any = _fs
    place = parse_store_url(url)
    if place.scheme == "file":
        return fs.LocalFileSystem(), str(place.directory)
    if place.scheme != "s3":
        raise BadTableError(f"{place.scheme}:// holds no files that others could read")
    options: dict[str, Any] = {}
    if place.endpoint:
        scheme, _, host = place.endpoint.partition("://")
        options = {"endpoint_override": host, "scheme": scheme}
    if place.region:
        options["region"] = place.region
    return fs.S3FileSystem(**options), f"{place.bucket}/{place.prefix}".rstrip("/")


def io_properties(place: ObjectStoreUrl) -> dict[str, str]:
    """Properties of pyiceberg's file IO for the endpoint and region of an object store."""
    properties = {"py-io-impl": FILE_IO}
    if place.endpoint:
        properties["s3.endpoint"] = place.endpoint
    if place.region:
        properties["s3.region"] = place.region
    return properties


def bare_url(place: ObjectStoreUrl) -> str:
    """The URL without endpoint and region, as locations in an Iceberg table. Raises BadTableError."""
    if place.scheme == "file":
        return place.directory.as_uri()
    if place.scheme != "s3":
        raise BadTableError(f"{place.scheme}:// holds no files that others could read")
    return f"s3://{place.bucket}" + (f"/{place.prefix}" if place.prefix else "")


def check_outside(destination: ObjectStoreUrl, records: str) -> None:
    """Refuse a table among the records, which the janitor sweeps, or in their second store. Raises BadTableError."""
    if not records:
        return
    first = parse_store_url(records)
    for theirs in (replace(first, l0=None), first.l0):
        if theirs is not None and _lies_in(destination, theirs):
            raise BadTableError(
                f"{destination} lies in the object store of the records ({theirs})",
                remedy="name a place beside it (--to, --dead-letters, --warehouse): the janitor deletes all else there",
            )


def check_apart(table: ObjectStoreUrl, dead_letters: ObjectStoreUrl) -> None:
    """Refuse two tables of files of which readers of one would see the other's. Raises BadTableError."""
    if _lies_in(table, dead_letters) or _lies_in(dead_letters, table):
        raise BadTableError(
            f"the table {table} and its dead letters {dead_letters} lie inside of each other",
            remedy="name a directory beside it by --dead-letters",
        )


def _lies_in(destination: ObjectStoreUrl, theirs: ObjectStoreUrl) -> bool:
    if destination.scheme != theirs.scheme:
        return False
    if destination.scheme == "file":
        return destination.directory.is_relative_to(theirs.directory)
    same = (destination.bucket, destination.endpoint) == (theirs.bucket, theirs.endpoint)
    return same and f"{destination.prefix}/".startswith(f"{theirs.prefix}/" if theirs.prefix else "")
