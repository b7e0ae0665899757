"""`siltstone migrate`. The migration itself is in `metadata/migrations/migrate.py`."""

from __future__ import annotations

import asyncio
import os
import secrets
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from runtime.errors import BadInputError
from runtime.secrets_manager import ARN
from runtime.settings.checks import is_memory
from runtime.text import plural
from siltstone.cli.options.data_option import data_option, unless_typed
from siltstone.cli.options.setting_options import read_settings, setting_options
from siltstone.cli.options.system_options import POSTGRES_NAMES, ways_to_name
from siltstone.terminal.plain import say

if TYPE_CHECKING:
    from metadata.migrations.grants import Rights

CAN = {"agent": "has the rights of agents", "compactor": "has the rights of compactors", "reader": "may read and pin"}
PASSWORD_BYTES = 30
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
    "--new-passwords", is_flag=True, help="Give both roles new passwords, in the secrets that the environment names."
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
    new_passwords: bool,
    dry_run: bool,
) -> None:
    """Create or upgrade the metadata schema in Postgres.

    Agents never do this themselves. It is safe to run the command again. It prints the revision of the schema and
    whether the schema was created, upgraded or already up to date.

    Migrations only add to the schema, and each names the oldest programs that may keep running after it, while agents
    and compactors are replaced one by one. Those of the new release may be started before: they wait. While programs
    run that the new schema does not accept, the migration is refused and nothing is changed. --dry-run names these
    programs, and the rights that the role lacks; its exit code is 1 if the migration would be refused.

    --agent and --compactor give an existing role what agents and compactors need, and take all other rights in the
    schema from it: agents cannot write merge jobs or delete files, compactors cannot read what is kept of passwords,
    and neither can change the schema. If AGENT_PGPASSWORD or COMPACTOR_PGPASSWORD is set in the environment, the role
    is made if it is missing, and gets that password. AGENT_PGPASSWORD_SECRET and COMPACTOR_PGPASSWORD_SECRET name
    secrets of AWS Secrets Manager in place of passwords; a secret without a value gets one. Commands that repair
    something need the schema's owner.

    --new-passwords writes new passwords into these secrets, and tells Postgres. Programs that read them from there
    (?password_secret=ARN in metadata.url) go on without a restart. The role of metadata.url needs CREATEROLE; a
    password that it may not set stays as it is.

    --reader grants an existing role the rights on the metadata that `siltstone.read_topic` and Spark need. Reading
    objects needs rights on the object store.

    Repeat all three with every upgrade. `siltstone upgrade status` says what is left to do of one.

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
    secret_arns = {
        kind: os.environ.get(f"{kind.upper()}_PGPASSWORD_SECRET", "") if roles[kind] else "" for kind in PASSWORDS
    }
    _check_secrets(roles, secret_arns, new_passwords=new_passwords)
    if data is not None:
        if new_passwords:
            raise BadInputError(
                "--new-passwords does not go with --data; nothing was changed",
                remedy="leave it out: no secret holds a password of `siltstone dev`",
            )
        from siltstone.embedded.attach import attach

        with attach(data) as attached:
            _act(attached.metadata_url, roles=roles, dry_run=dry_run)
        return
    url = read_settings(config, assignments, {"metadata.url": metadata}).metadata_url
    if not url or is_memory(url):
        raise BadInputError("no Postgres is named; nothing was changed", remedy=ways_to_name(*POSTGRES_NAMES))
    _act(url, roles=roles, dry_run=dry_run, secret_arns=secret_arns, new_passwords=new_passwords)


def _check_secrets(roles: Mapping[str, str], secret_arns: Mapping[str, str], *, new_passwords: bool) -> None:
    """Raises BadInputError."""
    for kind, arn in secret_arns.items():
        if arn and ARN.fullmatch(arn) is None:
            raise BadInputError(
                f"{kind.upper()}_PGPASSWORD_SECRET is no ARN of a secret; nothing was changed",
                remedy="write arn:aws:secretsmanager:REGION:ACCOUNT:secret:NAME",
            )
    if new_passwords and not any(secret_arns.values()):
        raise BadInputError(
            "--new-passwords has no secret to write to; nothing was changed",
            remedy="give --agent ROLE and AGENT_PGPASSWORD_SECRET=ARN; the same for compactors",
        )
    missing = [f"{kind.upper()}_PGPASSWORD_SECRET" for kind, arn in secret_arns.items() if roles[kind] and not arn]
    if new_passwords and missing:
        raise BadInputError(
            f"--new-passwords needs a secret for each role: {missing[0]} is not set; nothing was changed",
            remedy="set it to the ARN of the secret, or leave out the role that is to keep its password",
        )
    named = [arn for arn in secret_arns.values() if arn]
    if len(set(named)) < len(named):
        raise BadInputError(
            "one secret is given for two roles; nothing was changed",
            remedy="make a secret for each: AGENT_PGPASSWORD_SECRET and COMPACTOR_PGPASSWORD_SECRET",
        )


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


def _act(
    url: str,
    *,
    roles: Mapping[str, str],
    dry_run: bool,
    secret_arns: Mapping[str, str] | None = None,
    new_passwords: bool = False,
) -> None:
    """`roles`, and the ARNs of secrets, by kind of program; "": none is named."""
    if dry_run:
        _say_plan(url)
        return
    now, said = asyncio.run(_migrate(url))
    say(f"schema: {said}")
    named = {kind: role for kind, role in roles.items() if role}
    if _is_newer(now) and named:
        # The rights of this release would take from the newer one's programs what it gave them.
        if new_passwords:
            raise BadInputError(
                "a newer release has migrated the schema; no password was changed",
                remedy="run it with that release, which knows the rights of the roles",
            )
        say("roles: left as the newer release made them")
        return
    for kind, role in named.items():
        _grant(url, kind, role, secret_arn=(secret_arns or {}).get(kind, ""), new_password=new_passwords)


def _grant(url: str, kind: str, role: str, *, secret_arn: str, new_password: bool) -> None:
    from metadata.migrations.grants import RIGHTS, grant
    from metadata.migrations.role_passwords import other_databases

    rights = RIGHTS[kind]
    of = asyncio.run(_give_password(url, role, rights, secret_arn=secret_arn, new=new_password))
    left = asyncio.run(grant(url, role, rights))
    say(f"{kind}: {role} {CAN[kind]}" + (f", with the password of {of}" if of else ""))
    if of and (others := asyncio.run(other_databases(url, role))):
        told = "a cluster there that uses this role must get the password too"
        say(f"warning: {role} has rights in other databases of this server; {told}: {', '.join(others)}", err=True)
    if left:
        say(f"the role of metadata.url may not do this for {role}; run it as a role that may:", err=True)
        say(";\n".join(left) + ";", err=True)


async def _give_password(url: str, role: str, rights: Rights, *, secret_arn: str, new: bool) -> str:
    """Give the role the password that the environment names. Returns where it is; "": none is named."""
    from metadata.migrations.role_passwords import set_password, set_password_of_secret

    salt = os.urandom(16)
    if secret_arn:
        drawn = secrets.token_urlsafe(PASSWORD_BYTES)
        is_new = await set_password_of_secret(url, role, rights, secret_arn, new=new, drawn=drawn, salt=salt)
        return "its secret, which is new" if is_new else "its secret"
    password = os.environ.get(rights.variable, "") if rights.variable else ""
    if not password:
        return ""
    await set_password(url, role, rights, password, salt=salt)
    return "the environment"


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


def _is_newer(revision: str) -> bool:
    from metadata.postgres.tables import SCHEMA_REVISION

    return revision > SCHEMA_REVISION


async def _migrate(url: str) -> tuple[str, str]:
    """Migrate. Returns the revision that the schema has now, and in words what was done."""
    from metadata.migrations.migrate import migrate_async, schema_revision  # loads SQLAlchemy; `--help` must not
    from metadata.postgres.tables import SCHEMA_REVISION

    before = await schema_revision(url)
    now = await migrate_async(url)
    if now != SCHEMA_REVISION:
        return now, f"{now} (nothing to do: newer than {SCHEMA_REVISION} of this release, and accepts this release)"
    if before == now:
        return now, f"{now}, as this release wants it"
    return now, f"{now} ({'created' if before is None else f'upgraded from {before}'})"
