"""`siltstone users`."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import click

from runtime.errors import BadInputError
from runtime.ids import SystemIds
from runtime.text import plural
from security.scram import (
    BY_SASL_NAME,
    ITERATIONS_DEFAULT,
    ITERATIONS_MAX,
    ITERATIONS_MIN,
    SALT_BYTES,
    Mechanism,
    check_name,
    is_same,
)
from siltstone.cli.access.passwords import password_option, read_password
from siltstone.cli.access.user_file import STREAM, Users, changes_of, lines_of, read_text, source_name, write_new
from siltstone.cli.access.user_store import NewPassword, UserStore, Way, opened_security, opened_users, way_options
from siltstone.cli.access.user_words import check_is_no_principal
from siltstone.cli.groups.asking import confirm
from siltstone.cli.options.data_option import data_option
from siltstone.kafka.access.users import LISTING
from siltstone.terminal.output import json_option, print_json, print_table
from siltstone.terminal.plain import say

Command = TypeVar("Command", bound=Callable[..., object])


class UserExistsError(BadInputError):
    """The user has credentials already. Nothing was changed."""


class NoSuchUserError(BadInputError):
    """The user has no credentials. Nothing was changed."""


def _mechanism_option(help_text: str) -> Callable[[Command], Command]:
    return click.option(
        "--mechanism",
        "mechanisms",
        multiple=True,
        type=click.Choice(list(BY_SASL_NAME), case_sensitive=False),
        help=help_text,
    )


def _iterations_option(command: Command) -> Command:
    return click.option(
        "--iterations",
        type=click.IntRange(ITERATIONS_MIN, ITERATIONS_MAX),
        default=ITERATIONS_DEFAULT,
        show_default=True,
        help="How much work one guess of the password costs; each login by SCRAM costs its client as much.",
    )(command)


def _place_options(command: Command) -> Command:
    with_config = click.option(
        "--config",
        type=click.Path(dir_okay=False, path_type=Path),
        metavar="FILE",
        help="A TOML file with settings, of which metadata.url counts. SILTSTONE_METADATA_URL is another way.",
    )(command)
    return data_option("The Postgres of this directory of `siltstone dev`, running or not.")(with_config)


@click.group()
def users() -> None:
    """Create, list and delete the users that log in with a password (SASL SCRAM and PLAIN).

    Agents take a change over within a second. The connections of a deleted user, and of a user with a new password,
    are closed.

    \b
    Examples:
      siltstone users create ann                   # asks for the password
      siltstone users create ann --password-file ann.txt
      siltstone users create admin --direct --config agent.toml  # the first
      siltstone users list
      siltstone users delete ann
      siltstone users export users.jsonl
    """


@users.command()
@click.argument("name", metavar="NAME")
@password_option
@_mechanism_option("The mechanism that the user may log in with. Repeatable. Default: both; PLAIN works with either.")
@_iterations_option
@way_options
def create(name: str, password_file: Path | None, mechanisms: Sequence[str], iterations: int, way: Way) -> None:
    """Create the user NAME.

    \b
    Examples:
      siltstone users create ann
      printf %s "$PASSWORD" | siltstone users create ann --password-file -
      siltstone users create admin --direct --config agent.toml
    """
    check_name(name)
    check_is_no_principal(name)
    password = read_password(password_file, name)

    async def work() -> None:
        async with opened_users(way) as store:
            if name in await store.known(f"create user {name!r}"):
                raise UserExistsError(
                    f"there is a user {name!r} already; nothing was changed",
                    remedy=f"`siltstone users set-password {name}` gives it a new password",
                )
            await _set(store, name, password, mechanisms, iterations)

    asyncio.run(work())
    say(f"created user {name}")


@users.command("set-password")
@click.argument("name", metavar="NAME")
@password_option
@_mechanism_option("Only for this mechanism. Repeatable. Default: both.")
@_iterations_option
@way_options
def set_password(name: str, password_file: Path | None, mechanisms: Sequence[str], iterations: int, way: Way) -> None:
    """Give the user NAME a new password. Connections that logged in with the old one are closed.

    \b
    Example:
      siltstone users set-password ann --password-file new.txt
    """
    password = read_password(password_file, name)

    async def work() -> None:
        async with opened_users(way) as store:
            await _check_exists(store, name, f"change the password of {name!r}")
            await _set(store, name, password, mechanisms, iterations)

    asyncio.run(work())
    say(f"changed the password of {name}")


async def _set(store: UserStore, name: str, password: str, mechanisms: Sequence[str], iterations: int) -> None:
    ids = SystemIds()
    await store.set_passwords(
        name,
        [
            NewPassword(mechanism=BY_SASL_NAME[each], password=password, salt=_salt(ids), iterations=iterations)
            for each in dict.fromkeys(mechanisms or BY_SASL_NAME)
        ],
    )


def _salt(ids: SystemIds) -> bytes:
    return b"".join(ids.uuid4().bytes for _ in range(2))[-SALT_BYTES:]


@users.command("list")
@way_options
@json_option
def list_users(way: Way, as_json: bool) -> None:
    """List the users and their mechanisms. Nothing of their passwords can be shown.

    \b
    Example:
      siltstone users list --json
    """

    async def work() -> list[tuple[str, dict[str, int]]]:
        async with opened_users(way) as store:
            known = await store.known(LISTING)
        return [(name, {each.sasl_name: known[name][each] for each in sorted(known[name])}) for name in sorted(known)]

    found = asyncio.run(work())
    if as_json:
        print_json([{"user": name, "iterations": mechanisms} for name, mechanisms in found])
    elif found:
        cells = [[name, each, f"{count:,}"] for name, mechanisms in found for each, count in mechanisms.items()]
        print_table(["user", "mechanism", "iterations"], cells, right=["iterations"])
    else:
        say("no users")


@users.command()
@click.argument("name", metavar="NAME")
@_mechanism_option("Remove only this mechanism of the user. Repeatable.")
@click.option("--yes", is_flag=True, help="Delete without asking.")
@way_options
def delete(name: str, mechanisms: Sequence[str], yes: bool, way: Way) -> None:
    """Delete the user NAME. Its connections are closed; its ACLs and quotas stay.

    \b
    Example:
      siltstone users delete ann --yes
    """
    confirm(yes, f"delete user {name}?" if not mechanisms else f"delete {', '.join(mechanisms)} of user {name}?")

    async def work() -> None:
        async with opened_users(way) as store:
            there = await _check_exists(store, name, f"delete user {name!r}")
            wanted = [BY_SASL_NAME[each] for each in mechanisms] or there
            missing = [each.sasl_name for each in wanted if each not in there]
            if missing:
                raise NoSuchUserError(f"user {name!r} has no {', '.join(missing)}; nothing was changed")
            await store.remove(name, wanted)
            if store.came_in_by(name, wanted):
                say(
                    "warning: you deleted what you came in with yourself; the way back is `siltstone users create"
                    f" {name} --direct`",
                    err=True,
                )

    asyncio.run(work())
    say(f"deleted user {name}" if not mechanisms else f"deleted {', '.join(mechanisms)} of user {name}")


async def _check_exists(store: UserStore, name: str, doing: str) -> list[Mechanism]:
    """The mechanisms of the user. Raises NoSuchUserError."""
    known = await store.known(doing)
    if name not in known:
        raise NoSuchUserError(
            f"there is no user {name!r}; nothing was changed", remedy="`siltstone users list` shows the users"
        )
    return sorted(known[name])


@users.command()
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@_place_options
def export(file: Path, data: Path | None, config: Path | None) -> None:
    """Write all users from Postgres to FILE, which must be new. It is for its owner alone (mode 0600). -: to stdout.

    A line of JSON for each user and mechanism: salt, iterations and keys, no password. Whoever reads the file can try
    passwords on it. `siltstone rebuild` brings no users back, because the bucket holds none; this file does.

    \b
    Examples:
      siltstone users export users.jsonl
      siltstone users export users.jsonl --config agent.toml
      siltstone users export - | gpg -e -r ops > users.jsonl.gpg
    """

    async def work() -> Users:
        async with opened_security(data, config) as metadata:
            return (await metadata.security()).users

    found = asyncio.run(work())
    if file == STREAM:
        say(lines_of(found), nl=False)
        return
    write_new(file, lines_of(found))
    say(f"wrote {plural(len(found), 'user')} to {file}")


@users.command("import")
@click.argument("file", metavar="FILE", type=click.Path(dir_okay=False, allow_dash=True, path_type=Path))
@_place_options
def import_users(file: Path, data: Path | None, config: Path | None) -> None:
    """Write the users of a file of `siltstone users export` to Postgres: all of them, or none. -: from stdin.

    A user who is there with the same password stays as it is; one with another password is an error.

    \b
    Examples:
      siltstone users import users.jsonl
      siltstone users import users.jsonl --config agent.toml
      gpg -d users.jsonl.gpg | siltstone users import -
    """
    source = source_name(file)
    changes = changes_of(read_text(file), source)

    async def work() -> None:
        async with opened_security(data, config) as metadata:
            there = await metadata.users(sorted({each.name for each in changes}))
            for each in changes:
                found = there.get(each.name, {}).get(each.mechanism)
                if found is not None and each.credential is not None and not is_same(each.credential, found):
                    raise UserExistsError(
                        f"user {each.name!r} has another password than in {source}; nothing was changed",
                        remedy="remove its lines from the file, or delete the user first:"
                        f" `siltstone users delete {each.name} --direct`",
                    )
            await metadata.alter_users(changes)

    asyncio.run(work())
    say(f"imported {plural(len({each.name for each in changes}), 'user')} from {source}")
