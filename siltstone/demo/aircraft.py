"""The second part of the demo: the same flights in a compacted topic, which keeps the latest flight of each aircraft.

The demo writes every flight with a tail number again, with that number as key. It stores the same request as
`siltstone compact aircraft --now`, and the compactor of the stack merges the topic from L0 through L1 to L2. Then the
demo reads the topic from the first offset and compares it, record by record, with a plain dict that it kept while
writing: one record for each aircraft, at the offset where its last flight was acknowledged, with the same bytes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from rich.console import Console

from metadata.contract.compactors import CompactionView
from metadata.urls import open_metadata
from runtime.errors import SiltstoneError
from runtime.text import size_text
from siltstone.demo import clients
from siltstone.demo.display import Display
from siltstone.demo.flights import Flight
from siltstone.demo.ledger import Ledger, MismatchError
from siltstone.demo.stack import Stack
from siltstone.embedded.run_file import read_run_file
from siltstone.kafka.client import connected
from siltstone.ops.compaction import compact_now
from siltstone.ops.levels_report import levels_of, picture
from siltstone.terminal.compaction_progress import shown_progress
from siltstone.terminal.output import print_pairs

TOPIC = "aircraft"
COMPACT_TIMEOUT_MS = 300_000


@dataclass(frozen=True, slots=True)
class Last:
    """The last flight of one aircraft that was written."""

    partition: int
    offset: int
    value: bytes


class LatestFlights:
    """The plain dict of the records that compaction must leave. It notes flights on their way to the producer."""

    def __init__(self, partitions: int) -> None:
        self.by_tail_number: dict[bytes, Last] = {}
        self.records = 0
        self.left_out = 0
        """The number of flights without a key."""
        self._next_offset = [0] * partitions

    def noted(self, source: Iterator[Flight]) -> Iterator[Flight]:
        """The flights that have a key. Each is noted with the offset that it will get."""
        for flight in source:
            if flight.key is None:
                self.left_out += 1
            else:
                # The offset is known before the record is sent, because the topic is new and has no other producer.
                offset = self._next_offset[flight.partition]
                self._next_offset[flight.partition] = offset + 1
                self.by_tail_number[flight.key] = Last(flight.partition, offset, flight.value)
                self.records += 1
                yield flight


class LatestComparison:
    """Compares the records that are read with the dict. Raises MismatchError at the first record that is wrong."""

    def __init__(self, expected: Mapping[bytes, Last]) -> None:
        self._expected = expected
        self._seen: set[bytes] = set()

    def add(self, partition: int, offset: int, key: bytes | None, value: bytes | None) -> None:
        where = f"partition {partition}, offset {offset}"
        last = self._expected.get(key) if key is not None else None
        if key is None or last is None:
            raise MismatchError(f"{where}: the record has the key {key!r}, which was never sent")
        if (partition, offset) != (last.partition, last.offset):
            raise MismatchError(
                f"{where}: a flight of {key.decode()}, whose last flight is at offset {last.offset} of partition"
                f" {last.partition}"
            )
        if value != last.value:
            raise MismatchError(f"{where}: the bytes differ from those sent for {key.decode()}")
        if key in self._seen:
            raise MismatchError(f"{where}: the last flight of {key.decode()} came twice")
        self._seen.add(key)

    def finish(self) -> int:
        """The number of aircraft that were compared. Raises MismatchError if one is missing."""
        missing = self._expected.keys() - self._seen
        if missing:
            example = min(missing).decode()
            raise MismatchError(f"{len(missing):,} aircraft did not come back, for example {example}")
        return len(self._seen)


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """The result of this part."""

    produced: clients.Produced
    compacted: compact_now.Compacted
    aircraft: int
    read_ms: float


def compact_flights(
    stack: Stack,
    source: Iterator[Flight],
    partitions: int,
    *,
    total: int,
    display: Display,
) -> Compacted:
    """Write, compact, read back and compare, with output on the way. `total` is the number of flights in `source`.

    Raises MismatchError, ProduceError, and the errors of compacting.
    """
    latest = LatestFlights(partitions)
    asyncio.run(_create_topic(stack.bootstrap, partitions))
    with display.progress("producing again, keyed by tail number, to a compacted topic", total) as advance:
        ledger = Ledger(partitions)
        produced = clients.produce(stack.bootstrap, TOPIC, latest.noted(source), ledger, advance, display.clock)
    if latest.left_out:
        display.console.print(f"{latest.left_out:,} flights have no tail number and are left out", markup=False)
    compacted = asyncio.run(_compact(stack, display))
    comparison = LatestComparison(latest.by_tail_number)
    read_ms = asyncio.run(clients.read_to_end(stack.bootstrap, TOPIC, partitions, comparison.add, display.clock))
    return Compacted(produced=produced, compacted=compacted, aircraft=comparison.finish(), read_ms=read_ms)


def print_result(result: Compacted) -> None:
    before, after = result.compacted.before, result.compacted.after
    print_pairs(
        {
            "records": f"{before.records:,} flights -> {after.records:,}, one for each aircraft",
            "bytes": f"{size_text(before.size_bytes)} -> {size_text(after.size_bytes)}",
            "jobs": f"{len(result.compacted.jobs)} in {result.compacted.took_ms / 1000:.1f} s",
            "read": f"{result.aircraft:,} records in {result.read_ms / 1000:.1f} s, each compared with a plain dict",
        },
        title="After compaction",
    )


async def _create_topic(bootstrap: str, partitions: int) -> None:
    async with connected(bootstrap, client_id="siltstone-demo") as client:
        await client.create_topic(TOPIC, partitions=partitions, configs={"cleanup.policy": "compact"})


async def _compact(stack: Stack, display: Display) -> compact_now.Compacted:
    running = read_run_file(stack.data)
    if running is None:
        raise SiltstoneError(f"the stack of the demo does not run on {stack.data} any more")
    metadata = open_metadata(running.metadata_url)
    await metadata.open()
    try:
        view = await metadata.compactors.compaction_view()
        _print_levels(display.console, "The levels before", view)
        asked = await compact_now.request(metadata, TOPIC)
        with shown_progress(display.console) as show:
            compacted = await compact_now.wait(
                metadata, asked, clock=display.clock, timeout_ms=COMPACT_TIMEOUT_MS, on_progress=show
            )
        view = await metadata.compactors.compaction_view()
        _print_levels(display.console, "The levels after", view)
    finally:
        await metadata.close()
    return compacted


def _print_levels(console: Console, title: str, view: CompactionView) -> None:
    legend = "one bar for each run, the output of one merge; one bar for all of L0"
    drawn = picture(levels_of(view), view.now_ms, columns=console.width)
    console.print(f"\n{title} ({legend})\n{drawn}\n", markup=False)
