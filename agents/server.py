"""The listening side of an agent: connections, and the bounds that they share.

- *Connections*: as many as `listeners/admission.py` allows, accepted at the pace of `listeners/pace.py`. A connection
  that is idle for `connections.idle.max.ms` is closed.
- *Produce*: while the write path holds `produce.buffer.bytes.max`, connections that have sent Produce are not read.
- *Requests*: the bytes of requests that have not begun are bounded by `request.bytes.max` over all connections. Above
  it, connections in the middle of a large frame wait, except the one that began first. That one may finish, so that
  there is always progress; if it falls silent, it is closed.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TypeAlias

from agents.broker import Broker
from agents.connections.connection import Connection
from agents.connections.long_messages import LongMessages
from agents.listeners.acceptor import Acceptor, Pause
from agents.listeners.admission import EVICTIONS, REFUSALS, Admission, Cause, Limits
from agents.listeners.listening import Listening
from agents.listeners.pace import TokenBucket
from agents.listeners.proxied import ProxiedConnections
from agents.listeners.proxy_protocol import TrustedProxies
from agents.listeners.tls_connection import TlsConnection
from agents.request_context import ClientConnection
from agents.security.gate import Gate
from runtime.errors import BadInputError
from runtime.log_bursts import Bursts
from runtime.logging import get_logger, log_context
from wire.api import APIS
from wire.framing import LANDING_BYTES

_log = get_logger(__name__)

SWEEP_MS = 1_000
SILENT_MS_MAX = 10_000
"""How long the connection that holds up others may send next to nothing (64 KiB) of its request."""
STALLED_MS_MAX = 30_000
"""How long a client may take next to nothing (64 KiB) of an answer."""
STALLED_MS_WHEN_WAITED_FOR = 3_000
"""The same bound while fetches of other clients wait for the memory that this client holds."""
FLUSH_MS_MAX = 2_000
"""How long a client may take to read its last answers when the agent stops."""
FLUSH_POLL_MS = 5
RESUME_SHARE = 0.75
"""Reading begins again below this share of the bound, so that it does not flutter."""


MakeGate: TypeAlias = Callable[[ClientConnection], Gate]


class AddressError(BadInputError):
    """The address cannot be listened on."""


def bind(address: str) -> socket.socket:
    """Take the address HOST:PORT (port 0 = any; IPv6 in brackets) before the agent registers. Raises AddressError.

    An agent that cannot have its address must not register under it: that would fence the agent that runs there.
    """
    host, _, port = address.rpartition(":")
    host = host.strip("[]")
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        # It listens from here on: clients that come before `serve` wait in the backlog instead of being refused.
        return socket.create_server((host, int(port)), family=family, backlog=1024)
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise AddressError(
                f"address {address} is already in use",
                remedy="stop the process that listens there, or choose another with --listen HOST:PORT (0 = any)",
            ) from error
        reason = error.strerror or str(error)
        raise AddressError(f"cannot listen on {address}: {reason}", remedy="check the setting 'listen'") from error


class Server:
    def __init__(self, broker: Broker, gates: Mapping[str, MakeGate] = MappingProxyType({})) -> None:
        """`gates`: by the name of each listener that has SASL, what makes the gate of a new connection."""
        self.broker = broker
        self.long_messages = LongMessages()
        self._gates = gates
        self.draining = False
        self.produce_is_full = False
        self._first: tuple[Connection | None, float] = (None, 0.0)
        """The connection that holds up others, and when it last brought its request forward."""
        self._first_silent_ms = 0.0
        self.landing = memoryview(bytearray(LANDING_BYTES))
        """The buffer that the bytes of all connections arrive in; each takes its own away before the next one reads."""
        self._connections: dict[Connection, None] = {}
        self._nobody_left = asyncio.Event()
        self._nobody_left.set()
        self._held: dict[Connection, int] = {}
        self._held_bytes = 0
        self._large: dict[Connection, None] = {}
        self._last_connection = 0
        self._acceptors: list[Acceptor] = []
        self._proxied: list[ProxiedConnections] = []
        self._sweeps: asyncio.Task[None] | None = None
        metrics, settings = broker.runtime.metrics, broker.settings
        self._admission: Admission[Connection] = Admission(
            Limits(
                connections_max=settings.connections_max,
                per_ip_max=settings.max_connections_per_ip,
                unproved_max=settings.preauth_connections_max,
                prove_within_ms=settings.preauth_timeout_ms,
            )
        )
        self._ends_told = Bursts(1)
        """One line for each storm of refusals or evictions, however many lines the log would take."""
        self._refused = {each: metrics.connections_refused_total.labels(reason=each.label) for each in REFUSALS}
        self._evicted = {each: metrics.connections_evicted_total.labels(reason=each.label) for each in EVICTIONS}
        self._pauses = {each: metrics.accept_pauses_total.labels(reason=each.value) for each in Pause}
        self._counters = {
            key: (metrics.requests_total.labels(api=api.name), metrics.request_seconds.labels(api=api.name))
            for key, api in APIS.items()
        }

    # ---- life

    async def serve(self, listening: Sequence[Listening]) -> None:
        """Accept on bound sockets (see `bind`)."""
        clock = self.broker.runtime.clock
        if self.broker.freshness is not None:
            self.broker.freshness.on_news = self._pump_all
        pace = TokenBucket(self.broker.settings.connection_creation_rate, clock.monotonic_ms())
        for each in listening:
            acceptor = Acceptor(
                each.socket, factory=self._maker(each), pace=pace, clock=clock, on_pause=self._accepting_paused
            )
            self._acceptors.append(acceptor)
            acceptor.start()
        self._sweeps = asyncio.create_task(self._sweep_for_ever(), name="connection sweep")

    def _maker(self, listening: Listening) -> Callable[[], asyncio.BaseProtocol]:
        make = partial(self._connection, listening)
        if not listening.proxies:
            return make
        refused = self.broker.runtime.metrics.protocol_errors_total.labels(reason="proxy_header").inc
        proxied = ProxiedConnections(TrustedProxies(listening.proxies), make, refused)
        self._proxied.append(proxied)
        return proxied.connection

    def _connection(self, listening: Listening) -> Connection:
        if listening.tls is None:
            return Connection(self, listening)
        return TlsConnection(self, listening, listening.tls)

    def stop_accepting(self) -> None:
        """No new connections and no new requests; those begun go on to their answers."""
        self.draining = True
        for acceptor in self._acceptors:
            acceptor.close()
        for proxied in self._proxied:
            proxied.close()
        self._pump_all()

    async def close(self) -> None:
        if self._sweeps is not None:
            self._sweeps.cancel()
            await asyncio.gather(self._sweeps, return_exceptions=True)
        # An agent that halts has not drained: nobody has closed the listener yet, and the last wait would never end.
        self.stop_accepting()
        for acceptor in self._acceptors:
            await acceptor.wait_closed()
        try:
            async with asyncio.timeout(FLUSH_MS_MAX / 1000):
                while any(connection.is_sending for connection in self._connections):
                    await self.broker.runtime.clock.sleep_ms(FLUSH_POLL_MS)
                for connection in list(self._connections):
                    connection.close("agent stops")
                await self._nobody_left.wait()
        except TimeoutError:
            for connection in list(self._connections):
                connection.abort()
            await self._nobody_left.wait()
        self._tell_ends(all_of_them=True)

    def talking(self) -> Sequence[Connection]:
        return list(self._connections)

    @property
    def produces_waiting(self) -> bool:
        """Whether a client still waits for the answer to records it sent."""
        return any(connection.produces_waiting for connection in self._connections)

    @property
    def has_produce_lines(self) -> bool:
        """Whether records of requests that have begun are still to be handed to the write path."""
        return not all(connection.client.produce_line.is_empty for connection in self._connections)

    # ---- called by connections

    def next_connection(self) -> int:
        """A number for a connection, by which log lines name it."""
        self._last_connection += 1
        return self._last_connection

    def admit(self, connection: Connection) -> bool:
        # Counted even if refused below: `lost` follows for every connection that was made.
        self._connections[connection] = None
        self._nobody_left.clear()
        self.broker.runtime.metrics.connections.set(len(self._connections))
        if self.draining:
            self._refused[Cause.DRAINING].inc()
            return False
        if self.broker.throttle.binds_addresses and not self.broker.throttle.admits(connection.client.host):
            return self._refuse(connection, Cause.IP_RATE)
        verdict = self._admission.arrived(connection, connection.client.host, self._now_ms())
        if verdict.refused is not None:
            return self._refuse(connection, verdict.refused)
        if verdict.evicted is not None and verdict.evicted_for is not None:
            self._evict(verdict.evicted, verdict.evicted_for)
        return True

    def _refuse(self, connection: Connection, cause: Cause) -> bool:
        self._refused[cause].inc()
        self._tell("connection refused", cause.label, cause.setting, connection.client)
        return False

    def proved(self, connection: Connection) -> None:
        """Its client has shown that it speaks our protocol, or who it is."""
        self._admission.proved(connection)

    def gate(self, client: ClientConnection) -> Gate | None:
        make = self._gates.get(client.listener)
        return None if make is None else make(client)

    def users_changed(self) -> None:
        """Close the connections of users who were deleted or altered."""
        for connection in list(self._connections):
            connection.close_if_user_changed()

    def lost(self, connection: Connection) -> None:
        self._connections.pop(connection, None)
        self._admission.gone(connection)
        if not self._connections:
            self._nobody_left.set()
        self.broker.runtime.metrics.connections.set(len(self._connections))
        # Asked before its bytes go: they may be what held up the others.
        was_waiting = self.requests_are_full
        self._held_bytes -= self._held.pop(connection, 0)
        self._large.pop(connection, None)
        if was_waiting:
            self._pump_large()

    def count(self, api_key: int, seconds: float) -> None:
        total, duration = self._counters[api_key]
        total.inc()
        duration.observe(seconds)

    def holds(self, connection: Connection, held_bytes: int) -> None:
        """Keep the books of bytes in requests that have not begun."""
        before = self._held.get(connection, 0)
        if held_bytes == before == 0:
            return
        was_full = self.requests_are_full
        self._held_bytes += held_bytes - before
        self._held[connection] = held_bytes
        frame_is_whole = False
        if connection.has_large_partial_frame:
            self._large.setdefault(connection)
        else:
            # The values are None, so a default of `self` tells "was not large" from "was large until now".
            frame_is_whole = self._large.pop(connection, self) is None
        if self.requests_are_full and not was_full:
            for large in list(self._large):
                large.update_reading()
        elif was_full and (frame_is_whole or not self.requests_are_full):
            # There is room, no matter which connection made it, or the next in line may go on.
            self._pump_large()

    @property
    def requests_are_full(self) -> bool:
        return self._held_bytes > self.broker.settings.request_bytes_max

    def must_wait(self, connection: Connection) -> bool:
        # `_large` keeps the order of arrival: its first connection is the one that may finish.
        return self.requests_are_full and connection in self._large and connection is not next(iter(self._large), None)

    # ---- called by the write path

    def produce_bytes_changed(self) -> None:
        bound = self.broker.settings.produce_buffer_bytes_max
        held = self.broker.write_path.bytes
        if not self.produce_is_full and held >= bound:
            self.produce_is_full = True
        # Not at the bound itself: each commit would stop and start all producers.
        elif self.produce_is_full and held < bound * RESUME_SHARE:
            self.produce_is_full = False
            self._pump_in_turn()

    # ---- inner

    def _pump_all(self) -> None:
        for connection in list(self._connections):
            connection.pump()

    def _pump_in_turn(self) -> None:
        """Until the write path is full again. A connection that had its turn goes to the end, or the same few would
        take all room."""
        for connection in list(self._connections):
            if self.produce_is_full:
                return
            connection.pump()
            if connection in self._connections:
                self._connections[connection] = self._connections.pop(connection)

    def _pump_large(self) -> None:
        for connection in list(self._large):
            connection.pump()

    async def _sweep_for_ever(self) -> None:
        while True:
            await self.broker.runtime.clock.sleep_ms(SWEEP_MS)
            self._close_silent()
            self._cut_stalled()
            self._close_unproved()
            self._close_idle()
            self._tell_ends()

    def _close_silent(self) -> None:
        """Close the one that may finish and does not; silence while it was we who did not read does not count."""
        connection = next(iter(self._large), None) if self.requests_are_full else None
        # Progress, or another first connection, makes a new pair and begins the count again.
        first = connection, connection.activity.progress_ms if connection is not None else 0.0
        if connection is None or first != self._first:
            self._first, self._first_silent_ms = first, 0.0
        elif not self.produce_is_full:
            self._first_silent_ms += SWEEP_MS
            if self._first_silent_ms >= SILENT_MS_MAX:
                with log_context(connection.client):
                    _log.warning("connection closed, it sends nothing while others wait for its large request")
                connection.close("silent in the middle of a large request")

    def _cut_stalled(self) -> None:
        """A client that does not read keeps bytes from all others."""
        stalled_ms = STALLED_MS_WHEN_WAITED_FOR if self.broker.reader.is_waited_for else STALLED_MS_MAX
        since_ms = self.broker.runtime.clock.monotonic_ms() - stalled_ms
        for connection in [each for each in self._connections if each.has_stalled(since_ms)]:
            with log_context(connection.client):
                _log.warning("connection cut, its client does not read its answers")
            # Not `close`: that waits until the client has read the rest, and this one does not read.
            connection.abort()

    def _close_unproved(self) -> None:
        now_ms = self._now_ms()
        for connection in self._admission.overdue(now_ms):
            if not connection.waits_for_us or not self._admission.held_up(connection, now_ms):
                self._admission.gone(connection)
                self._evict(connection, Cause.PREAUTH_TIMEOUT)

    def _close_idle(self) -> None:
        since_ms = self._now_ms() - self.broker.settings.connections_idle_max_ms
        for connection in [each for each in self._connections if each.is_idle(since_ms)]:
            # No line in the log above debug: clients let connections fall idle all the time.
            self._evicted[Cause.IDLE].inc()
            connection.close("idle")

    def _accepting_paused(self, why: Pause, error: str) -> None:
        self._pauses[why].inc()
        if why is Pause.RATE:
            self._tell("connections come faster than they are accepted", why.value, "connection.creation.rate")
            return
        self._tell("no connection can be accepted", error, "connections.max" if why is Pause.DESCRIPTORS else "")
        if why is Pause.DESCRIPTORS and (evicted := self._admission.evict()) is not None:
            self._evict(evicted, Cause.DESCRIPTORS)

    def _evict(self, connection: Connection, cause: Cause) -> None:
        self._evicted[cause].inc()
        self._tell("connection evicted before its first request", cause.label, cause.setting, connection.client)
        connection.close(cause.label)

    def _tell(self, event: str, reason: str, setting: str, client: ClientConnection | None = None) -> None:
        left_out = self._ends_told.admit((event, reason), self._now_ms())
        if left_out is not None:
            facts = {"setting": setting} if setting else {}
            with log_context(client):
                _log.warning(event, reason=reason, left_out=left_out, **facts)

    def _tell_ends(self, *, all_of_them: bool = False) -> None:
        """For each storm that is over, the number of lines that it lost."""
        for (event, reason), left_out in self._ends_told.ended(self._now_ms(), all_of_them=all_of_them):
            _log.warning(event, reason=reason, left_out=left_out)

    def _now_ms(self) -> float:
        return self.broker.runtime.clock.monotonic_ms()
