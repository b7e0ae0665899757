"""`siltstone migrate`. The migration itself is in `metadata/migrations/migrate.py`."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Mapping
from pathlib import Path

import click

from runtime.errors import BadInputError
from runtime.settings.checks import is_memory
from runtime.text import plural
from siltstone.cli.options.data_option import data_option, unless_typed
from siltstone.cli.options.setting_options import read_settings, setting_options
from siltstone.cli.options.system_options import POSTGRES_NAMES, ways_to_name
from siltstone.terminal.plain import say

CAN = {"agent": "has the rights of agents", "compactor": "has the rights of compactors", "reader": "may read and pin"}
PASSWORDS = ("agent", "compactor")
"""The kinds whose roles may be made here. Readers are people's."""


@click.command()
@setting_options
@data_option("The Postgres of `siltstone dev` in this directory, running or not.")
@click.option(
    "--metadata", metavar="URL", help="Postgres of the metadata: postgresql://USER@HOST:PORT/DB (metadata.url)."
)
@click.option("--agent", metavar="ROLE", help="Also give this role of Postgres the rights of agents, and no others.")
@click.option("--compactor", metavar="ROLE", help="The same for compactors.")
@click.option(
    "--reader", metavar="ROLE", help="Also allow this role of Postgres to read and pin the places of records."
)
@click.option(
    "--dry-run", is_flag=True, help="Only show the steps and which running programs must stop; change nothing."
)
def migrate(
    config: Path | None,
    assignments: tuple[str, ...],
    data: Path | None,
    metadata: str | None,
    agent: str | None,
    compactor: str | None,
    reader: str | None,
    dry_run: bool,
) -> None:
    """Create or upgrade the metadata schema in Postgres.

    Agents never do this themselves. It is safe to run the command again. It prints the revision of the schema and
    whether the schema was created, upgraded or already up to date.

    Migrations only add to the schema, and each names the oldest programs that may keep running after it: so migrate
    first, then replace agents and compactors one by one. While programs run that the new schema does not accept, the
    migration is refused and nothing is changed. --dry-run names these programs, and the rights that the role lacks; its
    exit code is 1 if the migration would be refused.

    --agent and --compactor give an existing role what agents and compactors need, and take all other rights in the
    schema from it: agents cannot write merge jobs or delete files, compactors cannot read what is kept of passwords,
    and neither can change the schema. If AGENT_PGPASSWORD or COMPACTOR_PGPASSWORD is set in the environment, the role
    is made if it is missing, and gets that password. Commands that repair something need the schema's owner.

    --reader grants an existing role the rights on the metadata that `siltstone.read_topic` and Spark need. Reading
    objects needs rights on the object store.

    Repeat all three after every upgrade, before the programs are replaced.

    `siltstone dev` migrates its own Postgres when it starts. Use --data for --dry-run and --reader.

    \b
    Examples:
      siltstone migrate --metadata postgresql://me@db:5432/silt
      siltstone migrate --dry-run --config agent.toml
      siltstone migrate --metadata postgresql://me@db/silt --reader analysts
      siltstone migrate --config owner.toml --agent silt_a --compactor silt_c
      siltstone migrate --data ./siltstone-data --dry-run
    """
    roles = {"agent": agent or "", "compactor": compactor or "", "reader": reader or ""}
    _check_distinct(roles)
    usage = "--data already names the Postgres: give either --data or --metadata, not both"
    data = unless_typed(data, metadata, usage=usage)
    if data is not None:
        from siltstone.embedded.attach import attach

        with attach(data) as attached:
            _act(attached.metadata_url, roles=roles, dry_run=dry_run)
        return
    url = read_settings(config, assignments, {"metadata.url": metadata}).metadata_url
    if not url or is_memory(url):
        raise BadInputError("no Postgres is named; nothing was changed", remedy=ways_to_name(*POSTGRES_NAMES))
    _act(url, roles=roles, dry_run=dry_run)


def _check_distinct(roles: Mapping[str, str]) -> None:
    """Raises BadInputError."""
    named = [role for role in roles.values() if role]
    for role in named:
        if named.count(role) > 1:
            kinds = ", ".join(f"--{kind}" for kind, each in roles.items() if each == role)
            raise BadInputError(
                f"one role is given for several kinds of programs: {role} ({kinds}); nothing was changed",
                remedy="make a role for each: one that has the rights of two can do what neither should",
            )


def _act(url: str, *, roles: Mapping[str, str], dry_run: bool) -> None:
    """`roles` by kind of program; "": none is named."""
    if dry_run:
        _say_plan(url)
        return
    say(f"schema: {asyncio.run(_migrate(url))}")
    for kind, role in roles.items():
        if role:
            _grant(url, kind, role)


def _grant(url: str, kind: str, role: str) -> None:
    from metadata.migrations.grants import AGENT, COMPACTOR, READER, grant

    rights = {"agent": AGENT, "compactor": COMPACTOR, "reader": READER}[kind]
    password = os.environ.get(f"{kind.upper()}_PGPASSWORD", "") if kind in PASSWORDS else ""
    left = asyncio.run(grant(url, role, rights, password=password, salt=os.urandom(16)))
    say(f"{kind}: {role} {CAN[kind]}" + (", with the password of the environment" if password else ""))
    if left:
        say(f"the role of metadata.url may not do this for {role}; run it as a role that may:", err=True)
        say(";\n".join(left) + ";", err=True)


def _say_plan(url: str) -> None:
    """Print the steps of a migration and the running programs that it concerns."""
    from metadata.migrations.migrate import plan_migration
    from metadata.migrations.schema_versions import revision_of

    plan = asyncio.run(plan_migration(url))
    present, target = plan.present, plan.target
    say(f"schema: {present.revision or 'none'}")
    say(f"target: {target}")
    for step in plan.steps:
        say(f"  {step.revision}  {step.about} (accepts programs of {revision_of(step.oldest_program)} or newer)")
    if present.is_newer_than(target):
        takes = "accepts this release too" if present.takes(target) else "does not accept this release"
        say(f"nothing to do: a newer release has migrated the schema, and the schema {takes}")
        sys.exit(0 if present.takes(target) else 1)
    if not plan.steps:
        say("nothing to do")
    for each in plan.must_stop:
        say(f"must stop first: {each.kind} {each.place} (schema {revision_of(each.program)})")
    for each in plan.missing_rights:
        say(f"this role lacks: {each}")
    if plan.must_stop or plan.missing_rights:
        sys.exit(1)
    say(f"may stay: {plural(len(plan.running), 'running program')}" if plan.running else "no program runs")


async def _migrate(url: str) -> str:
    """Migrate. Returns the revision that the schema has now, and what was done."""
    from metadata.migrations.migrate import migrate_async, schema_revision  # loads SQLAlchemy; `--help` must not
    from metadata.postgres.tables import SCHEMA_REVISION

    before = await schema_revision(url)
    now = await migrate_async(url)
    if now != SCHEMA_REVISION:
        return f"{now} (nothing to do: newer than {SCHEMA_REVISION} of this release, and accepts this release)"
    if before == now:
        return f"{now} (nothing to do)"
    return f"{now} ({'created' if before is None else f'upgraded from {before}'})"
