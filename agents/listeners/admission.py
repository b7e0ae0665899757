"""Which connections may come, and which must go for others. Pure.

A connection is *unproved* until its client has proved who it is or, where a listener asks nobody for that, has sent a
request that can be decoded. Places are scarce, so the unproved live on a short lease: they have `preauth.timeout.ms`,
and there are few places for them: for a newcomer goes the oldest one of the address that has most of them. A client
that talks at once therefore gets in, however many others are silent; and one that needs several round trips to prove
itself is not put out by a flood from another address.

While no address has its share of the places, none is greedy, and the oldest of all goes. Otherwise many addresses with
a few silent connections each would make all clients behind one address put out one another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from dataclasses import dataclass
from enum import Enum
from typing import Generic, TypeVar

from agents.listeners.neighbourhood import neighbourhood

C = TypeVar("C", bound=Hashable)


HELD_UP_TIMES_MAX = 3
"""A connection that we do not read lives for so many leases at most. By default that is 30 s, after which common
clients give up. Without this bound, one that keeps us busy with proofs that it never completes would keep its place for
ever."""
SHARES = 10
"""As many addresses may have a share of the places for the unproved."""


class Cause(Enum):
    """Why a connection was refused or evicted, as the metric's label, and the setting that decides."""

    CONNECTIONS_MAX = "connections_max", "connections.max"
    PER_IP = "per_ip", "max.connections.per.ip"
    IP_RATE = "ip_rate", "quota connection_creation_rate"
    PREAUTH_CONNECTIONS_MAX = "preauth_connections_max", "preauth.connections.max"
    PREAUTH_TIMEOUT = "preauth_timeout", "preauth.timeout.ms"
    IDLE = "idle", "connections.idle.max.ms"
    DESCRIPTORS = "descriptors", "connections.max"
    DRAINING = "draining", ""

    def __init__(self, label: str, setting: str) -> None:
        self.label = label
        self.setting = setting


REFUSALS = (Cause.CONNECTIONS_MAX, Cause.PER_IP, Cause.IP_RATE, Cause.DRAINING)
EVICTIONS = (
    Cause.CONNECTIONS_MAX,
    Cause.PREAUTH_CONNECTIONS_MAX,
    Cause.PREAUTH_TIMEOUT,
    Cause.IDLE,
    Cause.DESCRIPTORS,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    connections_max: int
    per_ip_max: int
    """0 = no bound."""
    unproved_max: int
    prove_within_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict(Generic[C]):
    refused: Cause | None = None
    """Close the connection that came."""
    evicted: C | None = None
    """Close this one instead, for `evicted_for`; it is out of the books already."""
    evicted_for: Cause | None = None


class Admission(Generic[C]):
    """The books of open connections. Each `arrived` that is not refused is followed by one `gone`; more do no harm."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._hosts: dict[C, str] = {}
        self._of_host: dict[str, int] = {}
        self._unproved: dict[C, float] = {}
        """Since when its lease runs, the oldest first."""
        self._came: dict[C, float] = {}
        """When each that is unproved came, the first one first. A lease that begins again does not change that: who is
        held up goes for a newcomer as early as before."""
        self._where: dict[C, str] = {}
        """The neighbourhood of each that is unproved."""
        self._unproved_in: Counter[str] = Counter()

    @property
    def open(self) -> int:
        return len(self._hosts)

    @property
    def unproved(self) -> int:
        return len(self._unproved)

    def arrived(self, connection: C, host: str, now_ms: float) -> Verdict[C]:
        limits = self._limits
        if limits.per_ip_max and self._of_host.get(host, 0) >= limits.per_ip_max:
            return Verdict(refused=Cause.PER_IP)
        evicted: C | None = None
        cause: Cause | None = None
        if self.open >= limits.connections_max:
            cause = Cause.CONNECTIONS_MAX
        elif self.unproved >= limits.unproved_max:
            cause = Cause.PREAUTH_CONNECTIONS_MAX
        if cause is not None:
            evicted = self.evict(neighbourhood(host))
            if evicted is None:
                return Verdict(refused=cause)
        self._hosts[connection] = host
        self._of_host[host] = self._of_host.get(host, 0) + 1
        self._enter(connection, neighbourhood(host), now_ms)
        return Verdict(evicted=evicted, evicted_for=cause)

    def proved(self, connection: C) -> None:
        self._strike(connection)

    def held_up(self, connection: C, now_ms: float) -> bool:
        """It is we who do not read it: its lease begins again. False: it has had too many."""
        came_ms = self._came.get(connection)
        if came_ms is None or now_ms - came_ms >= HELD_UP_TIMES_MAX * self._limits.prove_within_ms:
            return False
        del self._unproved[connection]
        self._unproved[connection] = now_ms
        return True

    def overdue(self, now_ms: float) -> list[C]:
        """Those that have not proved themselves in time, the oldest first."""
        found: list[C] = []
        for connection, since_ms in self._unproved.items():
            if now_ms - since_ms < self._limits.prove_within_ms:
                break
            found.append(connection)
        return found

    def evict(self, newcomer: str = "") -> C | None:
        """Strike the oldest unproved connection of who has most of them, if that is more than a share, or else of all
        from the books; None if all have proved themselves. `newcomer`: the neighbourhood of one that comes, and counts
        too."""
        counts = self._unproved_in.copy()
        counts[newcomer] += 1 if newcomer in counts else 0
        most = max(counts.values(), default=0)
        nobody_is_greedy = most <= self._limits.unproved_max // SHARES
        for connection in self._came:
            if nobody_is_greedy or counts[self._where[connection]] == most:
                self.gone(connection)
                return connection
        return None

    def gone(self, connection: C) -> None:
        self._strike(connection)
        host = self._hosts.pop(connection, None)
        if host is None:
            return
        left = self._of_host[host] - 1
        if left:
            self._of_host[host] = left
        else:
            del self._of_host[host]

    def _enter(self, connection: C, where: str, now_ms: float) -> None:
        self._unproved[connection] = self._came[connection] = now_ms
        self._where[connection] = where
        self._unproved_in[where] += 1

    def _strike(self, connection: C) -> None:
        where = self._where.pop(connection, None)
        if where is not None:
            del self._unproved[connection], self._came[connection]
            self._unproved_in[where] -= 1
            if not self._unproved_in[where]:
                del self._unproved_in[where]


DESCRIPTORS_RESERVED = 256
"""Files and sockets of an agent that are not its clients': the pool to Postgres, requests to the object store, the log,
blocks for neighbours, a scrape of the metrics."""


def connections_that_fit(connections_max: int, *, descriptors_max: int, open_now: int) -> int:
    """How many of `connections_max` a process with that limit of open files can serve; 0 or less: none."""
    return min(connections_max, descriptors_max - open_now - DESCRIPTORS_RESERVED)
