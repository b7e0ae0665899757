"""How an agent that stops parts from its clients: it serves on, and sends them to the other agents.

Clients ask Metadata by themselves only every five minutes. A client that still names only agents that are gone may
never find the others (Java before 4.0). So a stopping agent goes on for `drain.notice.ms`:

1. It leaves the Metadata answers of all agents (`Membership.drain`), and serves as before until the others know.
2. It sends clients away (`Draining.sends_away`). Produce and Fetch are answered NOT_LEADER_OR_FOLLOWER, requests of
   groups NOT_COORDINATOR, as by a broker of Kafka that has handed over its partitions. Clients then ask Metadata, at
   this agent too, and go on elsewhere. All other requests are answered as always, and new connections are taken.

A client may sleep between two polls, and its library with it: a refusal that was sent is not read yet. Only a client
that asked Metadata or FindCoordinator since then surely knows the others. A connection that is silent is closed: its
client asks again, at once if its library runs by itself, else at its next request. For that it needs an agent of those
that it knows. So an agent that closed the connection of a client that may not know the others serves until the notice
is over. Otherwise it ends when no client has talked for QUIET_MS.

`judge` decides from the state of all connections; `SendingAway` carries it out.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from runtime.clock import Clock
from runtime.logging import get_logger

_log = get_logger(__name__)

LOOK_MS = 250
TELL_MS = 10_000
"""Pause between two log lines that say how many clients still talk."""
QUIET_MS = 5_000
"""A client that was sent away asks nothing more after a few seconds: it waits a second at most before it repeats a
request (`retry.backoff.max.ms`), and franz-go asks Metadata every 2.5 s at most."""

_METADATA, _FIND_COORDINATOR, _API_VERSIONS, _INIT_PRODUCER_ID, _DESCRIBE_CLUSTER = 3, 10, 18, 22, 60
TELLING_APIS: Final = frozenset((_METADATA, _FIND_COORDINATOR))
"""Requests whose answers name the other agents."""
ASKING_APIS: Final = frozenset((*TELLING_APIS, _API_VERSIONS, _INIT_PRODUCER_ID, _DESCRIBE_CLUSTER))
"""Requests that any agent answers. A connection that carried nothing else does no work here."""


@dataclass(slots=True)
class Draining:
    """The state that the parts of an agent share."""

    sends_away: bool = False
    owes: bool = False
    """A client that worked here was cut off, and may not know the other agents. It may come back to ask for them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Talk:
    """A connection, as an agent that sends clients away sees it."""

    is_busy: bool
    """A request is not answered yet."""
    silent_ms: float
    """Since its last request or answer, or since it was made."""
    has_asked: bool
    """It has carried a request. The health checks of load balancers carry none."""
    works: bool
    """It has carried a request that belongs here, such as Produce, Fetch, or that of a group."""
    is_told: bool
    """The client asked for the other agents since it was sent away."""

    @property
    def goes_on(self) -> bool:
        return self.is_busy or (self.has_asked and self.silent_ms < QUIET_MS)

    @property
    def is_silent(self) -> bool:
        return not self.is_busy and self.silent_ms >= QUIET_MS


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    close: Sequence[int]
    """Indexes of the connections to close now."""
    is_over: bool
    talking: int


def judge(talks: Sequence[Talk], *, passed_ms: float, notice_ms: float, owes: bool) -> Verdict:
    """`passed_ms`: since clients are sent away. `owes`: as in `Draining`."""
    close = [index for index, talk in enumerate(talks) if talk.is_silent]
    owes = owes or any(talks[index].works and not talks[index].is_told for index in close)
    talking = sum(1 for talk in talks if talk.goes_on)
    is_over = passed_ms >= notice_ms or (passed_ms >= QUIET_MS and not talking and not owes)
    return Verdict(close=close, is_over=is_over, talking=talking)


class Talking(Protocol):
    """A connection."""

    def talk(self, now_ms: float) -> Talk: ...

    def close(self, reason: str) -> None: ...


class Others(Protocol):
    """The agents that clients are sent to."""

    @property
    def is_last(self) -> bool:
        """No other agent serves."""
        ...


class Listening(Protocol):
    """The connections of an agent."""

    def talking(self) -> Sequence[Talking]: ...


class SendingAway:
    """Waits while `Draining.sends_away`: until the verdict says that it is over, no other agent is left, or `hurry` is
    set."""

    def __init__(
        self,
        *,
        state: Draining,
        server: Listening,
        others: Others,
        clock: Clock,
        notice_ms: float,
        hurry: asyncio.Event,
    ) -> None:
        self._state, self._server, self._others = state, server, others
        self._clock, self._notice_ms, self._hurry = clock, notice_ms, hurry

    async def run(self) -> None:
        began_ms = told_ms = self._clock.monotonic_ms()
        talking = 0
        _log.info("clients are sent to the other agents", notice_s=round(self._notice_ms / 1000))
        # Without another agent, Metadata could only name this one again.
        while not (self._hurry.is_set() or self._others.is_last):
            now_ms = self._clock.monotonic_ms()
            connections = self._server.talking()
            talks = [each.talk(now_ms) for each in connections]
            verdict = judge(talks, passed_ms=now_ms - began_ms, notice_ms=self._notice_ms, owes=self._state.owes)
            talking = verdict.talking
            for index in verdict.close:
                connections[index].close("the agent stops")
            if verdict.is_over:
                break
            if now_ms - told_ms >= TELL_MS:
                told_ms = now_ms
                left_s = round((self._notice_ms - (now_ms - began_ms)) / 1000)
                _log.info("clients are sent away", talking=talking, ends_in_s=left_s)
            await self._clock.sleep_ms(LOOK_MS)
        took_s = round((self._clock.monotonic_ms() - began_ms) / 1000, 1)
        _log.info("clients were sent away", took_s=took_s, talking=talking)
