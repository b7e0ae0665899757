"""An S3 that costs next to nothing, to measure clients: `python -m bench.servers.endless_s3` prints its port.

It says 200 to every PUT and drops the body; it answers every GET with the bytes that its Range asks for, from one
buffer. It checks nothing. Kept in a process of its own, so that it does not count as the client's CPU.
"""

from __future__ import annotations

import asyncio

BUFFER_BYTES = 1 << 20
STORED = b'HTTP/1.1 200 OK\r\nContent-Length: 0\r\nETag: "x"\r\n\r\n'


class Endless(asyncio.BufferedProtocol):
    def __init__(self) -> None:
        self._buffer = memoryview(bytearray(BUFFER_BYTES))
        self._head = b""
        self._body_left = 0
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def get_buffer(self, sizehint: int) -> memoryview:
        return self._buffer

    def buffer_updated(self, nbytes: int) -> None:
        if self._body_left:
            self._take(nbytes)
            return
        self._head += bytes(self._buffer[:nbytes])
        head, end, rest = self._head.partition(b"\r\n\r\n")
        if not end:
            return
        self._head = b""
        head = head.lower()
        if head.startswith(b"put "):
            self._body_left = _number_after(head, b"content-length: ")
            self._take(len(rest))
        else:
            first = _number_after(head, b"range: bytes=")
            last = _number_after(head, b"range: bytes=%d-" % first)
            size = last - first + 1
            self._say(
                b"HTTP/1.1 206 Partial Content\r\nContent-Length: %d\r\nContent-Range: bytes %d-%d/99999999\r\n\r\n"
                % (size, first, last)
            )
            self._say(self._buffer[:size])

    def _take(self, count: int) -> None:
        self._body_left -= count
        if not self._body_left:
            self._say(STORED)

    def _say(self, data: bytes | memoryview) -> None:
        assert isinstance(self._transport, asyncio.Transport)
        self._transport.write(data)


def _number_after(head: bytes, name: bytes) -> int:
    digits = head.split(name, 1)[1]
    return int(digits[: len(digits) - len(digits.lstrip(b"0123456789"))])


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(Endless, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve())
