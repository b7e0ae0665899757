"""The wait for the end of an erasure: what it waits on, drawn on a terminal, and then its report in short."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from compactor.planning.options import plan_options
from compactor.planning.spec import PlanOptions
from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.store import MetadataStore
from metadata.erasures.contract import ErasureStage
from runtime.clock import Clock, SystemClock
from runtime.errors import UnavailableError
from siltstone.cli.compaction.helping import helped
from siltstone.cli.options.system_options import SystemOptions, Urls, opened_metadata
from siltstone.ops.erasure.report import report_pairs
from siltstone.ops.erasure.status import State, read_states, state_json, state_pairs
from siltstone.ops.hint_options import HintOptions
from siltstone.processes.stopping import INTERRUPTED
from siltstone.terminal.output import console, print_json, print_pairs
from siltstone.terminal.plain import say

POLL_MS = 500


class StillErasingError(UnavailableError):
    """The wait ended before the erasure was done. It stays."""


@contextmanager
def request_stays(given: SystemOptions, erasure_id: int) -> Generator[None]:
    """From the request on: after Ctrl-C ends the process with 130, and says that the erasure goes on without it."""
    try:
        yield
    except KeyboardInterrupt:
        say(
            "stopped waiting. The erasure stays, and compactors carry it out. Show how far it is with:\n"
            f"  siltstone erase status {erasure_id}{given.hints.places}",
            err=True,
        )
        sys.exit(INTERRUPTED)


def wait_for_the_end(
    urls: Urls, given: SystemOptions, erasure_id: int, *, timeout_ms: float | None, as_json: bool
) -> None:
    """Raises StillErasingError, also when the metadata store goes away."""
    try:
        state = asyncio.run(_wait(urls, given, erasure_id, timeout_ms))
    except MetadataUnavailableError as error:
        raise StillErasingError(
            f"stopped waiting: {error.message}. The erasure stays, and compactors carry it out",
            remedy=f"show how far it is: `siltstone erase status {erasure_id}{given.hints.places}`",
        ) from error
    if as_json:
        print_json(state_json(state))
    else:
        print_report(state)


def print_report(state: State) -> None:
    """The state in pairs; of an erasure that is done, its report in short."""
    pairs = {**state_pairs(state), **report_pairs(state.erasure.report)}
    print_pairs(pairs, title=f"erasure {state.erasure.erasure_id}")


async def _wait(urls: Urls, given: SystemOptions, erasure_id: int, timeout_ms: float | None) -> State:
    options = plan_options(given.settings)
    async with opened_metadata(urls.metadata) as metadata:
        with _shown() as show:
            waiting = _until_done(metadata, options, erasure_id, SystemClock(), timeout_ms, given.hints, show)
            return await helped(waiting, metadata, urls, given.settings, command="erase", until="the erasure is done")


async def _until_done(
    metadata: MetadataStore,
    options: PlanOptions,
    erasure_id: int,
    clock: Clock,
    timeout_ms: float | None,
    hints: HintOptions,
    show: Callable[[State], None],
) -> State:
    started_ms = clock.monotonic_ms()
    while True:
        (state,) = await read_states(metadata, None, options, erasure_id=erasure_id, hints=hints)
        if state.erasure.stage is ErasureStage.DONE:
            return state
        show(state)
        if timeout_ms is not None and clock.monotonic_ms() - started_ms > timeout_ms:
            raise StillErasingError(
                f"erasure {erasure_id} is not done after {timeout_ms / 1000:.0f} s; it waits on "
                + "; ".join(each.text for each in state.waits),
                remedy=f"it stays, and compactors carry it out: `siltstone erase status {erasure_id}{hints.places}`",
            )
        await clock.sleep_ms(POLL_MS)


@contextmanager
def _shown() -> Generator[Callable[[State], None]]:
    """A line on a terminal that says what the erasure waits on; elsewhere a line on stderr for each new stage."""
    target = console(stderr=True)
    columns = [SpinnerColumn(), TextColumn("{task.description}", markup=False), TimeElapsedColumn()]
    said = ""
    with Progress(*columns, console=target, transient=True, disable=not target.is_terminal) as progress:
        task = progress.add_task("", total=None)

        def show(state: State) -> None:
            nonlocal said
            stage = state.erasure.stage.value
            progress.update(task, description="; ".join([stage, *(each.text for each in state.waits)]))
            if not target.is_terminal and stage != said:
                said = stage
                say(stage, err=True)

        yield show
