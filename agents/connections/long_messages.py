"""Requests and answers of so many elements that to decode or encode one takes longer than a turn of the event loop may.

All connections together have one turn at a time: between two steps of one message, everything else that is ready goes
on, however many clients send long messages. A connection has no more than one message here. Clients take turns, a
message each: one with very many connections holds up another no longer than one with few. A client is a principal at an
address.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from agents.answers import Slot
from agents.listeners.neighbourhood import neighbourhood
from agents.quotas.throttle import Throttle
from agents.request_context import ClientConnection, RequestContext
from wire.api import RequestHeader, decode_request, decode_request_in_steps, encode_response_in_steps
from wire.compiler.compile import Steps
from wire.schema import Message, Octets

T = TypeVar("T")

SHORT_FRAME_BYTES = 16 << 10
"""An element has at least a byte, so such a frame takes no longer than a step or two."""


class Decoded(NamedTuple):
    """A long request, whose steps are over."""

    slot: Slot
    header: RequestHeader
    frame: memoryview
    request: Message


def begin_decoding(header: RequestHeader, frame: memoryview, position: int) -> Message | Steps[Message]:
    """The request, or the steps that are left after the first. Raises MalformedMessageError."""
    if len(frame) <= SHORT_FRAME_BYTES:
        return decode_request(header, frame, position)
    steps = decode_request_in_steps(header, frame, position)
    try:
        next(steps)
    except StopIteration as ended:
        # Many bytes, but few elements: they are records.
        return ended.value
    return steps


class LongMessages:
    def __init__(self) -> None:
        self._is_busy = False
        self._waiting: dict[tuple[str, str], deque[asyncio.Future[None]]] = {}
        """Of each client those that wait for their turn, in the order in which they came. The first client is next."""

    async def finish(self, steps: Steps[T], client: ClientConnection) -> T:
        await self._take_turn((client.principal, neighbourhood(client.host)))
        try:
            while True:
                await asyncio.sleep(0)
                try:
                    next(steps)
                except StopIteration as ended:
                    return ended.value
        finally:
            self._pass_on()

    async def encode(self, throttle: Throttle, context: RequestContext, answer: Message) -> Sequence[Octets]:
        """Encode a long answer and charge for it, as `Throttle.encode` does with a short one."""
        write = partial(encode_response_in_steps, context.header, answer)
        if not throttle.on:
            return await self.finish(write(), context.client)
        work = partial(self.finish, write(), context.client)
        parts = await (work() if context.meter is None else context.meter.call(work))
        # Again, if the answer now says how long the client waits.
        return await self.finish(write(), context.client) if throttle.tells(context, answer, parts) else parts

    async def _take_turn(self, client: tuple[str, str]) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(client, deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():  # it had come already
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            client = next(iter(self._waiting))
            line = self._waiting.pop(client)
            while line and line[0].cancelled():  # its connection has ended
                line.popleft()
            if not line:
                continue
            line.popleft().set_result(None)
            if line:
                self._waiting[client] = line  # behind all others
            return
        self._is_busy = False
