"""The receiving side of the loopback limit, a process of its own: `python -m bench.measures.receiver socket|asyncio`.

Prints its port, takes one connection, answers 4 bytes for every 1 MB and drops what it got. Ends with the connection.
"""

from __future__ import annotations

import asyncio
import socket
import sys

from bench.measures.limits import ANSWER, WRITE_BYTES


class Drop(asyncio.BufferedProtocol):
    """Receives into one buffer that is used again and again."""

    def __init__(self, ended: asyncio.Event) -> None:
        self._ended = ended
        self._buffer = memoryview(bytearray(WRITE_BYTES))
        self._filled = 0
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._filled == WRITE_BYTES:
            self._filled = 0
            assert isinstance(self._transport, asyncio.Transport)
            self._transport.write(ANSWER)

    def connection_lost(self, exc: Exception | None) -> None:
        self._ended.set()


async def serve_asyncio() -> None:
    ended = asyncio.Event()
    server = await asyncio.get_running_loop().create_server(lambda: Drop(ended), "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await ended.wait()
    server.close()


def serve_socket() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        print(server.getsockname()[1], flush=True)
        connection, _ = server.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # as asyncio does
        buffer = memoryview(bytearray(WRITE_BYTES))
        filled = 0
        with connection:
            while received := connection.recv_into(buffer[filled:]):
                filled += received
                if filled == WRITE_BYTES:
                    filled = 0
                    connection.sendall(ANSWER)


if __name__ == "__main__":
    if sys.argv[1:] == ["asyncio"]:
        asyncio.run(serve_asyncio())
    else:
        serve_socket()
