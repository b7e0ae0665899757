"""`siltstone levels`: the merge tree as a picture in the terminal."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import click
from rich.text import Text

from siltstone.cli.options.system_options import SystemOptions, opened_metadata, resolved, system_options
from siltstone.ops.levels_report import RUNS_SHOWN, LevelClass, levels_json, levels_of, picture
from siltstone.terminal.live import draw_until_stopped, quiet_interrupts
from siltstone.terminal.output import console, json_option, print_json

WATCH_MS = 1_000


@click.command()
@click.option("--watch", is_flag=True, help="Draw it again every second until Ctrl-C.")
@click.option("--runs", type=click.IntRange(min=1), default=RUNS_SHOWN, show_default=True, help="Bars a level at most.")
@system_options
@json_option
def levels(watch: bool, runs: int, given: SystemOptions, as_json: bool) -> None:
    """Show what lies in L0, L1 and L2: a bar for each run, as long as its bytes, its dead share shaded.

    A run is what one merge wrote. lo..hi is the range of L0 files it stands for. Files of compacted topics and of
    others are kept apart from L1 up.

    \b
    Examples:
      siltstone levels --data ./siltstone-data
      siltstone levels --data ./siltstone-data --watch
      siltstone levels --metadata postgresql://siltstone@db/siltstone --json
    """
    if watch and as_json:
        raise click.UsageError("--watch draws a picture: give it without --json")
    if watch:
        with quiet_interrupts(), resolved(given) as urls:
            asyncio.run(_watch(urls.metadata, runs))
        return
    with resolved(given) as urls:
        shown, now_ms = asyncio.run(_read(urls.metadata))
    if as_json:
        print_json({"now_ms": now_ms, "levels": levels_json(shown)})
    else:
        click.echo(picture(shown, now_ms, runs_shown=runs, columns=console().width))


async def _read(metadata_url: str) -> tuple[Sequence[LevelClass], int]:
    async with opened_metadata(metadata_url) as metadata:
        view = await metadata.compaction_view()
        return levels_of(view), view.now_ms


async def _watch(metadata_url: str, runs: int) -> None:
    async with opened_metadata(metadata_url) as metadata:

        async def drawn() -> Text:
            view = await metadata.compaction_view()
            return Text(picture(levels_of(view), view.now_ms, runs_shown=runs, columns=console().width))

        await draw_until_stopped(drawn, every_ms=WATCH_MS)
