"""Passwords that clients send as they are (PLAIN), checked against SCRAM credentials.

A check is PBKDF2, 1 to 12 ms of a core, so it runs on one of a few threads. A password that was right is remembered by
a keyed hash, so that a client with many connections costs one check. A wrong one is never remembered: guessing costs
its full price each time.
"""

from __future__ import annotations

import asyncio
import hmac
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from agents.security.session import CheckPassword
from security.scram import is_password_of

THREADS: Final = 8
REMEMBERED_MAX: Final = 1_024


class PasswordChecks:
    def __init__(self, key: bytes, *, threads: int = THREADS, remembered_max: int = REMEMBERED_MAX) -> None:
        """`key`: 32 random bytes of this process alone. What is remembered is worth nothing without it."""
        self._key, self._remembered_max = key, remembered_max
        self._remembered: OrderedDict[bytes, None] = OrderedDict()
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="password")

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def is_right(self, claim: CheckPassword) -> bool:
        """Whether the password is the credential's. For a user who does not exist it costs the same."""
        mark = self._mark(claim)
        if mark in self._remembered:
            self._remembered.move_to_end(mark)
            return True
        loop = asyncio.get_running_loop()
        is_right = await loop.run_in_executor(self._threads, is_password_of, claim.credential, claim.password)
        if is_right and claim.is_known:
            self._remembered[mark] = None
            if len(self._remembered) > self._remembered_max:
                self._remembered.popitem(last=False)
        return is_right

    def _mark(self, claim: CheckPassword) -> bytes:
        # The credential's key is in it: the mark of a password that was changed fits nothing any more.
        parts = (claim.name.encode(), claim.credential.stored_key, claim.password.encode())
        return hmac.digest(self._key, b"".join(len(each).to_bytes(4, "big") + each for each in parts), "sha256")
