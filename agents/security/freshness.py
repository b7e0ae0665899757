"""Lets requests wait while this agent may know less of users and ACLs than the cluster goes by.

A change of users or ACLs is answered when every agent with a running lease has taken it in; changes do not wait for the
dead. So an agent may judge by what it knows as long as its lease runs, provided that it has read the store since the
lease began to run. Otherwise it is *behind*: it is cut off from the store, or its process or its machine was stopped,
and rights may have been taken away without its knowledge.

Times are compared whenever a request is about to begin or a fetch to be answered, not by a timer: after a pause timers
and sockets wake up in any order. An agent that is behind extends its lease, then reads the store; changes of users are
taken in, and their connections closed, before anything goes on.

Those from whom the store can take something wait for it, however long: all whom ACLs bind, and a super user with a
password, who may have been deleted. Others (a super user with a certificate, and everybody while `acl.mode` is `off` or
`shadow`) wait until the store was asked, WAIT_MS_MAX at most; if it is away, what is known stands for them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from contextvars import Context
from typing import Protocol

from agents.request_context import ClientConnection
from metadata.contract.leases import BEAT_MS, LEASE_MS
from runtime.clock import Clock
from runtime.logging import get_logger

_log = get_logger(__name__)

MARGIN_MS = 1_000.0
"""We count a lease as over this much sooner than the store does: the two clocks do not go at quite the same speed, and
what has begun takes its time."""
ASK_AGAIN_MS = 250.0
LOOK_MS = 100.0
"""Pause between two looks while the store is asked: the lease and the tail have loops of their own, and either may be
the first to get through."""
WAIT_MS_MAX = float(BEAT_MS)


class RunningLease(Protocol):
    """This agent's lease (`agents/membership.py`)."""

    @property
    def beat_ms(self) -> float:
        """When the last heartbeat that the store took was sent."""
        ...

    @property
    def lapsed_ms(self) -> float:
        """The lease runs without a break at least since then."""
        ...

    async def beat(self) -> None:
        """Extend it now. Raises what the store raises."""
        ...


class Knowledge(Protocol):
    """This agent's knowledge of users and ACLs (`agents/security/known.py`)."""

    @property
    def heard_ms(self) -> float:
        """When the last read whose answer is taken in was sent."""
        ...


class Freshness:
    def __init__(
        self,
        *,
        lease: RunningLease,
        knowledge: Knowledge,
        catch_up: Callable[[], Awaitable[None]],
        binds: Callable[[ClientConnection], bool],
        clock: Clock,
    ) -> None:
        """`catch_up` returns when the store was read again and the answer taken in, or raises. `binds`: whether the
        store can take something from this client."""
        self._lease = lease
        self._knowledge = knowledge
        self._catch_up = catch_up
        self._binds = binds
        self._clock = clock
        self._regaining: asyncio.Task[None] | None = None
        self._is_away = False
        """We are behind, and the store did not answer when it was asked."""
        self.on_news: Callable[[], None] = lambda: None
        """Called when requests that had to wait may begin."""

    def is_fresh(self, now_ms: float) -> bool:
        lease = self._lease
        return now_ms - lease.beat_ms <= LEASE_MS - MARGIN_MS and self._knowledge.heard_ms >= lease.lapsed_ms

    def holds(self, client: ClientConnection, now_ms: float) -> bool:
        """No request of the client may begin, and no fetch of it be answered with records."""
        if self.is_fresh(now_ms):
            return False
        if self._regaining is None or self._regaining.done():  # done: it failed by a mistake of ours
            # In a context of its own: its log lines do not belong to the request that happened to begin it.
            self._regaining = asyncio.create_task(self._regain(), name="freshness", context=Context())
        return not self._is_away or self._binds(client)

    @property
    def is_behind(self) -> bool:
        return not self.is_fresh(self._clock.monotonic_ms())

    async def close(self) -> None:
        if self._regaining is not None:
            self._regaining.cancel()
            await asyncio.gather(self._regaining, return_exceptions=True)

    async def _regain(self) -> None:
        began_ms = self._clock.monotonic_ms()
        asking = asyncio.create_task(self._ask(), name="asking the store")
        try:
            while self.is_behind:
                if asking.done():
                    self._tell_away(asking.result())
                    await self._clock.sleep_ms(ASK_AGAIN_MS)
                    asking = asyncio.create_task(self._ask(), name="asking the store")
                await asyncio.wait({asking}, timeout=LOOK_MS / 1000)
                if not asking.done() and self._clock.monotonic_ms() - began_ms >= WAIT_MS_MAX:
                    self._tell_away("no answer yet")
        finally:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        behind_ms = round(self._clock.monotonic_ms() - began_ms)
        _log.info("users and ACLs are known again, requests go on", behind_ms=behind_ms)
        self._is_away, self._regaining = False, None
        self.on_news()

    async def _ask(self) -> str:
        """Returns what went wrong."""
        try:
            # In this order: what was read before the lease began to run may lack a change that did not wait for us.
            await self._lease.beat()
            await self._catch_up()
        except Exception as error:
            return str(error) or type(error).__name__
        return ""

    def _tell_away(self, error: str) -> None:
        if not self._is_away:
            _log.warning("requests wait until the metadata store says who may still do what", error=error)
            self._is_away = True
            self.on_news()
