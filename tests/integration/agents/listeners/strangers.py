"""Sockets that connect and say nothing, or next to nothing."""

from __future__ import annotations

import socket
import struct
from contextlib import suppress


class Strangers:
    def __init__(self) -> None:
        self._opened: list[socket.socket] = []

    def come(self, address: str, count: int, *, resets: bool = False, says: bytes = b"") -> None:
        """Blocks until all are connected, and have said so much. Those that reset are gone at once, without good
        order."""
        host, _, port = address.rpartition(":")
        for _ in range(count):
            opened = socket.create_connection((host, int(port)), timeout=60)
            if says:
                _send(opened, says)
            if resets:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                opened.close()
            else:
                self._opened.append(opened)

    def say(self, more: bytes) -> None:
        """All of them, as far as they are still there."""
        for each in list(self._opened):
            _send(each, more)

    def close(self) -> None:
        for each in self._opened:
            each.close()
        self._opened.clear()


def _send(opened: socket.socket, data: bytes) -> None:
    with suppress(OSError):
        opened.sendall(data)
