"""The bound sockets of an agent's listeners."""

from __future__ import annotations

import socket
from dataclasses import dataclass

from agents.listeners.listener_tls import ListenerTls
from runtime.settings.listeners import DEFAULT_LISTENER


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    name: str = DEFAULT_LISTENER
    socket: socket.socket
    tls: ListenerTls | None = None
    """None: bytes go as they are."""
