"""The option `--client-config FILE`: how to prove oneself to agents, and which of them to trust."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import click

from siltstone.kafka.security.properties import read_client_config
from siltstone.kafka.security.values import CLIENT_SECURITY, NO_SECURITY, ClientConfigError, ClientSecurity
from siltstone.terminal.plain import say

Command = TypeVar("Command", bound=Callable[..., Any])

VARIABLE = "SILTSTONE_CLIENT_CONFIG"


def client_config_option(command: Command) -> Command:
    """Every connection of the command goes by the file. The command itself gets no parameter."""
    return click.option(
        "--client-config",
        type=click.Path(path_type=Path, dir_okay=False),
        envvar=VARIABLE,
        show_envvar=True,
        metavar="FILE",
        expose_value=False,
        callback=_use,
        help="A client.properties in the names of Java's clients or librdkafka's: TLS, user and password.",
    )(command)


def _use(ctx: click.Context, param: click.Parameter, path: Path | None) -> None:
    if path is None or ctx.resilient_parsing:
        return
    config = read_client_config(path)
    for warning in config.warnings:
        say(f"warning: {warning}", err=True)
    _set(ctx, config.security)


def use_unless_given(path: Path, data: Path) -> None:
    """Go by the file that `siltstone dev --secure` wrote, unless the user named one. Raises ClientConfigError."""
    if CLIENT_SECURITY.get() is not NO_SECURITY:
        return
    try:
        config = read_client_config(path)
    except ClientConfigError as error:
        error.remedy = f"start `siltstone dev --secure --data {data}` again, which writes it, or give --client-config"
        raise
    _set(click.get_current_context(), config.security)


def _set(ctx: click.Context, security: ClientSecurity) -> None:
    before = CLIENT_SECURITY.get()
    CLIENT_SECURITY.set(security)
    # Not by a token: it would be of the event loop's context, if the command asks inside of its loop.
    ctx.call_on_close(partial(CLIENT_SECURITY.set, before))
