"""The public keys of a token issuer, fetched from its JWKS address and kept.

They are fetched again after an hour, and when a token names a key that is not among them: but then at most once in ten
seconds, because anybody can write such a token. No redirect is followed and only https is spoken, so that an issuer's
answer cannot send the agent to an address inside its own network (the lesson of CVE-2025-27817). While the issuer is
away, the keys that are known go on.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Mapping

import aiohttp
import jwt

from agents.security.oauth.tokens import keys_of
from runtime.clock import Clock
from runtime.logging import get_logger

_log = get_logger(__name__)

DOCUMENT_BYTES_MAX = 1 << 20
TIMEOUT_S = 10.0
REFRESH_MS = 3_600_000.0
RETRY_MS = 10_000.0


class IssuerKeys:
    def __init__(self, url: str, *, clock: Clock, context: ssl.SSLContext) -> None:
        """`url` begins with https://."""
        self._url, self._clock, self._context = url, clock, context
        self._keys: Mapping[str, jwt.PyJWK] = {}
        self._tried_ms = float("-inf")
        self._fetching = asyncio.Lock()
        self._refreshes: asyncio.Task[None] | None = None

    @property
    def known(self) -> Mapping[str, jwt.PyJWK]:
        """By id."""
        return self._keys

    async def start(self) -> None:
        """Fetch, and go on fetching. Without an answer the agent starts all the same: tokens are refused until then."""
        await self.look_again()
        self._refreshes = asyncio.create_task(self._refresh_for_ever(), name="keys of the token issuer")

    async def stop(self) -> None:
        if self._refreshes is not None:
            self._refreshes.cancel()
            await asyncio.gather(self._refreshes, return_exceptions=True)

    async def look_again(self) -> None:
        """Fetch, unless that was tried just now. Raises nothing."""
        async with self._fetching:
            now_ms = self._clock.monotonic_ms()
            if now_ms - self._tried_ms < RETRY_MS:
                return
            self._tried_ms = now_ms
            try:
                keys = keys_of(json.loads(await self._fetch()))
            except (aiohttp.ClientError, OSError, TimeoutError, ValueError) as error:
                _log.warning(
                    "keys of the token issuer not fetched", url=self._url, error=str(error), known=len(self._keys)
                )
                return
            if keys:
                self._keys = keys
            else:
                _log.warning("the token issuer lists no key that can be used", url=self._url, known=len(self._keys))

    async def _refresh_for_ever(self) -> None:
        while True:
            await self._clock.sleep_ms(REFRESH_MS if self._keys else RETRY_MS)
            await self.look_again()

    async def _fetch(self) -> bytes:
        timeout = aiohttp.ClientTimeout(total=TIMEOUT_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(self._url, ssl=self._context, allow_redirects=False) as answer,
        ):
            if answer.status != 200:
                raise ValueError(f"the answer is {answer.status}")
            document = await answer.content.read(DOCUMENT_BYTES_MAX + 1)
            while len(document) <= DOCUMENT_BYTES_MAX and (more := await answer.content.read(DOCUMENT_BYTES_MAX)):
                document += more
            if len(document) > DOCUMENT_BYTES_MAX:
                raise ValueError(f"the answer has more than {DOCUMENT_BYTES_MAX} bytes")
            return document
