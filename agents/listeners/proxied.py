"""Connections that come through a load balancer: its PROXY header first, then the client's own bytes.

A connection from an address in `proxy.protocol.from` is nobody's until its header has come whole, within HEADER_MS.
Only then is it counted, and named by the client's address. All others go straight on, and a header from them is a
malformed request. Health checks of load balancers connect and leave, so a connection without a byte ends quietly.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from agents.connections.connection import Connection
from agents.listeners.proxy_protocol import ProxyHeader, ProxyHeaderReader, ProxyProtocolError, TrustedProxies
from runtime.logging import get_logger
from runtime.settings.addresses import format_address

_log = get_logger(__name__)

HEADER_MS = 10_000
"""A load balancer sends the header at once, in its first segment."""
WAITING_MAX = 1_000
"""Connections of a listener whose header has not come. Beyond it the oldest one is closed."""


class ProxiedConnections:
    """The connections of one listener whose header has not come yet."""

    def __init__(self, trusted: TrustedProxies, make: Callable[[], Connection], refused: Callable[[], None]) -> None:
        """`make`: the connection behind the header. `refused`: called for a header that cannot be read."""
        self.trusted = trusted
        self.make = make
        self.refused = refused
        self._waiting: dict[AwaitedHeader, None] = {}

    def connection(self) -> AwaitedHeader:
        return AwaitedHeader(self)

    def close(self) -> None:
        for each in list(self._waiting):
            each.abort("the agent stops")

    # ---- called by connections

    def wait(self, connection: AwaitedHeader) -> None:
        if len(self._waiting) >= WAITING_MAX:
            next(iter(self._waiting)).abort("too many connections without a PROXY header")
        self._waiting[connection] = None

    def ended(self, connection: AwaitedHeader) -> None:
        self._waiting.pop(connection, None)


class AwaitedHeader(asyncio.Protocol):
    def __init__(self, owner: ProxiedConnections) -> None:
        self._owner = owner
        self._reader = ProxyHeaderReader()
        self._transport: asyncio.Transport | None = None
        self._proxy = "?"
        self._has_begun = False
        self._late: asyncio.TimerHandle | None = None

    def abort(self, reason: str) -> None:
        self._end()
        if self._has_begun:
            _log.warning("connection closed, its PROXY header did not come", proxy=self._proxy, reason=reason)
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        host, port = cast("tuple[str, int]", (transport.get_extra_info("peername") or ("", 0))[:2])
        if not self._owner.trusted.trust(host):
            self._hand_over(self._transport, None)
            return
        self._proxy = format_address(host, port)
        self._owner.wait(self)
        self._late = asyncio.get_running_loop().call_later(HEADER_MS / 1000, self.abort, f"not within {HEADER_MS} ms")

    def data_received(self, data: bytes) -> None:
        self._has_begun = True
        if self._transport is None or self._transport.is_closing():
            return
        try:
            header = self._reader.feed(data)
        except ProxyProtocolError as error:
            self._owner.refused()
            _log.warning("connection closed, its PROXY header cannot be read", proxy=self._proxy, error=str(error))
            self._has_begun = False  # it is told
            self.abort("malformed")
            return
        if header is not None:
            self._end()
            self._hand_over(self._transport, header)

    def connection_lost(self, exc: Exception | None) -> None:
        self._end()

    # ---- inner

    def _end(self) -> None:
        self._owner.ended(self)
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _hand_over(self, transport: asyncio.Transport, header: ProxyHeader | None) -> None:
        connection = self._owner.make()
        if header is not None and header.host is not None:
            connection.told_peer = header.host, header.port
        transport.set_protocol(connection)
        connection.connection_made(transport)
        rest = memoryview(header.rest) if header is not None else memoryview(b"")
        while rest and not transport.is_closing():
            room = connection.get_buffer(-1)
            taken = min(len(room), len(rest))
            room[:taken] = rest[:taken]
            rest = rest[taken:]
            connection.buffer_updated(taken)
