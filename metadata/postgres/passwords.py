"""The password of Postgres, where `metadata.url` names its place instead of holding it.

    postgresql://role@host/db?password_file=/run/secrets/postgres
    postgresql://role@host/db?password_secret=arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME

Every new connection may need the password: after a failover, say, weeks after the process started. So a file is read
for each. A secret is kept as it was read last, because a failover must not depend on Secrets Manager: it is read again
when Postgres refuses what is kept. Between the change of a secret and the change in Postgres, Postgres still takes the
old password. So the version before (`AWSPREVIOUS`) is tried too.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import parse_qsl, quote, urlsplit

from metadata.contract.errors import MetadataUnavailableError
from metadata.postgres.driver import DRIVER_ERRORS
from runtime.errors import BugError
from runtime.secrets_manager import ARN, ReadSecret, SecretUnreadableError, read_secret

FILE: Final = "password_file"
SECRET: Final = "password_secret"  # noqa: S105 - the name of a parameter
REFUSED: Final = frozenset({"28P01", "28000"})
"""SQLSTATEs of a login that Postgres refused."""
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class PasswordPlace:
    """Where the password is: a path, or the ARN of a secret. Both empty: the URL, PGPASSWORD or PGPASSFILE have it."""

    file: str = ""
    secret_arn: str = ""


KEPT: dict[str, ReadSecret] = {}
"""By ARN, as this process read it last; the password that worked last comes first."""


def split(url: str) -> tuple[str, PasswordPlace]:
    """`url` without our parameters, which the driver would send to the server, and the place that they name.

    Raises ValueError for a URL that cannot be read, and MetadataUnavailableError for one that names two passwords.
    """
    parts = urlsplit(url)
    query = parse_qsl(parts.query, keep_blank_values=True)
    given = {name: value for name, value in query if name in (FILE, SECRET)}
    if not given:
        return url, PasswordPlace()
    place = PasswordPlace(file=given.get(FILE, ""), secret_arn=given.get(SECRET, ""))
    if len(given) > 1 or parts.password is not None or any(name == "password" for name, _ in query):
        raise MetadataUnavailableError(
            "metadata.url names more than one password", remedy=f"give one of a password, {FILE} and {SECRET}"
        )
    if place.secret_arn and ARN.fullmatch(place.secret_arn) is None:
        raise MetadataUnavailableError(
            f"{SECRET} of metadata.url is no ARN of a secret",
            remedy="write arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME",
        )
    left = "&".join(f"{name}={quote(value, safe='/:,')}" for name, value in query if name not in given)
    return parts._replace(query=left).geturl(), place


async def log_in(url: str, open_with: Callable[[str, str | None], Awaitable[T]]) -> T:
    """Open a connection by `open_with(url, password)`, with the next password as long as Postgres refuses one.

    Raises what `open_with` raises, ValueError for a URL that cannot be read, and MetadataUnavailableError.
    """
    address, place = split(url)
    refused: Exception | None = None
    async with aclosing(_passwords_at(place)) as passwords:
        async for password in passwords:
            try:
                opened = await open_with(address, password)
                _keep_first(place, password)
                return opened
            except DRIVER_ERRORS as error:
                if getattr(error, "sqlstate", None) not in REFUSED:
                    raise
                refused = error
    raise refused or BugError("no password was tried")


async def _passwords_at(place: PasswordPlace) -> AsyncGenerator[str | None]:
    """The passwords to try, in order; None is the one that the driver finds. Raises MetadataUnavailableError."""
    if place.file:
        yield await asyncio.to_thread(_read_file, place.file)
    elif place.secret_arn:
        kept = KEPT.get(place.secret_arn)
        tried = set[str]()
        for password in () if kept is None else kept.passwords:
            tried.add(password)
            yield password
        KEPT[place.secret_arn] = now = await _read(place.secret_arn)
        for password in now.passwords:
            if password not in tried:
                tried.add(password)
                yield password
    else:
        yield None


def _keep_first(place: PasswordPlace, password: str | None) -> None:
    """The next connection begins with the password that worked: until Postgres is told of a new one, the one before."""
    kept = KEPT.get(place.secret_arn)
    if kept is not None and password in kept.passwords:
        others = tuple(each for each in kept.passwords if each != password)
        KEPT[place.secret_arn] = replace(kept, passwords=(password, *others))


def changed_ms(url: str) -> int | None:
    """The time of the last change of the password that this process has read; None if it has read no secret."""
    kept = KEPT.get(split(url)[1].secret_arn)
    return None if kept is None else kept.changed_ms


def _read_file(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8").strip("\r\n")
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        raise MetadataUnavailableError(
            f"cannot read {path}, which {FILE} of metadata.url names: {why}",
            remedy="mount or write the file, so that this process may read it",
        ) from error


async def _read(arn: str) -> ReadSecret:
    try:
        return await read_secret(arn)
    except SecretUnreadableError as error:
        message = f"no password for Postgres: {error.message}"
        raise MetadataUnavailableError(message, remedy=error.remedy) from error
