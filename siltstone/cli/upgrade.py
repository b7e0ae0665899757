"""`siltstone upgrade status`. What is left to do is decided in `metadata/migrations/upgrade_status.py`."""

from __future__ import annotations

import asyncio
import sys
from typing import TYPE_CHECKING, Any

import click

from metadata.migrations.schema_versions import revision_of
from runtime.errors import BadInputError
from runtime.settings.checks import is_memory
from siltstone.cli.options.system_options import (
    POSTGRES_NAMES,
    SystemOptions,
    resolved,
    system_options,
    ways_to_name,
)
from siltstone.terminal.output import json_option, print_json, print_pairs, print_table
from siltstone.terminal.plain import say

if TYPE_CHECKING:
    from metadata.migrations.upgrade_status import Standing, UpgradeStatus


@click.group()
def upgrade() -> None:
    """Show what is left to do of an upgrade.

    \b
    Examples:
      siltstone upgrade status --metadata postgresql://me@db/silt
    """


@upgrade.command("status")
@system_options
@json_option
def status(given: SystemOptions, as_json: bool) -> None:
    """Show the schema, which programs run, whether the release before may come back, and what is left to do.

    Run it with the release that you upgrade to. Exit code 0 if nothing is left to do, otherwise 1. Changes nothing.
    Agents and compactors that wait for the schema have no lease, and are not listed: their /readyz says so. So where
    no program runs it says that it sees none; the exit code tells of the schema and the roles alone then: it is 1 if no
    role of agents or none of compactors has rights here. Where a program runs, or with --data, no role is missed.

    Of a program that runs it knows the schema, not the release: releases of one schema look alike here.

    \b
    Examples:
      siltstone upgrade status --metadata postgresql://me@db/silt
      siltstone upgrade status --config owner.toml --json
      until siltstone upgrade status --config owner.toml; do sleep 5; done
    """
    from metadata.migrations.upgrade_status import upgrade_status  # loads SQLAlchemy; `--help` must not

    with resolved(given) as urls:
        if not urls.metadata or is_memory(urls.metadata):
            raise BadInputError("no Postgres is named", remedy=ways_to_name(*POSTGRES_NAMES))
        # The programs of `siltstone dev` run as the owner.
        found = asyncio.run(upgrade_status(urls.metadata, is_owner_run=given.data is not None))
    if as_json:
        print_json(_json(found))
    else:
        _print(found)
    sys.exit(1 if found.left() else 0)


def _print(found: UpgradeStatus) -> None:
    plan = found.plan
    left = [f"{number}. {each}" for number, each in enumerate(found.left(), 1)]
    print_pairs(
        {
            "schema in Postgres": plan.present.revision or "none",
            "schema of this release": plan.target,
            **_accepted(found),
            "left to do": left or ("nothing" if plan.running else "nothing that can be seen here"),
        }
    )
    if not plan.running:
        say(
            "no program is seen: agents and compactors that wait, that end at their start, or that use another Postgres"
            " are not, so this does not show that all are of this release"
        )
        return
    rows = [
        (each.kind, each.place, revision_of(each.program), _which_is(found.standing(each))) for each in plan.running
    ]
    print_table(["kind", "place", "schema", "which is"], rows)


def _which_is(standing: Standing) -> str:
    from metadata.migrations.upgrade_status import Standing

    return "that of this release" if standing is Standing.SAME else standing


def _accepted(found: UpgradeStatus) -> dict[str, str]:
    from metadata.migrations.upgrade_status import going_back

    plan, back = found.plan, going_back(found.plan.present)
    if plan.present.revision is None:
        return {}
    accepts = f"{revision_of(plan.present.oldest_program)} and newer" if plan.present.oldest_program else "its own"
    if plan.steps:
        accepts += f"; after the migration {revision_of(plan.oldest_program)} and newer"
    pairs = {"accepts programs of": accepts}
    if back is not None:
        pairs["going back"] = f"to the release of schema {back[0]}: {'yes' if back[1] else 'no'}"
    return pairs


def _json(found: UpgradeStatus) -> dict[str, Any]:
    from metadata.migrations.upgrade_status import going_back

    plan, back = found.plan, going_back(found.plan.present)
    return {
        "schema": plan.present.revision,
        "release_schema": plan.target,
        "steps": [step.revision for step in plan.steps],
        "oldest_program": plan.present.oldest_program,
        "going_back": None if back is None else {"schema": back[0], "accepted": back[1]},
        "programs": [
            {
                "kind": each.kind,
                "place": each.place,
                "schema": revision_of(each.program),
                "release": str(found.standing(each)),
            }
            for each in plan.running
        ],
        "missing_rights": list(plan.missing_rights),
        "roles": [{"kind": role.kind, "role": role.name, "lacks": list(role.lacks)} for role in found.roles],
        "left": list(found.left()),
    }
