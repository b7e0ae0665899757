"""The gate of a connection whose listener has SASL: no request passes before the client has proved who it is.

`session.py` decides; here its steps are done: passwords are checked on threads, tokens judged, and refusals answered
late. A refusal leaves at a fixed time after the message that it answers, so the time tells nothing of the work behind.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from math import inf
from typing import Protocol

from agents.features import Features
from agents.request_context import ClientConnection
from agents.security.freshness import Freshness
from agents.security.passwords import PasswordChecks
from agents.security.session import OAUTHBEARER, Cause, CheckPassword, CheckToken, KnownUsers, Reply, Session
from runtime.errors import BadInputError
from runtime.logging import get_logger, log_context
from runtime.runtime import Runtime
from wire.api import API_VERSIONS

_log = get_logger(__name__)
SHOWN_NAME_CHARS = 64
_API_VERSIONS_BYTES = API_VERSIONS.to_bytes(2, "big")
REFUSED_STAYS_MS = 1_000
"""How long after its answer the connection of a refused client ends. Every client seen so far ends it before."""


class NoTokensError(BadInputError):
    """A listener offers OAUTHBEARER, and nobody judges its tokens: no client could come in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgedToken:
    """`user` is "" for a token that is not good: then `reason` is for the log."""

    user: str = ""
    lifetime_ms: float = 0.0
    reason: str = ""


class TokenJudge(Protocol):
    async def judge(self, token: bytes) -> JudgedToken:
        """Judge the first message of OAUTHBEARER. Raises nothing: what cannot be judged is not good."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Authentication:
    """The gates of all connections share this."""

    known: KnownUsers
    features: Features
    passwords: PasswordChecks
    runtime: Runtime
    freshness: Freshness | None = None
    stale_ms_max: float = inf
    """`security.stale.max.ms`."""
    refused_after_ms: int
    """Kafka's `connection.failed.authentication.delay.ms`."""
    receive_bytes_max: int
    tokens: Mapping[str, TokenJudge] = field(default_factory=dict[str, TokenJudge])
    """By listener."""

    def gate(self, client: ClientConnection, mechanisms: Sequence[str], *, reauthenticate_ms: int = 0) -> Gate:
        """For a new connection."""
        return Gate(self, client, mechanisms, reauthenticate_ms)

    def nonce(self) -> str:
        ids = self.runtime.ids
        return ids.uuid4().hex + ids.uuid4().hex


class Gate:
    def __init__(
        self, shared: Authentication, client: ClientConnection, mechanisms: Sequence[str], reauthenticate_ms: int
    ) -> None:
        self._shared, self._client = shared, client
        self._clock = shared.runtime.clock
        self._session = Session(
            shared.known,
            mechanisms,
            features=shared.features,
            nonce=shared.nonce,
            reauthenticate_ms=reauthenticate_ms,
            receive_bytes_max=shared.receive_bytes_max,
            stale_ms_max=shared.stale_ms_max,
        )

    @property
    def is_open(self) -> bool:
        """The client has proved who it is. Before that, frames are bounded by `frame_bytes_max`."""
        return self._session.is_complete

    @property
    def frame_bytes_max(self) -> int:
        return self._session.receive_bytes_max

    @property
    def still_holds(self) -> bool:
        """False after the client's user was deleted or altered: close the connection."""
        return self._session.still_holds

    def admits(self, frame: memoryview) -> bool:
        """Whether it is an ordinary request that may begin. If not, `receive` it."""
        return self._session.admits(frame, self._clock.monotonic_ms())

    def receive(self, frame: memoryview) -> Reply | Awaitable[Reply]:
        """Take a message of a proof. Nothing else may be received before its reply is known."""
        now_ms = self._clock.monotonic_ms()
        step = self._session.receive(frame, now_ms)
        if isinstance(step, Reply) and not step.is_refusal:
            return self._answered(step)
        return self._settle(step, now_ms)

    async def end_refused(self, end: Callable[[str], None], reason: str) -> None:
        """End the connection of a refused client, if the client does not: a while after the answer. A client that finds
        the answer and the end at the same time may see the end alone, as kafka-python 3.0 does, and tries again."""
        await self._clock.sleep_ms(REFUSED_STAYS_MS)
        end(reason)

    async def _settle(self, step: Reply | CheckPassword | CheckToken, received_ms: float) -> Reply:
        try:
            if isinstance(step, CheckPassword):
                is_right = await self._shared.passwords.is_right(step, self._client.host)
                step = self._session.judged(is_right, self._clock.monotonic_ms())
            elif isinstance(step, CheckToken):
                step = await self._judged(step)
        except Exception:
            with log_context(self._client):
                _log.exception("a proof could not be judged")
            step = Reply((), "internal error", Cause.ERROR)
            self._count_refused(step)
            return step
        if step.is_refusal:
            late_ms = received_ms + self._shared.refused_after_ms - self._clock.monotonic_ms()
            try:
                await self._clock.sleep_ms(max(0.0, late_ms))
            except asyncio.CancelledError:
                # The client has left. Whoever guesses may: a right password is answered sooner.
                self._answered(step)
                raise
            if self._shared.freshness is not None and self._shared.freshness.is_behind:
                # The user may be new, or have a new password. An error would stop the client for good; now it tries
                # again, here or elsewhere.
                step = Reply((), step.ends, Cause.STORE_AWAY)
        return self._answered(step)

    async def _judged(self, step: CheckToken) -> Reply:
        told = await self._shared.tokens[self._client.listener].judge(step.token)
        if not told.user:
            return self._session.refused_token(told.reason)
        return self._session.judged_token(told.user, told.lifetime_ms, self._clock.monotonic_ms())

    def _answered(self, reply: Reply) -> Reply:
        session, client = self._session, self._client
        client.software = session.software or client.software
        if session.is_complete:
            self._shared.runtime.metrics.security.authentications_total.labels(mechanism=session.mechanism).inc()
            client.has_password = session.has_password
            if client.principal != f"User:{session.user}":
                client.principal = f"User:{session.user}"
                with log_context(client):
                    _log.debug("client authenticated", user=session.user, mechanism=session.mechanism)
        elif reply.ends:
            self._count_refused(reply)
            with log_context(client):
                _log.info(
                    "client not authenticated",
                    reason=reply.ends,
                    user=session.claimed[:SHOWN_NAME_CHARS],
                    mechanism=session.mechanism,
                )
        return reply

    def _count_refused(self, reply: Reply) -> None:
        refused = self._shared.runtime.metrics.security.authentications_refused_total
        refused.labels(mechanism=self._session.mechanism or "none", reason=reply.cause.value).inc()


def is_held(
    frame: memoryview, client: ClientConnection, gate: Gate | None, freshness: Freshness | None, now_ms: float
) -> bool:
    """The request needs rights, and whether the client still has them is not known here. Proofs go on."""
    if freshness is None or not freshness.holds(client, now_ms) or bytes(frame[:2]) == _API_VERSIONS_BYTES:
        return False
    return gate is None or gate.admits(frame)


class SaslListener(Protocol):
    """The settings of a listener that a gate needs."""

    @property
    def name(self) -> str: ...

    @property
    def has_sasl(self) -> bool: ...

    @property
    def mechanisms(self) -> Sequence[str]: ...

    @property
    def connections_max_reauth_ms(self) -> int: ...


def gates_of(
    authentication: Authentication, listeners: Sequence[SaslListener]
) -> Mapping[str, Callable[[ClientConnection], Gate]]:
    """By the name of each listener that has SASL, what makes the gate of a new connection. Raises NoTokensError."""
    for each in listeners:
        if each.has_sasl and OAUTHBEARER in each.mechanisms and each.name not in authentication.tokens:
            raise NoTokensError(
                f"listener {each.name} has the mechanism {OAUTHBEARER}, and nobody judges its tokens",
                remedy=f"remove it from listener.{each.name}.sasl.mechanisms",
            )
    for mechanism in {mechanism for each in listeners if each.has_sasl for mechanism in each.mechanisms}:
        authentication.runtime.metrics.security.expect_mechanism(mechanism)
    return {
        each.name: partial(
            authentication.gate, mechanisms=each.mechanisms, reauthenticate_ms=each.connections_max_reauth_ms
        )
        for each in listeners
        if each.has_sasl
    }
