"""Passwords that clients send as they are (PLAIN), checked against SCRAM credentials.

A check is PBKDF2, 1 to 12 ms of a core, so it runs on one of a few threads, which leave the event loop at least half of
the cores. Checks that wait are done in turns by the clients' addresses: a flood of guesses from one delays nobody
else by more than a check. Whoever waits too long is closed as every client that does not prove itself in time.

A password that was right is remembered by a keyed hash, so that a client with many connections costs one check. A wrong
one is never remembered: guessing costs its full price each time.
"""

from __future__ import annotations

import asyncio
import hmac
import os
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final

from agents.listeners.neighbourhood import neighbourhood
from agents.security.session import CheckPassword
from agents.security.turns import Turns
from security.scram import is_password_of

THREADS_MAX: Final = 8
REMEMBERED_MAX: Final = 1_024


def threads_of(cores: int) -> int:
    return max(1, min(THREADS_MAX, cores // 2))


class PasswordChecks:
    def __init__(self, key: bytes, *, threads: int | None = None, remembered_max: int = REMEMBERED_MAX) -> None:
        """`key`: 32 random bytes of this process alone. What is remembered is worth nothing without it. `threads`:
        by the cores of this process."""
        self._key, self._remembered_max = key, remembered_max
        self._remembered: OrderedDict[bytes, None] = OrderedDict()
        self._idle = threads or threads_of(len(os.sched_getaffinity(0)))
        """Threads without work. While there is one, nobody waits."""
        self._threads = ThreadPoolExecutor(self._idle, thread_name_prefix="password")
        self._turns: Turns[asyncio.Future[None]] = Turns()

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    @property
    def waiting(self) -> int:
        return len(self._turns)

    async def is_right(self, claim: CheckPassword, host: str) -> bool:
        """Whether the password is the credential's. For a user who does not exist it costs the same.

        `host` is the client's address. Checks of one address that wait are done in their order."""
        mark = self._mark(claim)
        if mark in self._remembered:
            self._remembered.move_to_end(mark)
            return True
        await self._turn(neighbourhood(host))
        is_right = await self._on_thread(claim)
        if is_right and claim.is_known:
            self._remembered[mark] = None
            if len(self._remembered) > self._remembered_max:
                self._remembered.popitem(last=False)
        return is_right

    async def _turn(self, who: str) -> None:
        """Returns with a thread for one check."""
        if self._idle:
            self._idle -= 1
            return
        turn = asyncio.get_running_loop().create_future()
        self._turns.put(who, turn)
        try:
            await turn
        except asyncio.CancelledError:
            self._turns.drop(who, turn)
            if turn.done() and not turn.cancelled():
                self._pass_on()  # the turn came in the moment in which nobody wanted it any more
            raise

    async def _on_thread(self, claim: CheckPassword) -> bool:
        loop = asyncio.get_running_loop()

        def free(_: object) -> None:
            with suppress(RuntimeError):  # the loop is closed
                loop.call_soon_threadsafe(self._pass_on)

        work = self._threads.submit(is_password_of, claim.credential, claim.password)
        # Not when the client stops waiting: the thread goes on, and the next check would wait for it.
        work.add_done_callback(free)
        return await asyncio.wrap_future(work)

    def _pass_on(self) -> None:
        turn = self._turns.take()
        while turn is not None and turn.done():
            turn = self._turns.take()
        if turn is None:
            self._idle += 1
        else:
            turn.set_result(None)

    def _mark(self, claim: CheckPassword) -> bytes:
        # The credential's key is in it: the mark of a password that was changed fits nothing any more.
        parts = (claim.name.encode(), claim.credential.stored_key, claim.password.encode())
        return hmac.digest(self._key, b"".join(len(each).to_bytes(4, "big") + each for each in parts), "sha256")
