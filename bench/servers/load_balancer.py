"""A TCP load balancer on loopback, in a thread: what stands before a fleet of agents in production.

It asks the health endpoint of every target again and again, and gives a new connection to any target that is ready. A
connection that is open stays with its target until one of the two closes it.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import threading
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, Self

START_S = 10.0
CHECK_S = 0.5
"""Between two looks at a target; also how long a target may take to answer."""
CHUNK_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Target:
    port: int
    health_port: int


class LoadBalancer:
    """`address` is the same for as long as the block lasts; `set_targets` says who is behind it."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="load balancer", daemon=True)
        self._started = threading.Event()
        self._ending = asyncio.Event()
        self._targets: Sequence[Target] = ()
        self._ready: set[Target] = set()
        self._serving: set[asyncio.Task[None]] = set()
        self._port = 0

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    @property
    def ready(self) -> frozenset[Target]:
        """The targets that new connections are given to."""
        return frozenset(self._ready)

    def set_targets(self, targets: Sequence[Target]) -> None:
        self._targets = tuple(targets)

    def __enter__(self) -> Self:
        self._thread.start()
        if not self._started.wait(START_S):
            raise RuntimeError("the load balancer does not start")
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._ending.set)
        self._thread.join(START_S)

    def _run(self) -> None:
        with contextlib.closing(self._loop):
            self._loop.run_until_complete(self._serve())

    async def _serve(self) -> None:
        server = await asyncio.start_server(self._accepted, "127.0.0.1", 0)
        self._port = server.sockets[0].getsockname()[1]
        checks = asyncio.create_task(self._check())
        self._started.set()
        await self._ending.wait()
        server.close()
        tasks = [checks, *self._serving]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _check(self) -> None:
        while True:
            targets = self._targets
            answers = await asyncio.gather(*(_is_ready(target) for target in targets))
            self._ready = {target for target, is_ready in zip(targets, answers, strict=True) if is_ready}
            await asyncio.sleep(CHECK_S)

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task: asyncio.Task[None] | None = asyncio.current_task()
        assert task is not None
        self._serving.add(task)
        try:
            await self._pass_on(reader, writer)
        except (OSError, asyncio.CancelledError):
            pass  # one side has gone, or the balancer ends
        finally:
            self._serving.discard(task)
            writer.transport.abort()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self._ready:
            return
        target = random.choice(sorted(self._ready, key=lambda each: each.port))
        from_target, to_target = await asyncio.open_connection("127.0.0.1", target.port)
        try:
            await first_to_end(copy(reader, to_target), copy(from_target, writer))
        finally:
            to_target.transport.abort()


async def _is_ready(target: Target) -> bool:
    try:
        async with asyncio.timeout(CHECK_S):
            reader, writer = await asyncio.open_connection("127.0.0.1", target.health_port)
            try:
                writer.write(b"GET /readyz HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")
                return b" 200 " in await reader.readline()
            finally:
                writer.transport.abort()
    except (OSError, TimeoutError):
        return False


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Pass bytes on until their end."""
    while data := await reader.read(CHUNK_BYTES):
        writer.write(data)
        await writer.drain()


async def first_to_end(*work: Coroutine[Any, Any, None]) -> None:
    """Run all until the first ends, then cancel the others."""
    tasks = [asyncio.ensure_future(each) for each in work]
    try:
        await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
