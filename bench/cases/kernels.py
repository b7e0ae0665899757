"""The compactor's compiled kernels over records of 16-byte keys and 100-byte values, 100 to a batch.

One process, one thread, no store. Measured per record: reading batch headers (with and without CRC-32C), finding the
keys, hashing them and entering them into the table of keys. Each is compared with a copy of the same bytes and with the
same step in plain Python. Then each way to sum and to hash, to show why the kernels use theirs.

Times are CPU, the least of all repeats. Windows are of 4 MiB, so that the result of one step is in the processor's
cache for the next, as in a merge.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from bench.registry import Size
from bench.table import Cell, Column, Table
from compactor.cleaning.bounds import DEDUPE_KEYS_MAX
from compactor.cleaning.dedupe_buffer import DedupeBuffer, PythonDedupeBuffer
from wire.batch import BATCH_HEADER_BYTES
from wire.crc import crc32c
from wire.kernels import warm
from wire.kernels.batches import BatchTable, read_batches, read_batches_python
from wire.kernels.checksum import HAS_INSTRUCTION, crc32c_at, crc32c_by_tables
from wire.kernels.compiled import address_of, compiled
from wire.kernels.hashing import hash_keys, hash_keys_python, hash_keys_scalar
from wire.kernels.scan import KeyColumns, scan_records, scan_records_python
from wire.kernels.sha512 import LANES
from wire.records import NewRecord, build_batch

NOW_MS = 1_800_000_000_000
KEYS = 200_000
VALUE_BYTES = 100
BATCH_RECORDS = 100
WINDOW_RECORDS = 33_000
"""About 4 MiB."""
RECORDS = {Size.SMALL: 66_000, Size.FULL: 330_000}
REPEATS = {Size.SMALL: 5, Size.FULL: 15}
SUMMED_BYTES = (100, 300, 1_500, 12_600, 100_000)


@dataclass(frozen=True, slots=True)
class Window:
    """The batches of one partition, and the results of each step for the next."""

    data: bytes
    arena: NDArray[np.uint8]
    table: BatchTable
    columns: KeyColumns
    hashes: NDArray[np.uint64]

    @property
    def places(self) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
        positions = self.table.positions
        return positions + BATCH_HEADER_BYTES, positions + self.table.sizes, self.table.record_counts


def run(size: Size) -> Iterator[Table]:
    warm()
    print(f"building {RECORDS[size]:,} records", file=sys.stderr)
    windows = some_windows(RECORDS[size])
    yield measure_steps(windows, repeats=REPEATS[size])
    yield measure_table(DEDUPE_KEYS_MAX, repeats=3 if size is Size.SMALL else 7)
    yield measure_hashes(windows[0], repeats=REPEATS[size])
    yield measure_sums(repeats=REPEATS[size])


def some_windows(records: int, *, window_records: int = WINDOW_RECORDS) -> list[Window]:
    """Keys by Zipf's law with s = 0.99: a few are in most records."""
    chance = np.random.default_rng(1)
    weights = np.arange(1, KEYS + 1, dtype=np.float64) ** -0.99
    keys = np.searchsorted(np.cumsum(weights) / weights.sum(), chance.random(records)).tolist()
    value = bytes(range(VALUE_BYTES))
    windows: list[Window] = []
    for first in range(0, records, window_records):
        window_keys = keys[first : first + window_records]
        batches = [
            build_batch(
                [
                    NewRecord(NOW_MS + n, b"key-%012d" % key, value)
                    for n, key in enumerate(window_keys[at : at + BATCH_RECORDS])
                ]
            )
            for at in range(0, len(window_keys), BATCH_RECORDS)
        ]
        windows.append(_window(b"".join(batches)))
    return windows


def _window(data: bytes) -> Window:
    arena, table = np.frombuffer(data, dtype=np.uint8), read_batches(data)
    starts, ends = table.positions + BATCH_HEADER_BYTES, table.positions + table.sizes
    columns = scan_records(arena, starts, ends, table.record_counts)
    return Window(data, arena, table, columns, hash_keys(arena, columns.key_positions, columns.key_lengths))


def least_cpu_s(work: Callable[[], object], *, repeats: int) -> float:
    least = float("inf")
    for _ in range(repeats):
        started = time.process_time()
        work()
        least = min(least, time.process_time() - started)
    return least


def measure_steps(windows: Sequence[Window], *, repeats: int) -> Table:
    """One row per step; the plain Python of each is run over the first window only."""
    records = sum(len(window.columns.key_lengths) for window in windows)
    bytes_count = sum(len(window.data) for window in windows)
    target = memoryview(bytearray(max(len(window.data) for window in windows)))
    dead = np.zeros(-(-records // 8), dtype=np.uint8)

    def copy(window: Window) -> None:
        target[: len(window.data)] = window.data

    def enter(buffer: DedupeBuffer | PythonDedupeBuffer) -> Callable[[Window], object]:
        return lambda window: buffer.enter(window.hashes, window.columns.key_lengths, 0, dead)

    def keys(window: Window) -> tuple[NDArray[np.uint8], NDArray[np.int64], NDArray[np.int32]]:
        return window.arena, window.columns.key_positions, window.columns.key_lengths

    steps: list[tuple[str, Callable[[Window], object], Callable[[Window], object]]] = [
        (
            "batch headers",
            lambda window: read_batches(window.data, check_crc=False),
            lambda window: read_batches_python(window.data, check_crc=False),
        ),
        (
            "batch headers and CRC-32C",
            lambda window: read_batches(window.data),
            lambda window: read_batches_python(window.data),
        ),
        (
            "where keys lie",
            lambda window: scan_records(window.arena, *window.places),
            lambda window: scan_records_python(window.arena, *window.places),
        ),
        ("SHA-512/256", lambda window: hash_keys(*keys(window)), lambda window: hash_keys_python(*keys(window))),
        ("table of keys", enter(DedupeBuffer()), enter(PythonDedupeBuffer())),
    ]

    def per_record_ns(work: Callable[[Window], object], these: Sequence[Window], times: int) -> float:
        # One window after the other, each warm from an earlier run: a merge has just copied its data there.
        seconds = sum(least_cpu_s(lambda window=window: work(window), repeats=times) for window in these)
        return seconds * 1e9 / sum(len(window.columns.key_lengths) for window in these)

    copy_ns = per_record_ns(copy, windows, repeats)
    rows: list[list[Cell]] = []
    for name, kernel, python in steps:
        print(name, file=sys.stderr)
        kernel_ns, python_ns = per_record_ns(kernel, windows, repeats), per_record_ns(python, windows[:1], 2)
        rows.append(
            [name, kernel_ns, bytes_count / records / kernel_ns * 1000, kernel_ns / copy_ns, python_ns / kernel_ns]
        )
    return Table(
        "Compaction kernels, per record",
        f"Limit in this run: one copy {copy_ns:.1f} ns a record of {bytes_count / records:.0f} bytes."
        f" {LANES} keys are hashed at a time. CPU, the least of all repeats.",
        (
            Column("step"),
            Column("CPU", "ns", 1),
            Column("MB/s"),
            Column("of one copy", "x", 1),
            Column("plain Python", "x", 0),
        ),
        rows,
    )


def measure_table(keys_max: int, *, repeats: int) -> Table:
    """The table of keys by its size: the cost of a look-up depends on how far away its memory is."""
    chance = np.random.default_rng(2)
    hashes = chance.integers(0, 2**64, (keys_max, 4), dtype=np.uint64)
    dead = np.zeros(WINDOW_RECORDS // 8 + 1, dtype=np.uint8)
    table = DedupeBuffer(keys_max)
    rows: list[list[Cell]] = []

    def enter(rows_in: NDArray[np.uint64]) -> None:
        lengths = np.zeros(WINDOW_RECORDS, dtype=np.int32)
        for at in range(0, len(rows_in), WINDOW_RECORDS):
            part = rows_in[at : at + WINDOW_RECORDS]
            table.enter(part, lengths[: len(part)], 0, dead)

    def fill(rows_in: NDArray[np.uint64]) -> None:
        table.clear()
        enter(rows_in)

    for known in (min(count, keys_max) for count in (20_000, 200_000, keys_max)):
        print(f"a table of {known:,} keys", file=sys.stderr)
        fresh = np.ascontiguousarray(hashes[:known])
        repeated = fresh[chance.integers(0, known, max(known, 300_000))]
        fill(fresh)
        fill_ns = least_cpu_s(lambda fresh=fresh: fill(fresh), repeats=repeats) * 1e9 / known
        # Measured apart and taken off, because filling begins with a clear.
        clear_ns = least_cpu_s(table.clear, repeats=repeats) * 1e9 / known
        fill(fresh)
        known_ns = least_cpu_s(lambda repeated=repeated: enter(repeated), repeats=repeats) * 1e9 / len(repeated)
        rows.append([known, fill_ns - clear_ns, known_ns, clear_ns * known / 1e6])
    return Table(
        "The table of keys",
        f"{table.bytes_allocated:,} bytes for {keys_max:,} keys. Keys come in no order. CPU, the least of all repeats.",
        (Column("keys in it"), Column("a new key", "ns", 1), Column("a known key", "ns", 1), Column("clear", "ms", 2)),
        rows,
    )


def measure_hashes(window: Window, *, repeats: int) -> Table:
    columns = window.columns
    ways = {f"{LANES} at a time": hash_keys, "one at a time": hash_keys_scalar, "hashlib": hash_keys_python}
    rows: list[list[Cell]] = []
    for name, way in ways.items():
        work = lambda way=way: way(window.arena, columns.key_positions, columns.key_lengths)  # noqa: E731
        rows.append([name, least_cpu_s(work, repeats=min(repeats, 5)) * 1e9 / len(columns.key_lengths)])
    return Table("SHA-512/256 of 16-byte keys", "", (Column("way"), Column("CPU", "ns", 1)), rows)


@compiled
def _sum_all(address: int, count: int, size: int) -> int:
    total = 0
    for at in range(count):
        total ^= crc32c_at(address + at * size, size, 0)
    return total


@compiled
def _sum_all_by_tables(address: int, count: int, size: int) -> int:
    total = 0
    for at in range(count):
        total ^= crc32c_by_tables(address + at * size, size, 0)
    return total


def measure_sums(*, repeats: int, bytes_count: int = 4 << 20) -> Table:
    """CRC-32C in a kernel, and by a call of the wheel for each batch from Python, by the size of a batch."""
    data = np.random.default_rng(3).integers(0, 256, bytes_count, dtype=np.uint8)
    view, address = data.data, address_of(data)
    rows: list[list[Cell]] = []
    for size in SUMMED_BYTES:
        count = bytes_count // size
        works: tuple[Callable[[], object], ...] = (
            lambda count=count, size=size: _sum_all(address, count, size),
            lambda count=count, size=size: _sum_all_by_tables(address, count, size),
            lambda count=count, size=size: [crc32c(view[at : at + size]) for at in range(0, count * size, size)],
        )
        for work in works:
            work()
        seconds = [least_cpu_s(work, repeats=repeats) for work in works]
        rows.append([size, *(each * 1e9 / count for each in seconds), *(count * size / each / 1e9 for each in seconds)])
    kernel = "by instruction" if HAS_INSTRUCTION else "by tables: there is no instruction"
    return Table(
        "CRC-32C of a batch",
        f"The kernel sums {kernel}. The wheel is called from Python once for each batch.",
        (
            Column("batch", "B"),
            Column("kernel", "ns"),
            Column("tables", "ns"),
            Column("wheel", "ns"),
            Column("kernel", "GB/s", 1),
            Column("tables", "GB/s", 1),
            Column("wheel", "GB/s", 1),
        ),
        rows,
    )
