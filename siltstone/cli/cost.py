"""`siltstone cost`: estimate the bill of a load before there is a cluster. Uses no network and changes nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import click

from agents.write.budget import PRICED_PER_SECOND
from runtime.text import plural
from siltstone.cli.options.usage import WrongUsageError
from siltstone.ops.cost.estimate import (
    ASSUMPTIONS,
    IDLE_LISTS_PER_HOUR,
    Cost,
    Line,
    LingerStep,
    Load,
    cost_of,
    early_seals,
    idle_requests_usd,
    linger_steps,
    prices_with,
    without_compactor,
)
from siltstone.ops.cost.l0_store import ONE_ZONE_NOTE, l0_store
from siltstone.ops.cost.prices import AS_OF, PRICES, REGION
from siltstone.ops.cost.storage import STORAGE_CLASSES, class_day_note
from siltstone.terminal.output import console, json_option, print_json, print_pairs, print_table
from siltstone.terminal.plain import say

BAR_WIDTH = 24


class Number(click.FloatRange):
    """A range of numbers that refuses NaN, which click would accept in every range."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number = super().convert(value, param, ctx)
        # Only NaN differs from itself.
        if number != number:
            self.fail(f"{value!r} is not a number", param, ctx)
        return number


LAUNCHES = ("fargate", "fargate-arm", "ec2")


@click.command()
@click.option(
    "--mib-s",
    type=Number(0.001, 1e6),
    default=1.0,
    show_default=True,
    help="MiB written a second, compressed as stored.",
)
@click.option(
    "--agents", type=click.IntRange(0, 100_000), default=0, help="Number of agents. Default: as many as the load needs."
)
@click.option(
    "--compactors",
    type=click.IntRange(0, 10_000),
    default=0,
    help="Number of compactors. Default: as many as the load needs.",
)
@click.option("--zones", type=click.IntRange(1, 6), default=3, show_default=True, help="Number of availability zones.")
@click.option(
    "--retention-days",
    type=Number(0.01, 3650),
    default=7.0,
    show_default=True,
    help="Retention of the records, in days.",
)
@click.option(
    "--consumers",
    type=click.IntRange(0, 1000),
    default=1,
    show_default=True,
    help="Number of consumer groups; each reads everything.",
)
@click.option(
    "--replay-share",
    type=Number(0, 100),
    default=0.0,
    show_default=True,
    help="Reads of old records, as a share of the bytes written.",
)
@click.option(
    "--partitions", type=click.IntRange(1, 1_000_000), default=100, show_default=True, help="Number of partitions."
)
@click.option(
    "--linger-ms", type=Number(1, 60_000), default=250.0, show_default=True, help="produce.linger.ms of the agents."
)
@click.option(
    "--early-per-second",
    type=Number(0, 1000),
    default=float(PRICED_PER_SECOND),
    show_default=True,
    help="Files that each agent seals early, a second.",
)
@click.option(
    "--storage-class",
    type=click.Choice(list(STORAGE_CLASSES)),
    default="standard",
    show_default=True,
    help="Storage class of L2 files, set by a lifecycle rule.",
)
@click.option(
    "--class-day",
    type=Number(0, 3650),
    help="Age in days at which files change the storage class. Default: the least that the class allows.",
)
@click.option(
    "--noncurrent-days", type=Number(0, 3650), default=0.0, help="Days that a versioned bucket keeps deleted objects."
)
@click.option("--compacted-gib", type=Number(0, 1e9), default=0.0, help="GiB of the latest values of compacted topics.")
@click.option("--zone-unaware", is_flag=True, help="The clients do not name their zone.")
@click.option(
    "--launch",
    type=click.Choice(LAUNCHES),
    default="fargate",
    show_default=True,
    help="Kind of machines for the programs.",
)
@click.option("--spark", is_flag=True, help="Run merges of 8 GiB and more on EMR Serverless.")
@click.option(
    "--second-store",
    is_flag=True,
    help="L0 files lie in a bucket of S3 Express One Zone (produce.store.url), which is one zone.",
)
@click.option(
    "--agent-ms-per-mb",
    type=Number(0.1, 1000),
    default=3.3,
    show_default=True,
    help="CPU time of an agent for each MB produced, in ms.",
)
@click.option(
    "--kafka-local-hours",
    type=Number(0, 100_000),
    default=24.0,
    show_default=True,
    help="Hours that a Kafka with tiered storage keeps on its volumes.",
)
@click.option(
    "--price", "changes", multiple=True, metavar="NAME=USD", help="Use another price, for another region. Repeatable."
)
@click.option("--prices", "show_prices", is_flag=True, help="Print the prices with units and sources, then exit.")
@json_option
def cost(
    *,
    changes: tuple[str, ...],
    show_prices: bool,
    zone_unaware: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Estimate the monthly cost of a load on AWS, line by line, beside a Kafka with three replicas, with and without
    tiered storage.

    The prices are a table in this release, with dates and sources. The command fetches nothing and changes nothing.
    Trust the shape of the bill, which shows the lines that grow with the load, more than its sum.

    \b
    Examples:
      siltstone cost --mib-s 100 --agents 3 --zones 3 --consumers 3
      siltstone cost --mib-s 10 --retention-days 90 \\
          --storage-class standard-ia --replay-share 0.1
      siltstone cost --mib-s 100 --second-store --linger-ms 25
      siltstone cost --mib-s 100 --price s3.put.1000=0.0054 --json
      siltstone cost --prices
    """
    prices = prices_with(dict(map(_price, changes)))
    if show_prices:
        _print_prices(prices, as_json=as_json)
        return
    if options["class_day"] is not None and STORAGE_CLASSES[options["storage_class"]] is None:
        raise click.UsageError("--class-day needs a --storage-class to move files to: standard-ia, glacier-ir or ...")
    load = Load(zone_aware=not zone_unaware, **options)
    estimated, steps = cost_of(load, prices), linger_steps(load, prices)
    if as_json:
        print_json(cost_json(estimated, steps))
    else:
        _print(estimated, steps)


def cost_json(estimated: Cost, steps: Sequence[LingerStep]) -> Mapping[str, Any]:
    flow = asdict(estimated.flow)
    return {
        "load": flow.pop("load"),
        "flow": flow,
        "lines": [asdict(line) for line in estimated.lines],
        "usd_per_month": estimated.usd,
        "kafka": {"lines": [asdict(line) for line in estimated.kafka], "usd_per_month": estimated.kafka_usd},
        "kafka_tiered": {"lines": [asdict(line) for line in estimated.tiered], "usd_per_month": estimated.tiered_usd},
        "early_seals": asdict(early_seals(estimated.flow.load, estimated.prices)),
        "without_compactor": asdict(without_compactor(estimated.flow)),
        "linger": [asdict(step) for step in steps],
        "prices": {"region": REGION, "as_of": AS_OF, "usd": dict(estimated.prices)},
        "notes": notes(estimated.flow.load),
        "assumptions": list(ASSUMPTIONS),
    }


def notes(load: Load) -> list[str]:
    """Warnings about what was asked for."""
    found = [ONE_ZONE_NOTE] if load.second_store else []
    return [*found, note] if (note := class_day_note(load)) else found


def bar(share: float, *, width: int = BAR_WIDTH) -> str:
    """A bar in eighths of a cell, full at 1. Any share above 0 shows at least one eighth."""
    eighths = max(round(min(1.0, share) * width * 8), 1 if share > 0 else 0)
    return "█" * (eighths // 8) + ("", *"▏▎▍▌▋▊▉")[eighths % 8]


def _price(text: str) -> tuple[str, float]:
    name, _, usd = text.partition("=")
    remedy = "write NAME=USD with USD 0 or more: --price s3.put.1000=0.0054; `siltstone cost --prices` lists the names"
    try:
        value = float(usd)
    except ValueError:
        raise WrongUsageError(f"--price {text!r} is not NAME=USD", remedy=remedy) from None
    if not 0 <= value < float("inf"):
        raise WrongUsageError(f"--price {text!r} is not a price", remedy=remedy)
    return name, value


def _print(estimated: Cost, steps: Sequence[LingerStep]) -> None:
    flow, load = estimated.flow, estimated.flow.load
    most = max((line.usd for line in (*estimated.lines, *estimated.kafka, *estimated.tiered)), default=0) or 1
    _print_lines(f"Siltstone, {load.mib_s:g} MiB/s in, {load.consumers} x out", estimated.lines, estimated.usd, most)
    say()
    _print_lines("Kafka, three replicas on EBS", estimated.kafka, estimated.kafka_usd, most)
    say()
    title = f"Kafka with tiered storage, {load.kafka_local_hours:g} h on EBS"
    _print_lines(title, estimated.tiered, estimated.tiered_usd, most)
    say()
    print_table(
        ["linger (ms)", "produce p50 (ms)", "p99 (ms)", "PUT L0 ($)", "without early seals ($)"],
        [
            [
                f"{step.linger_ms:g}",
                f"{step.produce_ms_p50:.0f}",
                f"{step.produce_ms_p99:.0f}",
                _usd(step.puts_usd),
                _usd(step.puts_usd_least),
            ]
            for step in steps
        ],
        right=("linger (ms)", "produce p50 (ms)", "p99 (ms)", "PUT L0 ($)", "without early seals ($)"),
        title=f"Effect of produce.linger.ms ({l0_store(estimated.prices, second=load.second_store).upload_source})",
    )
    say()
    if flow.agents < flow.agents_needed:
        console().print(
            f"too few agents: {flow.agents}; the load needs {flow.agents_needed}", style="bold red", markup=False
        )
    for note in notes(load):
        console().print(note, style="bold", markup=False)
    early, alone = early_seals(load, estimated.prices), without_compactor(flow)
    print_pairs(
        {
            "of Kafka": f"{estimated.usd / estimated.kafka_usd:.0%}; with tiered storage"
            f" {estimated.usd / estimated.tiered_usd:.0%}",
            "early seals": f"PUT L0 {_usd(early.none_usd)} $ without, {_usd(early.assumed_usd)} assumed,"
            f" {_usd(early.most_usd)} at most (produce.early.per.second)",
            "no compactor": f"producers are delayed after {alone.delayed_min:,.0f} minutes, refused after"
            f" {alone.refused_min:,.0f}",
            "write amplification": f"{1 + len(flow.outputs_mib)}: L0, and {plural(len(flow.outputs_mib), 'merge')}",
            "agents needed": f"{flow.agents_needed}, for {flow.agent_cores:.2f} cores",
            "idle": f"{_usd(idle_requests_usd(estimated.prices))} $ a month: {IDLE_LISTS_PER_HOUR} LISTs an hour",
            "prices": f"{REGION}, {AS_OF}; not fetched",
        }
    )
    for assumption in ASSUMPTIONS:
        console().print(f"- {assumption}", style="dim", markup=False)


def _print_lines(title: str, lines: Sequence[Line], total: float, most: float) -> None:
    rows = [[line.item, _usd(line.usd), bar(line.usd / most), line.what] for line in lines]
    print_table(
        ["line", "$ a month", "", "what"], [*rows, ["total", _usd(total), "", ""]], right=("$ a month",), title=title
    )


def _print_prices(prices: Mapping[str, float], *, as_json: bool) -> None:
    if as_json:
        print_json({name: {**asdict(price), "usd": prices[name]} for name, price in PRICES.items()})
        return
    print_table(
        ["price", "$", "of", "source", "read"],
        [
            [name, f"{prices[name]:g}", price.unit, price.source, price.seen or "not looked up"]
            for name, price in PRICES.items()
        ],
        right=("$",),
        title=f"{REGION}, on demand, {AS_OF}",
    )


def _usd(usd: float) -> str:
    return f"{usd:,.0f}" if usd >= 100 else f"{usd:,.2f}"
