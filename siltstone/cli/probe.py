"""`siltstone probe`: write to the agents and read back, again and again or once (`siltstone/ops/probe/`)."""

from __future__ import annotations

import asyncio
from pathlib import Path

import click

from runtime.errors import BadInputError, SiltstoneError
from siltstone.cli.options.agent_options import agent_options
from siltstone.cli.options.completion import TOPIC
from siltstone.cli.options.setting_options import read_settings, setting_options
from siltstone.cli.options.usage import WrongUsageError, as_usage
from siltstone.kafka.addresses import parse_bootstrap
from siltstone.kafka.offset_spec import parse_duration
from siltstone.ops.probe.probing import TOPIC as PROBE_TOPIC
from siltstone.ops.probe.running import probe_once, run_probe
from siltstone.terminal.plain import say

EVERY_MS_MAX = 600_000
"""The record of the round before is read again; it must not have met the topic's retention."""


class ProbeFailedError(SiltstoneError):
    """The round trip of `--once` was not ok."""


def _read_time(ctx: click.Context, param: click.Parameter, value: str) -> int:
    try:
        found_ms = parse_duration(value)
    except BadInputError as error:
        raise WrongUsageError(f"{param.opts[0]}: {error.message}", remedy=error.remedy) from error
    if not 0 < found_ms <= EVERY_MS_MAX:
        raise WrongUsageError(f"{param.opts[0]} {value!r} is out of range", remedy="give more than 0s, at most 10m")
    return found_ms


@click.command()
@agent_options
@click.option("--topic", type=TOPIC, default=PROBE_TOPIC, show_default=True, help="Topic of the probe's records.")
@click.option(
    "--every",
    "every_ms",
    callback=_read_time,
    default="10s",
    show_default=True,
    metavar="TIME",
    help="The interval, at most 10m.",
)
@click.option(
    "--timeout",
    "timeout_ms",
    callback=_read_time,
    default="30s",
    show_default=True,
    metavar="TIME",
    help="A round trip that is not over by then is late; at most 10m.",
)
@click.option("--once", is_flag=True, help="Make one round trip; exit code 1 unless it succeeds.")
@click.option(
    "--metrics-listen", metavar="HOST:PORT", help="Address that serves /metrics and /readyz (metrics.listen)."
)
@setting_options
def probe(
    bootstrap: str,
    topic: str,
    every_ms: int,
    timeout_ms: int,
    once: bool,
    metrics_listen: str | None,
    config: Path | None,
    assignments: tuple[str, ...],
) -> None:
    """Write a record to the agents and read it back, again and again, as their clients do.

    Each round trip writes a record to each partition of a topic of its own, which is created with one partition and a
    retention of an hour if it is not there; a topic with other records is refused. Then it reads the record back, and
    that of the round before. Nothing is tried twice. Every round is a line in the log (the event `probe`) and in the
    metrics: ok, failed, late, lost, which is an acknowledged record that is not there, or replaced, which says that
    somebody deleted the topic. SIGTERM and Ctrl-C end it. Of the settings (--config, --set) log.* and metrics.* count.

    All partitions are tested through one agent, the first bootstrap address that answers. To test each agent, run one
    probe for each address; they may share the topic.

    \b
    Examples:
      siltstone probe --bootstrap agent-1:9092,agent-2:9092 \\
          --metrics-listen 127.0.0.1:9644 --set log.format=json
      siltstone probe --once --client-config client.properties
      siltstone probe --every 30s --timeout 5s --topic siltstone-probe-eu
    """
    with as_usage():
        parse_bootstrap(bootstrap)
    settings = read_settings(config, assignments, {"metrics.listen": metrics_listen})
    if not once:
        asyncio.run(
            run_probe(settings, bootstrap, topic, every_ms=every_ms, timeout_ms=timeout_ms, on_ready=_say_where)
        )
        return
    trip = asyncio.run(probe_once(bootstrap, topic, timeout_ms=timeout_ms))
    if trip.error is not None:
        raise ProbeFailedError(f"{trip.outcome.value}: {trip.error.message}", remedy=trip.error.remedy)
    say(f"ok: a record was written to {topic} and read back in {trip.took_ms:.0f} ms")


def _say_where(metrics_url: str) -> None:
    say(f"metrics: {metrics_url}")
