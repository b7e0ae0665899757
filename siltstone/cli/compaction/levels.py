"""`siltstone levels`: the levels and their runs as a picture in the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
from rich.text import Text

from siltstone.cli.options.system_options import SystemOptions, opened_metadata, resolved, system_options
from siltstone.ops.levels_report import RUNS_SHOWN, LevelClass, levels_json, levels_of, picture
from siltstone.terminal.live import draw_until_stopped, quiet_interrupts
from siltstone.terminal.output import console, json_option, print_json
from siltstone.terminal.plain import say

WATCH_MS = 1_000


@click.command()
@click.option("--watch", is_flag=True, help="Redraw every second until Ctrl-C.")
@click.option(
    "--runs",
    type=click.IntRange(min=1),
    default=RUNS_SHOWN,
    show_default=True,
    help="Show at most this many bars a level.",
)
@system_options
@json_option
def levels(watch: bool, runs: int, given: SystemOptions, as_json: bool) -> None:
    """Draw the levels L0, L1 and L2: one bar for each run, its length the bytes, its shaded part the dead share.

    A run is the output of one merge. lo..hi is the range of L0 files that the run replaces. From L1 up, compacted
    topics and other topics have separate files.

    \b
    Examples:
      siltstone levels --data ./siltstone-data
      siltstone levels --data ./siltstone-data --watch
      siltstone levels --metadata postgresql://siltstone@db/siltstone --json
    """
    if watch and as_json:
        raise click.UsageError("--watch draws a picture and cannot be combined with --json")
    if watch:
        with quiet_interrupts(), resolved(given) as urls:
            asyncio.run(_watch(urls.metadata, runs))
        return
    with resolved(given) as urls:
        shown, now_ms = asyncio.run(_read(urls.metadata))
    if as_json:
        print_json({"now_ms": now_ms, "levels": levels_json(shown)})
    else:
        say(picture(shown, now_ms, runs_shown=runs, columns=console().width))


async def _read(metadata_url: str) -> tuple[Sequence[LevelClass], int]:
    async with opened_metadata(metadata_url) as metadata:
        view = await metadata.compactors.compaction_view()
        return levels_of(view), view.now_ms


async def _watch(metadata_url: str, runs: int) -> None:
    async with opened_metadata(metadata_url) as metadata:

        async def drawn() -> Text:
            view = await metadata.compactors.compaction_view()
            return Text(picture(levels_of(view), view.now_ms, runs_shown=runs, columns=console().width))

        await draw_until_stopped(drawn, every_ms=WATCH_MS)
