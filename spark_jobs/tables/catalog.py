"""Iceberg catalogs, as pyiceberg opens them.

Unless another is named, it is pyiceberg's SQL catalog in the Postgres that holds our metadata, in a schema of its own
(`siltstone_tables`), so that one backup holds both and nothing of ours shares a name with it. It is made on first use,
under an advisory lock: pyiceberg looks whether its tables are there and then makes them, which two at once cannot.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from siltstone.errors import UnavailableError
from spark_jobs.scan.arrow import MissingExtraError
from spark_jobs.tables.errors import BadTableError
from spark_jobs.tables.file_systems import bare_url, io_properties
from storage.urls import parse_store_url

SCHEMA = "siltstone_tables"
NAME = "siltstone"
LOCK = 0x5117_7AB1
"""Of pg_advisory_lock, while the catalog's tables are made."""
CONNECT_TIMEOUT_S = 10
_LIBPQ = ("sslmode", "sslrootcert", "sslcert", "sslkey", "host", "port", "user", "dbname", "passfile", "service")


class CatalogUnavailableError(UnavailableError):
    """The catalog does not answer, or refuses us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPlace:
    """What names a catalog."""

    url: str = ""
    """postgresql://..., sqlite:///FILE, http(s)://... of a REST catalog, or the name of one in pyiceberg's own
    configuration."""
    warehouse: str = ""
    """Where new tables go, in the form of an object store's URL; endpoint and region count for all files."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    """More of pyiceberg's; they win."""


def open_catalog(place: CatalogPlace) -> Any:
    """A `pyiceberg.catalog.Catalog`. Raises MissingExtraError, BadTableError, CatalogUnavailableError."""
    try:
        from pyiceberg.catalog import load_catalog
    except ModuleNotFoundError as error:
        raise missing("pyiceberg") from error
    properties = {**_files(place), **_kind(place), **place.properties}
    load: Any = load_catalog
    scheme = place.url.partition("://")[0].partition("+")[0]
    try:
        if scheme in ("postgresql", "postgres"):
            with closing(_connect(place.url)) as connection:
                return _made(connection, lambda: load(NAME, **properties))
        return load(place.url if "://" not in place.url else NAME, **properties)
    except (MissingExtraError, BadTableError, CatalogUnavailableError):
        raise
    except ModuleNotFoundError as error:
        raise missing(error.name or "a module") from error
    except Exception as error:  # of pyiceberg, SQLAlchemy, the HTTP client: no common root
        raise CatalogUnavailableError(f"the catalog cannot be opened: {_first_line(error)}") from error


def missing(name: str) -> MissingExtraError:
    return MissingExtraError(
        f"Iceberg tables need {name}, which is not installed", remedy="pip install 'siltstone[tables]'"
    )


def _files(place: CatalogPlace) -> dict[str, str]:
    if not place.warehouse:
        return {}
    if "://" not in place.warehouse:  # the name of a warehouse that a REST catalog knows
        return {"warehouse": place.warehouse}
    where = parse_store_url(place.warehouse)
    return {**io_properties(where), "warehouse": bare_url(where)}


def _kind(place: CatalogPlace) -> dict[str, str]:
    scheme = place.url.partition("://")[0].partition("+")[0]
    if scheme in ("postgresql", "postgres"):
        return {"type": "sql", "uri": sqlalchemy_url(place.url), "pool_pre_ping": "true"}
    if scheme == "sqlite":
        return {"type": "sql", "uri": place.url}
    if scheme in ("http", "https"):
        return {"type": "rest", "uri": place.url}
    if "://" in place.url:
        raise BadTableError(
            f"a catalog with scheme {scheme!r}",
            remedy="postgresql://, sqlite:///, http(s)://, or a name in pyiceberg's configuration",
        )
    return {}


def sqlalchemy_url(url: str) -> str:
    """For psycopg2, with our schema as the only one that it sees."""
    parts = urlsplit(url)
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name in _LIBPQ]
    query = urlencode([*kept, ("options", f"-csearch_path={SCHEMA}")], quote_via=quote)
    return f"postgresql+psycopg2://{parts.netloc}{parts.path}?{query}"


def _connect(url: str) -> Any:
    try:
        import psycopg2  # pyright: ignore[reportMissingTypeStubs, reportMissingModuleSource]
    except ModuleNotFoundError as error:
        raise missing("psycopg2") from error
    driver: Any = psycopg2
    parts = urlsplit(url)
    kept = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name in _LIBPQ], quote_via=quote)
    plain = f"postgresql://{parts.netloc}{parts.path}" + (f"?{kept}" if kept else "")
    try:
        connection = driver.connect(plain, connect_timeout=CONNECT_TIMEOUT_S)
        connection.autocommit = True
        return connection
    except driver.Error as error:
        raise CatalogUnavailableError(f"the catalog's Postgres does not let us in: {_first_line(error)}") from error


def _made(connection: Any, load: Any) -> Any:
    """With the schema there, and nobody else making the catalog's tables meanwhile."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        cursor.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (SCHEMA,))
        if cursor.fetchone() is None:
            try:
                cursor.execute(f"CREATE SCHEMA {SCHEMA}")
            except Exception as error:
                raise CatalogUnavailableError(
                    f"the schema {SCHEMA} cannot be made: {_first_line(error)}",
                    remedy=f"as a user who may: CREATE SCHEMA {SCHEMA} AUTHORIZATION <user>; or give --catalog",
                ) from error
        return load()  # the lock ends with the connection


def _first_line(error: Exception) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]
