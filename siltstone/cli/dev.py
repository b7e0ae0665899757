"""`siltstone dev`. The stack itself is in `siltstone/embedded/stack.py`."""

from __future__ import annotations

import asyncio
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import click

from runtime.settings.loading import DATA_VARIABLE
from siltstone.cli.options.data_option import DEFAULT_DATA
from siltstone.cli.options.setting_options import read_settings, setting_options
from siltstone.processes.running import RunningAgent, RunningCompactor
from siltstone.terminal.plain import say


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=DEFAULT_DATA,
    envvar=DATA_VARIABLE,
    show_default=True,
    show_envvar=True,
    metavar="DIR",
    help="Directory that keeps everything between runs.",
)
@click.option(
    "--listen", metavar="HOST:PORT", help="Address of the first agent; port 0: any free port. Default: 127.0.0.1:9092."
)
@click.option(
    "--agents",
    type=click.IntRange(1, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of agents, on PORT, PORT+1, ...",
)
@click.option(
    "--compactors",
    type=click.IntRange(0, 64),
    default=1,
    show_default=True,
    metavar="N",
    help="Number of compactors; with 0 nothing is merged or deleted.",
)
@click.option("--zones", metavar="A,B,...", help="Availability zones, assigned to the agents in turn.")
@click.option(
    "--object-store", metavar="URL", help="Object store instead of DIR/objects: s3://..., file:///... or memory://."
)
@click.option("--metadata", metavar="URL", help="Metadata instead of a Postgres in DIR: postgresql://... or memory://.")
@click.option(
    "--insecure",
    is_flag=True,
    default=None,
    help="Allow listeners on addresses other than loopback without authentication and encryption.",
)
@click.option(
    "--secure",
    is_flag=True,
    help="TLS, users with passwords and ACLs, with a throwaway authority and a super user `admin` in DIR.",
)
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
    secure: bool,
    config: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Run a whole stack on this machine: Postgres, an object store in a directory, agents, a compactor.

    Upgrades the schema of the metadata first. Prints `bootstrap: HOST:PORT[,HOST:PORT...]` once clients can connect,
    then `metrics: URL[,URL...]` of the agents and later `compactor metrics: URL[,URL...]`. An agent on port 9092 serves
    its metrics on 10092, the first compactor on 11092, if these ports are free. Ctrl-C (or SIGTERM) stops everything in
    order; a second Ctrl-C stops at once. If one process ends by itself, one of several agents too, all others are
    stopped, and the exit code is 1.

    memory:// keeps its data only until the process ends, so it applies to both: if the object store or the metadata is
    memory://, the other one is too. The single agent then also serves the metrics of the compactor.

    With --secure clients come in by SASL_SSL, and ACLs count, unless acl.mode is set to shadow or off.
    DIR/clients/admin.properties (librdkafka, kcat, these commands) and DIR/clients/admin.java.properties have all that
    a client needs, the password of the super user `admin` among it. Commands with --data DIR find it by themselves. The
    next start may have --secure or not.

    \b
    Examples:
      siltstone dev
      siltstone dev --data /tmp/silt --listen 127.0.0.1:0 --agents 3
      siltstone dev --agents 4 --zones a,b  # clients with zone=a: 1st and 3rd
      siltstone dev --object-store \\
          's3://bucket/dev?endpoint=http://127.0.0.1:9000&region=us-east-1'
      siltstone dev --object-store memory://  # keeps nothing after its end
      siltstone dev --secure  # TLS, SCRAM and ACLs
    """
    from siltstone.embedded.secure import secure_options, with_super_user
    from siltstone.embedded.stack import StackSize, run_stack

    options: dict[str, str | None] = {
        "listen": listen,
        "object.store.url": object_store,
        "metadata.url": metadata,
        "insecure": "true" if insecure else None,
    }
    fixed: Mapping[str, str] = secure_options(data) if secure else {}
    settings = read_settings(config, assignments, options, fixed=fixed, fixed_by="--secure")
    if secure:
        settings = with_super_user(settings)
    names = [zone.strip() for zone in zones.split(",")] if zones else []
    if not all(names):
        raise click.BadParameter("a zone has an empty name; write --zones a,b", param_hint="--zones")
    if len(names) > agents:
        raise click.BadParameter(f"{len(names)} zones need at least --agents {len(names)}", param_hint="--zones")
    asyncio.run(
        run_stack(
            settings,
            data=data,
            size=StackSize(agents=agents, compactors=compactors, zones=names),
            on_ready=partial(_tell, data=data if secure else None),
            on_compactors=_tell_compactors,
            secure=secure,
        )
    )


def _tell(running: Sequence[RunningAgent], *, data: Path | None) -> None:
    """`data`: where the client files are, if clients need one."""
    bootstrap = ",".join(agent.bootstrap for agent in running)
    say(f"bootstrap: {bootstrap}")
    _tell_metrics("metrics", running)
    if data is not None:
        from siltstone.embedded.secure import client_files

        properties, java_properties = client_files(data)
        say(f"client config: {properties} (Java: {java_properties})")
        say(f"try: siltstone topics list --bootstrap {bootstrap} --client-config {shlex.quote(str(properties))}")


def _tell_compactors(running: Sequence[RunningCompactor]) -> None:
    _tell_metrics("compactor metrics", running)


def _tell_metrics(name: str, running: Sequence[RunningAgent | RunningCompactor]) -> None:
    urls = [each.metrics_url for each in running if each.metrics_url]
    if urls:
        say(f"{name}: {','.join(urls)}")
