"""`siltstone dev`: see `siltstone/embedded/stack.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from siltstone.cli.setting_options import read_settings, setting_options

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
@click.option("--object-store", metavar="URL", help="Instead of DIR/objects: s3://..., file:///... or memory://.")
@click.option("--metadata", metavar="URL", help="Instead of a Postgres of its own: postgresql://... or memory://.")
@click.option("--insecure", is_flag=True, default=None, help="Allow other addresses than loopback.")
@setting_options
def dev(
    data: Path,
    listen: str | None,
    agents: int,
    object_store: str | None,
    metadata: str | None,
    insecure: bool | None,
    config: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Run a whole stack on this machine: Postgres, an object store in a directory, agents.

    Prints `bootstrap: HOST:PORT[,HOST:PORT...]` once clients can connect. Ctrl-C (or SIGTERM) stops everything in
    order; a second Ctrl-C does not wait for the agents. The schema of the metadata, given or its own, is brought up to
    date first.

    \b
    Examples:
      siltstone dev
      siltstone dev --data /tmp/silt --listen 127.0.0.1:0 --agents 3
      siltstone dev --object-store 's3://bucket/dev?endpoint=http://127.0.0.1:9000&region=us-east-1'
      siltstone dev --object-store memory:// --metadata memory://    # forgets everything at the end
    """
    from siltstone.embedded.stack import run_stack

    options = {
        "listen": listen,
        "object.store.url": object_store,
        "metadata.url": metadata,
        "insecure": "true" if insecure else None,
    }
    settings = read_settings(config, assignments, options)
    asyncio.run(
        run_stack(settings, data=data, agents=agents, on_ready=lambda bootstrap: click.echo(f"bootstrap: {bootstrap}"))
    )
