"""`siltstone rebuild`: `siltstone/ops/rebuild/plan.py` decides, `siltstone/ops/rebuild/run.py` writes."""

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
from siltstone.ops.rebuild.aborting import groups_of
from siltstone.ops.rebuild.run import Rebuild, Rebuilt
from siltstone.terminal.output import json_option, print_json, print_pairs, print_table
from siltstone.terminal.plain import say

WITH_LOSSES = 3
"""Exit code of a rebuild that is done but could not restore everything."""
SHOWN_MAX = 20


@click.command()
@click.option("--dry-run", is_flag=True, help="Only show what would be restored and what not; write nothing.")
@click.option(
    "--force",
    is_flag=True,
    help="Rebuild although the bucket was written to a moment ago. Only if the old cluster is gone for sure.",
)
@click.option(
    "--append-newer-l0",
    is_flag=True,
    help="Also append records whose offsets are lost; they get new offsets, after all others.",
)
@url_options
@json_option
def rebuild(dry_run: bool, force: bool, append_newer_l0: bool, given: SystemOptions, as_json: bool) -> None:
    """Restore the metadata from the bucket into an empty Postgres.

    For a Postgres that is lost together with its backups. The command reads the newest catalogue snapshot that the
    compactors wrote to the bucket, its increments, and the footers of newer files. It refuses a database that is not
    empty, and a bucket that the old cluster may still be writing to. Afterwards run `siltstone fsck`; the janitor
    deletes nothing before `siltstone fsck --adopt`.

    Exit code 0 if all acknowledged records were restored; 3 if the rebuild is done but something is lost, which a table
    lists; 1 if nothing was done. Offsets that groups committed after the snapshot are lost in any case, and users, for
    whom `siltstone users import` is. Transactions that had not ended are aborted, with the offsets that they held; so
    are those that ended after the last increment. If the command is killed, run it again with the same options.

    \b
    Examples:
      siltstone rebuild --dry-run --object-store s3://records/prod \\
          --metadata postgresql://siltstone@newdb/siltstone
      siltstone rebuild --config agent.toml --json
    """
    if not given.metadata_url or is_memory(given.metadata_url):
        raise BadInputError(
            "no Postgres is named; nothing was changed", remedy=ways_to_name(*POSTGRES_NAMES, data=False)
        )
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
            say=lambda line: say(line, err=True),
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
        "transactional_ids": len(tables["transactions"]),
        "aborted_transactions": len(tables["aborted_transactions"]),
    }


def _print(rebuilt: Rebuilt) -> None:
    for line in rebuilt.found.passed_over:
        say(f"skipped: {line}")
    counts = {
        name.replace("_", " "): "not counted: counting must read records" if count is None else f"{count:,}"
        for name, count in _counts(rebuilt).items()
    }
    what = "would be rebuilt" if rebuilt.is_dry else "rebuilt"
    if rebuilt.was_rebuilt:
        what = "rebuilt by an earlier run"
    print_pairs(counts, title=f"cluster {rebuilt.plan.cluster_id}: {what}")
    if rebuilt.appended:
        say("appended at NEW OFFSETS; tell everyone who stored the old offsets of these records:")
        columns = ["topic", "partition", "records", "first offset", "last offset"]
        cells = [[each.topic, *(f"{number:,}" for number in each[1:])] for each in rebuilt.appended]
        print_table(columns, cells, right=columns[1:])
    losses = rebuilt.losses
    if losses:
        say("not restored:")
        columns = ["what", "topic", "partition", "records", "detail"]
        cells = [[what, topic, f"{part:,}", f"{records:,}", detail] for what, topic, part, records, detail in losses]
        print_table(columns, cells, right=["partition", "records"])
    for line in _other_lines(rebuilt):
        say(line)
    came_back = "complete: every acknowledged record" if rebuilt.is_complete else "with losses"
    say(f"{came_back}; no users, because the bucket holds none")


def _other_lines(rebuilt: Rebuilt) -> Iterator[str]:
    for title, names in (
        ("files whose footers cannot be read", rebuilt.found.unreadable),
        ("files of topics that the catalogue does not know", rebuilt.plan.unknown_topics),
    ):
        if names:
            yield f"{title}: {len(names):,}"
            yield from (f"  {name}" for name in names[:SHOWN_MAX])
    if rebuilt.refused_batches:
        yield (
            f"{plural(rebuilt.refused_batches, 'batch')} refused while appending, because their producers have written"
            " later batches, or because they belong to transactions whose end is unknown"
        )
    if rebuilt.aborted:
        would = "would be" if rebuilt.is_dry else "are"
        yield (
            f"{plural(len(rebuilt.aborted), 'open transaction')} {would} aborted; one that was committed after"
            f" {_time(rebuilt.plan.known_ms)} is among them. Producers from before must begin anew: they hear"
            " INVALID_PRODUCER_ID_MAPPING or PRODUCER_FENCED"
        )
    groups = groups_of(rebuilt.aborted)
    if groups:
        yield (
            f"lost with them: the offsets of {plural(len(groups), 'group')} ({', '.join(groups[:SHOWN_MAX])}). Programs"
            " that read, write and commit offsets in one transaction may write records again"
        )
    if rebuilt.plan.uncommitted_l0:
        number = plural(len(rebuilt.plan.uncommitted_l0), "L0 file")
        yield f"left out: {number} that were never committed; no producer got an acknowledgement for them (see --json)"
    if rebuilt.plan.newer_l0 and rebuilt.would_append:
        number = plural(len(rebuilt.plan.newer_l0), "newer L0 file")
        yield f"{number} would be appended at NEW OFFSETS; tell everyone who stored the old offsets of these records"
    elif rebuilt.plan.newer_l0 and not rebuilt.appended:
        yield "newer L0 files stay in the bucket; --append-newer-l0 restores their records at new offsets"
    yield (f"not known: changes and deletions after {_time(rebuilt.plan.known_ms)}; repeat the deletions of that time.")
    yield (
        f"not known: offsets that groups committed after {_time(rebuilt.found.catalogued.instant.taken_ms)}. Their"
        " consumers will read the records since then again. A group whose first commit came later starts at its"
        " auto.offset.reset; to prevent that, set its offsets first (`siltstone groups reset`)."
    )
    if not rebuilt.is_dry:
        yield (
            "next: run `siltstone migrate --agent ROLE --compactor ROLE` (roles have no rights in this database), and"
            " `siltstone users import FILE` if there were users (FILE is of `siltstone users export`); then run"
            " `siltstone fsck`, start compactors and agents, and run `siltstone fsck --adopt`."
        )


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
        "aborted_transactions": [each._asdict() for each in rebuilt.aborted],
        "unreadable": found.unreadable,
        "unknown_topics": plan.unknown_topics,
    }
