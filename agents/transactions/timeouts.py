"""Transactions that outlive their timeout are aborted, and their producers fenced.

Every agent looks once a second for transactions that are overdue. It aborts those whose ids it coordinates, and those
of all others once they are overdue for ABANDONED_MS: their coordinator is frozen, or agents disagree about who it is.
The store judges each again under its lock, so a client's own end and two sweeps never end one transaction twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

from agents.transactions.coordinator import TransactionCoordinator
from metadata.contract.errors import MetadataUnavailableError
from metadata.transactions.contract import TransactionInfo
from runtime.logging import get_logger
from runtime.runtime import Runtime

_log = get_logger(__name__)

SWEEP_MS = 1_000.0
JITTER_SHARE = 0.4
"""So that the agents of a cluster do not all look at the same moment."""
ABANDONED_MS = 30_000
COUNT_SWEEPS = 10
"""Sweeps between two counts of what is open, for metrics."""


def to_abort(
    overdue: Sequence[TransactionInfo], *, owns: Callable[[str], bool], now_ms: int
) -> list[tuple[TransactionInfo, int]]:
    """Those that this agent aborts, each with the time by which it must be overdue. `now_ms`: the store's time."""
    found: list[tuple[TransactionInfo, int]] = []
    for each in overdue:
        if owns(each.transactional_id):
            found.append((each, 0))
        elif each.started_ms is not None and each.started_ms + each.timeout_ms + ABANDONED_MS <= now_ms:
            found.append((each, ABANDONED_MS))
    return found


class TransactionTimeouts:
    def __init__(self, *, coordinator: TransactionCoordinator, now_ms: Callable[[], int], runtime: Runtime) -> None:
        """`now_ms`: the metadata store's time."""
        self._coordinator = coordinator
        self._now_ms = now_ms
        self._clock = runtime.clock
        self._ids = runtime.ids
        self._metrics = runtime.metrics.transactions
        self._sweeps = 0

    async def run_for_ever(self) -> None:
        while True:
            await self._clock.sleep_ms(SWEEP_MS * (1 + JITTER_SHARE * (self._ids.jitter() - 0.5)))
            # An agent whose lease may have run out does not know what it coordinates.
            if not self._coordinator.enabled or not self._coordinator.lease_runs:
                continue
            try:
                await self.sweep()
                if self._sweeps % COUNT_SWEEPS == 0:
                    await self.count()
                self._sweeps += 1
            except MetadataUnavailableError as error:
                _log.info("overdue transactions not searched, the next sweep tries again", error=str(error))
            except Exception:
                _log.exception("overdue transactions not searched, the next sweep tries again")

    async def sweep(self) -> int:
        """Returns how many were aborted. Raises MetadataUnavailableError."""
        overdue = await self._coordinator.metadata.overdue(owner_id=None, overdue_ms=0)
        chosen = to_abort(overdue, owns=self._coordinator.owns, now_ms=self._now_ms())
        ended = await asyncio.gather(*(self._coordinator.abort(each, overdue_ms=late) for each, late in chosen))
        for (each, _), result in zip(chosen, ended, strict=True):
            if not result.error:
                _log.warning(
                    "transaction timed out and was aborted",
                    transactional_id=each.transactional_id,
                    producer_id=each.producer_id,
                    timeout_ms=each.timeout_ms,
                )
        return sum(1 for each in ended if not each.error)

    async def count(self) -> None:
        """Raises MetadataUnavailableError."""
        ongoing = await self._coordinator.metadata.ongoing()
        self._metrics.open.set(ongoing.open)
        self._metrics.oldest_open_seconds.set(ongoing.oldest_ms / 1000)
        self._metrics.held_back_offsets.set(ongoing.held_back_max)
