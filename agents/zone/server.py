"""Serves blocks to the neighbours, from memory or by a GET that all of them share.

A request is answered from the agent's own pools. A GET that it begins goes to the object store and never to another
neighbour, so requests cannot go round in circles. Bounds:

- at most SERVES_MAX requests and SERVED_BYTES_MAX bytes are under way at once; one more is answered "busy" at once;
- an answer that its reader does not take within SEND_MS_MAX is cut off: until then its bytes are pinned;
- a connection carries one request at a time, and whatever is no request of this protocol closes it.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import cast

from agents.connections.sending import TURN_BYTES, next_parts
from agents.read.blocks import BlockReader, blocks_of
from agents.read.budget import Release
from agents.read.pieces import Pins
from agents.zone.frames import (
    AGE_MS_MAX,
    REQUEST_BYTES_MAX,
    REQUEST_HEAD_BYTES,
    AnswerHead,
    BadFrameError,
    Outcome,
    Pool,
    Request,
    RequestHead,
    answer_crc,
    decode_request,
    decode_request_head,
    encode_answer,
)
from runtime.clock import Clock
from runtime.logging import get_logger
from runtime.runtime import Runtime
from storage.objects import ObjectStoreError
from wire.schema import Octets

_log = get_logger(__name__)

SERVES_MAX = 32
"""Requests served at once: those of two neighbours whose every slot for GETs asks this agent."""
SERVED_BYTES_MAX = 32 << 20
"""Bytes of answers under way: a tenth of both caches."""
SEND_MS_MAX = 5_000.0
CONNECTIONS_MAX = 256


class ZoneServer:
    def __init__(
        self, *, pools: dict[Pool, BlockReader], is_asking: Callable[[str, range], bool], runtime: Runtime
    ) -> None:
        self._pools = pools
        self._is_asking = is_asking
        self.clock: Clock = runtime.clock
        self._sent = runtime.metrics.zone_bytes_total.labels(direction="sent")
        self._cluster_id = ""
        self._serving = 0
        self._serving_bytes = 0
        self._connections: dict[_Connection, None] = {}
        self._server: asyncio.Server | None = None

    async def serve(self, listening: socket.socket, cluster_id: str) -> None:
        self._cluster_id = cluster_id
        self._server = await asyncio.get_running_loop().create_server(lambda: _Connection(self), sock=listening)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        tasks = [task for connection in list(self._connections) if (task := connection.end()) is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- called by connections

    def admit(self, connection: _Connection) -> bool:
        self._connections[connection] = None
        return len(self._connections) <= CONNECTIONS_MAX

    def lost(self, connection: _Connection) -> None:
        self._connections.pop(connection, None)

    async def answer(self, request: Request, connection: _Connection) -> None:
        """Send the answer. Raises TimeoutError if it is not taken."""
        outcome = self._refusal(request)
        if outcome is not None:
            await connection.send(deque([encode_answer(AnswerHead(outcome=outcome))]))
            return
        self._serving += 1
        self._serving_bytes += request.length
        pins: Pins = []
        try:
            parts = await self._parts(request, pins)
            async with asyncio.timeout(SEND_MS_MAX / 1000):
                await connection.send(parts)
        finally:
            for cache, body in pins:
                cache.unpin(body)
            self._serving -= 1
            self._serving_bytes -= request.length

    # ---- inner

    def _refusal(self, request: Request) -> Outcome | None:
        if request.cluster_id != self._cluster_id:
            return Outcome.STRANGER
        full = self._serving >= SERVES_MAX or self._serving_bytes + request.length > SERVED_BYTES_MAX
        # Two agents that each take the other for the owner would wait for each other.
        if full or self._is_asking(request.key, blocks_of(request.start, request.length)):
            return Outcome.BUSY
        return None

    async def _parts(self, request: Request, pins: Pins) -> deque[Octets | Release]:
        place = (request.key, request.start, request.length)
        found = next((here for pool in self._pools.values() if (here := pool.cached(*place)) is not None), None)
        try:
            if found is None:
                found = await self._pools[request.pool].pieces(
                    request.key, request.file_bytes, request.start, request.length, direct=True
                )
        except ObjectStoreError as error:
            _log.info("blocks not served", key=request.key, error=str(error))
            return deque([encode_answer(AnswerHead(outcome=Outcome.FAILED))])
        # Rounded up, so that no neighbour takes the file for younger than it is.
        age_ms = min(max(int(self.clock.monotonic_ms() - found.known_ms) + 1, 0), AGE_MS_MAX)
        views = found.kept(pins).cut(0, request.length)
        crc = answer_crc(request, age_ms, views)
        head = AnswerHead(outcome=Outcome.SERVED, age_ms=age_ms, length=request.length, crc=crc)
        self._sent.inc(request.length)
        return deque([encode_answer(head), *views])


class _Connection(asyncio.BufferedProtocol):
    def __init__(self, server: ZoneServer) -> None:
        self._server = server
        self._transport: asyncio.Transport | None = None
        self._landing = bytearray(REQUEST_BYTES_MAX)
        self._filled = 0
        self._head: RequestHead | None = None
        self._task: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    async def send(self, unsent: deque[Octets | Release]) -> None:
        """Return when the socket has taken all."""
        turn_bytes = 0
        while unsent and self._transport is not None:
            parts = next_parts(unsent)
            # A file that was written here consists of many small views: one call for all of a slice.
            self._transport.writelines(parts)
            turn_bytes += sum(map(len, parts))
            # The transport copies what the socket did not take, so it never gets more than a slice.
            await self._may_write.wait()
            if turn_bytes >= TURN_BYTES:
                turn_bytes = 0
                await asyncio.sleep(0)

    def end(self) -> asyncio.Task[None] | None:
        """Cut the connection. Returns the task of its request, if there is one."""
        self._abort()
        if self._task is not None:
            self._task.cancel()
        return self._task

    # ---- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Paused as soon as anything stays behind, and resumed when nothing does.
        self._transport.set_write_buffer_limits(high=0)
        if not self._server.admit(self):
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._landing)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        try:
            self._take()
        except BadFrameError as error:
            _log.info("a neighbour's connection closed", error=str(error))
            self.end()

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._server.lost(self)
        self._may_write.set()
        if self._task is not None:
            self._task.cancel()

    # ---- inner

    def _take(self) -> None:
        if self._task is not None:
            # The next request may come before we know that the last bytes of this answer were taken.
            if self._filled == REQUEST_BYTES_MAX:
                raise BadFrameError("more than one request before the answer")
            return
        if self._head is None:
            if self._filled < REQUEST_HEAD_BYTES:
                return
            self._head = decode_request_head(self._landing[:REQUEST_HEAD_BYTES])
        end = REQUEST_HEAD_BYTES + self._head.rest_bytes
        if self._filled > end:
            raise BadFrameError("bytes behind a request")
        if self._filled == end:
            request = decode_request(self._head, self._landing[REQUEST_HEAD_BYTES:end])
            self._head, self._filled = None, 0
            self._task = asyncio.create_task(self._answer(request), name="serve a neighbour")

    async def _answer(self, request: Request) -> None:
        try:
            await self._server.answer(request, self)
        except TimeoutError:
            _log.warning("a neighbour does not read its answer", key=request.key)
            self._abort()
        except Exception:
            _log.exception("a neighbour is not answered", key=request.key)
            self._abort()
        finally:
            self._task = None
        if self._filled and self._transport is not None:
            self.buffer_updated(0)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
