"""`make bench-store_client`: the CPU that one PUT or one GET costs the process that asks, without the store's own.

The store is `bench/servers/endless_s3.py`, in another process. The limit is a blocking socket that sends and takes the
same bytes with a ready-made head: no signature, no parsing, no event loop. The ways take turns, and each figure is the
least of several rounds, because another process can only make one longer.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import AsyncExitStack, contextmanager
from dataclasses import dataclass

from bench.registry import Size
from bench.servers.s3_server import CLIENT_ENVIRONMENT, NOT_FOR_CLIENTS, ROOT, stop
from bench.table import Cell, Column, Table
from storage.objects import ObjectStore, SupportsOpen
from storage.s3.store import S3Store
from storage.urls import open_store
from wire.crc import crc32c

KIB, MIB = 1 << 10, 1 << 20
KEY = "l0/00/2026010100/1-1-x.silt"
RAW = "a bare socket"


@dataclass(frozen=True, slots=True)
class Work:
    name: str
    size_bytes: int
    calls: int
    """In one round."""


WORKS = (
    Work("put", 64 * KIB, 100),
    Work("put", 8 * MIB, 8),
    Work("get_range", 64 * KIB, 100),
    Work("get_range", MIB, 40),
)


@dataclass(frozen=True, slots=True)
class Cost:
    cpu_ms: float
    """Of the whole process."""
    loop_ms: float
    """CPU of the thread of the event loop."""
    wall_ms: float

    def least(self, other: Cost) -> Cost:
        return Cost(min(self.cpu_ms, other.cpu_ms), min(self.loop_ms, other.loop_ms), min(self.wall_ms, other.wall_ms))


Call = Callable[[Work], Awaitable[None]]


class ByClient(S3Store):
    """Every request by aioboto3."""

    async def open(self) -> None:
        await super().open()
        self._direct = None


def run(size: Size) -> Iterator[Table]:
    yield measure(WORKS, rounds=4 if size is Size.SMALL else 12)


def measure(works: tuple[Work, ...], *, rounds: int) -> Table:
    before = dict(os.environ)
    for name in NOT_FOR_CLIENTS:
        os.environ.pop(name, None)
    os.environ.update(CLIENT_ENVIRONMENT)
    try:
        with endless_s3() as port:
            least = asyncio.run(_measure(port, works, rounds))
    finally:
        os.environ.clear()
        os.environ.update(before)
    rows: list[list[Cell]] = []
    for work in works:
        raw_ms = least[work, RAW].cpu_ms
        for (measured, way), cost in least.items():
            if measured is work:
                name = f"{work.name} {work.size_bytes // KIB} KiB"
                rows.append([name, way, cost.cpu_ms, cost.loop_ms, cost.wall_ms, cost.cpu_ms / raw_ms])
    return Table(
        "One request to an object store",
        "CPU of the asking process, user and system, and the share of its event loop's thread; one request at a time"
        " over http; the least of all rounds. PUTs by obstore are direct ones.",
        (
            Column("request"),
            Column("way"),
            Column("CPU", "ms", 3),
            Column("on the loop", "ms", 3),
            Column("time", "ms", 2),
            Column("of a socket", "x", 1),
        ),
        rows,
    )


async def _measure(port: int, works: tuple[Work, ...], rounds: int) -> dict[tuple[Work, str], Cost]:
    body = os.urandom(max(work.size_bytes for work in works))
    checksums = {work.size_bytes: crc32c(body[: work.size_bytes]) for work in works}
    bodies = {work.size_bytes: body[: work.size_bytes] for work in works}

    def caller(store: ObjectStore) -> Call:
        async def call(work: Work) -> None:
            if work.name == "put":
                await store.put_if_absent(KEY, bodies[work.size_bytes], crc32c=checksums[work.size_bytes])
            else:
                assert len(await store.get_range(KEY, 0, work.size_bytes)) == work.size_bytes

        return call

    least: dict[tuple[Work, str], Cost] = {}
    async with AsyncExitStack() as stack:
        ways: dict[str, Call] = {RAW: stack.enter_context(bare_socket(port, bodies))}
        for name, store in stores(port).items():
            stack.push_async_callback(store.close)
            if isinstance(store, SupportsOpen):
                await store.open()
            ways[name] = caller(store)
        for number in range(rounds):
            print(f"round {number + 1} of {rounds}", file=sys.stderr)
            for work in works:
                for name, call in ways.items():
                    await call(work)
                    taken = await _cost_ms(call, work)
                    least[work, name] = taken.least(least.get((work, name), taken))
    return least


def stores(port: int) -> dict[str, ObjectStore]:
    """By name. "direct" is what agents use; obstore is left out if it is not installed."""
    endpoint = f"http://127.0.0.1:{port}"
    found: dict[str, ObjectStore] = {
        "aioboto3": ByClient(bucket="bench", prefix="data", endpoint=endpoint),
        "direct": open_store(f"s3://bench/data?endpoint={endpoint}"),
    }
    if importlib.util.find_spec("obstore") is not None:
        found["obstore"] = open_store(f"s3://bench/data?endpoint={endpoint}&client=obstore")
    return found


async def _cost_ms(call: Call, work: Work) -> Cost:
    """The cost of one call."""
    used, on_loop, started = _cpu_s(), time.thread_time(), time.perf_counter()
    for _ in range(work.calls):
        await call(work)
    per_call = 1000 / work.calls
    return Cost(
        (_cpu_s() - used) * per_call,
        (time.thread_time() - on_loop) * per_call,
        (time.perf_counter() - started) * per_call,
    )


def _cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


@contextmanager
def bare_socket(port: int, bodies: dict[int, bytes]) -> Generator[Call]:
    with socket.create_connection(("127.0.0.1", port)) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        buffer = bytearray(2 * MIB)

        async def call(work: Work) -> None:
            if work.name == "put":
                connection.sendall(b"PUT / HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % work.size_bytes)
                connection.sendall(bodies[work.size_bytes])
            else:
                connection.sendall(b"GET / HTTP/1.1\r\nRange: bytes=0-%d\r\n\r\n" % (work.size_bytes - 1))
            head = b""
            while b"\r\n\r\n" not in head:
                head += connection.recv(64 * KIB)
            body_bytes = 0 if work.name == "put" else work.size_bytes
            missing = body_bytes - len(head.partition(b"\r\n\r\n")[2])
            while missing > 0:
                missing -= connection.recv_into(buffer)

        yield call


@contextmanager
def endless_s3() -> Generator[int]:
    """The port of the server."""
    command = [sys.executable, "-m", "bench.servers.endless_s3"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT)
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise RuntimeError("the server did not start")
        yield int(line)
    finally:
        stop(process)
