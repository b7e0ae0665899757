"""A distance between an agent and an S3 server: `python -m bench.servers.latency_proxy PORT PUT_MS GET_MS [LOG]`.

Prints its own port and passes HTTP/1.1 on to 127.0.0.1:PORT. It holds every answer back for PUT_MS (PUT and POST) or
GET_MS (everything else) after the request was complete. One thread per connection with blocking sockets: bytes are
copied twice, and no measured process pays that CPU. Ends with its standard input.

LOG gets a line for each request that was answered: method, target, status, bytes sent, bytes received
(`bench/measures/requests.py` reads it).
"""

from __future__ import annotations

import os
import socket
import sys
import threading
import time
from dataclasses import dataclass

HEAD_BYTES_MAX = 64 << 10
BUFFER_BYTES = 1 << 20
SENDING = {b"PUT", b"POST"}


class Stream:
    """One direction's source: heads are cut out, bodies are passed on."""

    def __init__(self, source: socket.socket) -> None:
        self._source = source
        self._buffer = bytearray(BUFFER_BYTES)
        self._rest = b""

    def head(self) -> bytes:
        """Everything to the empty line, which is included; b"" at the end of the stream."""
        found = self._rest
        while (end := found.find(b"\r\n\r\n")) < 0:
            more = self._source.recv(HEAD_BYTES_MAX)
            if not more:
                return b""
            found += more
            if len(found) > HEAD_BYTES_MAX * 2:
                raise ValueError("a head without an end")
        self._rest = found[end + 4 :]
        return found[: end + 4]

    def pass_on(self, size: int, target: socket.socket) -> None:
        if self._rest and size:
            target.sendall(self._rest[:size])
            taken = min(size, len(self._rest))
            self._rest = self._rest[taken:]
            size -= taken
        view = memoryview(self._buffer)
        while size:
            received = self._source.recv_into(view[: min(size, BUFFER_BYTES)])
            if not received:
                raise ConnectionError("the body has no end")
            target.sendall(view[:received])
            size -= received


def body_bytes(head: bytes) -> int:
    """Content-Length; 0 if there is none. S3 clients and servers here send no chunked bodies."""
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        lower = name.strip().lower()
        if lower == b"content-length":
            return int(value)
        if lower == b"transfer-encoding":
            raise ValueError(f"cannot pass on {line!r}")
    return 0


def has_body(method: bytes, response_head: bytes) -> bool:
    status = response_head.split(b" ", 2)[1]
    return method != b"HEAD" and status not in (b"204", b"304")


@dataclass(frozen=True, slots=True)
class Way:
    """The way to the server that a proxy stands for."""

    port: int
    put_s: float
    get_s: float
    log: int | None
    """A file descriptor in append mode."""

    def note(self, request_head: bytes, sent: int, response_head: bytes, received: int) -> None:
        if self.log is not None:
            method, target, _ = request_head.split(b" ", 2)
            status = response_head.split(b" ", 2)[1]
            # One write of a short line: threads do not mix theirs.
            os.write(self.log, b"%s %s %s %d %d\n" % (method, target, status, sent, received))


def serve(client: socket.socket, way: Way) -> None:
    with client, socket.create_connection(("127.0.0.1", way.port)) as server:
        for each in (client, server):
            each.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        requests, responses = Stream(client), Stream(server)
        while head := requests.head():
            method = head.partition(b" ")[0]
            server.sendall(head)
            sent = body_bytes(head)
            requests.pass_on(sent, server)
            # From the end of the request: the body's own time comes on top, as over a real distance.
            due = time.monotonic() + (way.put_s if method in SENDING else way.get_s)
            response = responses.head()
            if not response:
                return
            time.sleep(max(0.0, due - time.monotonic()))
            client.sendall(response)
            received = body_bytes(response) if has_body(method, response) else 0
            way.note(head, sent, response, received)
            responses.pass_on(received, client)


def _serve_quietly(client: socket.socket, way: Way) -> None:
    try:
        serve(client, way)
    except (OSError, ValueError) as error:
        # Both sides see a closed connection, as with a real network.
        print(f"latency proxy: {error}", file=sys.stderr, flush=True)


def main(port: int, put_ms: float, get_ms: float, log: str = "") -> None:
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600) if log else None
    way = Way(port, put_ms / 1000, get_ms / 1000, descriptor)
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        print(listener.getsockname()[1], flush=True)

        def accept() -> None:
            while True:
                client, _ = listener.accept()
                threading.Thread(target=_serve_quietly, args=(client, way), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        sys.stdin.read()


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]), float(sys.argv[3]), *sys.argv[4:])
