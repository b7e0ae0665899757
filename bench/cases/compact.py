"""A whole compaction of one partition: eight L1 files in, one deduped L2 file out, by the merge engine.

The store is memory, so the compactor's own work is measured: reading windows, checking them, keys, hashes, the table of
keys, the rewrite, the output file with its index. It is compared with

- the bare kernels: the same kernel calls over the same bytes in memory, one after the other, each made once and nothing
  between them (headers and CRC-32C, places of records, hashes, the table of keys; verdicts and rewrite), with the codec
  if batches are compressed;
- one copy of the bytes;
- the oracle, the same rules in plain Python, over the first records;
- Apache Kafka's LogCleaner, warm, over the same shapes: measured elsewhere, on a machine of the same kind.

CPU is that of the whole process, the least of all repeats: another process can only make it longer.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from bench.loads.merge_inputs import (
    BATCH_RECORDS,
    DAY_MS,
    LEASE,
    NOW_MS,
    MergeInputFiles,
    json_values,
    numbered_keys,
    stamped_batches,
)
from bench.loads.merge_price import merge_price
from bench.measures import whole_host
from bench.measures.price import MERGE_PRICE_COLUMNS, MERGE_PRICE_NOTE
from bench.registry import Size
from bench.table import Cell, Column, Table
from compactor.cleaning.bounds import DEDUPE_KEYS_MAX, CleanBounds
from compactor.cleaning.dedupe_buffer import DedupeBuffer
from compactor.cleaning.kernels import Limits, judge
from compactor.cleaning.oracle import compact
from compactor.merging.allocator import keep_freed_memory
from compactor.merging.execute import MergeEngine
from compactor.planning.options import MergeMemory
from metadata.contract.jobs import CommitMerge
from runtime.clock import SystemClock
from runtime.runtime import Runtime
from storage.memory import MemoryMultipart, MemoryStore
from storage.objects import Body
from wire.batch import BATCH_HEADER_BYTES
from wire.codecs import Codec, decompress
from wire.kernels import warm
from wire.kernels.batches import BatchTable, read_batches
from wire.kernels.hashing import hash_keys
from wire.kernels.rewrite import rewrite
from wire.kernels.scan import scan_records
from wire.records import DECOMPRESSED_BYTES_MAX

FILES = 8
ZIPF_KEYS = 200_000
WINDOW_BYTES = 4 << 20
"""The bytes of batches before compression that one kernel call walks."""
HASHED_AT_ONCE = 4096
ORACLE_BATCHES = 100


@dataclass(frozen=True, slots=True)
class Shape:
    name: str
    records: int
    value_bytes: int = 100
    codec: Codec = Codec.NONE
    distinct_keys: int | None = None
    """Each occurs at least once, in random order; None = by Zipf's law."""
    kafka_ns: float | None = None
    """CPU per record of Kafka's LogCleaner."""


class Spent(NamedTuple):
    cpu_s: float
    wall_s: float
    store_cpu_s: float


class MeasuredStore(MemoryStore):
    """A store that knows the cost of copying ranges out of its objects. Once the inputs are there, it drops parts of
    outputs as they come: no real store keeps them in the compactor's memory, or lets it join and sum them once more.
    """

    cpu_s = 0.0

    async def get_range(self, key: str, start: int, length: int) -> bytes:
        body = await self.get(key)
        started = time.thread_time()
        piece = body[start : start + length]
        self.cpu_s += time.thread_time() - started
        return piece

    drops_uploads = False

    async def start_multipart(self, key: str) -> MemoryMultipart:
        return DroppedUpload(self, key) if self.drops_uploads else await super().start_multipart(key)


class DroppedUpload(MemoryMultipart):
    async def write(self, part: Body) -> None:
        await asyncio.sleep(0)

    async def complete(self) -> None:
        await asyncio.sleep(0)


def shapes(size: Size) -> Sequence[Shape]:
    records = 1_000_000 if size is Size.FULL else 200_000
    found = [
        Shape("100 B", records, kafka_ns=615),
        Shape("1 KiB", records // 2 if size is Size.SMALL else records, value_bytes=1024, kafka_ns=1300),
        Shape("100 B", records, codec=Codec.GZIP),
        Shape("100 B", records, codec=Codec.SNAPPY),
        Shape("100 B", records, codec=Codec.LZ4),
        Shape("100 B", records, codec=Codec.ZSTD, kafka_ns=1600),
    ]
    if size is Size.FULL:
        found.append(Shape("100 B, 4 M keys", 6_000_000, distinct_keys=4_000_000, kafka_ns=1200))
    return found


def run(size: Size) -> Iterator[Table]:
    keep_freed_memory()  # as the compactor's process does
    warm()
    yield asyncio.run(measure(shapes(size), repeats=3 if size is Size.SMALL else 5))
    yield whole_host.measure(emptied_store, size)


def emptied_store() -> MeasuredStore:
    """A store whose inputs are too small for parts, and whose outputs are dropped."""
    store = MeasuredStore(SystemClock())
    store.drops_uploads = True
    return store


async def measure(wanted: Sequence[Shape], *, repeats: int, keys_max: int = DEDUPE_KEYS_MAX) -> Table:
    buffer = DedupeBuffer(keys_max)
    copy_gb_per_s = copied_gb_per_s()
    rows: list[list[Cell]] = []
    for shape in wanted:
        print(f"{shape.records:,} records of {shape.name}, {shape.codec.name.lower()}", file=sys.stderr)
        rows.append(await _row(shape, repeats, buffer, copy_gb_per_s))
    note = (
        "Eight L1 files of one partition into one L2 file, on the memory store; 16-byte keys,"
        f" {BATCH_RECORDS} records a batch, {ZIPF_KEYS:,} keys by Zipf's law (s = 0.99) unless said otherwise."
        f" CPU of the whole process, the least of {repeats} repeats; rates by wall time, MB before compression."
        " Bare kernels: the same kernel calls over the same bytes, each made once, with the codec."
        " The store: what of the CPU is the memory store's, which copies each range that is read; parts that are"
        " written are taken as they are."
        f" One copy: {copy_gb_per_s:.1f} GB/s of CPU in this run."
        f" Oracle: the same rules in plain Python, over the first {ORACLE_BATCHES * BATCH_RECORDS:,} records."
        f" Kafka's LogCleaner, warm: measured elsewhere, a machine of the same kind. {MERGE_PRICE_NOTE}"
    )
    return Table(
        "A whole compaction, per record",
        note,
        (
            Column("values"),
            Column("codec"),
            Column("records"),
            Column("kept", "%", 1),
            Column("CPU", "ns"),
            Column("wall", "ns"),
            Column("records/s"),
            Column("MB/s"),
            Column("bare kernels", "ns"),
            Column("the store", "ns"),
            Column("of bare kernels", "x", 2),
            Column("without the store", "x", 2),
            Column("of one copy", "x", 1),
            Column("oracle", "x", 0),
            Column("Kafka", "ns"),
            Column("Kafka", "x", 1),
            *MERGE_PRICE_COLUMNS,
        ),
        rows,
    )


async def _row(shape: Shape, repeats: int, buffer: DedupeBuffer, copy_gb_per_s: float) -> list[Cell]:
    inputs = await some_inputs(shape)
    store, records = inputs.store, inputs.next_offset
    memory = MergeMemory(keys_max=buffer.keys_max)
    price = await merge_price(store, [inputs.claim()], memory)
    engine = MergeEngine(store=store, runtime=Runtime(), lease=LEASE, memory=memory)
    logs = [await store.get_range(each.key, each.position, each.length) for each in inputs.extents]
    store.drops_uploads = True
    await engine.run(inputs.claim())  # makes its table of keys
    whole: list[Spent] = []
    bare: list[float] = []
    kept = 0
    for _ in range(repeats):
        before = Spent(time.process_time(), time.perf_counter(), store.cpu_s)
        commit = await engine.run(inputs.claim())
        after = Spent(time.process_time(), time.perf_counter(), store.cpu_s)
        whole.append(Spent(*(end - start for start, end in zip(before, after, strict=True))))
        bare.append(bare_kernels_cpu_s(logs, shape, buffer))
        await store.delete_many([output.key for output in commit.outputs])
        kept = _records_out(commit)
    cpu_ns, wall_ns, store_ns = (min(column) * 1e9 / records for column in zip(*whole, strict=True))
    bare_ns = min(bare) * 1e9 / records
    plain_bytes = plain_batch_bytes(shape) / BATCH_RECORDS
    return [
        shape.name,
        shape.codec.name.lower(),
        records,
        100 * kept / records,
        cpu_ns,
        wall_ns,
        1e9 / wall_ns,
        plain_bytes * 1000 / wall_ns,
        bare_ns,
        store_ns,
        cpu_ns / bare_ns,
        (cpu_ns - store_ns) / bare_ns,
        cpu_ns / (plain_bytes / copy_gb_per_s),
        oracle_ns(logs[0]) / cpu_ns,
        shape.kafka_ns,
        shape.kafka_ns / cpu_ns if shape.kafka_ns else None,
        *price,
    ]


def _records_out(commit: CommitMerge) -> int:
    return sum(extent.record_count for output in commit.outputs for extent in output.extents)


# The input


async def some_inputs(shape: Shape, *, seed: int = 1) -> MergeInputFiles[MeasuredStore]:
    chance = np.random.default_rng(seed)
    if shape.distinct_keys is None:
        weights = np.arange(1, ZIPF_KEYS + 1, dtype=np.float64) ** -0.99
        numbers = np.searchsorted(np.cumsum(weights) / weights.sum(), chance.random(shape.records))
    else:
        repeated = chance.integers(0, shape.distinct_keys, shape.records - shape.distinct_keys)
        numbers = chance.permutation(np.concatenate((np.arange(shape.distinct_keys), repeated)))
    values = json_values(shape.value_bytes)
    inputs = MergeInputFiles(MeasuredStore(SystemClock()))
    per_file = -(-len(numbers) // FILES // BATCH_RECORDS) * BATCH_RECORDS
    for first in range(0, len(numbers), per_file):
        keys = numbered_keys(numbers[first : first + per_file])
        await inputs.add_file(stamped_batches(keys, values, base_offset=inputs.next_offset, codec=shape.codec))
    return inputs


def plain_batch_bytes(shape: Shape) -> int:
    """The size of one batch before compression."""
    one = stamped_batches(
        numbered_keys(np.zeros(BATCH_RECORDS, dtype=np.int64)), json_values(shape.value_bytes, count=1)
    )
    return len(next(one))


# The comparisons


def copied_gb_per_s(bytes_count: int = 64 << 20) -> float:
    """The rate by CPU of a copy from memory, as for a merge's windows, into memory that was written before."""
    source = np.random.default_rng(3).integers(0, 256, bytes_count, dtype=np.uint8)
    target = np.ones_like(source)
    return bytes_count / least_cpu_s(lambda: np.copyto(target, source), repeats=7) / 1e9


def least_cpu_s(work: Callable[[], object], *, repeats: int) -> float:
    least = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        work()
        least = min(least, time.process_time() - started)
    return least


class Walked(NamedTuple):
    """A window after the first pass."""

    window: NDArray[np.uint8]
    table: BatchTable
    arena: NDArray[np.uint8]
    starts: NDArray[np.int64]
    ends: NDArray[np.int64]


def bare_kernels_cpu_s(logs: Sequence[bytes], shape: Shape, buffer: DedupeBuffer) -> float:
    """CPU of every kernel called once over all windows."""
    windows = _windows(logs, WINDOW_BYTES // plain_batch_bytes(shape))
    dead = np.zeros(shape.records // 8 + 1, dtype=np.uint8)
    buffer.clear()
    started = time.process_time()
    walked: list[Walked] = []
    ordinal = 0
    for window in windows:
        walked.append(_unfolded(window, read_batches(window), shape.codec))
        ordinal = _enter(walked[-1], buffer, dead, ordinal)
    spent = time.process_time() - started
    end = shape.records
    limits = Limits(end, end, NOW_MS, NOW_MS + DAY_MS, end, end, DECOMPRESSED_BYTES_MAX)
    ordinal = 0
    for each in walked:
        # Made a second time only because keeping them would cost memory: not counted.
        columns = scan_records(each.arena, each.starts, each.ends, each.table.record_counts)
        first_rows = np.concatenate((np.zeros(1, dtype=np.int64), np.cumsum(each.table.record_counts)))
        modes = np.zeros(len(each.table.positions), dtype=np.uint8)
        started = time.process_time()
        verdicts = judge(each.arena, columns, each.table, modes, first_rows, dead, ordinal, limits)
        rewrite(each.window, each.table, each.arena, columns, first_rows, verdicts.keep, verdicts.rewrites)
        spent += time.process_time() - started
        ordinal += len(columns.key_lengths)
    return spent


def _windows(logs: Sequence[bytes], batches: int) -> list[memoryview]:
    found: list[memoryview] = []
    for log in logs:
        table = read_batches(log, check_crc=False)
        edges = [*table.positions[::batches].tolist(), len(log)]
        found += [memoryview(log)[start:end] for start, end in pairwise(edges)]
    return found


def _unfolded(window: memoryview, table: BatchTable, codec: Codec) -> Walked:
    stored = np.frombuffer(window, dtype=np.uint8)
    starts, ends = table.positions + BATCH_HEADER_BYTES, table.positions + table.sizes
    if codec is Codec.NONE:
        return Walked(stored, table, stored, starts, ends)
    payloads = [
        decompress(codec, window[start:end], bytes_max=DECOMPRESSED_BYTES_MAX)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
    ]
    ends = np.cumsum([len(payload) for payload in payloads])
    starts = np.concatenate((np.zeros(1, dtype=np.int64), ends[:-1]))
    return Walked(stored, table, np.frombuffer(b"".join(payloads), dtype=np.uint8), starts, ends)


def _enter(walked: Walked, buffer: DedupeBuffer, dead: NDArray[np.uint8], ordinal: int) -> int:
    """The ordinal after the window's records."""
    columns = scan_records(walked.arena, walked.starts, walked.ends, walked.table.record_counts)
    rows, start = len(columns.key_lengths), 0
    while start < rows:
        stop = min(start + HASHED_AT_ONCE, rows)
        lengths = columns.key_lengths[start:stop]
        done = buffer.enter(
            hash_keys(walked.arena, columns.key_positions[start:stop], lengths), lengths, ordinal + start, dead
        )
        start += done
        if start < stop:
            buffer.clear()
    return ordinal + rows


def oracle_ns(log: bytes) -> float:
    """Per record of the first batches."""
    table = read_batches(log, check_crc=False)
    batches = [
        log[at : at + size]
        for at, size in zip(table.positions[:ORACLE_BATCHES].tolist(), table.sizes.tolist(), strict=False)
    ]
    end = int(table.last_offsets[len(batches) - 1]) + 1
    bounds = CleanBounds(
        first_uncleanable_offset=end,
        whole_through_offset=end,
        now_ms=NOW_MS,
        delete_horizon_ms=NOW_MS + DAY_MS,
        high_watermark=end,
        last_stable_offset=end,
    )
    return least_cpu_s(lambda: compact(batches, bounds, keys_max=DEDUPE_KEYS_MAX), repeats=2) * 1e9 / end
