"""`siltstone fsck`: the checks are in `siltstone/ops/fsck.py`, the rules of --adopt in `siltstone/ops/adoption.py`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import click
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from compactor.deletion.orphans import orphans_allowed
from metadata.postgres.backup.restore import RebuiltState, rebuilt_state
from metadata.rules.history import History
from runtime.settings.table import Settings
from runtime.text import age_text, plural, size_text
from siltstone.cli.options.system_options import (
    System,
    SystemOptions,
    Urls,
    opened,
    resolved,
    same_cluster,
    system_options,
)
from siltstone.ops.adoption import Unknown, adopted_changes, allowances, obstacles, unknown_objects
from siltstone.ops.fsck import Finding, check_system
from siltstone.terminal.output import console, json_option, print_json, print_table
from siltstone.terminal.plain import say

VIOLATIONS_SHOWN = 20
"""Violations that are printed for each invariant; --json prints all."""
UNKNOWN_SHOWN = 5
"""Keys without a row that are printed; --json prints all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Report:
    findings: Sequence[Finding]
    history: History
    """The history before this command adopted anything."""
    unknown: Unknown | None
    """None if the janitor is not halted: the command did not look for such objects."""
    rebuilt: RebuiltState
    adopt: bool
    """Whether --adopt was given."""
    settings: Settings

    @property
    def broken(self) -> int:
        return sum(len(finding.violations) for finding in self.findings)

    @property
    def obstacles(self) -> Sequence[str]:
        return obstacles(self.findings)

    @property
    def is_adopted(self) -> bool:
        """Whether this command adopts, or has adopted, the present Postgres."""
        return self.adopt and bool(self.history.halts) and not self.obstacles


@click.command()
@click.option("--quick", is_flag=True, help="Check only that each object exists with its length; read no object.")
@click.option("--adopt", is_flag=True, help="After a restore or failover of Postgres: let the janitor delete again.")
@system_options
@json_option
def fsck(quick: bool, adopt: bool, given: SystemOptions, as_json: bool) -> None:
    """Check the invariants of a live system. Exit code 0 if all hold, 1 if one is broken.

    After a restore or failover of the metadata Postgres the janitor deletes nothing, because older metadata makes
    committed files look like orphans. --adopt checks the invariants. If none but FILE-2 is broken, it records that this
    Postgres is the right one, and the janitor deletes again: exit code 0 then, 1 if --adopt was refused. From then on
    objects that no row names are deleted at the age of orphan.age.ms.

    \b
    Examples:
      siltstone fsck --data ./siltstone-data
      siltstone fsck --quick --metadata postgresql://siltstone@db/siltstone \\
          --object-store s3://records/prod
      siltstone fsck --config agent.toml --adopt
    """
    with resolved(given) as urls:
        report = asyncio.run(_check(urls, given.settings, quick=quick, adopt=adopt))
    if as_json:
        print_json(_as_json(report))
    else:
        _print(report.findings)
        for line in _janitor_lines(report):
            say(line)
        broken = report.broken
        say(plural(broken, "violation") if broken else "clean")
    sys.exit(1 if report.broken and not report.is_adopted else 0)


async def _check(urls: Urls, settings: Settings, *, quick: bool, adopt: bool) -> _Report:
    async with opened(urls) as system:
        await same_cluster(system)  # otherwise every file would be reported as missing
        # Read the history before the checks, so that --adopt adopts the server that the checks looked at.
        history = await system.metadata.deletion.history()
        findings = await _findings(system, settings, quick=quick)
        unknown = await unknown_objects(system.metadata, system.store) if history.halts else None
        rebuilt = await rebuilt_state(urls.metadata) if history.halts else RebuiltState.NEVER
        report = _Report(
            findings=findings, history=history, unknown=unknown, rebuilt=rebuilt, adopt=adopt, settings=settings
        )
        if report.is_adopted:
            await system.metadata.operators.adopt_history(history.present)
        return report


async def _findings(system: System, settings: Settings, *, quick: bool) -> Sequence[Finding]:
    columns = [TextColumn("reading objects"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()]
    with Progress(*columns, console=console(stderr=True), transient=True, disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=None)

        def progress(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        return await check_system(
            system.metadata, system.store, quick=quick, progress=progress, allowances=allowances(settings)
        )


def _print(findings: Sequence[Finding]) -> None:
    columns = ["invariant", "checked", "violations", "rule"]
    cells = [
        [
            finding.id,
            plural(finding.checked, finding.unit.removesuffix("s")),
            f"{len(finding.violations):,}",
            finding.rule,
        ]
        for finding in findings
    ]
    print_table(columns, cells, right=["checked", "violations"])
    for finding in findings:
        for violation in finding.violations[:VIOLATIONS_SHOWN]:
            say(f"{violation.id}: {violation.message}")
        if len(finding.violations) > VIOLATIONS_SHOWN:
            say(f"{finding.id}: {len(finding.violations) - VIOLATIONS_SHOWN:,} more; --json lists them all")


def _janitor_lines(report: _Report) -> Iterator[str]:
    """Lines about the janitor: whether it may delete, what --adopt did, and which objects it will delete."""
    halts = report.history.halts
    if not halts:
        if report.adopt:
            yield "nothing to adopt: the janitor is not halted"
        return
    if report.is_adopted:
        yield f"adopted: {adopted_changes(report.history)}; the janitor deletes again from its next round on"
    elif report.adopt:
        yield (
            f"not adopted: {', '.join(report.obstacles)} must hold first, because an object that no row names may be"
            " the last copy of missing records; the janitor stays halted"
        )
    else:
        yield f"the janitor is halted and deletes nothing: {halts}; --adopt lets it delete again"
    if report.unknown is not None:
        yield from _unknown_lines(report.unknown, report.rebuilt, report.settings)


def _unknown_lines(unknown: Unknown, rebuilt: RebuiltState, settings: Settings) -> Iterator[str]:
    count, age = len(unknown.objects), age_text(settings.orphan_age_ms)
    if not count:
        yield "no row is missing: a row names every object"
        return
    first, last = (_time_text(unknown.objects[at].last_modified_ms) for at in (0, -1))
    are, them = ("is", "it") if count == 1 else ("are", "them")
    yield (
        f"{plural(count, 'object')} ({size_text(unknown.size_bytes)}), written {first} to {last}, {are} named by no"
        f" row: once this is adopted, the janitor deletes {them} at the age of {age} (orphan.age.ms)."
    )
    yield from _origin_lines(unknown, rebuilt)
    allowed = orphans_allowed(unknown.listed, setting=settings.orphan_refuse_files)
    if count > allowed:
        yield (
            f"The janitor refuses to delete more than {allowed:,} such objects at once; orphan.refuse.files sets the"
            " limit."
        )
    for stat in unknown.objects[:UNKNOWN_SHOWN]:
        yield f"  {stat.key}"
    if count > UNKNOWN_SHOWN:
        yield f"  {count - UNKNOWN_SHOWN:,} more; --json lists them all"


def _origin_lines(unknown: Unknown, rebuilt: RebuiltState) -> Iterator[str]:
    """Lines that say where the objects may come from and what can still be done."""
    if rebuilt is RebuiltState.NEVER:
        yield (
            "They may hold records that were committed after the restored state. `siltstone rebuild` can restore their"
            " metadata from the bucket into an empty Postgres (docs/operations/rebuild.md)."
        )
        return
    l0 = unknown.l0_objects
    if not l0:
        yield "This database was rebuilt; these are files of merges that it does not need."
        return
    yield (
        f"This database was rebuilt, and {plural(l0, 'L0 file')} among them may hold records that were acknowledged"
        " after the last increment of the catalogue. Only the lost Postgres knew their offsets."
    )
    if rebuilt is RebuiltState.UNUSED:
        yield (
            "`siltstone rebuild --append-newer-l0` appends these records at new offsets and leaves out files that were"
            " never committed. It works only until an agent or a compactor is started on this database."
        )
    else:
        yield (
            "Agents or compactors have used this database since, so `siltstone rebuild --append-newer-l0` refuses it,"
            " and these records cannot be restored into it. `siltstone file inspect KEY --batches` shows what a file"
            " contains; copy the files that you want to keep before you adopt."
        )


def _time_text(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S")


def _as_json(report: _Report) -> dict[str, Any]:
    return {
        "clean": report.broken == 0,
        "invariants": [_finding_as_json(finding) for finding in report.findings],
        "janitor": {
            "halted": "" if report.is_adopted else report.history.halts,
            "adopted_now": report.is_adopted,
            "obstacles": list(report.obstacles),
            "adopted": report.history.adopted._asdict(),
            "present": report.history.present._asdict(),
            "rebuilt": report.rebuilt.value,
            "unknown_objects": None if report.unknown is None else [stat.key for stat in report.unknown.objects],
        },
    }


def _finding_as_json(finding: Finding) -> dict[str, str | int | list[str]]:
    return {
        "id": finding.id,
        "rule": finding.rule,
        "checked": finding.checked,
        "unit": finding.unit,
        "violations": [violation.message for violation in finding.violations],
    }
