"""A password in AWS Secrets Manager. The credentials are those of the process, as for the object store."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any, Final

from runtime.errors import SiltstoneError

READ_TIMEOUT_S: Final = 5.0
CURRENT: Final = "AWSCURRENT"
PREVIOUS: Final = "AWSPREVIOUS"
ARN: Final = re.compile(r"arn:[a-z-]+:secretsmanager:([a-z0-9-]+):\d{12}:secret:\S+")


class SecretUnreadableError(SiltstoneError):
    """The secret cannot be read now, or has no password. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class ReadSecret:
    """The passwords of a secret, the current one first, then the one before; and the time of the last change."""

    passwords: tuple[str, ...] = field(repr=False)
    changed_ms: int


async def read_secret(arn: str) -> ReadSecret:
    """`arn` matches ARN; the secret is JSON with `password`. Raises SecretUnreadableError."""
    # here, because it takes a third of a second, and most processes need it for nothing else
    import aioboto3
    from aiobotocore.config import AioConfig
    from botocore.exceptions import BotoCoreError, ClientError

    found = ARN.fullmatch(arn)
    region = found[1] if found is not None else ""
    session: Any = aioboto3.Session()
    config = AioConfig(connect_timeout=READ_TIMEOUT_S, read_timeout=READ_TIMEOUT_S, retries={"total_max_attempts": 2})
    try:
        async with session.client("secretsmanager", region_name=region, config=config) as client:
            current = await client.get_secret_value(SecretId=arn, VersionStage=CURRENT)
            passwords = [_password_in(current["SecretString"])]
            try:
                previous = await client.get_secret_value(SecretId=arn, VersionStage=PREVIOUS)
                passwords.append(_password_in(previous["SecretString"]))
            except client.exceptions.ResourceNotFoundException:
                pass  # it was never changed
    except (BotoCoreError, ClientError, KeyError, ValueError, OSError) as error:
        # The text of a ValueError may hold a part of the secret.
        why = str(error) if isinstance(error, (BotoCoreError, ClientError)) else type(error).__name__
        raise SecretUnreadableError(
            f"cannot read the secret {arn}: {why}",
            remedy="the secret must be JSON with `password`, and this process needs secretsmanager:GetSecretValue",
        ) from None
    return ReadSecret(tuple(passwords), int(current["CreatedDate"].timestamp() * 1000))


def _password_in(text: str) -> str:
    """Raises ValueError, KeyError."""
    read: dict[str, str] = json.loads(text)
    return read["password"]
