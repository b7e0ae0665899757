"""A crowd of steady clients on one topic: of each kind a writer, a reader and a member, and the verdict at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.servers.started import Started
from bench.steady.account import Place, doubled, lost, passed_over
from bench.steady.clients import SteadyClient
from bench.steady.log import read_all
from bench.steady.programs.protocol import MEMBER, READER, WRITER, Job
from bench.steady.running import END_S, LOOK_S, Steady

ROLES = (WRITER, READER, MEMBER)
STEADY_S = 60.0
STEADY_STEPS = 20
CATCH_UP_S = 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """One client's records, held against the log."""

    client: Steady
    lost: int
    """Acknowledged records that are not in the log at their place; of a reader or member, records that it passed
    over."""
    doubled: int
    """Records of a writer that are in the log again; places that a reader saw again. A member may see a place again
    after a rebalance, by the rules."""
    unread: int = 0
    """Records of the log that a reader or member had not seen by the end, for whatever reason."""


class Crowd(Started):
    """Started by `with`, when every client has gone some steps; what still runs at the end is killed."""

    def __init__(
        self,
        clients: Sequence[SteadyClient],
        *,
        bootstrap: str,
        topic: str,
        partitions: int,
        folder: Path,
        roles: Mapping[str, Sequence[str]] | None = None,
    ) -> None:
        """`roles`: those of single kinds, by name; all others have all roles."""
        super().__init__()
        self._kinds = clients
        self._bootstrap, self._topic, self._partitions = bootstrap, topic, partitions
        self._folder = folder
        self._roles = roles or {}
        self.clients: list[Steady] = []

    def add(self, kind: SteadyClient, role: str, name: str = "") -> Steady:
        name = name or f"{kind.name}-{role}"
        job = Job(self._bootstrap, self._topic, self._partitions, role, name, {})
        client = Steady(kind, job, log=self._folder / f"{name}.log")
        self._stack.callback(client.kill)
        self.clients.append(client)
        return client

    def until_steps(self, more: int = STEADY_STEPS, timeout_s: float = STEADY_S) -> None:
        """Wait until every client has gone this many steps more."""
        wanted = [(client, len(client.account.steps) + more) for client in self.clients]
        for client, steps in wanted:
            client.until_steps(steps - len(client.account.steps), timeout_s)

    def finish(self) -> list[Outcome]:
        """End all writers, read the log, let the others read to its end, and end them."""
        self._end(WRITER)
        log = read_all(self._bootstrap, self._topic, self._partitions)
        deadline = time.monotonic() + CATCH_UP_S
        others = [client for client in self.clients if client.role != WRITER]
        while any(len(client.found) < len(log) for client in others) and time.monotonic() < deadline:
            time.sleep(LOOK_S)
        found = [_outcome(client, log) for client in self.clients]
        self._end(READER, MEMBER)
        return found

    def _start(self) -> None:
        for kind in self._kinds:
            kind.command()  # what is compiled is compiled before the first client runs
        for kind in self._kinds:
            for role in self._roles.get(kind.name, ROLES):
                self.add(kind, role)
        self.until_steps()

    def _end(self, *roles: str) -> None:
        ending = [client for client in self.clients if client.role in roles]
        for client in ending:
            if client.is_running:
                client.begin_end()
        deadline = time.monotonic() + END_S
        for client in ending:
            client.await_end(max(0.0, deadline - time.monotonic()))


def _outcome(client: Steady, log: Mapping[Place, str]) -> Outcome:
    if client.role == WRITER:
        return Outcome(client=client, lost=len(lost(client.acknowledged, log)), doubled=doubled(log, client.name))
    twice = client.account.found_twice if client.role == READER else 0
    unread = len(log.keys() - client.found.keys())
    return Outcome(client=client, lost=len(passed_over(client.found, log)), doubled=twice, unread=unread)
