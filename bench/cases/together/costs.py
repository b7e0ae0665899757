"""`make bench-costs`: what 1 GiB costs in requests, from a producer to a replay, by counting every request to S3.

Two agents in two zones and a compactor; each process reaches S3 through a proxy of its own that counts. Writers in the
one zone produce at a fixed rate, a consumer group in the other zone reads the tail and commits, and the compactor
merges L0 to L1 and L1 to L2. Then the agents are started again, and the history is replayed. Starts of processes are
left out. `docs/costs.md` holds the table and what it means.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from bench.loads.clients import ROOT, create_topic, run_consume, run_produce
from bench.loads.jobs import ConsumeJob, ProduceJob
from bench.loads.load import OurTarget, progress, say_complaints
from bench.measures.price import (
    Asked,
    Floor,
    floor_in,
    floor_merge,
    floor_out,
    month_usd,
    requests_usd,
)
from bench.measures.requests import Request, asked
from bench.registry import Size
from bench.servers.quick_compactor import L1_RUNS
from bench.servers.s3_server import client_environment, server_name, stop
from bench.servers.stack import GIB, Stack, Store
from bench.table import Cell, Column, Table
from metadata.urls import open_metadata

MIB = 1 << 20
RECORD_BYTES = 1024
PARTITIONS = 12
DATA_BYTES = {Size.SMALL: 256 * MIB, Size.FULL: GIB}
RUN_MIB = {Size.SMALL: 32, Size.FULL: 64}
RATE_MB_PER_S = 25.0
TOPIC = "costs"
WRITE_ZONE, READ_ZONE = "writers", "readers"
WRITER, READER, COMPACTOR = "agent-0", "agent-1", "compactor"
LEVELS = ("l0", "l1", "l2")
SETTLE_S, MERGED_S = 20.0, 120.0

COLUMNS = (
    Column("what"),
    Column("PUT class", "1/GiB", 1),
    Column("GET class", "1/GiB", 1),
    Column("written", "GiB/GiB", 3),
    Column("read", "GiB/GiB", 3),
    Column("WAL", "MiB/GiB", 2),
    Column("price", "$/GiB", 5),
    Column("floor", "$/GiB", 5),
    Column("of floor", "x", 2),
)
REQUEST_COLUMNS = (Column("process"), Column("place"), Column("request"), Column("requests"), Column("1/GiB", "", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One line of the bill, for 1 GiB."""

    what: str
    asked: Asked
    floor: Floor


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """All that was counted."""

    bytes_in: float
    """Record batches as producers sent them."""
    seconds: float
    writing: Mapping[str, Sequence[Request]]
    """Requests by process, from the first record to the last merge."""
    replaying: Sequence[Request]
    wal_in: int
    wal_replay: int
    objects: Mapping[str, Sequence[int]]
    """Sizes of the objects by level."""
    merged_l1: Sequence[int]
    """Sizes of the L1 files that L2 files replaced."""
    live_bytes: int
    snapshot_requests: int
    """PUT class of one snapshot of the metadata, at the compactor's start."""


def run(size: Size) -> Iterator[Table]:
    with Stack(Store.S3_COUNTED, agents=2, zones=(WRITE_ZONE, READ_ZONE)) as stack:
        counted = _run(stack, size)
        say_complaints(OurTarget(stack))
    yield costs_table(counted)
    yield requests_table(counted)


# ---- the run


def _run(stack: Stack, size: Size) -> Run:
    create_topic(stack.bootstrap, TOPIC, PARTITIONS)
    records = DATA_BYTES[size] // RECORD_BYTES
    with _compacting(stack, RUN_MIB[size]):
        at_start = stack.requests(COMPACTOR)
        before, first = stack.read(), {name: len(stack.requests(name)) for name in (WRITER, READER, COMPACTOR)}
        progress(f"{records:,} records in, at {RATE_MB_PER_S:.0f} MB/s ...")
        _produce_and_follow(stack, records)
        progress("merging ...")
        live = asyncio.run(_merged(stack))
        used = stack.read() - before
        writing = {name: stack.requests(name)[start:] for name, start in first.items()}
    bytes_in = used.counters.sum("produce_bytes_total")
    progress("replaying ...")
    stack.restart_agents()
    before, start = stack.read(), len(stack.requests(READER))
    run_consume(_consume_job(stack, records))
    # Dead files wait for the grace, so all are there.
    sizes = stack.object_sizes()
    objects = {level: {key: size for key, size in sizes.items() if key.startswith(level)} for level in LEVELS}
    return Run(
        bytes_in=bytes_in,
        seconds=used.at_s,
        writing=writing,
        replaying=stack.requests(READER)[start:],
        wal_in=used.wal_bytes,
        wal_replay=(stack.read() - before).wal_bytes,
        objects={level: list(found.values()) for level, found in objects.items()},
        merged_l1=[size for key, size in objects["l1"].items() if key not in live],
        live_bytes=sum(size for key, size in sizes.items() if key in live),
        snapshot_requests=int(asked(each for each in at_start if each.place == "catalog/snapshots").puts),
    )


def _produce_and_follow(stack: Stack, records: int) -> None:
    failed: list[BaseException] = []

    def follow() -> None:
        try:
            run_consume(_consume_job(stack, records))
        except BaseException as error:
            failed.append(error)

    reader = threading.Thread(target=follow, name="tail")
    reader.start()
    try:
        run_produce(
            ProduceJob(
                bootstrap=stack.bootstrap,
                topic=TOPIC,
                partitions=PARTITIONS,
                record_bytes=RECORD_BYTES,
                seconds=0,
                records=records,
                rate_mb_per_s=RATE_MB_PER_S,
                client_id=f"zone={WRITE_ZONE}",
            )
        )
    finally:
        reader.join()
    if failed:
        raise failed[0]


def _consume_job(stack: Stack, records: int) -> ConsumeJob:
    return ConsumeJob(
        bootstrap=stack.bootstrap,
        topic=TOPIC,
        partitions=PARTITIONS,
        record_bytes=RECORD_BYTES,
        records=records,
        client_id=f"zone={READ_ZONE}",
        commits=True,
    )


@contextmanager
def _compacting(stack: Stack, run_mib: int) -> Generator[None]:
    """A compactor that is past its start and its first snapshot of the metadata."""
    url = stack.counted_url(COMPACTOR)
    command = [sys.executable, "-P", "-m", "bench.servers.quick_compactor", stack.metadata_url, url, str(run_mib)]
    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**client_environment(), "PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    try:
        assert process.stdout is not None
        if process.stdout.readline() != b"ready\n":
            raise RuntimeError("the compactor did not start; its error stands above")
        deadline = time.monotonic() + SETTLE_S
        while not any(each.place == "catalog/snapshots" and each.kind == "PUT" for each in stack.requests(COMPACTOR)):
            if time.monotonic() > deadline:
                raise RuntimeError(f"the compactor wrote no snapshot in {SETTLE_S:.0f} s")
            time.sleep(0.1)
        time.sleep(1)
        yield
    finally:
        stop(process)


async def _merged(stack: Stack) -> frozenset[str]:
    """Keys of the live files once there is nothing left to merge. Raises RuntimeError if that takes too long."""
    metadata = open_metadata(stack.metadata_url)
    await metadata.open()
    try:
        levels: list[int] = []
        deadline = time.monotonic() + MERGED_S
        while time.monotonic() < deadline:
            view = await metadata.compactors.compaction_view()
            levels = [file.level for file in view.files]
            if not view.busy_files and 0 not in levels and levels.count(1) < L1_RUNS and 2 in levels:
                ids = [id_ for topic in await metadata.agents.list_topics() for id_ in topic.partition_ids]
                found = [await metadata.readers.leveled_extents(id_, 0, limit=10_000) for id_ in ids]
                return frozenset(extent.key for extents in found for extent in extents)
            await asyncio.sleep(0.2)
        raise RuntimeError(f"merges took more than {MERGED_S:.0f} s: levels of the live files {sorted(levels)}")
    finally:
        await metadata.close()


# ---- the bill


def parts_of(counted: Run) -> Sequence[Part]:
    """The lines of records that come in, and of those that go out."""
    gib = counted.bytes_in / GIB
    everything = [each for requests in counted.writing.values() for each in requests]
    l0, l1, l2 = (counted.objects[level] for level in LEVELS)
    to_l1 = [each for each in counted.writing[COMPACTOR] if each.place == "l0" or _writes(each, "l1")]
    to_l2 = [each for each in counted.writing[COMPACTOR] if _reads(each, "l1") or _writes(each, "l2")]
    backup = [each for each in everything if each.place.startswith("catalog")]
    tail = [each for each in counted.writing[READER] if _reads(each, "l0")]
    l0_puts = [each for each in counted.writing[WRITER] if _writes(each, "l0")]
    named = {id(each) for each in (*to_l1, *to_l2, *backup, *tail, *l0_puts)}
    rest = [each for each in everything if id(each) not in named]
    wal = Asked(wal_bytes=counted.wal_in)
    return [
        Part(what="in: L0 files", asked=(asked(l0_puts) + wal).for_each(gib), floor=floor_in(len(l0)).for_each(gib)),
        Part(what="in: merges to L1", asked=asked(to_l1).for_each(gib), floor=floor_merge(l0, l1).for_each(gib)),
        # Some runs of L1 are left, fewer than a merge needs: for 1 GiB of what was merged.
        Part(
            what="in: merges to L2",
            asked=asked(to_l2).for_each(sum(l2) / GIB),
            floor=floor_merge(counted.merged_l1, l2).for_each(sum(l2) / GIB),
        ),
        Part(what="in: metadata backup", asked=asked(backup).for_each(gib), floor=Floor()),
        Part(what="in: others", asked=asked(rest).for_each(gib), floor=Floor()),
        Part(what="out: the tail, one group", asked=asked(tail).for_each(gib), floor=_tail_floor(l0).for_each(gib)),
        Part(
            what="out: a replay",
            asked=(asked(counted.replaying) + Asked(wal_bytes=counted.wal_replay)).for_each(gib),
            floor=floor_out(counted.bytes_in).for_each(gib),
        ),
    ]


def costs_table(counted: Run) -> Table:
    parts = parts_of(counted)
    whole = [part for part in parts if part.what.startswith("in: ")]
    all_in = Part(
        what="in: all",
        asked=sum((part.asked for part in whole), start=Asked()),
        floor=sum((part.floor for part in whole), start=Floor()),
    )
    gib = counted.bytes_in / GIB
    kept, kept_floor = month_usd(counted.live_bytes / gib), month_usd(GIB)
    rows = [_cells(part) for part in (*whole, all_in)]
    rows.append(["a month: stored", *[None] * 5, kept, kept_floor, kept / kept_floor])
    rows += [_cells(part) for part in parts if part not in whole]
    return Table(
        "What 1 GiB costs",
        f"{gib * 1024:,.0f} MiB of batches in {counted.seconds:.0f} s, {PARTITIONS} partitions, records of "
        f"{RECORD_BYTES} B, {RATE_MB_PER_S:.0f} MB/s offered; two agents in two zones, one compactor; S3 = "
        f"{server_name()}, every request counted on its way. Prices: S3 Standard, us-east-1, as in `siltstone cost "
        "--prices`. Floor: one PUT for each L0 file; for each level one GET for each input file or 16 MiB of it, and "
        "one PUT for each part of 8 MiB and two for each upload; one GET for each MiB read. Left out: starts of "
        f"processes, and snapshots of the metadata, {counted.snapshot_requests} PUTs every 15 minutes.",
        COLUMNS,
        rows,
    )


def requests_table(counted: Run) -> Table:
    """Every request that was counted."""
    gib = counted.bytes_in / GIB
    rows: list[list[Cell]] = []
    for process, requests in (*counted.writing.items(), (f"{READER}, replay", counted.replaying)):
        kinds = sorted({(each.place, each.kind) for each in requests})
        for place, kind in kinds:
            count = sum((each.place, each.kind) == (place, kind) for each in requests)
            rows.append([process, place, kind, count, count / gib])
    return Table("Requests of that run", "", REQUEST_COLUMNS, rows)


def _cells(part: Part) -> list[Cell]:
    price, least = requests_usd(part.asked), requests_usd(part.floor)
    return [
        part.what,
        part.asked.puts,
        part.asked.gets,
        part.asked.written_bytes / GIB,
        part.asked.read_bytes / GIB,
        part.asked.wal_bytes / MIB or None,
        price,
        least,
        price / least if least else None,
    ]


def _tail_floor(files_bytes: Sequence[int]) -> Floor:
    """A file smaller than a block takes a GET too."""
    return Floor(gets=sum(max(1, -(-size // MIB)) for size in files_bytes))


def _writes(request: Request, level: str) -> bool:
    return request.place == level and request.kind in ("PUT", "part", "begin", "complete")


def _reads(request: Request, level: str) -> bool:
    return request.place == level and request.kind in ("GET", "HEAD")
