"""A neighbour's connection to this agent: requests in, one at a time, answers out as fast as they are taken."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from typing import Protocol, cast

from agents.connections.sending import TURN_BYTES, WRITE_BYTES, next_parts
from agents.read.budget import Release
from agents.zone.frames import (
    REQUEST_BYTES_MAX,
    REQUEST_HEAD_BYTES,
    BadFrameError,
    Request,
    RequestHead,
    decode_request,
    decode_request_head,
)
from runtime.logging import get_logger
from wire.schema import Octets

_log = get_logger(__name__)


class Owner(Protocol):
    def admit(self, connection: ZoneConnection) -> bool: ...

    def lost(self, connection: ZoneConnection) -> None: ...

    def proved(self, connection: ZoneConnection) -> None: ...

    def refused(self, event: str, error: str) -> None:
        """The peer does not speak as neighbours do."""

    async def answer(self, request: Request, connection: ZoneConnection) -> None: ...


class ZoneConnection(asyncio.BufferedProtocol):
    slice_bytes = WRITE_BYTES
    """The bytes that the transport is given at a time."""

    def __init__(self, owner: Owner) -> None:
        self._owner = owner
        self._transport: asyncio.Transport | None = None
        self._landing = bytearray(REQUEST_BYTES_MAX)
        self._filled = 0
        self._head: RequestHead | None = None
        self._task: asyncio.Task[None] | None = None
        self._may_write = asyncio.Event()
        self._may_write.set()

    async def send(self, unsent: deque[Octets | Release]) -> None:
        """Return when the socket has taken all."""
        turn_bytes = 0
        while unsent and self._transport is not None:
            parts = next_parts(unsent, self.slice_bytes)
            # A file that was written here consists of many small views: one call for all of a slice.
            self._transport.writelines(self._encoded(parts))
            turn_bytes += sum(map(len, parts))
            # The transport copies what the socket did not take, so it never gets more than a slice.
            await self._may_write.wait()
            if turn_bytes >= TURN_BYTES:
                turn_bytes = 0
                await asyncio.sleep(0)

    def end(self) -> asyncio.Task[None] | None:
        """Cut the connection. Returns the task of its request, if there is one."""
        self._abort()
        if self._task is not None:
            self._task.cancel()
        return self._task

    # ---- asyncio.BufferedProtocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        # Paused as soon as anything stays behind, and resumed when nothing does.
        self._transport.set_write_buffer_limits(high=0)
        if not self._owner.admit(self):
            self._transport.abort()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._landing)[self._filled :]

    def buffer_updated(self, nbytes: int) -> None:
        self._took(nbytes)

    def pause_writing(self) -> None:
        self._may_write.clear()

    def resume_writing(self) -> None:
        self._may_write.set()

    def eof_received(self) -> None:
        return None

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._owner.lost(self)
        self._may_write.set()
        if self._task is not None:
            self._task.cancel()

    # ---- inner

    def _encoded(self, parts: Sequence[Octets]) -> Sequence[Octets]:
        return parts

    def _took(self, nbytes: int) -> None:
        """So many bytes of requests are in the landing."""
        self._filled += nbytes
        try:
            self._take()
        except BadFrameError as error:
            self._owner.refused("a neighbour's connection closed", str(error))
            self.end()

    def _take(self) -> None:
        if self._task is not None:
            # The next request may come before we know that the last bytes of this answer were taken.
            if self._filled == REQUEST_BYTES_MAX:
                raise BadFrameError("more than one request before the answer")
            return
        if self._head is None:
            if self._filled < REQUEST_HEAD_BYTES:
                return
            self._head = decode_request_head(self._landing[:REQUEST_HEAD_BYTES])
        end = REQUEST_HEAD_BYTES + self._head.rest_bytes
        if self._filled > end:
            raise BadFrameError("bytes behind a request")
        if self._filled == end:
            request = decode_request(self._head, self._landing[REQUEST_HEAD_BYTES:end])
            self._head, self._filled = None, 0
            self._task = asyncio.create_task(self._answer(request), name="serve a neighbour")

    async def _answer(self, request: Request) -> None:
        try:
            await self._owner.answer(request, self)
        except TimeoutError:
            _log.warning("a neighbour does not read its answer", key=request.key)
            self._abort()
        except Exception:
            _log.exception("a neighbour is not answered", key=request.key)
            self._abort()
        finally:
            self._task = None
        if self._filled and self._transport is not None:
            self._took(0)

    def _abort(self) -> None:
        if self._transport is not None:
            self._transport.abort()
