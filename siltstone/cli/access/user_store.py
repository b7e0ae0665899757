"""Where the users are changed: by an agent, over the Kafka protocol, or in Postgres itself (`--direct`).

The first user of a cluster cannot be made by an agent that lets in only users. `--direct` needs the rights of Postgres
instead.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import wraps
from pathlib import Path
from typing import Any, Protocol, TypeVar

import click

from metadata.security.contract import SecurityMetadata, UserChange
from runtime.errors import BadInputError
from runtime.passwords import place_in
from security.scram import Mechanism, credential_of, salted_password
from siltstone.cli.options.agent_options import bootstrap_of, bootstrap_option
from siltstone.cli.options.data_option import data_option, is_typed
from siltstone.cli.options.setting_options import read_settings
from siltstone.cli.options.system_options import default_data, opened_metadata
from siltstone.embedded.attach import attach
from siltstone.kafka.access import users as calls
from siltstone.kafka.client import ConnectionLostError, KafkaClient, connected
from siltstone.kafka.security.authenticating import LoginError
from siltstone.kafka.security.values import CLIENT_SECURITY
from siltstone.terminal.plain import say
from wire.messages.scram_credentials import ScramCredentialUpsertion

T = TypeVar("T")
Known = Mapping[str, Mapping[Mechanism, int]]
"""By user, the iterations of each credential."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NewPassword:
    mechanism: Mechanism
    password: str = field(repr=False)
    salt: bytes
    iterations: int


class UserStore(Protocol):
    async def known(self, doing: str) -> Known:
        """`doing`: what for, in an error."""
        ...

    def came_in_by(self, name: str, mechanisms: Sequence[Mechanism]) -> bool:
        """Whether this command proved itself by one of them."""
        ...

    async def set_passwords(self, name: str, passwords: Sequence[NewPassword]) -> None: ...

    async def remove(self, name: str, mechanisms: Sequence[Mechanism]) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """How the command line says where to go."""

    data: Path | None
    bootstrap: str
    direct: bool
    config: Path | None


def way_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add `--bootstrap`, `--data`, `--direct` and `--config`; the command gets them as `way`."""

    @bootstrap_option
    @data_option("Use the agents, or with --direct the Postgres, of the `siltstone dev` in this directory.")
    @click.option(
        "--direct",
        is_flag=True,
        help="Go to Postgres instead of an agent: for the first user. It is that of --data, or metadata.url of"
        " SILTSTONE_METADATA_URL or --config, or without these that of ./siltstone-data.",
    )
    @click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="With --direct: a TOML file with settings, of which metadata.url counts.",
    )
    @wraps(command)
    def with_way(*args: Any, bootstrap: str, data: Path | None, direct: bool, config: Path | None, **kwargs: Any) -> T:
        if config is not None and not direct:
            raise click.UsageError("--config counts only with --direct")
        return command(*args, way=Way(data=data, bootstrap=bootstrap, direct=direct, config=config), **kwargs)

    return with_way


@asynccontextmanager
async def opened_users(way: Way) -> AsyncGenerator[UserStore]:
    """Raises NoAgentError, BadInputError, and the errors of opening Postgres."""
    if way.direct:
        async with opened_security(way.data, way.config) as metadata:
            yield _InPostgres(metadata)
        return
    async with connected(bootstrap_of(way.data, way.bootstrap)) as client:
        yield _ByAgent(client)


@asynccontextmanager
async def opened_security(data: Path | None, config: Path | None) -> AsyncGenerator[SecurityMetadata]:
    """The Postgres of `data`, or that of the settings. Raises BadInputError, and the errors of opening Postgres."""
    if data is not None and config is not None:
        # One comes from a variable, or both were typed.
        if is_typed("data"):
            raise click.UsageError("--data already names the whole system: give either --data or --config, not both")
        data = None
    settings = read_settings(config, ())
    if data is None and not settings.metadata_url:
        if config is not None:
            raise BadInputError(
                f"{config} sets no metadata.url, nor does SILTSTONE_METADATA_URL; nothing was done",
                remedy="write metadata.url into the file, or name a directory of `siltstone dev` with --data instead",
            )
        data = default_data()
    # On stderr: it is no part of what was asked for.
    if data is None:
        say(f"users of the Postgres at {place_in(settings.metadata_url)}", err=True)
        async with opened_metadata(settings.metadata_url) as metadata:
            yield metadata.security
        return
    say(f"users of the Postgres in {data}", err=True)
    with attach(data) as attached:
        async with opened_metadata(attached.metadata_url) as metadata:
            yield metadata.security


class _ByAgent:
    def __init__(self, client: KafkaClient) -> None:
        self._client = client

    async def known(self, doing: str) -> Known:
        return await calls.describe_users(self._client, doing=doing)

    def came_in_by(self, name: str, mechanisms: Sequence[Mechanism]) -> bool:
        return any(self._is_own(name, each) for each in mechanisms)

    async def set_passwords(self, name: str, passwords: Sequence[NewPassword]) -> None:
        # One request for each: like Kafka, an agent refuses one that names a user twice.
        for each in self._own_last([each.mechanism for each in passwords]):
            made = next(password for password in passwords if password.mechanism is each)
            salted = salted_password(each, made.password, made.salt, made.iterations)
            upsertion = ScramCredentialUpsertion(
                name=name, mechanism=each, iterations=made.iterations, salt=made.salt, salted_password=salted
            )
            try:
                await calls.alter_users(self._client, upsertions=[upsertion])
            except ConnectionLostError:
                if not self._is_own(name, each) or not await self._is_let_in(made.password):
                    raise

    async def remove(self, name: str, mechanisms: Sequence[Mechanism]) -> None:
        for each in self._own_last(mechanisms):
            try:
                await calls.alter_users(self._client, deletions=[(name, each)])
            except ConnectionLostError:
                if not self._is_own(name, each) or await self._is_let_in(CLIENT_SECURITY.get().password):
                    raise

    @staticmethod
    def _is_own(name: str, mechanism: Mechanism) -> bool:
        """Whether this command came in by it. Then the agent closes the connection, maybe before it has answered."""
        security = CLIENT_SECURITY.get()
        return (security.username, security.mechanism) == (name, mechanism.sasl_name)

    async def _is_let_in(self, password: str) -> bool:
        try:
            async with connected(self._client.address, security=replace(CLIENT_SECURITY.get(), password=password)):
                return True
        except LoginError:
            return False

    @staticmethod
    def _own_last(mechanisms: Sequence[Mechanism]) -> Sequence[Mechanism]:
        """The mechanism that this command came in by is the last: a user who changes it loses its connections."""
        return sorted(mechanisms, key=lambda each: each.sasl_name == CLIENT_SECURITY.get().mechanism)


class _InPostgres:
    def __init__(self, metadata: SecurityMetadata) -> None:
        self._metadata = metadata

    def came_in_by(self, name: str, mechanisms: Sequence[Mechanism]) -> bool:
        return False

    async def known(self, doing: str) -> Known:
        users = (await self._metadata.security()).users
        return {name: {each: found.iterations for each, found in user.items()} for name, user in users.items()}

    async def set_passwords(self, name: str, passwords: Sequence[NewPassword]) -> None:
        await self._metadata.alter_users(
            [
                UserChange(
                    name=name,
                    mechanism=each.mechanism,
                    credential=credential_of(each.mechanism, each.password, salt=each.salt, iterations=each.iterations),
                )
                for each in passwords
            ]
        )

    async def remove(self, name: str, mechanisms: Sequence[Mechanism]) -> None:
        await self._metadata.alter_users(
            [UserChange(name=name, mechanism=each, credential=None) for each in mechanisms]
        )
