"""`siltstone fsck`: see `siltstone/fsck.py` for what is checked and in what order."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from siltstone.cli.output import console, json_option, print_json, print_table
from siltstone.cli.places import Places, Urls, opened, place_options, resolved, same_cluster
from siltstone.fsck import Finding, check_system

VIOLATIONS_SHOWN = 20
"""Of each invariant; --json prints all."""


@click.command()
@click.option("--quick", is_flag=True, help="Read no object, only whether it is there with its length.")
@place_options
@json_option
def fsck(quick: bool, places: Places, as_json: bool) -> None:
    """Check the invariants on a live system. Exit code 0 when all hold, 1 when one is broken.

    \b
    Examples:
      siltstone fsck --data ./siltstone-data
      siltstone fsck --metadata postgresql://siltstone@db/siltstone --object-store s3://records/prod --quick
    """
    with resolved(places) as urls:
        findings = asyncio.run(_check(urls, quick=quick))
    broken = sum(len(finding.violations) for finding in findings)
    if as_json:
        print_json({"clean": broken == 0, "invariants": [_as_json(finding) for finding in findings]})
    else:
        _print(findings)
        click.echo(f"{broken:,} violation{'' if broken == 1 else 's'}" if broken else "clean")
    sys.exit(1 if broken else 0)


async def _check(urls: Urls, *, quick: bool) -> Sequence[Finding]:
    columns = [TextColumn("reading objects"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    async with opened(urls) as system:
        await same_cluster(system)  # else every file would be called missing
        with Progress(*columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
            task = bar.add_task("", total=None)

            def progress(done: int, total: int) -> None:
                bar.update(task, completed=done, total=total)

            return await check_system(system.metadata, system.store, quick=quick, progress=progress)


def _print(findings: Sequence[Finding]) -> None:
    columns = ["invariant", "checked", "violations", "rule"]
    cells = [
        [finding.id, f"{finding.checked:,} {finding.unit}", f"{len(finding.violations):,}", finding.rule]
        for finding in findings
    ]
    print_table(columns, cells, right=["checked", "violations"])
    for finding in findings:
        for violation in finding.violations[:VIOLATIONS_SHOWN]:
            click.echo(f"{violation.id}: {violation.message}")
        if len(finding.violations) > VIOLATIONS_SHOWN:
            click.echo(f"{finding.id}: {len(finding.violations) - VIOLATIONS_SHOWN:,} more; --json lists them all")


def _as_json(finding: Finding) -> dict[str, str | int | list[str]]:
    return {
        "id": finding.id,
        "rule": finding.rule,
        "checked": finding.checked,
        "unit": finding.unit,
        "violations": [violation.message for violation in finding.violations],
    }
