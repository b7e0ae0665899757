"""Connections to neighbours, each with one request at a time. The answer's bytes arrive where they will stay.

A request that is given up takes its connection with it: the neighbour then frees what it holds for the answer. The
connection of an answer that came whole is kept for the next request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeAlias, cast

from agents.zone.frames import ANSWER_HEAD_BYTES, AnswerHead, BadFrameError, Request, decode_answer_head, encode_request

IDLE_LINES_MAX = 8
"""Idle connections to one neighbour; a burst may use more, which are closed when they have answered."""
RECEIVE_BYTES = 256 << 10
"""Bytes taken from the socket in a turn of the event loop."""

Address: TypeAlias = tuple[str, int]
Dial: TypeAlias = Callable[[Callable[[], asyncio.BufferedProtocol], str, int], Awaitable[object]]
"""As `create_connection` of the event loop. Raises OSError, NotAnAgentError."""
Answer: TypeAlias = tuple[AnswerHead, bytearray]


async def dial(factory: Callable[[], asyncio.BufferedProtocol], host: str, port: int) -> None:
    await asyncio.get_running_loop().create_connection(factory, host, port)


class Lines:
    """The idle connections to each neighbour."""

    def __init__(self, dial: Dial) -> None:
        self._dial = dial
        self._idle: dict[Address, list[Line]] = {}

    async def ask(self, address: Address, request: Request) -> Answer:
        """Raises OSError, BadFrameError, NotAnAgentError."""
        idle = self._idle.get(address)
        # The newest: the oldest may have been closed by the other side.
        line = idle.pop() if idle else None
        if line is None:
            line = Line(self.lost)
            await self._dial(lambda made=line: made, *address)
            line.address = address
        try:
            answer = await line.ask(request)
        except BaseException:
            line.abort()
            raise
        idle = self._idle.setdefault(address, [])
        if len(idle) < IDLE_LINES_MAX and not line.is_lost:
            idle.append(line)
        else:
            line.abort()
        return answer

    def keep_only(self, addresses: set[Address]) -> None:
        """Close the connections to all others."""
        for address in self._idle.keys() - addresses:
            for line in self._idle.pop(address):
                line.abort()

    def lost(self, line: Line) -> None:
        idle = self._idle.get(line.address, [])
        if line in idle:
            idle.remove(line)


class Line(asyncio.BufferedProtocol):
    def __init__(self, on_lost: Callable[[Line], None]) -> None:
        self.address: Address = ("", 0)
        self.is_lost = False
        self._on_lost = on_lost
        self._transport: asyncio.Transport | None = None
        self._asked: Request | None = None
        self._answered: asyncio.Future[Answer] | None = None
        self._head = bytearray(ANSWER_HEAD_BYTES)
        self._answer: AnswerHead | None = None
        self._body = bytearray()
        self._filled = 0

    async def ask(self, request: Request) -> Answer:
        """Raises OSError or BadFrameError; the caller then aborts the line, as when it goes away."""
        if self._transport is None or self.is_lost:
            raise ConnectionResetError("the neighbour closed the connection")
        self._asked, self._answer, self._filled = request, None, 0
        self._answered = asyncio.get_running_loop().create_future()
        self._transport.write(encode_request(request))
        try:
            return await self._answered
        finally:
            self._asked = self._answered = None

    def abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    # ---- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def get_buffer(self, sizehint: int) -> memoryview:
        into = self._head if self._answer is None else self._body
        return memoryview(into)[self._filled : self._filled + RECEIVE_BYTES]

    def buffer_updated(self, nbytes: int) -> None:
        self._filled += nbytes
        if self._asked is None or self._answered is None or self._answered.done():
            self.abort()  # it says something that nobody asked for
            return
        if self._answer is None and self._filled == ANSWER_HEAD_BYTES:
            try:
                self._answer = decode_answer_head(self._head, self._asked)
            except BadFrameError as error:
                self._filled = 0
                self._answered.set_exception(error)
                self.abort()
                return
            self._body, self._filled = bytearray(self._answer.length), 0
        if self._answer is not None and self._filled == len(self._body):
            body, self._body, self._filled = self._body, bytearray(1), 0
            self._answered.set_result((self._answer, body))

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_lost = True
        self._on_lost(self)
        if self._answered is not None and not self._answered.done():
            self._answered.set_exception(ConnectionResetError("the neighbour closed the connection"))
