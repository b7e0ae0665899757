"""Serves blocks to the neighbours, from memory or by a GET that all of them share.

A request is answered from the agent's own pools. A GET that it begins goes to the object store and never to another
neighbour, so requests cannot go round in circles. Bounds:

- at most SERVES_MAX requests and SERVED_BYTES_MAX bytes are under way at once; one more is answered "busy" at once;
- an answer that its reader does not take within SEND_MS_MAX is cut off: until then its bytes are pinned;
- a connection carries one request at a time, and whatever is no request of this protocol closes it;
- who has not proved to be a neighbour, by its certificate or else by a first request, is one of at most UNPROVED_MAX,
  has PROVE_MS for it, and goes before others do.
"""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable

from agents.listeners.acceptor import Acceptor, Pause
from agents.listeners.admission import Admission, Cause, Limits
from agents.listeners.pace import TokenBucket
from agents.read.blocks import BlockReader, blocks_of
from agents.read.budget import Release
from agents.read.pieces import Pins
from agents.zone.connection import ZoneConnection
from agents.zone.frames import AGE_MS_MAX, AnswerHead, Outcome, Pool, Request, answer_crc, encode_answer
from agents.zone.tls import ZoneTls
from agents.zone.tls_connection import TlsZoneConnection
from runtime.clock import Clock
from runtime.log_bursts import Bursts
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
UNPROVED_MAX = 32
PROVE_MS = 5_000.0
ACCEPTS_PER_SECOND = 200
"""A handshake costs a millisecond, whoever begins it."""
SWEEP_MS = 500


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
        self._connections: dict[ZoneConnection, None] = {}
        self._admission: Admission[ZoneConnection] = Admission(
            Limits(connections_max=CONNECTIONS_MAX, per_ip_max=0, unproved_max=UNPROVED_MAX, prove_within_ms=PROVE_MS)
        )
        self._told = Bursts(1)
        self._bad = runtime.metrics.protocol_errors_total.labels(reason="zone")
        self._acceptor: Acceptor | None = None
        self._sweeps: asyncio.Task[None] | None = None

    async def serve(self, listening: socket.socket, cluster_id: str, tls: ZoneTls | None = None) -> None:
        self._cluster_id = cluster_id
        self._acceptor = Acceptor(
            listening,
            factory=lambda: ZoneConnection(self) if tls is None else TlsZoneConnection(self, tls),
            pace=TokenBucket(ACCEPTS_PER_SECOND, self.clock.monotonic_ms()),
            clock=self.clock,
            on_pause=self._accepting_paused,
        )
        self._acceptor.start()
        self._sweeps = asyncio.create_task(self._sweep_for_ever(), name="zone sweep")

    async def close(self) -> None:
        tasks: list[asyncio.Task[None]] = []
        if self._sweeps is not None:
            self._sweeps.cancel()
            tasks.append(self._sweeps)
        if self._acceptor is not None:
            self._acceptor.close()
            await self._acceptor.wait_closed()
        tasks += [task for connection in list(self._connections) if (task := connection.end()) is not None]
        await asyncio.gather(*tasks, return_exceptions=True)

    # ---- called by connections

    def admit(self, connection: ZoneConnection) -> bool:
        self._connections[connection] = None
        verdict = self._admission.arrived(connection, "", self.clock.monotonic_ms())
        if verdict.evicted is not None:
            self._evict(verdict.evicted, verdict.evicted_for)
        return verdict.refused is None

    def proved(self, connection: ZoneConnection) -> None:
        self._admission.proved(connection)

    def lost(self, connection: ZoneConnection) -> None:
        self._connections.pop(connection, None)
        self._admission.gone(connection)

    def refused(self, event: str, error: str) -> None:
        self._bad.inc()
        self._tell(event, error)

    async def answer(self, request: Request, connection: ZoneConnection) -> None:
        """Send the answer. Raises TimeoutError if it is not taken."""
        outcome = self._refusal(request)
        if outcome is not Outcome.STRANGER:
            self.proved(connection)
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

    def _accepting_paused(self, why: Pause, error: str) -> None:
        self._tell("neighbours' connections wait", error or why.value)
        if why is Pause.DESCRIPTORS and (evicted := self._admission.evict()) is not None:
            self._evict(evicted, Cause.DESCRIPTORS)

    async def _sweep_for_ever(self) -> None:
        while True:
            await self.clock.sleep_ms(SWEEP_MS)
            for connection in self._admission.overdue(self.clock.monotonic_ms()):
                self._evict(connection, Cause.PREAUTH_TIMEOUT)

    def _evict(self, connection: ZoneConnection, cause: Cause | None) -> None:
        self._tell("a connection closed that did not prove to be a neighbour's", cause.label if cause else "")
        connection.end()

    def _tell(self, event: str, error: str) -> None:
        left_out = self._told.admit((event, ""), self.clock.monotonic_ms())
        if left_out is not None:
            _log.warning(event, error=error, left_out=left_out)

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
