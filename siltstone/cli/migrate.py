"""`siltstone migrate`: see `metadata/migrate.py`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from siltstone.cli.setting_options import read_settings, setting_options
from siltstone.errors import BadInputError
from siltstone.settings import is_memory


@click.command()
@setting_options
@click.option("--metadata", metavar="URL", help="postgresql://USER@HOST:PORT/DB (metadata.url).")
@click.option(
    "--reader", metavar="ROLE", help="A role of Postgres that may read where records lie, and pin them; nothing else."
)
def migrate(config: Path | None, assignments: tuple[str, ...], metadata: str | None, reader: str | None) -> None:
    """Bring the metadata schema of a Postgres up to date.

    Agents never do this by themselves; they refuse to start on another schema than theirs. Doing it twice changes
    nothing. Prints the revision of the schema, and whether it was created, brought up or there already.

    --reader grants a role that exists what `siltstone.read_topic` and Spark need of the metadata; the objects are read
    with rights of the object store. Give it again after every upgrade.

    \b
    Examples:
      siltstone migrate --metadata postgresql://me@db:5432/silt
      siltstone migrate --config agent.toml
      siltstone migrate --metadata postgresql://me@db:5432/silt --reader analysts
    """
    settings = read_settings(config, assignments, {"metadata.url": metadata})
    if not settings.metadata_url or is_memory(settings.metadata_url):
        raise BadInputError("no Postgres is named", remedy="pass --metadata postgresql://USER@HOST:PORT/DB")
    click.echo(f"schema: {asyncio.run(_migrate(settings.metadata_url))}")
    if reader:
        from metadata.migrate import grant_reader

        left = asyncio.run(grant_reader(settings.metadata_url, reader))
        click.echo(f"reader: {reader} may read and pin")
        if left:
            click.echo(f"this role may not set time-outs of {reader}; let one run that may:", err=True)
            click.echo(";\n".join(left) + ";", err=True)


async def _migrate(url: str) -> str:
    """The revision there is now, and what was done."""
    from metadata.migrate import migrate_async, schema_revision  # loads SQLAlchemy, which `--help` need not
    from metadata.postgres_connection import CONNECTION_ERRORS, unavailable

    try:
        before = await schema_revision(url)
    except CONNECTION_ERRORS as error:
        raise unavailable(error) from error
    now = await migrate_async(url)
    if before == now:
        return f"{now} (nothing to do)"
    return f"{now} ({'created' if before is None else f'brought up from {before}'})"
