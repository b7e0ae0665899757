"""`siltstone migrate`: see `metadata/migrations/migrate.py`."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import click

from runtime.errors import BadInputError
from runtime.settings.checks import is_memory
from runtime.text import plural
from siltstone.cli.options.setting_options import read_settings, setting_options
from siltstone.cli.options.system_options import POSTGRES_NAMES, ways_to_name


@click.command()
@setting_options
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="DIR",
    help="Of the `siltstone dev` there, running or not.",
)
@click.option("--metadata", metavar="URL", help="postgresql://USER@HOST:PORT/DB (metadata.url).")
@click.option(
    "--reader", metavar="ROLE", help="A role of Postgres that may read where records lie, and pin them; nothing else."
)
@click.option("--dry-run", is_flag=True, help="Say what would be done, and which running programs may stay.")
def migrate(
    config: Path | None,
    assignments: tuple[str, ...],
    data: Path | None,
    metadata: str | None,
    reader: str | None,
    dry_run: bool,
) -> None:
    """Bring the metadata schema of a Postgres up to date.

    Agents never do this by themselves. Doing it twice changes nothing. Prints the revision of the schema, and whether
    it was created, brought up or there already.

    Migrations only add, and each says which programs may go on after it: so migrate first, then replace agents and
    compactors one by one. Refused, with nothing changed, while programs are at work that the new schema does not take.
    --dry-run says so beforehand, and which rights the role lacks; it ends with exit code 1 where it would be refused.

    --reader grants a role that exists what `siltstone.read_topic` and Spark need of the metadata; the objects are read
    with rights of the object store. Give it again after every upgrade.

    `siltstone dev` migrates its own Postgres when it starts. --data is for looking beforehand, and for --reader.

    \b
    Examples:
      siltstone migrate --metadata postgresql://me@db:5432/silt
      siltstone migrate --dry-run --config agent.toml
      siltstone migrate --metadata postgresql://me@db/silt --reader analysts
      siltstone migrate --data ./siltstone-data --dry-run
    """
    if data is not None:
        if metadata:
            raise click.UsageError("--data says where everything lies: give it, or give --metadata")
        from siltstone.embedded.attach import attach

        with attach(data) as attached:
            _act(attached.metadata_url, reader=reader, dry_run=dry_run)
        return
    url = read_settings(config, assignments, {"metadata.url": metadata}).metadata_url
    if not url or is_memory(url):
        raise BadInputError("no Postgres is named", remedy=ways_to_name(*POSTGRES_NAMES))
    _act(url, reader=reader, dry_run=dry_run)


def _act(url: str, *, reader: str | None, dry_run: bool) -> None:
    if dry_run:
        _say_plan(url)
        return
    click.echo(f"schema: {asyncio.run(_migrate(url))}")
    if reader:
        from metadata.migrations.migrate import grant_reader

        left = asyncio.run(grant_reader(url, reader))
        click.echo(f"reader: {reader} may read and pin")
        if left:
            click.echo(f"this role may not set time-outs of {reader}; let one run that may:", err=True)
            click.echo(";\n".join(left) + ";", err=True)


def _say_plan(url: str) -> None:
    """What a migration would do, and to whom."""
    from metadata.migrations.migrate import plan_migration
    from metadata.migrations.schema_versions import revision_of

    plan = asyncio.run(plan_migration(url))
    present, target = plan.present, plan.target
    click.echo(f"schema: {present.revision or 'none'}")
    click.echo(f"target: {target}")
    for step in plan.steps:
        click.echo(f"  {step.revision}  {step.about} (takes programs from {revision_of(step.oldest_program)} on)")
    if present.is_newer_than(target):
        takes = "takes this release, too" if present.takes(target) else "does not take this release"
        click.echo(f"nothing to do: a newer release has migrated it, which {takes}")
        sys.exit(0 if present.takes(target) else 1)
    if not plan.steps:
        click.echo("nothing to do")
    for each in plan.must_stop:
        click.echo(f"must stop first: {each.kind} {each.place} (schema {revision_of(each.program)})")
    for each in plan.missing_rights:
        click.echo(f"this role lacks: {each}")
    if plan.must_stop or plan.missing_rights:
        sys.exit(1)
    click.echo(f"may stay: {plural(len(plan.running), 'running program')}" if plan.running else "no program runs")


async def _migrate(url: str) -> str:
    """The revision there is now, and what was done."""
    from metadata.migrations.migrate import migrate_async, schema_revision  # loads SQLAlchemy, which `--help` need not
    from metadata.postgres.tables import SCHEMA_REVISION

    before = await schema_revision(url)
    now = await migrate_async(url)
    if now != SCHEMA_REVISION:
        return f"{now} (nothing to do: newer than this release's {SCHEMA_REVISION}, and takes it)"
    if before == now:
        return f"{now} (nothing to do)"
    return f"{now} ({'created' if before is None else f'brought up from {before}'})"
