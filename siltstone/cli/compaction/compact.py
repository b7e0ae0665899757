"""`siltstone compact TOPIC`: show what is due, or with --now run a pass over the topic and wait for it."""

from __future__ import annotations

import asyncio
import sys

import click

from runtime.clock import SystemClock
from runtime.text import plural, size_text
from siltstone.cli.compaction.helping import helped
from siltstone.cli.compaction.run_here import (
    EngineChoice,
    engine_option,
    opened_parts,
    shown_steps,
    stopped_here,
    worker_here,
)
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.options.system_options import SystemOptions, Urls, opened_metadata, resolved, system_options
from siltstone.cli.options.usage import WrongUsageError
from siltstone.cli.topics.explain import print_states, read_explained
from siltstone.ops.compaction import compact_now
from siltstone.ops.compaction.report import states_json
from siltstone.processes.stopping import INTERRUPTED, unless
from siltstone.terminal.compaction_progress import shown_progress
from siltstone.terminal.output import console, json_option, print_json, print_pairs
from siltstone.terminal.plain import say

TIMEOUT_S = 3600


@click.command()
@click.argument("topic", type=TOPIC)
@click.option("--now", is_flag=True, help="Compact the topic now and wait for the end.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help=f"With --now: wait at most this long (default {TIMEOUT_S}); the request itself stays.",
)
@engine_option
@system_options
@json_option
def compact(
    topic: str, now: bool, timeout: float | None, engine: EngineChoice | None, given: SystemOptions, as_json: bool
) -> None:
    """Show which compaction of TOPIC is due, or with --now compact it.

    --now stores a request and waits until compactors have carried it out. The pass first levels the topic's L0 files
    and waits for no dirty ratio and no forced.interval.ms. It ends when every partition is cleaned through the end
    that it had when the command began (with min.compaction.lag.ms: up to the first record that is too young). If no
    compactor runs, one runs in this process until the pass ends. Ctrl-C ends only the waiting; the request stays.

    With --engine no request is stored: this process runs the merges of TOPIC on that engine, even if compactors run.
    Ctrl-C then stops the running merge and leaves the rest to the compactors.

    \b
    Examples:
      siltstone compact users --data ./siltstone-data
      siltstone compact users --now --data ./siltstone-data
      siltstone compact users --now --data ./siltstone-data \\
          --engine spark --set spark.submitter=local
      siltstone compact users --now --timeout 60 --json \\
          --metadata postgresql://siltstone@db/siltstone \\
          --object-store s3://records/prod
    """
    if engine is not None and not now:
        raise WrongUsageError(
            "--engine has a meaning only with --now, because only --now runs merges",
            remedy="add --now, or leave --engine out",
        )
    if timeout is not None and not now:
        raise WrongUsageError(
            "--timeout has a meaning only with --now, because only --now waits",
            remedy="add --now, or leave --timeout out",
        )
    with resolved(given) as urls:
        if not now:
            _say_what_is_due(topic, urls, given, as_json=as_json)
            return
        timeout_ms = (TIMEOUT_S if timeout is None else timeout) * 1000
        try:
            work = (
                _compact(urls, given, topic, timeout_ms=timeout_ms)
                if engine is None
                else compact_on(urls, given, topic, engine, timeout_ms=timeout_ms)
            )
            done = asyncio.run(work)
        except KeyboardInterrupt:
            say(
                "stopped waiting. The request stays, and compactors carry it out. Show their progress with:\n"
                f"  siltstone topics explain {topic}{given.hints.places}",
                err=True,
            )
            sys.exit(INTERRUPTED)
    if as_json:
        print_json(done.as_json())
    else:
        print_compacted(done)


def _say_what_is_due(topic: str, urls: Urls, given: SystemOptions, *, as_json: bool) -> None:
    explained = asyncio.run(read_explained(urls.metadata, topic, given))
    configs = compact_now.configs_in_force(explained.topic, [state.view for state in explained.states])
    compact_now.require_compacted(explained.topic, configs, hints=given.hints)
    if as_json:
        print_json({"topic": topic, "partitions": states_json(explained.states, explained.reasons)})
        return
    print_states(explained)
    if not any(state.due for state in explained.states):
        say("nothing is due")
    say(f"compact it now: siltstone compact {topic} --now{given.hints.places}")
    say(f"why not yet: siltstone topics explain {topic}{given.hints.places}")


async def _compact(urls: Urls, given: SystemOptions, topic: str, *, timeout_ms: float) -> compact_now.Compacted:
    async with opened_metadata(urls.metadata) as metadata:
        asked = await compact_now.request(metadata, topic, hints=given.hints)
        with shown_progress(console(stderr=True)) as show:
            waiting = compact_now.wait(metadata, asked, clock=SystemClock(), timeout_ms=timeout_ms, on_progress=show)
            return await helped(waiting, metadata, urls, given.settings, command="compact", until="the pass is done")


async def compact_on(
    urls: Urls, given: SystemOptions, topic: str, engine: EngineChoice, *, timeout_ms: float
) -> compact_now.Compacted:
    """Run the merges of a topic in this process, on one engine."""
    async with opened_parts(urls, given) as parts:
        from siltstone.ops.compaction.compact_here import compact_here

        with shown_steps() as show:
            async with worker_here(parts, engine, "compact", show) as (worker, stopping):
                done = await unless(
                    stopping, compact_here(parts, worker, topic, timeout_ms, choice=engine, hints=given.hints)
                )
        if done is None:
            raise stopped_here(f"stopped: the merges of {topic} that ended stay; compactors do the rest")
        return done


def print_compacted(done: compact_now.Compacted) -> None:
    """Print the result as pairs."""
    before, after = done.before, done.after
    held = held_back_text(done)
    jobs = ", ".join(f"job {job.job_id} ({job.kind})" for job in done.jobs)
    pairs = {
        "records": f"{before.records:,} -> {after.records:,} ({before.records - after.records:,} gone)",
        "bytes": f"{size_text(before.size_bytes)} -> {size_text(after.size_bytes)}",
        "tombstones": f"{done.tombstones_kept:,} kept, {done.tombstones_dropped:,} dropped",
        "jobs": jobs or ("none: nothing else was due" if held else "none: nothing was due"),
        "took": f"{done.took_ms / 1000:.1f} s",
    }
    what = "cleaned as far as allowed now" if held else "every partition is cleaned through the end it had"
    print_pairs(pairs, title=f"{done.topic}: {what}")
    if held:
        say(held)


def held_back_text(done: compact_now.Compacted) -> str:
    """For example "16 offsets held back by min.compaction.lag.ms"; empty when nothing is held back."""
    reasons = (
        (done.held_by_lag, "min.compaction.lag.ms"),
        (done.held_by_transactions, "open transactions"),
    )
    return ", ".join(f"{plural(count, 'offset')} held back by {what}" for count, what in reasons if count)
