"""Iceberg catalogs, opened by pyiceberg.

The default is pyiceberg's SQL catalog in the Postgres that holds our metadata, in a schema of its own
(`siltstone_tables`), so that one backup holds both and nothing of ours shares a name with it. It is made on first use,
under an advisory lock, because pyiceberg looks for its tables and then makes them, which two processes at once cannot
do.

Errors of a catalog come from pyiceberg, SQLAlchemy, psycopg2 or an HTTP client and have no common root: `asked` turns
all but pyiceberg's own into one of ours.
"""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Mapping
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from runtime.errors import SiltstoneError, UnavailableError
from runtime.passwords import HOW_TO_WRITE, UNREADABLE, place_in
from runtime.text import first_line
from spark_jobs.environment import INSTALL_TABLES
from spark_jobs.scan.arrow import MissingExtraError
from spark_jobs.tables.errors import BadTableError, PlaceUnavailableError
from spark_jobs.tables.file_systems import FILE_IO, bare_url, io_properties
from storage.urls import parse_store_url

SCHEMA = "siltstone_tables"
NAME = "siltstone"
LOCK = 0x5117_7AB1
"""The key of pg_advisory_lock while the catalog's tables are made."""
CONNECT_TIMEOUT_S = 10
FORMS = "postgresql://, sqlite:///, http(s)://, glue://REGION[/CATALOG_ID], or a name in pyiceberg's configuration"
_REGION = re.compile(r"([a-z]+(-[a-z0-9]+)+)?")
_LIBPQ = ("sslmode", "sslrootcert", "sslcert", "sslkey", "host", "port", "user", "dbname", "passfile", "service")


class CatalogUnavailableError(UnavailableError):
    """The catalog does not answer, or refuses us."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogPlace:
    """The name of a catalog and where its tables go."""

    url: str = ""
    """postgresql://..., sqlite:///FILE, http(s)://... of a REST catalog, glue://REGION[/CATALOG_ID], or the name of one
    in pyiceberg's own configuration. Properties of a catalog `siltstone` in that configuration, or in the environment,
    apply to every URL, which keeps secrets out of it."""
    warehouse: str = ""
    """The place of new tables, in the form of an object store's URL; its endpoint and region apply to all files."""
    properties: Mapping[str, str] = field(default_factory=dict[str, str])
    """More properties of pyiceberg's; they win."""


def open_catalog(place: CatalogPlace) -> Any:
    """A `pyiceberg.catalog.Catalog`. Raises MissingExtraError, BadTableError, CatalogUnavailableError."""
    try:
        from pyiceberg.catalog import load_catalog
    except ModuleNotFoundError as error:
        raise missing("pyiceberg") from error
    properties = properties_of(place)
    if "://" not in place.url:
        _check_configured(place)
    load: Any = load_catalog
    with asked(shown(place)):
        try:
            if _in_postgres(place):
                with closing(_connect(place)) as connection:
                    return _made(connection, lambda: load(NAME, **properties))
            return load(place.url if "://" not in place.url else NAME, **properties)
        except ModuleNotFoundError as error:
            raise missing(error.name or "a module") from error


def properties_of(place: CatalogPlace) -> Mapping[str, str]:
    """pyiceberg's properties, with which any program opens the catalog: `load_catalog("siltstone", **properties)`. They
    include the password if the catalog's URL has one. Raises BadTableError.
    """
    return {**_files(place), **_kind(place), **place.properties}


def _check_configured(place: CatalogPlace) -> None:
    """Raises BadTableError for a name that pyiceberg's configuration does not have."""
    from pyiceberg.catalog import list_catalogs

    known = list_catalogs()
    if place.url.lower() in known or {"uri", "type"} & set(place.properties):
        return
    raise BadTableError(
        f"--catalog {place.url!r} is no URL, and no catalog in pyiceberg's configuration"
        + (f", which has {', '.join(map(repr, known))}" if known else ", which has none"),
        remedy="add it to .pyiceberg.yaml here, at home or in $PYICEBERG_HOME, or write its URL",
    )


def as_yaml(properties: Mapping[str, str]) -> str:
    """A whole `.pyiceberg.yaml`; strings of JSON are strings of YAML."""
    lines = [f"    {json.dumps(name)}: {json.dumps(value)}\n" for name, value in properties.items()]
    return f"catalog:\n  {NAME}:\n{''.join(lines)}"


def shown(place: CatalogPlace) -> str:
    """The catalog in a message: without user, password and parameters."""
    if "://" not in place.url:
        return f"the Iceberg catalog {place.url!r}"
    scheme, _, where = place.url.partition("://")
    if scheme == "glue":
        region = where.partition("/")[0]
        return f"the Iceberg catalog in AWS Glue{', region ' if region else ''}{region}"
    where = place_in(place.url)
    return f"the Iceberg catalog at {where if where == UNREADABLE else f'{scheme}://{where}'}"


def make_namespace(catalog: Any, namespace: str) -> None:
    """Make it unless it exists; other processes may make it at the same time."""
    # Asked first: a user who may fill a namespace need not have the right to create one.
    if catalog.namespace_exists(namespace):
        return
    try:
        catalog.create_namespace_if_not_exists(namespace)
    except Exception:  # a catalog in SQL has no common error for the row that another process has just written
        if not catalog.namespace_exists(namespace):
            raise


@contextmanager
def asked(catalog: str, known: tuple[type[Exception], ...] = ()) -> Generator[None]:
    """A block around calls of pyiceberg: any error that is neither ours nor `known` becomes CatalogUnavailableError."""
    try:
        yield
    except (SiltstoneError, *known):
        raise
    except Exception as error:
        said = _cause(error)
        if type(error).__module__ == "builtins" and isinstance(error, OSError):  # from the file system below pyiceberg
            raise PlaceUnavailableError(
                f"files of the Iceberg table cannot be read or written: {said}",
                remedy="check the place of the table (--warehouse, where new ones go) and the rights to it",
            ) from error
        if _unanswered(error, said):
            raise CatalogUnavailableError(
                f"{catalog} does not answer: {said}",
                remedy="check that it runs and can be reached from here; --catalog URL names another",
            ) from error
        raise CatalogUnavailableError(
            f"{catalog} refuses or fails: {said}",
            remedy="check --catalog, --catalog-property (credentials, warehouse) and --warehouse",
        ) from error


def _unanswered(error: BaseException, said: str) -> bool:
    """Judge by kind, without loading the libraries that the error may come from."""
    kinds = {each.__name__ for each in type(error).__mro__}
    if "FATAL:" in said or type(getattr(error, "orig", None)).__module__ == "sqlite3":
        return False  # it did answer, or is a file
    return bool(kinds & {"OperationalError", "ConnectionError", "Timeout", "ConnectTimeout", "ServiceUnavailableError"})


def missing(name: str) -> MissingExtraError:
    return MissingExtraError(f"Iceberg tables need {name}, which is not installed", remedy=INSTALL_TABLES)


def shown_of(catalog: Any) -> str:
    """An open catalog in a message."""
    told: Mapping[str, str] = catalog.properties
    if told.get("type") == "glue":
        return shown(CatalogPlace(url=f"glue://{told.get('glue.region', '')}"))
    return shown(CatalogPlace(url=told.get("uri") or catalog.name))


def _files(place: CatalogPlace) -> dict[str, str]:
    if not place.warehouse:
        return {}
    if "://" not in place.warehouse:  # the name of a warehouse that a REST catalog knows
        return {"warehouse": place.warehouse}
    where = parse_store_url(place.warehouse)
    return {**io_properties(where), "warehouse": bare_url(where)}


def _kind(place: CatalogPlace) -> dict[str, str]:
    # None of these texts is quoted: it may hold a password.
    if "://" not in place.url and any(each in place.url for each in "@=/"):
        raise BadTableError(
            "--catalog is neither a URL nor a name",
            remedy=f"write {FORMS}",
        )
    if _in_postgres(place) and place_in(place.url) == UNREADABLE:
        raise BadTableError("the URL of the Iceberg catalog's Postgres cannot be read", remedy=HOW_TO_WRITE)
    scheme = _scheme(place.url)
    if _in_postgres(place):
        return {"type": "sql", "uri": sqlalchemy_url(place.url), "pool_pre_ping": "true"}
    if scheme == "sqlite":
        return {"type": "sql", "uri": place.url}
    if scheme in ("http", "https"):
        # Some catalogs tell their clients to use another file IO, which we do not install.
        return {"type": "rest", "uri": place.url, "py-io-impl": FILE_IO}
    if scheme == "glue":
        return _glue(place.url.removeprefix("glue://"))
    if "://" in place.url:
        raise BadTableError(
            f"--catalog has the scheme {scheme!r}",
            remedy=f"write {FORMS}",
        )
    return {}


def _glue(where: str) -> dict[str, str]:
    """Without a region, and for the credentials, the AWS chain decides. A federated catalog has slashes in its id."""
    region, _, catalog_id = where.partition("/")
    if not _REGION.fullmatch(region):
        raise BadTableError(
            f"{region.rpartition('@')[2]!r} in --catalog glue://... is no AWS region",
            remedy="write glue://REGION, glue://REGION/CATALOG_ID, or glue:// for the region of the AWS environment",
        )
    found = {"type": "glue", "glue.region": region, "glue.id": catalog_id}
    return {name: value for name, value in found.items() if value}


def _in_postgres(place: CatalogPlace) -> bool:
    return _scheme(place.url) in ("postgresql", "postgres")


def _scheme(url: str) -> str:
    """Without a driver; "" for a name in pyiceberg's configuration."""
    found, colon, _ = url.partition("://")
    return found.partition("+")[0] if colon else ""


def sqlalchemy_url(url: str) -> str:
    """The URL for psycopg2, with our schema as the only one that it sees."""
    parts = urlsplit(url)
    kept = [(name, value) for name, value in parse_qsl(parts.query) if name in _LIBPQ]
    query = urlencode([*kept, ("options", f"-csearch_path={SCHEMA}")], quote_via=quote)
    return f"postgresql+psycopg2://{parts.netloc}{parts.path}?{query}"


def _connect(place: CatalogPlace) -> Any:
    try:
        import psycopg2  # pyright: ignore[reportMissingTypeStubs, reportMissingModuleSource]
    except ModuleNotFoundError as error:
        raise missing("psycopg2") from error
    driver: Any = psycopg2
    parts = urlsplit(place.url)
    kept = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name in _LIBPQ], quote_via=quote)
    plain = f"postgresql://{parts.netloc}{parts.path}" + (f"?{kept}" if kept else "")
    try:
        connection = driver.connect(plain, connect_timeout=CONNECT_TIMEOUT_S)
        connection.autocommit = True
        return connection
    except driver.Error as error:
        said = _cause(error)
        if "FATAL:" in said:  # it answered
            raise CatalogUnavailableError(
                f"the Postgres of {shown(place)} answered, but refused the connection: {said}",
                remedy="correct the user, password or database in --catalog; without --catalog, in --metadata",
            ) from error
        raise CatalogUnavailableError(
            f"the Postgres of {shown(place)} does not answer: {said}",
            remedy="start that Postgres, or correct the host and port in --catalog; without --catalog, in --metadata",
        ) from error


def _made(connection: Any, load: Any) -> Any:
    """Make the schema if need be, and load the catalog while nobody else makes its tables."""
    with connection.cursor() as cursor:
        cursor.execute("SELECT pg_advisory_lock(%s)", (LOCK,))
        # Asked first: CREATE SCHEMA IF NOT EXISTS needs the right to create even where the schema exists.
        cursor.execute("SELECT 1 FROM pg_namespace WHERE nspname = %s", (SCHEMA,))
        if cursor.fetchone() is None:
            try:
                cursor.execute(f"CREATE SCHEMA {SCHEMA}")
            except Exception as error:
                raise CatalogUnavailableError(
                    f"the schema {SCHEMA} cannot be made: {first_line(error)}",
                    remedy=f"as a user who may: CREATE SCHEMA {SCHEMA} AUTHORIZATION <user>; or give --catalog",
                ) from error
        return load()  # the lock ends with the connection


def _cause(error: BaseException) -> str:
    """The message of the innermost error, in one line: the outer ones tell of pools and retries."""
    said = first_line(error)
    seen: set[int] = set()
    while id(error) not in seen:
        seen.add(id(error))
        pooled = getattr(error.args[0], "reason", None) if error.args else None  # an error of requests
        if isinstance(pooled, Exception):
            return first_line(pooled).partition("): ")[2] or first_line(pooled)
        error = error.__cause__ or error
    deepest = first_line(error)
    return deepest if len(deepest) < len(said) else said
