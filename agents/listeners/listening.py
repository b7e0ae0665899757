"""The bound sockets of an agent's listeners."""

from __future__ import annotations

import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from runtime.settings.listeners import DEFAULT_LISTENER, Network


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    name: str = DEFAULT_LISTENER
    socket: socket.socket
    proxies: Sequence[Network] = ()
    """Who begins each connection with a PROXY header."""
    tls: Callable[[], ssl.SSLContext] | None = None
    """The context for a new connection; None: bytes go as they are."""
