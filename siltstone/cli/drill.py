"""`siltstone drill`: the drill itself is in `siltstone/ops/drill/`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from typing import Any

import click

from metadata.postgres.backup.scratch import ScratchUnavailableError
from runtime.runtime import Runtime
from runtime.text import age_text, plural, size_text
from siltstone.cli.options.setting_options import is_shown_password, warn_of_password
from siltstone.cli.options.system_options import (
    SystemOptions,
    Urls,
    check_named,
    opened,
    resolved,
    same_cluster,
    system_options,
)
from siltstone.cli.postgres_remedies import remedy_of
from siltstone.ops.drill.compare import Comparison
from siltstone.ops.drill.run import Drill, Drilled
from siltstone.ops.rebuild.run import Rebuilt
from siltstone.processes.stopping import INTERRUPTED, stop_signals, unless
from siltstone.terminal.output import json_option, print_json, print_table
from siltstone.terminal.plain import say

LOST_SECONDS_MAX = 300
SHOWN_MAX = 20
"""Losses, and reasons, that are printed; --json has all."""


@click.command()
@click.option(
    "--lost-seconds-max",
    type=click.IntRange(min=0),
    default=LOST_SECONDS_MAX,
    show_default=True,
    metavar="N",
    help="How long before the drill the oldest record that a rebuild would lose may have been committed.",
)
@click.option(
    "--scratch",
    "scratch_url",
    metavar="URL",
    default="",
    help="Another Postgres for the scratch database: postgresql://USER@HOST:PORT/DB. Default: the live one.",
)
@system_options
@json_option
def drill(lost_seconds_max: int, scratch_url: str, given: SystemOptions, as_json: bool) -> None:
    """Prove that the metadata of a live cluster could be rebuilt from its bucket.

    The command makes a scratch database, rebuilds the metadata into it as `siltstone rebuild` would if Postgres were
    lost now, checks them, compares them with the live ones, and drops the database. It writes nothing to the bucket
    and disturbs no client. The scratch database takes as much disk as the live metadata; the command takes twice the
    memory of `rebuild`. It connects as the owner of the schema, who needs CREATEDB. What a killed drill leaves, the
    next one drops. A password in the URL of --scratch can be read in the list of processes: write ?password_file=PATH.

    Exit code 0: fit. All that came before the recovery point came back, with the same offsets, and the recovery point
    is within --lost-seconds-max. 1: not fit, for the reasons that it names, or the drill could not be done.

    \b
    Examples:
      siltstone drill --data ./siltstone-data
      siltstone drill --config owner.toml --lost-seconds-max 60
      siltstone drill --config owner.toml --json \\
          --scratch postgresql://siltstone@otherdb/postgres
    """
    if is_shown_password(scratch_url):
        warn_of_password(
            "--scratch", "put it into a file that PGPASSFILE names, or ?password_file=PATH at the end of the URL"
        )
    with resolved(given) as urls, _naming_scratch(scratch_url):
        check_named(urls)
        drilled = asyncio.run(_drill(urls, scratch_url, lost_seconds_max * 1000))
    if drilled is None:
        say("stopped before the end; the scratch database is dropped", err=True)
        sys.exit(INTERRUPTED)
    if as_json:
        print_json(_as_json(drilled))
    else:
        _print(drilled)
    sys.exit(1 if drilled.reasons else 0)


@contextmanager
def _naming_scratch(scratch_url: str) -> Generator[None]:
    """Errors about the Postgres of --scratch name that option."""
    try:
        yield
    except ScratchUnavailableError as error:
        if scratch_url:
            said = error.message, error.remedy or remedy_of(error)
            error.message, error.remedy = (text.replace("metadata.url", "--scratch") for text in said)
        raise


async def _drill(urls: Urls, scratch_url: str, lost_ms_max: int) -> Drilled | None:
    """None: a signal stopped it."""
    stopping = asyncio.Event()
    with stop_signals(stopping):
        async with opened(urls) as system:
            await same_cluster(system)
            work = Drill(
                metadata=system.metadata,
                store=system.store,
                metadata_url=urls.metadata,
                scratch_url=scratch_url,
                runtime=Runtime(),
                say=lambda line: say(line, err=True),
                lost_ms_max=lost_ms_max,
            ).run()
            return await unless(stopping, work)


def _print(drilled: Drilled) -> None:
    compared, rebuilt = drilled.comparison, drilled.rebuilt
    if compared is not None and rebuilt is not None:
        columns = ["", "live", "rebuilt", "lost"]
        cells = [[row.what, *(f"{number:,}" for number in (row.live, row.rebuilt, row.lost))] for row in compared.rows]
        print_table(columns, cells, right=columns[1:])
        if compared.lost:
            _print_lost(compared)
        for line in _figures(drilled, compared, rebuilt):
            say(line)
    for reason in drilled.reasons[:SHOWN_MAX]:
        say(f"not fit: {reason}")
    _say_more(len(drilled.reasons), "reason")
    if not drilled.reasons:
        say("fit: the metadata can be rebuilt from the bucket")


def _print_lost(compared: Comparison) -> None:
    columns = ["topic", "partition", "first offset", "last offset", "s before the drill"]
    cells = [
        [
            each.topic,
            *(f"{number:,}" for number in each[1:4]),
            f"{max(0, compared.taken_ms - each.since_ms) / 1000:,.1f}",
        ]
        for each in compared.lost[:SHOWN_MAX]
    ]
    print_table(columns, cells, right=columns[1:])
    _say_more(len(compared.lost), "stretch")


def _figures(drilled: Drilled, compared: Comparison, rebuilt: Rebuilt) -> Iterator[str]:
    for line in rebuilt.found.passed_over:
        yield f"skipped: {line}"
    snapshot_ms = max(0, compared.taken_ms - rebuilt.found.catalogued.instant.taken_ms)
    known_ms = max(0, compared.taken_ms - rebuilt.plan.known_ms)
    # Where nothing changes nothing is written, so their age alone says nothing.
    since = "" if compared.lost or compared.lost_topics else ", and no record was committed after it"
    yield (
        f"recovery point: {compared.lost_ms / 1000:,.1f} s, {plural(compared.lost_records, 'record')}; the newest"
        f" snapshot is {age_text(snapshot_ms)} old, the newest increment {age_text(known_ms)}{since}"
    )
    yield (
        f"took {drilled.seconds:,.1f} s, the rebuild {drilled.rebuild_seconds:,.1f} s of them, and"
        f" {size_text(drilled.scratch_bytes)} of disk; {plural(drilled.read_files, 'object')} read whole"
    )
    missing = [f"{row.live:,} {row.what}" for row in compared.rows if row.lost and row.what in ("users", "erasures")]
    if missing:
        yield (
            f"not in the bucket by design: {' and '.join(missing)}. `siltstone users export` keeps users; erasures are"
            " requested again"
        )


def _say_more(count: int, what: str) -> None:
    if count > SHOWN_MAX:
        say(f"{plural(count - SHOWN_MAX, what)} more; --json has all")


def _as_json(drilled: Drilled) -> dict[str, Any]:
    compared, rebuilt = drilled.comparison, drilled.rebuilt
    shown: dict[str, Any] = {
        "fit": not drilled.reasons,
        "reasons": list(drilled.reasons),
        "seconds": round(drilled.seconds, 3),
    }
    if compared is None or rebuilt is None:
        return shown
    return shown | {
        "rebuild_seconds": round(drilled.rebuild_seconds, 3),
        "scratch_bytes": drilled.scratch_bytes,
        "objects_read": drilled.read_files,
        "snapshot": rebuilt.found.snapshot,
        "taken_ms": compared.taken_ms,
        "snapshot_taken_ms": rebuilt.found.catalogued.instant.taken_ms,
        "known_ms": rebuilt.plan.known_ms,
        "passed_over": rebuilt.found.passed_over,
        "lost_seconds": compared.lost_ms / 1000,
        "lost_records": compared.lost_records,
        "compared": {row.what: {"live": row.live, "rebuilt": row.rebuilt, "lost": row.lost} for row in compared.rows},
        "lost": [each._asdict() for each in compared.lost],
        "lost_topics": [topic.name for topic in compared.lost_topics],
    }
