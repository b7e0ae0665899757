"""Offset commits of one agent, grouped: all commits within LINGER_MS go to the metadata store in one call.

One call is under way at a time, so a group's commits are written in the order in which they were judged. If the outcome
of a call is unknown (it may have been written, or may yet be), its commits are answered COORDINATOR_NOT_AVAILABLE and
the group is given up. It is taken again under a new epoch, which waits for or fences the call that is still on its way.
So no offset can appear after one that was committed later.

A new generation waits for `settled`: a member that reads its offsets after the rebalance must not be overtaken by a
commit that was accepted before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.groups import (
    GroupLease,
    GroupMetadata,
    OffsetCommitBatch,
    OffsetCommitResult,
    OffsetPlace,
    OffsetToCommit,
)
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from runtime.tracing import CURRENT_SPAN, SpanKind, child_span
from wire.error_codes import ErrorCode

_log = get_logger(__name__)

LINGER_MS = 10.0
OFFSETS_PER_CALL_MAX = 5_000
"""Offsets in one call, unless a single request has more."""
BYTES_WAITING_MAX = 32 << 20
"""Bytes of all waiting commits at most. A commit above the bound is refused with a retriable error."""
OFFSET_BYTES = 300
"""Approximate memory of one offset without its metadata."""

Outcome: TypeAlias = OffsetCommitResult | ErrorCode
"""The store's outcome for each place, or the error that took its place."""


@dataclass(frozen=True, slots=True)
class WaitingCommit:
    lease: GroupLease
    offsets: Sequence[OffsetToCommit]
    since_ms: float
    bytes: int
    outcome: asyncio.Future[Outcome]


def grouped(waiting: Iterable[tuple[GroupLease, Sequence[OffsetToCommit]]]) -> list[OffsetCommitBatch]:
    """One batch per lease, in order of first appearance. If a place comes twice, the last one counts."""
    by_lease: dict[GroupLease, dict[OffsetPlace, OffsetToCommit]] = {}
    for lease, offsets in waiting:
        places = by_lease.setdefault(lease, {})
        for offset in offsets:
            places[offset.place] = offset
    return [OffsetCommitBatch(lease=lease, offsets=tuple(places.values())) for lease, places in by_lease.items()]


class OffsetCommits:
    def __init__(
        self,
        *,
        metadata: GroupMetadata,
        runtime: Runtime,
        on_lost: Callable[[GroupLease, ErrorCode], None],
    ) -> None:
        """`on_lost` gets leases that are fenced (NOT_COORDINATOR) or in doubt (COORDINATOR_NOT_AVAILABLE)."""
        self._metadata = metadata
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._on_lost = on_lost
        self._waiting: deque[WaitingCommit] = deque()
        self._under_way: Sequence[WaitingCommit] = ()
        self._bytes = 0
        self._some = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        self._writer = asyncio.create_task(self._write_for_ever(), name="offset commits")

    async def add(self, lease: GroupLease, offsets: Sequence[OffsetToCommit]) -> Outcome:
        """Write these offsets in turn. If the caller is cancelled, they are still written."""
        if self._closed:
            return ErrorCode.NOT_COORDINATOR
        size = sum(OFFSET_BYTES + len(offset.metadata) * 4 for offset in offsets)
        # A commit above the bound by itself is taken when nothing waits, or it could never be.
        if self._bytes and self._bytes + size > BYTES_WAITING_MAX:
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        self._bytes += size
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        self._waiting.append(WaitingCommit(lease, offsets, self._clock.monotonic_ms(), size, outcome))
        self._some.set()
        if CURRENT_SPAN.get() is None:
            return await asyncio.shield(outcome)
        # One call to the store serves the commits of many requests; each measures how long its own took.
        attributes = {"db.system.name": "postgresql", "siltstone.offsets": len(offsets)}
        with child_span("commit offsets", kind=SpanKind.CLIENT, attributes=attributes):
            return await asyncio.shield(outcome)

    async def settled(self, group_id: str) -> None:
        """Return when every earlier commit of the group has its outcome."""
        outcomes = [each.outcome for each in (*self._under_way, *self._waiting) if each.lease.group_id == group_id]
        if outcomes:
            await asyncio.wait(outcomes)

    async def drain(self) -> None:
        """Take no more commits, and return when the waiting ones are written."""
        self._closed = True
        outcomes = [each.outcome for each in (*self._under_way, *self._waiting)]
        if outcomes:
            await asyncio.wait(outcomes)

    async def close(self) -> None:
        """Write nothing more."""
        self._closed = True
        if self._writer is not None:
            self._writer.cancel()
            await asyncio.gather(self._writer, return_exceptions=True)
        for each in (*self._under_way, *self._waiting):
            self._settle(each, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    # ---- the writer

    async def _write_for_ever(self) -> None:
        while True:
            await self._some.wait()
            await self._linger()
            taken = self._under_way = self._take()
            try:
                outcomes = await self._write(taken)
            except Exception:  # the commits behind must not wait for ever
                _log.exception("offsets not committed")
                outcomes = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(taken)
            for each, outcome in zip(taken, outcomes, strict=True):
                self._settle(each, outcome)
            self._under_way = ()
            if not self._waiting:
                self._some.clear()

    async def _linger(self) -> None:
        wait_ms = self._waiting[0].since_ms + LINGER_MS - self._clock.monotonic_ms()
        if wait_ms > 0 and sum(len(each.offsets) for each in self._waiting) < OFFSETS_PER_CALL_MAX:
            await self._clock.sleep_ms(wait_ms)

    def _take(self) -> list[WaitingCommit]:
        taken = [self._waiting.popleft()]
        offsets = len(taken[0].offsets)
        while self._waiting and offsets + len(self._waiting[0].offsets) <= OFFSETS_PER_CALL_MAX:
            taken.append(self._waiting.popleft())
            offsets += len(taken[-1].offsets)
        return taken

    async def _write(self, taken: Sequence[WaitingCommit]) -> Sequence[Outcome]:
        """The outcome of each commit. The store's errors are part of the outcome and are not raised."""
        batches = grouped((each.lease, each.offsets) for each in taken)
        started_ms = self._clock.monotonic_ms()
        try:
            results = await self._metadata.commit_offsets(batches)
        except MetadataUnavailableError as error:
            _log.warning("offsets may not be committed", groups=len(batches), error=str(error))
            return self._in_doubt(taken)
        except SiltstoneError as error:
            if len(taken) > 1:  # one of them cannot be written; the others must not suffer for it
                return [(await self._write([each]))[0] for each in taken]
            _log.warning("offsets refused", group=taken[0].lease.group_id, error=str(error))
            return [ErrorCode.INVALID_REQUEST]
        except Exception:
            _log.exception("offsets not committed")
            return self._in_doubt(taken)
        self._metrics.offset_commit_seconds.observe((self._clock.monotonic_ms() - started_ms) / 1000)
        by_lease = {batch.lease: result for batch, result in zip(batches, results, strict=True)}
        for lease, result in by_lease.items():
            if result.fenced:
                self._on_lost(lease, ErrorCode.NOT_COORDINATOR)
        return [by_lease[each.lease] for each in taken]

    def _in_doubt(self, taken: Sequence[WaitingCommit]) -> Sequence[Outcome]:
        """Nothing more may be written under these leases: a lost call might arrive behind it."""
        leases = {each.lease for each in taken}
        for lease in leases:
            self._on_lost(lease, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        behind = [each for each in self._waiting if each.lease in leases]
        self._waiting = deque(each for each in self._waiting if each.lease not in leases)
        for each in behind:
            self._settle(each, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(taken)

    def _settle(self, commit: WaitingCommit, outcome: Outcome) -> None:
        if commit.outcome.done():
            return
        self._bytes -= commit.bytes
        commit.outcome.set_result(outcome)
        self._metrics.offset_commits_total.labels(outcome=_name(outcome)).inc()
        if isinstance(outcome, OffsetCommitResult) and not outcome.fenced:
            self._metrics.committed_offsets_total.inc(len(commit.offsets))


def _name(outcome: Outcome) -> str:
    if isinstance(outcome, ErrorCode):
        return "failed"
    return "fenced" if outcome.fenced else "committed"
