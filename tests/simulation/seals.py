"""The seal rule, judged from outside: when producers sent, when an agent put their file, and what it had committed.

A file that was put sooner than `produce.linger.ms` after the first of its batches was sent cannot have been sealed for
the linger, so it was sealed early: no file here is large enough to be full, and those of a draining agent are left out.
Other files are not counted, so the books err to the agent's side.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from unittest.mock import patch

from agents.write.buffer import SealOptions
from metadata.contract.l0_commit import CommitL0, Committed
from runtime.settings.table import Settings
from tests.simulation.faults import Path
from tests.simulation.loop import Process

if TYPE_CHECKING:
    from tests.simulation.world import World

ENOUGH = 3
"""Early seals of one agent that tell something about its rate."""


@dataclass(frozen=True, slots=True)
class Sent:
    at_ms: float
    """The first time."""
    is_trickle: bool


class SealWatch:
    """Everything that idempotent producers sent."""

    def __init__(self) -> None:
        self._sent: dict[tuple[int, int], Sent] = {}

    def sent(self, producer_id: int, sequence: int, at_ms: float, *, is_trickle: bool) -> None:
        self._sent.setdefault((producer_id, sequence), Sent(at_ms, is_trickle))

    def batches_of(self, request: CommitL0) -> list[Sent] | None:
        """None if the file holds a batch of another producer."""
        found = [self._sent.get((batch.producer_id, batch.base_sequence)) for batch in request.batches]
        known = [sent for sent in found if sent is not None]
        return known if len(known) == len(found) else None


class AgentSeals:
    """The files of one process."""

    def __init__(self, world: World, process: Process, settings: Settings, tokens_max: float) -> None:
        self._world = world
        self._process = process
        self._settings = settings
        self._tokens_max = tokens_max
        self._started_ms = world.loop.now_ms
        self._puts: dict[str, tuple[float, int]] = {}
        """When the first PUT of a file began, and the files committed by then."""
        self._seen: dict[str, None] = {}
        self._committed = 0
        self._early = 0
        self._carried_bytes = 0
        self.is_draining = False

    def put_begun(self, key: str) -> None:
        if not self.is_draining:
            self._puts.setdefault(key, (self._world.loop.now_ms, self._committed))

    def committed(self, committed: Committed) -> None:
        # A file of nothing but duplicates holds no records, so it is not a live one.
        if any(not result.duplicate and not result.error for result in committed.results):
            self._committed += 1

    def committing(self, request: CommitL0) -> None:
        batches = self._world.seal_watch.batches_of(request)
        if request.key in self._seen or request.key not in self._puts or not batches:
            return
        self._seen[request.key] = None
        put_ms, committed = self._puts[request.key]
        held_ms = put_ms - min(sent.at_ms for sent in batches)
        is_early = held_ms < self._settings.produce_linger_ms
        name = f"{self._process.name} sealed {request.key} early after {held_ms:.1f} ms"
        self._judge_trickle(is_early, all(sent.is_trickle for sent in batches), name)
        # One commit may be answered between the seal and the PUT.
        if not self._world.has_merges:  # files that were merged do not stall
            self._judge_stall(is_early, committed > self._settings.l0_stall_files, name)
        if is_early:
            self._world.faults.count(Path.SEALED_EARLY)
            self._judge_budget(request.size_bytes, put_ms, name)

    def _judge_trickle(self, is_early: bool, is_trickle: bool, name: str) -> None:
        if is_trickle:
            self._world.faults.count(Path.TRICKLE_WAITED)
            if is_early:
                self._world.violation(f"{name}, and it holds a trickle alone")

    def _judge_stall(self, is_early: bool, is_stalled: bool, name: str) -> None:
        if is_stalled:
            self._world.faults.count(Path.STALL_ENDED_EARLY)
            if is_early:
                self._world.violation(f"{name}, though the write stall was on")

    def _judge_budget(self, size_bytes: int, put_ms: float, name: str) -> None:
        self._early += 1
        self._carried_bytes += size_bytes
        seconds = (put_ms - self._started_ms) / 1000
        allowed = (
            self._tokens_max
            + self._settings.produce_early_per_second * seconds
            + self._carried_bytes / self._settings.produce_early_free_bytes
        )
        if self._early > allowed:
            self._world.violation(f"{name}, the {self._early}th in {seconds:.3f} s, where {allowed:.2f} are paid for")
        elif self._early >= ENOUGH and self._early + 2 > allowed:
            self._world.faults.count(Path.BUDGET_SPENT)


@contextmanager
def tokens_of(tokens_max: float) -> Iterator[None]:
    """A run takes seconds: a budget that lasts for half a minute would never be empty."""
    with patch("agents.agent.SealOptions", partial(SealOptions, early_tokens_max=tokens_max)):
        yield
