"""`make bench-replay`: reading history from merged files, and its effect on readers of the tail.

A topic is written, merged to L1 (and from there to L2) by the compactor's own engine in a process of its own, and read
from its beginning by one librdkafka consumer after the agent was started again, so that nothing is in any cache. The
result is compared with the rule for replays: at most one GET per file that holds the partition and one per 8 MiB of it.

The tail: one agent, writers at a fixed rate and a reader at the end, first alone, then beside a consumer that replays
the history of another topic again and again, then beside that and a process that merges it again and again.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.loads.clients import ROOT, create_topic, run_consume, run_produce, run_tail
from bench.loads.jobs import ConsumeJob, ProduceJob, TailJob, TailResult
from bench.loads.load import OurTarget, price_out, progress, say_complaints
from bench.measures.price import PRICE_COLUMNS, PRICE_NOTE
from bench.registry import Size
from bench.servers.s3_server import client_environment, stop
from bench.servers.stack import Reading, Stack, Store, per_gib, store_note
from bench.table import Cell, Column, Table
from compactor.merging.execute import MergeEngine
from compactor.planning.plan import new_job
from compactor.planning.spec import GIB, MIB, MergeKind, MergeSpec
from metadata.contract.agents import each_live_file
from metadata.contract.leveled import LeveledExtent
from metadata.contract.store import MetadataStore
from metadata.urls import open_metadata
from runtime.runtime import Runtime
from storage.objects import SupportsOpen
from storage.urls import open_store

RECORD_BYTES = 1024
DATA_BYTES = {Size.SMALL: 192 * MIB, Size.FULL: GIB}
L1_FILES = 3
"""The merges that make the history: a partition's records lie in this many files."""
PARTITIONS = (1, 12)
GET_BYTES = 8 * MIB
LIMIT_MS = 600_000
HISTORY = "history"
TAIL_PARTITIONS = 6
TAIL_RECORDS_PER_S = 20.0
TAIL_SECONDS = {Size.SMALL: 5.0, Size.FULL: 20.0}
ALONE, REPLAY, MERGE = "nobody", "a replay", "a replay and a merge"


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    store: str
    level: int
    partitions: int
    files: int
    mb_per_s: float
    first_ms: float
    read_bytes: int
    used: Reading


def run(size: Size) -> Iterator[Table]:
    stores = (Store.LOCAL,) if size is Size.SMALL else (Store.LOCAL, Store.S3_DISTANT)
    rows: list[Measured] = []
    tails: list[list[Cell]] = []
    for store in stores:
        for partitions in PARTITIONS:
            with Stack(store) as stack:
                records = _write_history(stack, partitions, size)
                for level in (1, 2):
                    if level == 2:
                        _merge(stack, "once")
                    stack.restart_agents()
                    rows.append(_replay(stack, level, partitions, records))
                if partitions == PARTITIONS[-1]:
                    tails += _tails(stack, records, partitions, size)
                say_complaints(OurTarget(stack))
    yield _replays_table(rows)
    yield _tails_table(tails)


# ---- history


def _write_history(stack: Stack, partitions: int, size: Size) -> int:
    """Write the history; returns the number of records, all of them in L1 files."""
    create_topic(stack.bootstrap, HISTORY, partitions)
    records = DATA_BYTES[size] // RECORD_BYTES
    progress(f"{stack.store.value}: writing and merging {records:,} records in {partitions} partitions ...")
    run_produce(
        ProduceJob(
            bootstrap=stack.bootstrap,
            topic=HISTORY,
            partitions=partitions,
            record_bytes=RECORD_BYTES,
            seconds=0,
            records=records,
        )
    )
    _merge(stack, "level")
    return records


def _merge_command(stack: Stack, what: str) -> tuple[list[str], dict[str, str]]:
    environment = {**client_environment(), "PYTHONPATH": str(ROOT)}
    return [sys.executable, "-P", "-m", "bench.cases.replay", what, stack.metadata_url, stack.store_url], environment


def _merge(stack: Stack, what: str) -> None:
    command, environment = _merge_command(stack, what)
    subprocess.run(command, env=environment, check=True, timeout=LIMIT_MS / 1000)


@contextmanager
def _merging(stack: Stack) -> Generator[None]:
    """A process that merges the history again and again."""
    command, environment = _merge_command(stack, "forever")
    process = subprocess.Popen(command, env=environment, start_new_session=True)
    try:
        yield
    finally:
        stop(process)


@contextmanager
def _replaying(stack: Stack, records: int, partitions: int) -> Generator[list[float]]:
    """A consumer that reads the history again and again; its rates, in MB/s, as they come."""
    ended = threading.Event()
    rates: list[float] = []

    def read() -> None:
        while not ended.is_set():
            rates.append(run_consume(_consume_job(stack, records, partitions)).mb_per_s)

    thread = threading.Thread(target=read, name="replay")
    thread.start()
    try:
        yield rates
    finally:
        ended.set()
        thread.join()


def _consume_job(stack: Stack, records: int, partitions: int) -> ConsumeJob:
    return ConsumeJob(
        bootstrap=stack.bootstrap, topic=HISTORY, partitions=partitions, record_bytes=RECORD_BYTES, records=records
    )


def _replay(stack: Stack, level: int, partitions: int, records: int) -> Measured:
    before = stack.read()
    result = run_consume(_consume_job(stack, records, partitions))
    used = stack.read() - before
    progress(f"{stack.store.value}: L{level}, {partitions} partitions: {result.mb_per_s:.1f} MB/s")
    return Measured(
        store=stack.store.value,
        level=level,
        partitions=partitions,
        files=(L1_FILES if level == 1 else 1) * partitions,
        mb_per_s=result.mb_per_s,
        first_ms=result.first_ms,
        read_bytes=result.read_bytes,
        used=used,
    )


# ---- the tail


def _tails(stack: Stack, records: int, partitions: int, size: Size) -> list[list[Cell]]:
    rows: list[list[Cell]] = []
    for number, beside in enumerate((ALONE, REPLAY, MERGE)):
        topic = f"tail-{number}"
        create_topic(stack.bootstrap, topic, TAIL_PARTITIONS)
        job = TailJob(
            bootstrap=stack.bootstrap,
            topic=topic,
            client_id="bench",
            writers=TAIL_PARTITIONS,
            records_per_s=TAIL_RECORDS_PER_S,
            record_bytes=RECORD_BYTES,
            seconds=TAIL_SECONDS[size],
        )
        with ExitStack() as others:
            rates: list[float] = []
            if beside != ALONE:
                rates = others.enter_context(_replaying(stack, records, partitions))
            if beside == MERGE:
                others.enter_context(_merging(stack))
            result = run_tail(job, job)
        progress(f"{stack.store.value}: the tail beside {beside}: p99 {result.p99_ms or 0:.0f} ms")
        rows.append(_tail_cells(stack.store.value, beside, result, rates))
    return rows


def _tail_cells(store: str, beside: str, result: TailResult, rates: Sequence[float]) -> list[Cell]:
    replay_mb_per_s = sum(rates) / len(rates) if rates else None
    return [store, beside, result.records, result.p50_ms, result.p99_ms, result.max_ms, replay_mb_per_s]


# ---- tables


def _replays_table(rows: Sequence[Measured]) -> Table:
    return Table(
        "Replays",
        f"Records of {RECORD_BYTES} B, written before; {L1_FILES} merges to L1, then one of those to L2; one "
        "librdkafka consumer reads all partitions from their beginning, from an agent that was just started. Rate: "
        "from the first record to the last. Bound: one GET for each file that holds a partition, and one for each "
        f"8 MiB. {PRICE_NOTE} {store_note()}",
        (
            Column("store"),
            Column("level"),
            Column("partitions"),
            Column("rate", "MB/s", 1),
            Column("first record", "ms"),
            Column("GETs", "1/GiB"),
            Column("bound", "1/GiB"),
            *PRICE_COLUMNS,
            Column("bytes of GETs", "x", 2),
            Column("agent CPU", "ms/MB", 2),
            Column("memory", "MB"),
        ),
        [_replay_cells(row) for row in rows],
    )


def _replay_cells(row: Measured) -> list[Cell]:
    counters = row.used.counters
    bound = row.files + row.read_bytes / GET_BYTES
    return [
        row.store,
        f"L{row.level}",
        row.partitions,
        row.mb_per_s,
        row.first_ms,
        per_gib(counters.sum("object_requests_total", op="get_range"), row.read_bytes),
        per_gib(bound, row.read_bytes),
        *price_out(row.used, row.read_bytes),
        counters.sum("object_bytes_total", op="get_range") / row.read_bytes,
        row.used.agents.cpu_s * 1000 / (row.read_bytes / 1e6),
        row.used.agents.peak_memory_bytes / 1e6,
    ]


def _tails_table(rows: Sequence[Sequence[Cell]]) -> Table:
    return Table(
        "The tail beside a replay",
        f"{TAIL_PARTITIONS} writers of {TAIL_RECORDS_PER_S:.0f} records of {RECORD_BYTES} B a second and one reader, "
        f"by the same agent that serves the replay of {PARTITIONS[-1]} partitions. Age: from `produce` to the reader's "
        "hands. All processes share this machine's cores, the consumer that replays and the one that merges too.",
        (
            Column("store"),
            Column("beside"),
            Column("records"),
            Column("age p50", "ms"),
            Column("p99", "ms"),
            Column("worst", "ms"),
            Column("replay", "MB/s", 1),
        ),
        rows,
    )


# ---- the process that merges


async def merge(what: str, metadata_url: str, store_url: str) -> None:
    """`level`: merge all L0 files to L1, by L1_FILES merges. `once`: merge all above to L2. `forever`: repeat that
    until stopped.
    """
    metadata, store = open_metadata(metadata_url), open_store(store_url)
    await metadata.open()
    if isinstance(store, SupportsOpen):
        await store.open()
    try:
        lease = await metadata.compactors.register_compactor("bench")
        engine = MergeEngine(store=store, runtime=Runtime(), lease=lease)
        while True:
            if what == "level":
                files = [file.file_id async for file in each_live_file(metadata.agents)]
                for some in batched(files, -(-len(files) // L1_FILES)):
                    await _merge_job(metadata, engine, _spec(await metadata.now_ms(), level=1, l0_file_ids=some))
            else:
                extents = tuple(each.extent_id for each in await _extents(metadata))
                await _merge_job(metadata, engine, _spec(await metadata.now_ms(), level=2, extent_ids=extents))
            if what != "forever":
                return
    finally:
        await store.close()
        await metadata.close()


def batched(files: Sequence[int], count: int) -> Iterator[tuple[int, ...]]:
    for first in range(0, len(files), count):
        yield tuple(files[first : first + count])


async def _merge_job(metadata: MetadataStore, engine: MergeEngine, spec: MergeSpec) -> None:
    await metadata.compactors.create_job(new_job(spec))
    claimed = await metadata.compactors.claim_job(engine.lease)
    if claimed is None:
        raise RuntimeError("another process merges here")
    await metadata.compactors.commit_merge(await engine.run(claimed))


async def _extents(metadata: MetadataStore) -> list[LeveledExtent]:
    partition_ids = [id_ for topic in await metadata.agents.list_topics() for id_ in topic.partition_ids]
    return [each for id_ in partition_ids for each in await metadata.readers.leveled_extents(id_, 0, limit=10_000)]


def _spec(now_ms: int, *, level: int, l0_file_ids: tuple[int, ...] = (), extent_ids: tuple[int, ...] = ()) -> MergeSpec:
    return MergeSpec(
        kind=MergeKind.LEVEL if level == 1 else MergeKind.MERGE,
        now_ms=now_ms,
        limit_ms=LIMIT_MS,
        level=level,
        output_bytes=GIB,
        dedupe=False,
        l0_file_ids=l0_file_ids,
        extent_ids=extent_ids,
    )


if __name__ == "__main__":
    asyncio.run(merge(*sys.argv[1:]))
