"""How long each client waited for this agent, and how much it sent in a round: the facts behind slow producers. Pure.

A round of a blocked connection (`agents/sender.py`) is the wait from its last request to the answer, and the time away
until its next request. Clients are told apart by `client.id` and their software; the sums of the connections of one
client are kept together, those of at most CLIENTS_MAX clients.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from agents.sender import Sender
from agents.write.submission import Submission

CLIENTS_MAX = 200
"""One more, and the client whose last round is longest ago is forgotten."""
NAME_CHARS_MAX = 100
"""Clients choose their names: a `client.id` may have 32 KiB, and hold what a terminal would obey."""


@dataclass(slots=True)
class ClientWaits:
    """Sums since the client's first blocked round."""

    client_id: str
    software: str
    rounds: int = 0
    requests: int = 0
    batches: int = 0
    bytes: int = 0
    wait_ms: float = 0.0
    away_ms: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitsReport:
    """One agent's answer to `siltstone producers`; `agents/write/path.py` makes it, and it travels as JSON."""

    early_per_second: float
    """Early seals that the budget allows now; 0 = never."""
    early_tokens: float
    put_ms: float
    """Running means."""
    commit_ms: float
    clients: Sequence[ClientWaits]


class RunningMean:
    """Of the last values, mostly of the last eight."""

    __slots__ = ("_count", "value")

    def __init__(self) -> None:
        self.value = 0.0
        self._count = 0

    def add(self, value: float) -> None:
        self._count = min(self._count + 1, 8)
        self.value += (value - self.value) / self._count


@dataclass(slots=True)
class _Round:
    client_id: str
    software: str
    requests: int = 0
    batches: int = 0
    bytes: int = 0


class Waits:
    def __init__(self) -> None:
        self._clients: OrderedDict[tuple[str, str], ClientWaits] = OrderedDict()

    @property
    def clients(self) -> Sequence[ClientWaits]:
        return list(self._clients.values())

    def answered(self, submissions: Iterable[Submission], now_ms: float) -> float:
        """A file is answered now. Returns the time in ms that blocked connections waited for it, all together.

        Call it before the senders learn of the answer.
        """
        rounds: dict[Sender, _Round] = {}
        for submission in submissions:
            sender, request = submission.sender, submission.request
            if sender is None or request is None or not sender.is_blocked:
                continue
            part = rounds.get(sender)
            if part is None:
                part = rounds[sender] = _Round(shown(request.header.client_id or ""), shown(request.client.software))
            part.requests += 1
            part.batches += len(submission.batches)
            part.bytes += submission.bytes
        waited_ms = 0.0
        for sender, part in rounds.items():
            wait_ms = sender.silent_ms(now_ms)
            waited_ms += wait_ms
            self._add(part, wait_ms, sender.away_ms)
        return waited_ms

    def _add(self, part: _Round, wait_ms: float, away_ms: float) -> None:
        name = (part.client_id, part.software)
        client = self._clients.get(name)
        if client is None:
            if len(self._clients) >= CLIENTS_MAX:
                self._clients.popitem(last=False)
            client = self._clients[name] = ClientWaits(*name)
        self._clients.move_to_end(name)
        client.rounds += 1
        client.requests += part.requests
        client.batches += part.batches
        client.bytes += part.bytes
        client.wait_ms += wait_ms
        client.away_ms += away_ms


def shown(name: str) -> str:
    """A client's name as it is kept and printed: not long, and without control characters."""
    if len(name) > NAME_CHARS_MAX:
        name = f"{name[: NAME_CHARS_MAX - 1]}…"
    return name if name.isprintable() else "".join(char if char.isprintable() else "?" for char in name)
