"""Judges the first message of OAUTHBEARER by the keys of the issuer."""

from __future__ import annotations

import asyncio
from pathlib import Path

from agents.security.gate import JudgedToken
from agents.security.oauth.keys import IssuerKeys
from agents.security.oauth.tokens import Expected, Judged, UnknownKeyError, judge, read_message
from runtime.clock import Clock
from runtime.settings.listeners import ListenerSettings
from runtime.tls.contexts import client_context
from runtime.tls.files import ClientTlsSettings
from security.sasl.errors import AuthenticationFailedError


class OAuthJudge:
    """A `TokenJudge`."""

    def __init__(self, keys: IssuerKeys, expected: Expected, clock: Clock) -> None:
        self._keys, self._expected, self._clock = keys, expected, clock

    async def stop(self) -> None:
        await self._keys.stop()

    async def judge(self, token: bytes) -> JudgedToken:
        now_s = self._clock.wall_ms() / 1000
        try:
            judged = await self._judged(read_message(token), now_s)
        except AuthenticationFailedError as error:
            return JudgedToken(reason=error.message)
        return JudgedToken(user=judged.user, lifetime_ms=(judged.expires_s - now_s) * 1000)

    async def _judged(self, token: str, now_s: float) -> Judged:
        try:
            return judge(token, self._keys.known, self._expected, now_s=now_s)
        except UnknownKeyError:
            await self._keys.look_again()
            return judge(token, self._keys.known, self._expected, now_s=now_s)


async def opened(listener: ListenerSettings, clock: Clock) -> OAuthJudge:
    """A judge for the listener, with the issuer's keys if the issuer answers. Raises TlsFileError."""
    ca_file = listener.sasl_oauthbearer_jwks_ca_file
    files = ClientTlsSettings(
        prefix=listener.setting_name("sasl.oauthbearer.jwks"), ca_file=Path(ca_file) if ca_file else None
    )
    context = await asyncio.to_thread(client_context, files, clock.wall_ms())
    keys = IssuerKeys(listener.sasl_oauthbearer_jwks_endpoint_url, clock=clock, context=context)
    await keys.start()
    expected = Expected(
        issuer=listener.sasl_oauthbearer_expected_issuer,
        audience=listener.audience,
        user_claim=listener.sasl_oauthbearer_sub_claim_name,
    )
    return OAuthJudge(keys, expected, clock)
