"""The bound sockets of an agent's listeners."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from dataclasses import dataclass

from agents.listeners.listener_tls import ListenerTls
from runtime.settings.listeners import DEFAULT_LISTENER, Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    name: str = DEFAULT_LISTENER
    socket: socket.socket
    proxies: Sequence[Network] = ()
    """The networks whose connections begin with a PROXY header."""
    tls: ListenerTls | None = None
    """None: bytes go as they are."""
