"""The way out of a connection: its answers in line, and what it gives to its socket at a time. They are views, not
copies."""

from __future__ import annotations

import asyncio
import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Sequence
from typing import cast

from agents.answers import Slot
from agents.read.budget import Release
from wire.schema import Octets

WRITE_BYTES = 256 << 10
"""Bytes handed to the socket per write."""
WRITE_PARTS = 512
"""Pieces per write; the kernel takes 1,024."""
COPIED_BYTES = 64 << 10
"""Bytes that the transport is given, and copies, when the socket is full; it then reports when there is room again."""
TURN_BYTES = 2 << 20
"""Bytes that a connection sends per turn of the event loop: a millisecond's work. A client that reads as fast as we
write would otherwise get its 50 MB in one turn, and all other clients would wait for it."""


def next_parts(unsent: deque[Octets | Release], bytes_max: int = WRITE_BYTES) -> list[Octets]:
    """Take the next slice off the line: at most `bytes_max` in WRITE_PARTS pieces, up to the next release."""
    parts: list[Octets] = []
    room = bytes_max
    while unsent and room > 0 and len(parts) < WRITE_PARTS:
        item = unsent[0]
        if callable(item):
            break
        if len(item) > room:
            unsent[0] = memoryview(item)[room:]
            item = memoryview(item)[:room]
        else:
            unsent.popleft()
        parts.append(item)
        room -= len(item)
    return parts


def after(parts: Sequence[Octets], taken: int) -> list[Octets]:
    """The parts that remain after the first `taken` bytes."""
    for number, part in enumerate(parts):
        if taken < len(part):
            return [memoryview(part)[taken:] if taken else part, *parts[number + 1 :]]
        taken -= len(part)
    return []


class SendingHalf(asyncio.BufferedProtocol, ABC):
    def __init__(self) -> None:
        self._transport: asyncio.Transport | None = None
        self._descriptor = -1
        """The file descriptor of a plain socket; -1 if bytes must go through the transport."""
        self._slots: deque[Slot] = deque()
        self._unsent: deque[Octets | Release] = deque()
        self._write_paused = False
        self._pump_due = False

    @abstractmethod
    def pump(self) -> None:
        """Go on with all that may go on."""

    @abstractmethod
    def _end(self, reason: str) -> None: ...

    def _pump_soon(self) -> None:
        if not self._pump_due:
            self._pump_due = True
            asyncio.get_running_loop().call_soon(self._pump_when_due)

    def _pump_when_due(self) -> None:
        self._pump_due = False
        self.pump()

    def _flush(self, bytes_max: float = TURN_BYTES) -> None:
        """Line up the complete answers at the head of the line, and send up to `bytes_max` in this turn of the loop."""
        while self._slots and (ready := self._slots[0].parts) is not None:
            slot = self._slots.popleft()
            self._unsent += ready
            if slot.release is not None:
                self._unsent.append(slot.release)
            if slot.ends:
                self._send(float("inf"))
                return self._end(slot.ends)
        self._send(bytes_max)
        return None

    def _send(self, left: float) -> None:
        """Write in slices, only as fast as the client reads. The line holds views, not copies."""
        transport, unsent = self._transport, self._unsent
        if transport is None:
            return None
        while unsent and not self._write_paused and not transport.is_closing():
            if callable(unsent[0]):
                cast(Release, unsent.popleft())()
            elif left <= 0:
                return self._pump_soon()
            else:
                parts = next_parts(unsent)
                left -= sum(map(len, parts))
                self._write(transport, parts)
        return None

    def _write(self, transport: asyncio.Transport, parts: list[Octets]) -> None:
        """Give a slice to the socket. The rest goes back to the head of the line, or to the transport."""
        if self._descriptor < 0:
            transport.writelines(parts)
            return
        try:
            # Past asyncio's transport, which joins its parts first: that would copy every byte read.
            taken = os.writev(self._descriptor, parts)
        except OSError:
            taken = 0  # full, or broken: the transport finds out at its next write
        left = after(parts, taken)
        if left:
            transport.write(left[0][:COPIED_BYTES])
            self._unsent.extendleft(reversed(after(left, COPIED_BYTES) if len(left[0]) > COPIED_BYTES else left[1:]))

    def _drop_answers(self) -> None:
        """No client will take these answers: release what they hold."""
        for item in (*self._unsent, *(slot.release for slot in self._slots)):
            if callable(item):
                item()
        self._unsent.clear()
        self._slots.clear()
