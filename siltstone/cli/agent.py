"""`siltstone agent`. The process itself is in `siltstone/processes/agent.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from siltstone.cli.options.setting_options import read_settings, setting_options
from siltstone.terminal.plain import say


@click.command()
@setting_options
@click.option("--listen", metavar="HOST:PORT", help="Address for Kafka clients. Default: 127.0.0.1:9092.")
@click.option(
    "--metrics-listen", metavar="HOST:PORT", help="Address that serves /metrics and /readyz (metrics.listen)."
)
@click.option("--object-store", metavar="URL", help="Object store of the records (object.store.url).")
@click.option("--metadata", metavar="URL", help="Postgres of the metadata (metadata.url).")
@click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Allow listeners on addresses other than loopback without authentication and encryption.",
)
@click.option("--lifeline", type=int, hidden=True, help="A pipe whose end means: drain and exit.")
def agent(
    config: Path | None,
    assignments: tuple[str, ...],
    listen: str | None,
    metrics_listen: str | None,
    object_store: str | None,
    metadata: str | None,
    insecure: bool | None,
    lifeline: int | None,
) -> None:
    """Run one agent against a given Postgres and object store.

    Prints `bootstrap: HOST:PORT` once clients can connect. SIGTERM and SIGINT drain the agent: it sends its clients to
    the other agents (drain.notice.ms, 100 s; a second signal ends that wait), stores and answers the requests it has
    received, then exits. If the schema is older than this release, it waits for `siltstone migrate`: /readyz says so.

    \b
    Examples:
      siltstone agent --metadata postgresql://me@db/silt \\
          --object-store 's3://bucket/prefix?region=eu-central-1'
      siltstone agent --config agent.toml --set agent.zone=eu-central-1a
      SILTSTONE_METADATA_URL=memory:// SILTSTONE_OBJECT_STORE_URL=memory:// \\
          siltstone agent
    """
    from siltstone.processes.agent import run_agent
    from siltstone.processes.running import RunningAgent

    options = {
        "listen": listen,
        "metrics.listen": metrics_listen,
        "object.store.url": object_store,
        "metadata.url": metadata,
        "insecure": "true" if insecure else None,
    }
    settings = read_settings(config, assignments, options)

    def ready(running: RunningAgent) -> None:
        say(f"bootstrap: {running.bootstrap}")
        say(f"metrics: {running.metrics_url}")

    asyncio.run(run_agent(settings, on_ready=ready, lifeline=lifeline))
