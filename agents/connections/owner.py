"""The calls of a connection to the agent's server, which knows all connections."""

from __future__ import annotations

from typing import Protocol, TypeVar

from agents.broker import Broker
from agents.connections.long_messages import LongMessages
from agents.request_context import ClientConnection
from agents.security.gate import Gate

C_contra = TypeVar("C_contra", contravariant=True)
"""A connection."""


class ConnectionOwner(Protocol[C_contra]):
    """The bounds that all connections of an agent share; `agents.server.Server` keeps them."""

    broker: Broker
    landing: memoryview
    """The buffer that the bytes of all connections arrive in."""
    long_messages: LongMessages
    draining: bool
    """Begin no new request."""
    produce_is_full: bool
    """The write path holds its bound: do not read producers."""

    @property
    def requests_are_full(self) -> bool:
        """The bytes of requests that have not begun are above their bound."""
        ...

    def next_connection(self) -> int: ...

    def admit(self, connection: C_contra) -> bool:
        """False: close it at once."""
        ...

    def proved(self, connection: C_contra) -> None:
        """The client's first request could be decoded, or it has proved who it is."""
        ...

    def gate(self, client: ClientConnection) -> Gate | None:
        """None: clients of this listener need not prove who they are."""
        ...

    def lost(self, connection: C_contra) -> None: ...

    def holds(self, connection: C_contra, held_bytes: int) -> None:
        """The connection now holds this many bytes of requests that have not begun."""
        ...

    def must_wait(self, connection: C_contra) -> bool:
        """The connection may not read on: another one finishes its large request first."""
        ...

    def count(self, api_key: int, seconds: float) -> None: ...
