"""`siltstone dev`: see `siltstone/embedded/stack.py`."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path

import click

from siltstone.cli.options.setting_options import read_settings, setting_options
from siltstone.processes.running import RunningAgent, RunningCompactor

DEFAULT_DATA = Path("./siltstone-data")


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DATA,
    show_default=True,
    metavar="DIR",
    help="Where everything is kept between runs.",
)
@click.option("--listen", metavar="HOST:PORT", help="Where the first agent takes clients. Default: 127.0.0.1:9092.")
@click.option(
    "--agents",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="How many, on PORT, PORT+1, ... (port 0: any free ones).",
)
@click.option(
    "--compactors",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="How many; 0 = nothing is merged or deleted.",
)
@click.option("--zones", metavar="A,B,...", help="Availability zones, given to the agents in turn.")
@click.option("--object-store", metavar="URL", help="Instead of DIR/objects: s3://..., file:///... or memory://.")
@click.option("--metadata", metavar="URL", help="Instead of a Postgres of its own: postgresql://... or memory://.")
@click.option("--insecure", is_flag=True, default=None, help="Allow other addresses than loopback.")
@setting_options
def dev(
    data: Path,
    listen: str | None,
    agents: int,
    compactors: int,
    zones: str | None,
    object_store: str | None,
    metadata: str | None,
    insecure: bool | None,
    config: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Run a whole stack on this machine: Postgres, an object store in a directory, agents, a compactor.

    Prints `bootstrap: HOST:PORT[,HOST:PORT...]` once clients can connect, then `metrics: URL[,URL...]` of the agents
    and, when they are ready too, `compactor metrics: URL[,URL...]`. Ctrl-C (or SIGTERM) stops everything in order; a
    second Ctrl-C does not wait for that. The schema of the metadata, given or its own, is brought up to date first.
    What memory:// keeps ends with the process, so object store and metadata are both there or both not: where one is
    given as memory://, the other is memory:// too, and the one agent's metrics are the compactor's as well.

    \b
    Examples:
      siltstone dev
      siltstone dev --data /tmp/silt --listen 127.0.0.1:0 --agents 3
      siltstone dev --agents 4 --zones a,b  # zone=a in a client.id: 1st and 3rd
      siltstone dev --object-store \\
          's3://bucket/dev?endpoint=http://127.0.0.1:9000&region=us-east-1'
      siltstone dev --object-store memory://  # metadata too; forgets all at end
    """
    from siltstone.embedded.stack import run_stack

    options = {
        "listen": listen,
        "object.store.url": object_store,
        "metadata.url": metadata,
        "insecure": "true" if insecure else None,
    }
    settings = read_settings(config, assignments, options)
    names = [zone.strip() for zone in zones.split(",")] if zones else []
    if not all(names):
        raise click.BadParameter("a zone has no name", param_hint="--zones")
    if len(names) > agents:
        raise click.BadParameter(f"{len(names)} zones need --agents {len(names)} at least", param_hint="--zones")
    asyncio.run(
        run_stack(
            settings,
            data=data,
            agents=agents,
            on_ready=_tell,
            on_compactors=_tell_compactors,
            zones=names,
            compactors=compactors,
        )
    )


def _tell(running: Sequence[RunningAgent]) -> None:
    click.echo(f"bootstrap: {','.join(agent.bootstrap for agent in running)}")
    _tell_metrics("metrics", running)


def _tell_compactors(running: Sequence[RunningCompactor]) -> None:
    _tell_metrics("compactor metrics", running)


def _tell_metrics(name: str, running: Sequence[RunningAgent | RunningCompactor]) -> None:
    urls = [each.metrics_url for each in running if each.metrics_url]
    if urls:
        click.echo(f"{name}: {','.join(urls)}")
