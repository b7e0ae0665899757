"""Requests and answers of so many elements that to decode or encode one takes longer than a turn of the event loop may.

All connections together have one turn at a time: between two steps of one message, everything else that is ready goes
on, however many clients send long messages. They come to their turns in the order in which they began, and a connection
has no more than one message here.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from agents.answers import Slot
from agents.quotas.throttle import Throttle
from agents.request_context import RequestContext
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
        self._turn = asyncio.Lock()
        """Those who wait for it get it in the order in which they came."""

    async def finish(self, steps: Steps[T]) -> T:
        async with self._turn:
            while True:
                await asyncio.sleep(0)
                try:
                    next(steps)
                except StopIteration as ended:
                    return ended.value

    async def encode(self, throttle: Throttle, context: RequestContext, answer: Message) -> Sequence[Octets]:
        """What `Throttle.encode` does for other answers."""
        write = partial(encode_response_in_steps, context.header, answer)
        if not throttle.on:
            return await self.finish(write())
        work = partial(self.finish, write())
        parts = await (work() if context.meter is None else context.meter.call(work))
        # Again, if the answer now says how long the client waits.
        return await self.finish(write()) if throttle.tells(context, answer, parts) else parts
