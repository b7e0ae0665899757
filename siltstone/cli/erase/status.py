"""`siltstone erase status`: how far erasures are, what they wait on, and the report of one that is done."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import click

from compactor.planning.options import plan_options
from metadata.erasures.contract import ERASURE_ID_MAX, KeyMark
from siltstone.cli.erase.waiting import print_report
from siltstone.cli.options.system_options import SystemOptions, Urls, opened, resolved, system_options
from siltstone.cli.options.usage import WrongUsageError
from siltstone.ops.erasure.report import read_signing_key, report_of, save
from siltstone.ops.erasure.status import State, deadline_text, read_states, state_json
from siltstone.terminal.output import json_option, print_json, print_table
from siltstone.terminal.plain import say

COLUMNS = ("id", "topic", "marks", "stage", "left", "deadline")


@click.command("status")
@click.argument("erasure_id", metavar="[ID]", type=click.IntRange(1, ERASURE_ID_MAX), required=False)
@click.option(
    "--report",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the report of a finished erasure, and FILE.secret beside it.",
)
@click.option(
    "--sign-key",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Sign the report with this private Ed25519 key (PEM), into FILE.sig beside it.",
)
@system_options
@json_option
def status(
    erasure_id: int | None, report: Path | None, sign_key: Path | None, given: SystemOptions, as_json: bool
) -> None:
    """Show all erasures, or erasure ID with everything it waits on.

    The report is for those who must show that an erasure was done: times, files, a digest of the bucket's listing, and
    a keyed hash of each key. It names no key; the secret in FILE.secret shows that a key was in it. Keep that file to
    yourself. Rows of finished erasures are forgotten after 30 days.

    \b
    Examples:
      siltstone erase status --data ./siltstone-data
      siltstone erase status 7 --report erasure-7.json --sign-key signing.pem
    """
    if erasure_id is None and report is not None:
        raise WrongUsageError("--report needs the ID of an erasure", remedy="give it: siltstone erase status ID")
    if sign_key is not None and report is None:
        raise WrongUsageError("--sign-key has a meaning only with --report", remedy="add --report FILE")
    key = None if sign_key is None else read_signing_key(sign_key)
    with resolved(given) as urls:
        states, marks = asyncio.run(_read(urls, given, erasure_id, with_marks=report is not None))
    if report is not None:
        erasure = states[0].erasure
        for path in save(report, report_of(erasure, marks), erasure.secret, key):
            say(f"wrote {path}", err=True)
    if as_json:
        print_json({"erasures": [state_json(each) for each in states]})
    elif erasure_id is None:
        _print_all(states)
    else:
        print_report(states[0])
        for each in states[0].waits:
            say(f"waits on: {each.text}")


async def _read(
    urls: Urls, given: SystemOptions, erasure_id: int | None, *, with_marks: bool
) -> tuple[Sequence[State], Mapping[int, Sequence[KeyMark]]]:
    async with opened(urls) as system:
        states = await read_states(
            system.metadata, system.store, plan_options(given.settings), erasure_id=erasure_id, hints=given.hints
        )
        wanted = erasure_id is not None and with_marks
        return states, await system.metadata.erasures.erasure_marks(erasure_id) if wanted and erasure_id else {}


def _print_all(states: Sequence[State]) -> None:
    if not states:
        say("there is no erasure")
        return
    rows = [
        [
            str(each.erasure.erasure_id),
            each.erasure.topic_name,
            f"{each.erasure.keys:,}",
            each.erasure.stage.value,
            "; ".join(wait.text for wait in each.waits) or "-",
            deadline_text(each.erasure, each.now_ms),
        ]
        for each in states
    ]
    print_table(list(COLUMNS), rows, right=["id", "marks"])
