"""Passwords in AWS Secrets Manager. The credentials are those of the process, as for the object store."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final, cast

from runtime.errors import SiltstoneError

TIMEOUT_S: Final = 5.0
DENIED: Final = "AccessDeniedException"
CURRENT: Final = "AWSCURRENT"
PREVIOUS: Final = "AWSPREVIOUS"
ARN: Final = re.compile(r"arn:[a-z-]+:secretsmanager:([a-z0-9-]+):\d{12}:secret:\S+")


class SecretUnreadableError(SiltstoneError):
    """The secret cannot be read or written now, or has no password."""


class EmptySecretError(SecretUnreadableError):
    """The secret has no value yet, or is not there: Secrets Manager does not tell which."""


class SecretMalformedError(SecretUnreadableError):
    """The secret has a value without a password."""


class SecretDeniedError(SecretUnreadableError):
    """This process may not do that with the secret."""


@dataclass(frozen=True, slots=True)
class ReadSecret:
    """The passwords of a secret, the current one first, then the one before; and the time of the last change."""

    passwords: tuple[str, ...] = field(repr=False)
    changed_ms: int


async def read_secret(arn: str) -> ReadSecret:
    """`arn` matches ARN; the secret is JSON with `password`. Raises SecretUnreadableError: EmptySecretError,
    SecretMalformedError, SecretDeniedError, or itself for what may pass."""
    async with _client(arn) as client:
        current = await _value(client, arn, CURRENT)
        if current is None:
            remedy = "run `siltstone migrate`, and let AGENT_PGPASSWORD_SECRET or COMPACTOR_PGPASSWORD_SECRET name it"
            raise EmptySecretError(f"the secret {arn} has no value yet, or is not there", remedy=remedy)
        passwords = [_password_in(arn, current)]
        previous = await _value(client, arn, PREVIOUS)  # None: it was never changed
        if previous is not None:
            with suppress(SecretMalformedError):  # whatever it was, it is no password any more
                passwords.append(_password_in(arn, previous))
        return ReadSecret(tuple(passwords), int(current["CreatedDate"].timestamp() * 1000))


async def put_password(arn: str, password: str) -> None:
    """Make `password` the current one; the one before stays readable. Raises SecretUnreadableError: the answer may be
    lost, so it may have happened."""
    async with _client(arn) as client:
        await client.put_secret_value(SecretId=arn, SecretString=json.dumps({"password": password}))


@asynccontextmanager
async def _client(arn: str) -> AsyncGenerator[Any]:
    """A client of the secret's region. Turns every error of a call into SecretUnreadableError."""
    # here, because it takes a third of a second, and most processes need it for nothing else
    import aioboto3
    from aiobotocore.config import AioConfig
    from botocore.exceptions import BotoCoreError, ClientError

    found = ARN.fullmatch(arn)
    region = found[1] if found is not None else ""
    session: Any = aioboto3.Session()
    config = AioConfig(connect_timeout=TIMEOUT_S, read_timeout=TIMEOUT_S, retries={"total_max_attempts": 2})
    try:
        async with session.client("secretsmanager", region_name=region, config=config) as client:
            yield client
    except (BotoCoreError, ClientError, KeyError, ValueError, OSError) as error:
        # The text of a ValueError may hold a part of the secret.
        why = str(error) if isinstance(error, (BotoCoreError, ClientError)) else type(error).__name__
        is_denied = isinstance(error, ClientError) and error.response.get("Error", {}).get("Code") == DENIED
        raise (SecretDeniedError if is_denied else SecretUnreadableError)(
            f"cannot use the secret {arn}: {why}",
            remedy="this process must reach Secrets Manager, and needs secretsmanager:GetSecretValue"
            " (`siltstone migrate` secretsmanager:PutSecretValue too)",
        ) from None


async def _value(client: Any, arn: str, stage: str) -> dict[str, Any] | None:
    """One version of the secret; None if the secret has none of that stage, or is not there."""
    try:
        return await client.get_secret_value(SecretId=arn, VersionStage=stage)
    except client.exceptions.ResourceNotFoundException:
        return None


def _password_in(arn: str, version: Mapping[str, Any]) -> str:
    """Raises SecretMalformedError."""
    try:
        read: object = json.loads(version.get("SecretString", ""))  # it has none if its value is binary
    except ValueError:
        read = None  # the error's text may hold a part of the secret
    password = cast("dict[str, object]", read).get("password") if isinstance(read, dict) else None
    if not isinstance(password, str) or not password:
        raise SecretMalformedError(
            f"cannot use the secret {arn}: it is not JSON with `password`",
            remedy='write {"password": ...} into it; or run `siltstone migrate --new-passwords` for a new one',
        )
    return password
