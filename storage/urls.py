"""`object.store.url`: read, checked, and turned into a store.

`s3://bucket/prefix?endpoint=http://H:P&region=R`, `file:///dir`, `memory://`. Credentials never stand in a URL, because
it is logged and shown: they come from the AWS chain. Messages name the wrong part and never repeat a user part.

`&client=obstore` lets obstore make the GETs; without it, or with `client=aioboto3`, aioboto3 is the only client.

`&l0=URL` (quoted) names the second store, with the L0 files. Users write `produce.store.url` instead; `joined_url`
makes one URL of both settings, so that all who pass the URL on (commands, plans for Spark) pass on both places.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlencode, urlsplit

from storage.keys import JOBS_PREFIX, BadKeyError, check_key, parse_job_key
from storage.objects import ObjectStore, StoreMisconfiguredError

if TYPE_CHECKING:
    from storage.s3.store import S3Store

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,253}[A-Za-z0-9]", re.ASCII)
_REGION = re.compile(r"[a-z0-9][a-z0-9-]{0,62}", re.ASCII)
_FORMS = "one of s3://bucket/prefix?endpoint=http://host:port&region=name, file:///directory, memory://"


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectStoreUrl:
    """A checked URL. Parts that a scheme does not have are empty."""

    scheme: Literal["s3", "file", "memory"]
    bucket: str = ""
    prefix: str = ""
    """Without slashes at its ends; every key lies under it."""
    endpoint: str = ""
    """`http(s)://host:port` of an S3-compatible server; empty = AWS."""
    region: str = ""
    """Empty = from the AWS chain."""
    client: Literal["aioboto3", "obstore"] = "aioboto3"
    """Who makes the GETs; an object's bytes and place do not depend on it."""
    directory: Path = Path("/")
    l0: ObjectStoreUrl | None = None
    """The second store, with the L0 files."""
    l0_writes: bool = True
    """Whether new L0 files go to the second store; its present ones are read and deleted in any case."""

    def __str__(self) -> str:
        """The URL in its normal form."""
        if self.scheme == "memory":
            return "memory://"
        if self.scheme == "file":
            query = urlencode(self._l0_parameters())
            return self.directory.as_uri() + (f"?{query}" if query else "")
        client = self.client if self.client != "aioboto3" else ""
        parameters = {"endpoint": self.endpoint, "region": self.region, "client": client, **self._l0_parameters()}
        query = urlencode({name: value for name, value in parameters.items() if value})
        return (
            f"s3://{self.bucket}" + (f"/{quote(self.prefix)}" if self.prefix else "") + (f"?{query}" if query else "")
        )

    def _l0_parameters(self) -> dict[str, str]:
        if self.l0 is None:
            return {}
        return {"l0": str(self.l0)} if self.l0_writes else {"l0": str(self.l0), "l0_writes": "no"}


def joined_url(url: str, l0_url: str, *, writes: bool) -> str:
    """`object.store.url` and `produce.store.url` as one URL. A URL that names its second store already stays as it is.

    Raises StoreMisconfiguredError.
    """
    if not url or not l0_url:
        return url
    place = parse_store_url(url)
    if place.l0 is not None:
        return url
    return str(_with_second(place, l0_url, writes=writes))


def parse_store_url(url: str) -> ObjectStoreUrl:
    """Read a URL. Raises StoreMisconfiguredError that names the wrong part and what to write instead."""
    try:
        parts = urlsplit(url)
        has_user = parts.username is not None or parts.password is not None
    except ValueError:  # neither quoted nor chained: its message may contain a part of a secret
        raise StoreMisconfiguredError("object.store.url cannot be read", remedy=f"write {_FORMS}") from None
    if has_user:
        raise _credentials("object.store.url")
    if parts.fragment:
        raise StoreMisconfiguredError("object.store.url has a '#' part", remedy="write '#' in a name as %23")
    match parts.scheme:
        case "s3":
            return _parse_s3(parts)
        case "file":
            return _parse_file(parts)
        case "memory":
            if parts.netloc or parts.path not in ("", "/") or parts.query:
                raise StoreMisconfiguredError("object.store.url memory:// takes nothing after it")
            return ObjectStoreUrl(scheme="memory")
        case scheme:
            raise StoreMisconfiguredError(f"object.store.url has the scheme {scheme!r}", remedy=f"write {_FORMS}")


def object_url(store: ObjectStoreUrl, key: str) -> str:
    """The URL of an object of a merge job, for a process elsewhere. Raises StoreMisconfiguredError for `memory://`."""
    # The other process may lack what an optional client needs.
    l0 = None if store.l0 is None else replace(store.l0, client="aioboto3")
    whole, question, query = str(replace(store, client="aioboto3", l0=l0)).partition("?")
    if store.scheme == "memory":
        raise StoreMisconfiguredError(
            "object.store.url is memory://, which no other process can read", remedy="write s3:// or file://"
        )
    return f"{whole.rstrip('/')}/{quote(key)}{question}{query}"


def split_object_url(url: str) -> tuple[ObjectStoreUrl, str]:
    """The store and the key of a URL that `object_url` made. Raises StoreMisconfiguredError, BadKeyError."""
    whole, question, query = url.partition("?")
    before, slash, after = whole.rpartition(f"/{JOBS_PREFIX}")
    if not slash:
        raise BadKeyError(f"{whole!r} does not lead to the plan of a merge job (.../jobs/job id/fingerprint/name)")
    key = unquote(JOBS_PREFIX + after)
    parse_job_key(key)
    return parse_store_url(f"{before}{question}{query}"), key


def open_store(url: ObjectStoreUrl | str, *, must_exist: bool = False) -> ObjectStore:
    """The bare store for a URL, without wrappers. `SupportsOpen` stores (S3, directory) need `open()` before use.

    `must_exist`: opening makes no directory (a bucket is never made). Every `memory://` is a new, empty store. Raises
    StoreMisconfiguredError.
    """
    place = parse_store_url(url) if isinstance(url, str) else url
    if place.l0 is not None:
        from storage.by_level import ByLevel

        first = open_store(replace(place, l0=None), must_exist=must_exist)
        second = _open_one(place.l0, must_exist=must_exist, setting="produce.store.url")
        return ByLevel(first, second, writes=place.l0_writes)
    return _open_one(place, must_exist=must_exist, setting="object.store.url")


def _open_one(place: ObjectStoreUrl, *, must_exist: bool, setting: str) -> ObjectStore:
    """`setting`: the one that names the store, for the remedies of its errors."""
    if place.scheme == "s3":
        from storage.s3.store import S3Store  # costs 0.3 s of imports, which the other stores need not pay

        kind = S3Store if place.client == "aioboto3" else _obstore_gets()
        return kind(
            bucket=place.bucket, prefix=place.prefix, endpoint=place.endpoint, region=place.region, setting=setting
        )
    if place.scheme == "file":
        from storage.local import LocalStore

        return LocalStore(place.directory, must_exist=must_exist, setting=setting)
    from storage.memory import MemoryStore

    return MemoryStore()


def _obstore_gets() -> type[S3Store]:
    try:
        from storage.s3.obstore_gets import ObstoreGets
    except ModuleNotFoundError as error:
        if error.name is None or not error.name.startswith("obstore"):
            raise
        raise StoreMisconfiguredError(
            "object.store.url says client=obstore, which is not installed",
            remedy="in Siltstone's clone: pip install -c constraints.txt '.[fast-s3]', or take client=obstore out",
        ) from None
    return ObstoreGets


def _parse_s3(parts: SplitResult) -> ObjectStoreUrl:
    bucket = parts.netloc
    if _BUCKET.fullmatch(bucket) is None:
        raise StoreMisconfiguredError(
            # The text before an "@" further on may be a key and its secret.
            f"object.store.url names {'no bucket' if ':' in bucket else f'the bucket {bucket!r}'}",
            remedy="write s3://bucket/prefix, 3 to 255 letters, digits, . _ -",
        )
    prefix = unquote(parts.path).strip("/")
    if prefix:
        try:
            check_key(prefix)
        except BadKeyError as error:
            raise StoreMisconfiguredError(f"object.store.url has a bad prefix: {error.message}") from None
    parameters = _parameters(parts, ("endpoint", "region", "client"), "s3:// takes endpoint, region and client")
    endpoint = _parse_endpoint(parameters["endpoint"]) if "endpoint" in parameters else ""
    region = parameters.get("region", "")
    if "region" in parameters and _REGION.fullmatch(region) is None:
        raise StoreMisconfiguredError(f"object.store.url has the region {region!r}", remedy="e.g. region=eu-central-1")
    client = parameters.get("client", "aioboto3")
    if client != "aioboto3" and client != "obstore":
        raise StoreMisconfiguredError(
            f"object.store.url has the client {client!r}", remedy="write client=aioboto3 or client=obstore"
        )
    place = ObjectStoreUrl(scheme="s3", bucket=bucket, prefix=prefix, endpoint=endpoint, region=region, client=client)
    return _with_parameters(place, parameters)


def _parameters(parts: SplitResult, takes: tuple[str, ...], remedy: str) -> dict[str, str]:
    parameters: dict[str, str] = {}
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name not in (*takes, "l0", "l0_writes"):
            # Credentials in a parameter: say so, and do not show the value.
            if "key" in name.lower() or "secret" in name.lower() or "token" in name.lower():
                raise _credentials("object.store.url")
            raise StoreMisconfiguredError(f"object.store.url has the parameter {name!r}", remedy=remedy)
        if name in parameters:
            raise StoreMisconfiguredError(f"object.store.url has the parameter {name!r} twice")
        parameters[name] = value
    return parameters


def _with_parameters(place: ObjectStoreUrl, parameters: dict[str, str]) -> ObjectStoreUrl:
    writes = parameters.get("l0_writes", "yes")
    if writes not in ("yes", "no") or ("l0_writes" in parameters and "l0" not in parameters):
        raise StoreMisconfiguredError("object.store.url has l0_writes without l0, or it is neither yes nor no")
    return _with_second(place, parameters["l0"], writes=writes == "yes") if "l0" in parameters else place


def _with_second(place: ObjectStoreUrl, url: str, *, writes: bool) -> ObjectStoreUrl:
    try:
        second = parse_store_url(url)
    except StoreMisconfiguredError as error:
        message = error.message.replace("object.store.url", "produce.store.url")
        raise StoreMisconfiguredError(message, remedy=error.remedy) from None
    if "memory" in (place.scheme, second.scheme):
        raise StoreMisconfiguredError(
            "produce.store.url takes no memory://, neither for itself nor beside it", remedy="write s3:// or file:///"
        )
    if second.l0 is not None:
        raise StoreMisconfiguredError("produce.store.url names a third store", remedy="take l0= out of it")
    if replace(second, client=place.client, region=place.region) == place:
        raise StoreMisconfiguredError(
            "produce.store.url is the same place as object.store.url",
            remedy="give it a bucket or a prefix of its own, or leave it empty",
        )
    return replace(place, l0=second, l0_writes=writes)


def _parse_endpoint(text: str) -> str:
    remedy = "write endpoint=http://host:port or https://host"
    try:
        parts = urlsplit(text)
        if parts.username is not None or parts.password is not None:
            raise _credentials("the endpoint in object.store.url")
        if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0:
            quoted = "a wrong endpoint" if "@" in text else f"the endpoint {text!r}"
            raise StoreMisconfiguredError(f"object.store.url has {quoted}", remedy=remedy)
    except ValueError:  # as above
        raise StoreMisconfiguredError("object.store.url has an endpoint that cannot be read", remedy=remedy) from None
    if parts.path not in ("", "/") or parts.query or parts.fragment:
        quoted = "" if "@" in text else f": {text!r}"
        raise StoreMisconfiguredError(f"object.store.url has an endpoint with a path{quoted}", remedy=remedy)
    return f"{parts.scheme}://{parts.netloc}"


def _parse_file(parts: SplitResult) -> ObjectStoreUrl:
    if parts.netloc not in ("", "localhost"):
        raise StoreMisconfiguredError(
            f"object.store.url names the host {parts.netloc!r}",
            remedy="write three slashes: file:///absolute/directory",
        )
    if parts.query and "l0" not in dict(parse_qsl(parts.query)):
        raise StoreMisconfiguredError(
            "object.store.url file:// takes no parameters", remedy="write '?' in a name as %3F"
        )
    parameters = _parameters(parts, (), "write '?' in a name as %3F")
    path = unquote(parts.path)
    if not path.startswith("/") or "\0" in path or ".." in path.split("/") or not path.strip("/"):
        raise StoreMisconfiguredError(
            f"object.store.url names the directory {path!r}", remedy="write file:///absolute/directory, without '..'"
        )
    return _with_parameters(ObjectStoreUrl(scheme="file", directory=Path(path)), parameters)


def _credentials(where: str) -> StoreMisconfiguredError:
    return StoreMisconfiguredError(
        f"{where} carries credentials",
        remedy="take them out; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, a profile or a role instead",
    )
