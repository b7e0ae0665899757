"""Accepts connections on one listening socket, and outlives every error of `accept`.

asyncio's own server accepts as fast as it can. After EMFILE it tries as many times again as its backlog is long, in the
same turn, with a log line each time. This one pauses: while the rate is used up, and after an error. Clients wait in
the socket's backlog meanwhile.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable
from enum import Enum

from agents.listeners.pace import TokenBucket
from runtime.clock import Clock
from runtime.logging import get_logger

_log = get_logger(__name__)

ACCEPTS_PER_TURN = 50
"""Then others have a turn of the loop: the ones that just came, above all, to send their first request."""
RETRY_MS = 100.0
"""The pause after an error."""
_GONE_ALREADY = {errno.ECONNABORTED, errno.EPROTO, errno.EPERM, errno.ECONNRESET, errno.EINTR}
"""Errors that are about one client, which has left the backlog with them."""
_EXHAUSTED = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Pause(Enum):
    """Why clients wait in the backlog: the metric's label."""

    RATE = "rate"
    DESCRIPTORS = "descriptors"
    ERROR = "error"


class Acceptor:
    def __init__(
        self,
        listening: socket.socket,
        *,
        factory: Callable[[], asyncio.BaseProtocol],
        pace: TokenBucket,
        clock: Clock,
        on_pause: Callable[[Pause, str], None],
    ) -> None:
        """`pace` may be shared by the listeners of an agent. `on_pause` also gets the error's text, if it was one."""
        self._listening = listening
        self._factory = factory
        self._pace = pace
        self._clock = clock
        self._on_pause = on_pause
        self._loop = asyncio.get_running_loop()
        self._resumes: asyncio.TimerHandle | None = None
        self._opening: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def start(self) -> None:
        self._listening.setblocking(False)
        self._loop.add_reader(self._listening, self._accept)

    def close(self) -> None:
        """The kernel refuses connections that are still in the backlog. May be called twice."""
        if self._is_closed:
            return
        self._is_closed = True
        if self._resumes is not None:
            self._resumes.cancel()
        self._loop.remove_reader(self._listening)
        self._listening.close()

    async def wait_closed(self) -> None:
        """Until those that were just accepted have their connection."""
        await asyncio.gather(*self._opening)

    def _accept(self) -> None:
        for _ in range(ACCEPTS_PER_TURN):
            wait_ms = self._pace.wait_ms(self._clock.monotonic_ms())
            if wait_ms > 0:
                return self._stop_for(wait_ms, Pause.RATE)
            try:
                accepted, _peer = self._listening.accept()
            except BlockingIOError:
                return None
            except OSError as error:
                if error.errno in _GONE_ALREADY:
                    continue
                why = Pause.DESCRIPTORS if error.errno in _EXHAUSTED else Pause.ERROR
                return self._stop_for(RETRY_MS, why, error.strerror or str(error))
            self._pace.take()
            opening = self._loop.create_task(self._open(accepted), name="accepted connection")
            self._opening.add(opening)
            opening.add_done_callback(self._opening.discard)
        return None

    async def _open(self, accepted: socket.socket) -> None:
        try:
            await self._loop.connect_accepted_socket(self._factory, accepted)
        except OSError as error:
            accepted.close()
            _log.debug("an accepted connection was gone already", error=str(error))

    def _stop_for(self, pause_ms: float, why: Pause, error: str = "") -> None:
        self._loop.remove_reader(self._listening)
        self._resumes = self._loop.call_later(pause_ms / 1000, self._resume)
        self._on_pause(why, error)

    def _resume(self) -> None:
        self._resumes = None
        self._loop.add_reader(self._listening, self._accept)
