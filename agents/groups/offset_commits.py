"""Offset commits of one agent, grouped: all commits within LINGER_MS go to the metadata store in one call.

One call is under way at a time, so a group's commits are written in the order in which they were judged. If the outcome
of a call is unknown (it may have been written, or may yet be), its commits are answered COORDINATOR_NOT_AVAILABLE and
the group is given up. It is taken again under a new epoch, which waits for or fences the call that is still on its way.
So no offset can appear after one that was committed later.

Offsets of transactions (TxnOffsetCommit) go to the store by calls of their own, grouped in the same way but without a
wait: a request that comes during a call belongs to the next one. A request of unknown outcome is answered
COORDINATOR_NOT_AVAILABLE too, but its group stays: if it was written, it was written before anything that comes later
(`metadata/postgres/transactions/offsets.py`), and its producer repeats it.

A new generation waits for `settled`: a member that reads its offsets after the rebalance must not be overtaken by a
commit that was accepted before it.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeAlias, TypeVar

from agents.groups.events import TransactionalProducer
from metadata.contract.errors import MetadataUnavailableError
from metadata.groups.contract import (
    GroupLease,
    GroupMetadata,
    OffsetCommitBatch,
    OffsetCommitResult,
    OffsetPlace,
    OffsetToCommit,
)
from metadata.transactions.contract import TransactionalOffsets, TransactionalOffsetsResult, TransactionMetadata
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from runtime.runtime import Runtime
from runtime.tracing import CURRENT_SPAN, SpanKind, child_span
from wire.error_codes import ErrorCode

_log = get_logger(__name__)

T = TypeVar("T")

LINGER_MS = 10.0
OFFSETS_PER_CALL_MAX = 5_000
"""Offsets in one call, unless a single request has more."""
BYTES_WAITING_MAX = 32 << 20
"""Bytes of all waiting commits at most. A commit above the bound is refused with a retriable error."""
OFFSET_BYTES = 300
"""Approximate memory of one offset without its metadata."""

Outcome: TypeAlias = OffsetCommitResult | ErrorCode
"""The store's outcome for each place, or the error that took its place."""

_REFUSALS = (ErrorCode.INVALID_PRODUCER_ID_MAPPING, ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_TXN_STATE)
"""What the store says of a transaction."""


@dataclass(frozen=True, slots=True)
class WaitingCommit:
    lease: GroupLease
    offsets: Sequence[OffsetToCommit]
    since_ms: float
    bytes: int
    outcome: asyncio.Future[Outcome]


class HeldCommit(NamedTuple):
    """One that counts when the transaction of this producer commits."""

    commit: WaitingCommit
    producer: TransactionalProducer

    def request(self) -> TransactionalOffsets:
        producer = self.producer
        return TransactionalOffsets(
            group=self.commit.lease,
            transactional_id=producer.transactional_id,
            producer_id=producer.producer_id,
            producer_epoch=producer.producer_epoch,
            adds=producer.adds,
            offsets=self.commit.offsets,
        )


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
        transactions: TransactionMetadata,
        runtime: Runtime,
        on_lost: Callable[[GroupLease, ErrorCode], None],
    ) -> None:
        """`on_lost` gets leases that are fenced (NOT_COORDINATOR) or in doubt (COORDINATOR_NOT_AVAILABLE)."""
        self._metadata = metadata
        self._transactions = transactions
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._on_lost = on_lost
        self._waiting: deque[WaitingCommit] = deque()
        self._under_way: Sequence[WaitingCommit] = ()
        self._to_hold: deque[HeldCommit] = deque()
        self._held_now: Sequence[HeldCommit] = ()
        self._some_to_hold = asyncio.Event()
        self._holder: asyncio.Task[None] | None = None
        self._bytes = 0
        self._some = asyncio.Event()
        self._writer: asyncio.Task[None] | None = None
        self._closed = False

    def start(self) -> None:
        self._writer = asyncio.create_task(self._write_for_ever(), name="offset commits")
        self._holder = asyncio.create_task(self._hold_for_ever(), name="offsets of transactions")

    async def add(
        self, lease: GroupLease, offsets: Sequence[OffsetToCommit], producer: TransactionalProducer | None = None
    ) -> Outcome:
        """Write these offsets in turn, or hold them in the transaction of this producer. If the caller is cancelled,
        they are still written."""
        if self._closed:
            return ErrorCode.NOT_COORDINATOR
        size = sum(OFFSET_BYTES + len(offset.metadata) * 4 for offset in offsets)
        # A commit above the bound by itself is taken when nothing waits, or it could never be.
        if self._bytes and self._bytes + size > BYTES_WAITING_MAX:
            # Old producers (TxnOffsetCommit 0 and 1) know the second alone: KAFKA-7296.
            return ErrorCode.COORDINATOR_LOAD_IN_PROGRESS if producer is None else ErrorCode.COORDINATOR_NOT_AVAILABLE
        self._bytes += size
        outcome: asyncio.Future[Outcome] = asyncio.get_running_loop().create_future()
        commit = WaitingCommit(lease, offsets, self._clock.monotonic_ms(), size, outcome)
        if producer is None:
            self._waiting.append(commit)
            self._some.set()
        else:
            self._to_hold.append(HeldCommit(commit, producer))
            self._some_to_hold.set()
        if CURRENT_SPAN.get() is None:
            return await asyncio.shield(outcome)
        # One call to the store serves the commits of many requests; each measures how long its own took.
        attributes = {"db.system.name": "postgresql", "siltstone.offsets": len(offsets)}
        with child_span("commit offsets", kind=SpanKind.CLIENT, attributes=attributes):
            return await asyncio.shield(outcome)

    async def settled(self, group_id: str) -> None:
        """Return when every earlier commit of the group has its outcome."""
        outcomes = [each.outcome for each in self._all() if each.lease.group_id == group_id]
        if outcomes:
            await asyncio.wait(outcomes)

    async def drain(self) -> None:
        """Take no more commits, and return when the waiting ones are written."""
        self._closed = True
        outcomes = [each.outcome for each in self._all()]
        if outcomes:
            await asyncio.wait(outcomes)

    async def close(self) -> None:
        """Write nothing more."""
        self._closed = True
        writers = [each for each in (self._writer, self._holder) if each is not None]
        for writer in writers:
            writer.cancel()
        await asyncio.gather(*writers, return_exceptions=True)
        for each in self._all():
            self._settle(each, ErrorCode.COORDINATOR_NOT_AVAILABLE)

    def _all(self) -> list[WaitingCommit]:
        held = (each.commit for each in (*self._held_now, *self._to_hold))
        return [*self._under_way, *self._waiting, *held]

    # ---- the writer

    async def _write_for_ever(self) -> None:
        while True:
            await self._some.wait()
            await self._linger()
            taken = self._under_way = _taken(self._waiting, lambda each: len(each.offsets))
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

    # ---- commits in transactions

    async def _hold_for_ever(self) -> None:
        while True:
            await self._some_to_hold.wait()
            taken = self._held_now = _taken(self._to_hold, lambda each: len(each.commit.offsets))
            try:
                outcomes = await self._hold(taken)
            except Exception:
                _log.exception("offsets not held")
                outcomes = [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(taken)
            for each, outcome in zip(taken, outcomes, strict=True):
                self._settle(each.commit, outcome)
            self._held_now = ()
            if not self._to_hold:
                self._some_to_hold.clear()

    async def _hold(self, taken: Sequence[HeldCommit]) -> Sequence[Outcome]:
        """As `_write`."""
        started_ms = self._clock.monotonic_ms()
        try:
            results = await self._transactions.commit_offsets([each.request() for each in taken])
        except MetadataUnavailableError as error:
            _log.warning("offsets may not be held", requests=len(taken), error=str(error))
            return [ErrorCode.COORDINATOR_NOT_AVAILABLE] * len(taken)
        except SiltstoneError as error:
            if len(taken) > 1:  # as above
                return [(await self._hold([each]))[0] for each in taken]
            _log.warning("offsets refused", group=taken[0].commit.lease.group_id, error=str(error))
            return [ErrorCode.INVALID_REQUEST]
        self._metrics.offset_commit_seconds.observe((self._clock.monotonic_ms() - started_ms) / 1000)
        for each, result in zip(taken, results, strict=True):
            if result.fenced:
                self._on_lost(each.commit.lease, ErrorCode.NOT_COORDINATOR)
        return [_outcome(each) for each in results]

    def _settle(self, commit: WaitingCommit, outcome: Outcome) -> None:
        if commit.outcome.done():
            return
        self._bytes -= commit.bytes
        commit.outcome.set_result(outcome)
        self._metrics.offset_commits_total.labels(outcome=_name(outcome)).inc()
        if isinstance(outcome, OffsetCommitResult) and not outcome.fenced:
            self._metrics.committed_offsets_total.inc(len(commit.offsets))


def _taken(waiting: deque[T], size_of: Callable[[T], int]) -> list[T]:
    """The first ones, up to the bound of a call."""
    taken = [waiting.popleft()]
    offsets = size_of(taken[0])
    while waiting and offsets + size_of(waiting[0]) <= OFFSETS_PER_CALL_MAX:
        taken.append(waiting.popleft())
        offsets += size_of(taken[-1])
    return taken


def _outcome(result: TransactionalOffsetsResult) -> Outcome:
    return ErrorCode(result.error) if result.error else OffsetCommitResult(fenced=result.fenced, unknown=result.unknown)


def _name(outcome: Outcome) -> str:
    if isinstance(outcome, ErrorCode):
        return "refused" if outcome in _REFUSALS else "failed"
    return "fenced" if outcome.fenced else "committed"
