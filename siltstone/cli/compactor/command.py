"""`siltstone compactor`. The process itself is in `siltstone/processes/compactor.py`."""

from __future__ import annotations

import asyncio
import importlib
from pathlib import Path

import click

from siltstone.cli.options.data_option import DATA_OR_URLS, data_option, unless_typed
from siltstone.cli.options.setting_options import read_settings, setting_options
from siltstone.terminal.plain import say

SUBCOMMANDS = {
    # name: (module:attribute, one line of help)
    "simulate": ("siltstone.cli.compactor.simulate:simulate_command", "Simulate days of compaction without a cluster."),
    "warm": ("siltstone.cli.compactor.warm:warm", "Compile the kernels into their cache, then exit."),
}


class _Group(click.Group):
    """Imports a subcommand when it is called. Without a subcommand the group runs a compactor."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(SUBCOMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in SUBCOMMANDS:
            return None
        module, attribute = SUBCOMMANDS[cmd_name][0].split(":")
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}:{attribute} is not a click command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, help_line) for name, (_, help_line) in SUBCOMMANDS.items()])


def _places_of(data: Path) -> tuple[str, str]:
    """URLs of metadata and object store. Raises NothingHereError, RunFileError."""
    from siltstone.embedded.attach import NothingHereError
    from siltstone.embedded.run_file import read_run_file

    running = read_run_file(data)
    if running is None:
        raise NothingHereError(
            f"no `siltstone dev` runs on {data}; no compactor was started",
            remedy=f"start it with `siltstone dev --data {data}`; it runs a compactor of its own",
        )
    return running.metadata_url, running.object_store_url


@click.group(cls=_Group, invoke_without_command=True)
@setting_options
@data_option("Use Postgres and object store of the `siltstone dev` that runs on this directory.")
@click.option(
    "--metrics-listen",
    "--listen",
    "metrics_listen",
    metavar="HOST:PORT",
    help="Address that serves /metrics and /readyz (metrics.listen); --listen is the same option.",
)
@click.option("--object-store", metavar="URL", help="Object store of the records (object.store.url).")
@click.option("--metadata", metavar="URL", help="Postgres of the metadata (metadata.url).")
@click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Allow metrics on addresses other than loopback, without authentication (metrics.insecure).",
)
@click.option("--lifeline", type=int, hidden=True, help="A pipe whose end means: give back and exit.")
@click.pass_context
def compactor(
    ctx: click.Context,
    config: Path | None,
    assignments: tuple[str, ...],
    data: Path | None,
    metrics_listen: str | None,
    object_store: str | None,
    metadata: str | None,
    insecure: bool | None,
    lifeline: int | None,
) -> None:
    """Run one compactor against a given Postgres and object store: it merges, dedupes, applies retention and deletes.

    Prints `compactor: NODE-ID` once it works. SIGTERM and SIGINT stop it; another compactor then takes over a merge
    that was running. Any number may run side by side. If the schema is older than this release, it waits for
    `siltstone migrate`: /readyz says so.

    \b
    Examples:
      siltstone compactor --metadata postgresql://me@db/silt \\
          --object-store 's3://bucket/prefix?region=eu-central-1'
      siltstone compactor --config agent.toml --set compactor.jobs.max=16
      siltstone compactor --data ./siltstone-data   # one more for `siltstone dev`
      siltstone compactor warm   # in an image: spares the first start compiling
    """
    if ctx.invoked_subcommand is not None:
        return
    data = unless_typed(data, object_store, metadata, usage=DATA_OR_URLS)
    if data is not None:
        metadata, object_store = _places_of(data)
    options = {
        "metrics.listen": metrics_listen,
        "object.store.url": object_store,
        "metadata.url": metadata,
        "metrics.insecure": "true" if insecure else None,
    }
    settings = read_settings(config, assignments, options)

    from siltstone.processes.compactor import run_compactor
    from siltstone.processes.running import RunningCompactor

    def ready(running: RunningCompactor) -> None:
        say(f"compactor: {running.node_id}")
        say(f"metrics: {running.metrics_url}")

    asyncio.run(run_compactor(settings, on_ready=ready, lifeline=lifeline))
