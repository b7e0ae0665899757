"""The options that say where the agents are: --bootstrap, or the `siltstone dev` that runs on --data.

A --bootstrap on the command line counts first, then --data or SILTSTONE_DATA, then SILTSTONE_BOOTSTRAP.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import wraps
from pathlib import Path
from typing import Any, TypeVar

import click

from metadata.configs.topic import TOPIC_CONFIGS
from runtime.errors import UnavailableError
from siltstone.cli.options.client_config import client_config_option, use_unless_given
from siltstone.cli.options.data_option import data_option, is_typed
from siltstone.embedded.run_file import read_run_file
from siltstone.kafka.client import KafkaClient, KafkaError
from siltstone.ops.compaction.compact_now import did_you_mean
from siltstone.ops.hint_options import HintOptions, option

T = TypeVar("T")
Command = TypeVar("Command", bound=Callable[..., object])

DEFAULT_BOOTSTRAP = "127.0.0.1:9092"


class NoAgentError(UnavailableError):
    """`siltstone dev` does not run on the named directory."""


def bootstrap_option(command: Command) -> Command:
    """Add `--bootstrap`, and `--client-config` for the way there."""
    with_bootstrap = click.option(
        "--bootstrap",
        envvar="SILTSTONE_BOOTSTRAP",
        default=DEFAULT_BOOTSTRAP,
        show_default=True,
        show_envvar=True,
        metavar="HOST:PORT[,...]",
        help="Addresses of agents; one that answers is enough.",
    )(command)
    return client_config_option(with_bootstrap)


def agent_options(command: Callable[..., T]) -> Callable[..., T]:
    """Add `--bootstrap` and `--data`; the command gets the addresses as `bootstrap`."""

    @bootstrap_option
    @data_option("Use the agents of the `siltstone dev` that runs on this directory.")
    @wraps(command)
    def with_agents(*args: Any, bootstrap: str, data: Path | None, **kwargs: Any) -> T:
        return command(*args, bootstrap=bootstrap_of(data, bootstrap), **kwargs)

    return with_agents


def bootstrap_of(data: Path | None, bootstrap: str) -> str:
    """The addresses to use. Raises NoAgentError, RunFileError."""
    found = running_bootstrap(data, bootstrap)
    if found is None:
        raise NoAgentError(
            f"no agent runs on {data}, and this command needs one; nothing was done",
            remedy=f"start one with `siltstone dev --data {data}`, or name other agents with --bootstrap HOST:PORT",
        )
    return found


def running_bootstrap(data: Path | None, bootstrap: str) -> str | None:
    """The addresses, as in `bootstrap_of`; None when nothing runs on `data`."""
    if data is None or is_typed("bootstrap"):
        return bootstrap
    running = read_run_file(data)
    if running is None:
        return None
    if running.client_config:
        use_unless_given(Path(running.client_config), data)
    return running.bootstrap


def given_agents() -> HintOptions:
    """The `--data` or `--bootstrap` of the command line, for hints to repeat. Only `--data` names the metadata too."""
    given = click.get_current_context().params
    typed = {name: option(name, str(given[name])) for name in ("bootstrap", "data") if is_typed(name)}
    return HintOptions(agents="".join(typed.values()), places=typed.get("data", ""))


@asynccontextmanager
async def name_hints(client: KafkaClient, name: str, hints: HintOptions) -> AsyncGenerator[None]:
    """Add a remedy to an unknown-topic error of the block: the existing name that is most like `name`."""
    try:
        yield
    except KafkaError as error:
        if error.name == "UNKNOWN_TOPIC_OR_PARTITION":
            there = [topic.name for topic in (await client.metadata()).topics if topic.name]
            error.remedy = did_you_mean(name, there, hints)
        raise


def acts(config: str) -> bool:
    """Whether Siltstone acts on a topic config. False for configs that are only stored and shown, for Kafka's tools.

    True for a name that this release does not know: a newer agent may act on it.
    """
    known = TOPIC_CONFIGS.get(config)
    return known is None or known.effective
