"""Sockets that connect and say nothing."""

from __future__ import annotations

import socket
import struct


class Strangers:
    def __init__(self) -> None:
        self._opened: list[socket.socket] = []

    def come(self, address: str, count: int, *, resets: bool = False) -> None:
        """Blocks until all are connected. Those that reset are gone at once, without good order."""
        host, _, port = address.rpartition(":")
        for _ in range(count):
            opened = socket.create_connection((host, int(port)), timeout=60)
            if resets:
                opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                opened.close()
            else:
                self._opened.append(opened)

    def close(self) -> None:
        for each in self._opened:
            each.close()
        self._opened.clear()
