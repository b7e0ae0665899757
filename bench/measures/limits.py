"""This machine's limits, measured in the same run as the benchmark that is compared with them.

They are: memory (copying and CRC-32C over 8 MiB); the loopback socket with 1 MB writes, each answered by 4 bytes,
received and dropped by a blocking socket and by an asyncio BufferedProtocol (no broker on asyncio can do better than
that); 8 MiB files written and synced; one row inserted into Postgres by a statement of its own.

Times of memory work are the least of several repeats, because another process can only make them longer; latencies are
medians.
"""

from __future__ import annotations

import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from bench.measures.usage import usage
from bench.registry import Size
from bench.table import Cell, Column, Table
from metadata.postgres.driver import open_connection
from wire.crc import crc32c

MB = 1_000_000
FILE_BYTES = 8 << 20
WRITE_BYTES = 1_000_000
ANSWER = b"\0\0\0\0"
WRITES_IN_FLIGHT = 5

Receiver = Literal["socket", "asyncio"]


@dataclass(frozen=True, slots=True)
class Loopback:
    mb_per_s: float
    receiver_cpu_ms_per_mb: float


@dataclass(frozen=True, slots=True)
class FileWrites:
    mb_per_s: float
    p50_ms: float


@dataclass(frozen=True, slots=True)
class Limits:
    memcpy_gb_per_s: float
    crc32c_gb_per_s: float
    raw_socket: Loopback
    asyncio_socket: Loopback
    """The limit of a broker on asyncio: it takes bytes in and drops them."""
    file_writes: FileWrites


def measure(size: Size, directory: Path) -> Limits:
    """All limits but the database's (about 5 s). `directory` is the place of the measured data directories."""
    seconds = 1.0 if size is Size.SMALL else 3.0
    return Limits(
        memcpy_gb_per_s=memcpy_gb_per_s(),
        crc32c_gb_per_s=crc32c_gb_per_s(),
        raw_socket=loopback("socket", seconds=seconds),
        asyncio_socket=loopback("asyncio", seconds=seconds),
        file_writes=file_writes(directory, count=10 if size is Size.SMALL else 40),
    )


def limits_table(limits: Limits) -> Table:
    rows: list[list[Cell]] = [
        ["copying 8 MiB in memory", limits.memcpy_gb_per_s * 1000, 1 / limits.memcpy_gb_per_s],
        ["CRC-32C of 8 MiB", limits.crc32c_gb_per_s * 1000, 1 / limits.crc32c_gb_per_s],
        ["loopback, blocking socket", limits.raw_socket.mb_per_s, limits.raw_socket.receiver_cpu_ms_per_mb],
        [
            "loopback, asyncio BufferedProtocol",
            limits.asyncio_socket.mb_per_s,
            limits.asyncio_socket.receiver_cpu_ms_per_mb,
        ],
        ["write and fsync 8 MiB files", limits.file_writes.mb_per_s, None],
    ]
    return Table(
        "Limits of this machine",
        "1 MB = 1,000,000 bytes. CPU is that of the side that receives.",
        (Column("what"), Column("rate", "MB/s"), Column("CPU", "ms/MB", 3)),
        rows,
    )


# ---- memory


def memcpy_gb_per_s(bytes_count: int = FILE_BYTES) -> float:
    """Copying into memory that was written before, as `bytes.join` into a warm arena does.

    Both sides are written first: memory that was only requested is one page of zeros over and over, which stays in the
    processor's cache.
    """
    source, target = memoryview(os.urandom(bytes_count)), memoryview(bytearray(os.urandom(bytes_count)))

    def copy() -> None:
        target[:] = source

    return bytes_count / least_seconds(copy) / 1e9


def crc32c_gb_per_s(bytes_count: int = FILE_BYTES) -> float:
    data = os.urandom(bytes_count)
    return bytes_count / least_seconds(lambda: crc32c(data)) / 1e9


def least_seconds(work: Callable[[], object], *, repeats: int = 30) -> float:
    """The shortest of several runs."""
    least = float("inf")
    for _ in range(repeats):
        started = time.perf_counter()
        work()
        least = min(least, time.perf_counter() - started)
    return least


# ---- sockets


def loopback(receiver: Receiver, *, seconds: float) -> Loopback:
    """1 MB writes over 127.0.0.1 to another process, at most 5 unanswered."""
    with _receiver(receiver) as (pid, port), socket.create_connection(("127.0.0.1", port)) as client:
        client.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        data = bytes(WRITE_BYTES)
        for _ in range(20):
            _exchange(client, data, 1)
        before, started, written = usage(pid), time.perf_counter(), 0
        while time.perf_counter() - started < seconds:
            _exchange(client, data, WRITES_IN_FLIGHT)
            written += WRITES_IN_FLIGHT
        elapsed, used = time.perf_counter() - started, usage(pid) - before
    megabytes = written * WRITE_BYTES / MB
    return Loopback(megabytes / elapsed, used.cpu_s * 1000 / megabytes)


def _exchange(client: socket.socket, data: bytes, writes: int) -> None:
    for _ in range(writes):
        client.sendall(data)
    missing = writes * len(ANSWER)
    while missing:
        answer = client.recv(missing)
        if not answer:
            raise ConnectionError("the receiver has gone")
        missing -= len(answer)


@contextmanager
def _receiver(kind: Receiver) -> Generator[tuple[int, int]]:
    """A process that receives, and its port."""
    argv = [sys.executable, "-m", "bench.measures.receiver", kind]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, cwd=Path(__file__).parents[2]) as process:
        try:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise RuntimeError("the receiver did not start")
            yield process.pid, int(line)
        finally:
            process.kill()


# ---- files


def file_writes(directory: Path, *, count: int, bytes_count: int = FILE_BYTES) -> FileWrites:
    """New files, each written in one go and synced, as the local object store must."""
    data = os.urandom(bytes_count)
    times: list[float] = []
    for number in range(count):
        path = directory / f"limit-{number}"
        started = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            file.write(data)
            os.fsync(file.fileno())
        times.append(time.perf_counter() - started)
        path.unlink()
    return FileWrites(bytes_count * count / sum(times) / MB, statistics.median(times) * 1000)


# ---- Postgres


async def plain_insert_p50_ms(url: str, *, count: int = 300) -> float:
    """One row of some 100 bytes, one statement, one transaction, one connection."""
    connection = await open_connection(url, connect_timeout_s=10, command_timeout_s=60, settings={})
    try:
        await connection.execute("CREATE TABLE IF NOT EXISTS bench_limit (id bigint PRIMARY KEY, data bytea NOT NULL)")
        times: list[float] = []
        data = bytes(100)
        for number in range(count):
            started = time.perf_counter()
            await connection.execute("INSERT INTO bench_limit VALUES ($1, $2)", number, data)
            times.append(time.perf_counter() - started)
        await connection.execute("DROP TABLE bench_limit")
        return statistics.median(times) * 1000
    finally:
        await connection.close()
