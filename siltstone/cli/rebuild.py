"""`siltstone rebuild`: how it decides says `siltstone/ops/rebuild/plan.py`, what it writes
`siltstone/ops/rebuild/run.py`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

import click

from runtime.errors import BadInputError
from runtime.runtime import Runtime
from runtime.settings.checks import is_memory
from runtime.text import plural
from siltstone.cli.options.system_options import POSTGRES_NAMES, SystemOptions, opened_store, url_options, ways_to_name
from siltstone.ops.rebuild.run import Rebuild, Rebuilt
from siltstone.terminal.output import json_option, print_json, print_pairs, print_table

WITH_LOSSES = 3
SHOWN_MAX = 20


@click.command()
@click.option("--dry-run", is_flag=True, help="Say what would come back and what not; write nothing.")
@click.option("--force", is_flag=True, help="Although the bucket was written to a moment ago: the old cluster is gone.")
@click.option(
    "--append-newer-l0",
    is_flag=True,
    help="Append records whose offsets nobody knows, at new offsets, behind all others.",
)
@url_options
@json_option
def rebuild(dry_run: bool, force: bool, append_newer_l0: bool, given: SystemOptions, as_json: bool) -> None:
    """Bring the metadata back from the bucket into an empty Postgres.

    For when Postgres is lost with its backups. It takes the newest catalogue snapshot that the compactors wrote to the
    bucket, what they added since, and the footers of newer files. Refused on a database that is not empty, and while
    the old cluster may be alive. Afterwards run `siltstone fsck`; the janitor deletes nothing before `fsck --adopt`.

    Exit code 0 when all records that were acknowledged came back, 3 when something did not: a table says what. What
    groups committed since the snapshot is not known either way. Killed half-way, it may be run again as it was.

    \b
    Examples:
      siltstone rebuild --dry-run --object-store s3://records/prod \\
          --metadata postgresql://siltstone@newdb/siltstone
      siltstone rebuild --config agent.toml --json
    """
    if not given.metadata_url or is_memory(given.metadata_url):
        raise BadInputError("no Postgres is named", remedy=ways_to_name(*POSTGRES_NAMES, data=False))
    rebuilt = asyncio.run(_rebuild(given, dry_run=dry_run, force=force, append_newer_l0=append_newer_l0))
    if as_json:
        print_json(_as_json(rebuilt))
    else:
        _print(rebuilt)
    sys.exit(0 if rebuilt.is_complete else WITH_LOSSES)


async def _rebuild(given: SystemOptions, *, dry_run: bool, force: bool, append_newer_l0: bool) -> Rebuilt:
    async with opened_store(given.object_store_url) as store:
        return await Rebuild(
            store=store,
            metadata_url=given.metadata_url,
            runtime=Runtime(),
            say=lambda line: click.echo(line, err=True),
            force=force,
            dry_run=dry_run,
            append_newer_l0=append_newer_l0,
        ).run()


def _counts(rebuilt: Rebuilt) -> dict[str, int | None]:
    tables = rebuilt.plan.tables
    return {
        "topics": len(tables["topics"]),
        "partitions": len(tables["partitions"]),
        "live_files": sum(row["state"] == "live" for row in tables["files"]),
        "dead_files": sum(row["state"] == "dead" for row in tables["files"]),
        "live_extents": sum(row["state"] == "live" for row in tables["extents"]),
        "producers": rebuilt.producers,
        "groups": len(tables["groups"]),
        "group_offsets": len(tables["group_offsets"]),
    }


def _print(rebuilt: Rebuilt) -> None:
    for line in rebuilt.found.passed_over:
        click.echo(f"passed over: {line}")
    counts = {
        name.replace("_", " "): "not counted: that takes reading records" if count is None else f"{count:,}"
        for name, count in _counts(rebuilt).items()
    }
    what = "would come back" if rebuilt.is_dry else "rebuilt"
    if rebuilt.was_rebuilt:
        what = "rebuilt by an earlier run"
    print_pairs(counts, title=f"cluster {rebuilt.plan.cluster_id}: {what}")
    if rebuilt.appended:
        click.echo("appended at NEW OFFSETS; who knows records by their old ones must be told:")
        columns = ["topic", "partition", "records", "first offset", "last offset"]
        cells = [[each.topic, *(f"{number:,}" for number in each[1:])] for each in rebuilt.appended]
        print_table(columns, cells, right=columns[1:])
    losses = rebuilt.losses
    if losses:
        click.echo("does not come back:")
        columns = ["what", "topic", "partition", "records", "detail"]
        cells = [[what, topic, f"{part:,}", f"{records:,}", detail] for what, topic, part, records, detail in losses]
        print_table(columns, cells, right=["partition", "records"])
    for line in _other_lines(rebuilt):
        click.echo(line)
    click.echo("complete: every acknowledged record" if rebuilt.is_complete else "with losses")


def _other_lines(rebuilt: Rebuilt) -> Iterator[str]:
    for title, names in (
        ("files whose footers cannot be read", rebuilt.found.unreadable),
        ("files of topics that the catalogue does not know", rebuilt.plan.unknown_topics),
    ):
        if names:
            yield f"{title}: {len(names):,}"
            yield from (f"  {name}" for name in names[:SHOWN_MAX])
    if rebuilt.refused_batches:
        yield f"{plural(rebuilt.refused_batches, 'batch')} refused while appending: their producers had gone on"
    if rebuilt.plan.uncommitted_l0:
        number = plural(len(rebuilt.plan.uncommitted_l0), "L0 file")
        yield f"left out: {number} that were never committed: nobody was told that they are stored (see --json)"
    if rebuilt.plan.newer_l0 and rebuilt.would_append:
        number = plural(len(rebuilt.plan.newer_l0), "newer L0 file")
        yield f"{number} would be appended at NEW OFFSETS; who knows the records by their old ones must be told"
    elif rebuilt.plan.newer_l0 and not rebuilt.appended:
        yield "newer L0 files stay in the bucket; --append-newer-l0 brings their records back at new offsets"
    yield (
        f"not known: what was changed or deleted after {_time(rebuilt.plan.known_ms)}; delete again what was deleted"
        " since."
    )
    yield (
        f"not known: what groups committed after {_time(rebuilt.found.catalogued.instant.taken_ms)}. Their consumers"
        " read records since then again; a group that committed nothing before begins where auto.offset.reset says:"
        " set its offsets before (`siltstone groups reset`)."
    )
    if not rebuilt.is_dry:
        yield "next: `siltstone fsck`, start compactors and agents, then `siltstone fsck --adopt`."


def _time(at_ms: int) -> str:
    return datetime.fromtimestamp(at_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def _as_json(rebuilt: Rebuilt) -> dict[str, Any]:
    plan, found = rebuilt.plan, rebuilt.found
    return {
        "cluster_id": plan.cluster_id,
        "complete": rebuilt.is_complete,
        "dry_run": rebuilt.is_dry,
        "was_rebuilt": rebuilt.was_rebuilt,
        "snapshot": found.snapshot,
        "snapshot_taken_ms": found.catalogued.instant.taken_ms,
        "known_ms": plan.known_ms,
        "passed_over": found.passed_over,
        "counts": _counts(rebuilt),
        "losses": [loss._asdict() for loss in rebuilt.losses],
        "newer_l0": list(plan.newer_l0),
        "uncommitted_l0": plan.uncommitted_l0,
        "appended": [each._asdict() for each in rebuilt.appended],
        "refused_batches": rebuilt.refused_batches,
        "unreadable": found.unreadable,
        "unknown_topics": plan.unknown_topics,
    }
