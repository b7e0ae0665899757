"""`siltstone migrate`: see `metadata/migrate.py`."""

from __future__ import annotations

from pathlib import Path

import click

from siltstone.cli.setting_options import read_settings, setting_options
from siltstone.errors import BadInputError


@click.command()
@setting_options
@click.option("--metadata", metavar="URL", help="postgresql://USER@HOST:PORT/DB (metadata.url).")
def migrate(config: Path | None, assignments: tuple[str, ...], metadata: str | None) -> None:
    """Bring the metadata schema of a Postgres up to date.

    Agents never do this by themselves; they refuse to start on another schema than theirs. Doing it twice changes
    nothing.

    \b
    Examples:
      siltstone migrate --metadata postgresql://me@db:5432/silt
      siltstone migrate --config agent.toml
    """
    from metadata.migrate import migrate as bring_up_to_date

    settings = read_settings(config, assignments, {"metadata.url": metadata})
    if not settings.metadata_url or settings.metadata_url == "memory://":
        raise BadInputError("no Postgres is named", remedy="pass --metadata postgresql://USER@HOST:PORT/DB")
    click.echo(f"schema: {bring_up_to_date(settings.metadata_url)}")
