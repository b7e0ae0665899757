"""An agent gathers the ends of its transactions into lists, and makes one call to the metadata store at a time.

An end that comes after a quiet time goes at once. Those that come while a call is under way go together in the next
one. Calls are bounded, because each is a commit, which locks the partitions of all its transactions: one each
ENDS_INTERVAL_MS in the long run, and CALLS_AT_ONCE one after another. Clients whose records were in one file are
answered in the same moment and end together: the first call takes one of them, the next ones all others.
A list never holds two ends of one id, because the second is judged by what the first has left.

Markers are written under an identity of their own, so that no end waits behind the PUT of a file. It is registered when
the first transaction ends, and again after it was fenced. If the answer to a call is lost, the *same* call is repeated
until it is answered, and the next list waits: the call may be on its way still, and under another key its ends would be
judged again. A crash leaves transactions ended whose clients were not told; they ask again and get the same answer.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from metadata.contract.errors import MetadataUnavailableError
from metadata.contract.l0_commit import CommitInDoubtError, CommitRefusedError
from metadata.contract.leases import WriterFencedError, WriterLease
from metadata.transactions.contract import (
    ENDS_MAX,
    PRODUCER_EPOCH_MAX,
    EndTransaction,
    EndTransactions,
    TransactionEnded,
    TransactionMetadata,
    TransactionsEnded,
)
from runtime.logging import get_logger
from runtime.runtime import Runtime
from storage.keys import file_key
from wire.error_codes import ErrorCode
from wire.markers import build_marker

_log = get_logger(__name__)

ENDS_INTERVAL_MS = 50.0
"""Of the calls of a long run: 20 a second."""
CALLS_AT_ONCE = 4
"""Calls that may follow one another without a pause, after a quiet time."""
BACKOFF_MS, BACKOFF_MS_MAX = 50.0, 2_000.0
"""First and longest pause before a call whose answer is lost is repeated."""
SLOW_MS = 500.0
"""A call that takes longer holds up the commits of files on the same partitions: the next list is shorter."""
NOT_ENDED = TransactionEnded(int(ErrorCode.COORDINATOR_NOT_AVAILABLE), -1, -1)
"""It is not known whether it ended. The client asks again."""
_UNUSED = -1
"""For an end that cannot use up its producer's epochs: ids cost a call of the store for each hundred."""


class Identity(Protocol):
    """The agent's (`agents/membership.py`)."""

    @property
    def current(self) -> WriterLease: ...

    def now_ms(self) -> int:
        """The metadata store's time."""
        ...


class ProducerIds(Protocol):
    async def take(self) -> int: ...


@dataclass(frozen=True, slots=True)
class WaitingEnd:
    end: EndTransaction
    """Without its marker."""
    coordinator_epoch: int
    since_ms: float
    outcome: asyncio.Future[TransactionEnded]


def next_list(waiting: Sequence[WaitingEnd], limit: int) -> tuple[list[WaitingEnd], list[WaitingEnd]]:
    """The ends of the next call, and those that go on waiting; both in the order in which they came."""
    taken: list[WaitingEnd] = []
    rest: list[WaitingEnd] = []
    ids: set[str] = set()
    for each in waiting:
        if len(taken) < limit and each.end.transactional_id not in ids:
            taken.append(each)
            ids.add(each.end.transactional_id)
        else:
            rest.append(each)
    return taken, rest


def pause_ms(paid_until_ms: float, now_ms: float) -> float:
    """How long the next call has to wait. Each call so far has paid for ENDS_INTERVAL_MS (see `paid_until_ms`)."""
    return max(0.0, paid_until_ms - (CALLS_AT_ONCE - 1) * ENDS_INTERVAL_MS - now_ms)


def paid_until_ms(before_ms: float, began_ms: float) -> float:
    """The moment until which the calls are paid for, with one that began now. A quiet time saves up nothing."""
    return max(before_ms, began_ms) + ENDS_INTERVAL_MS


def next_limit(limit: int, ends: int, took_ms: float) -> int:
    """How many ends the next call may have, after one of so many ends took so long."""
    if took_ms > SLOW_MS:
        return max(1, ends // 2)
    return min(ENDS_MAX, limit * 2)


def outcome_name(end: EndTransaction, result: TransactionEnded) -> str:
    if result == NOT_ENDED:
        return "failed"
    if result.error:
        return "refused"
    if end.fences:
        return "fenced" if end.overdue_ms is None else "timed_out"
    return "committed" if end.commit else "aborted"


class Ends:
    def __init__(
        self,
        *,
        metadata: TransactionMetadata,
        identity: Identity,
        producer_ids: ProducerIds,
        on_ended: Callable[[EndTransactions, TransactionsEnded], None],
        runtime: Runtime,
    ) -> None:
        """`on_ended` is called before the clients are answered."""
        self._metadata = metadata
        self._identity = identity
        self._producer_ids = producer_ids
        self._on_ended = on_ended
        self._clock = runtime.clock
        self._ids = runtime.ids
        self._metrics = runtime.metrics.transactions
        self._waiting: list[WaitingEnd] = []
        self._under_way: Sequence[WaitingEnd] = ()
        self._some = asyncio.Event()
        self._limit = ENDS_MAX
        self._paid_until_ms = float("-inf")
        self._writer: WriterLease | None = None
        self._seq = 0
        self._named_ms = 0
        self._closed = False
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._task = asyncio.create_task(self._end_for_ever(), name="ends of transactions")

    async def close(self) -> None:
        """End nothing more. Those that wait are told so; their clients ask another agent."""
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        for each in (*self._under_way, *self._waiting):
            self._settle(each, NOT_ENDED)
        self._waiting = []

    async def end(self, end: EndTransaction, *, coordinator_epoch: int) -> TransactionEnded:
        """End it with the next list. `end` has no marker yet; `coordinator_epoch` goes into it.

        The result has an error of the store, or is NOT_ENDED. If the caller is cancelled, it still ends.
        """
        if self._closed:
            return NOT_ENDED
        outcome: asyncio.Future[TransactionEnded] = asyncio.get_running_loop().create_future()
        self._waiting.append(WaitingEnd(end, coordinator_epoch, self._clock.monotonic_ms(), outcome))
        self._some.set()
        return await asyncio.shield(outcome)

    # ---- inside

    async def _end_for_ever(self) -> None:
        while True:
            await self._some.wait()
            if pause := pause_ms(self._paid_until_ms, self._clock.monotonic_ms()):
                await self._clock.sleep_ms(pause)
            began_ms = self._clock.monotonic_ms()
            self._paid_until_ms = paid_until_ms(self._paid_until_ms, began_ms)
            taken, self._waiting = next_list(self._waiting, self._limit)
            self._under_way = taken
            try:
                results = await self._end_all(taken)
            except Exception:  # those behind must not wait for ever
                _log.exception("transactions not ended")
                results = [NOT_ENDED] * len(taken)
            self._limit = next_limit(self._limit, len(taken), self._clock.monotonic_ms() - began_ms)
            for each, result in zip(taken, results, strict=True):
                self._settle(each, result)
            self._under_way = ()
            if not self._waiting:
                self._some.clear()

    async def _end_all(self, taken: Sequence[WaitingEnd]) -> Sequence[TransactionEnded]:
        """The store's errors are part of the results."""
        for _ in range(2):
            try:
                request = await self._request(taken)
            except (MetadataUnavailableError, WriterFencedError) as error:
                _log.warning("transactions not ended yet", ends=len(taken), error=str(error))
                break
            try:
                ended = await self._end_until_answered(request)
            except WriterFencedError as error:
                # Nothing was changed. The identity is ours as long as the agent's is: register it again.
                _log.warning("the writer of markers was fenced", error=str(error))
                self._writer = None
                continue
            except CommitRefusedError as error:
                _log.error("transactions not ended", ends=len(taken), error=str(error))
                self._writer = None
                if len(taken) == 1:
                    break
                # One of them cannot be ended; the others must not suffer for it.
                half = len(taken) // 2
                return [*await self._end_all(taken[:half]), *await self._end_all(taken[half:])]
            self._on_ended(request, ended)
            return ended.results
        return [NOT_ENDED] * len(taken)

    async def _request(self, taken: Sequence[WaitingEnd]) -> EndTransactions:
        """Raises MetadataUnavailableError, WriterFencedError."""
        new_ids = [
            await self._producer_ids.take() if each.end.producer_epoch >= PRODUCER_EPOCH_MAX else _UNUSED
            for each in taken
        ]
        if self._writer is None:
            self._writer = await self._metadata.register_marker_writer(self._identity.current)
            self._seq = 0
        writer = self._writer
        now_ms = self._identity.now_ms()
        self._seq += 1
        # Strictly increasing, as those of files of records (`agents/write/path.py`), and for the same reader of them.
        self._named_ms = max(now_ms, self._named_ms + 1)
        key = file_key(
            level=0,
            writer_id=writer.writer_id,
            epoch=writer.epoch,
            file_uuid=self._ids.uuid7(self._named_ms),
            created_ms=now_ms,
        )
        ends = [
            replace(
                each.end,
                marker=build_marker(
                    each.end.producer_id,
                    each.end.marker_epoch,
                    commit=each.end.commit,
                    coordinator_epoch=each.coordinator_epoch,
                    timestamp_ms=now_ms,
                ),
            )
            for each in taken
        ]
        return EndTransactions(
            lease=writer, seq=self._seq, key=key, ends=ends, timestamp_ms=now_ms, new_producer_ids=new_ids
        )

    async def _end_until_answered(self, request: EndTransactions) -> TransactionsEnded:
        """Raises WriterFencedError, CommitRefusedError."""
        backoff_ms = BACKOFF_MS
        started_ms = self._clock.monotonic_ms()
        while True:
            try:
                ended = await self._metadata.end_transactions(request)
            # Unavailable counts as in doubt: an earlier call of this loop may still be on its way.
            except (CommitInDoubtError, MetadataUnavailableError) as error:
                _log.warning("ends in doubt, repeating the call", key=request.key, error=str(error))
                # Jitter: all agents lose the store at the same moment.
                await self._clock.sleep_ms(backoff_ms * (0.5 + self._ids.jitter() / 2))
                backoff_ms = min(backoff_ms * 2, BACKOFF_MS_MAX)
                continue
            elapsed_ms = round(self._clock.monotonic_ms() - started_ms, 1)
            _log.debug("transactions ended", key=request.key, ends=len(request.ends), elapsed_ms=elapsed_ms)
            return ended

    def _settle(self, waiting: WaitingEnd, result: TransactionEnded) -> None:
        if waiting.outcome.done():
            return
        waiting.outcome.set_result(result)
        self._metrics.ended_total.labels(outcome=outcome_name(waiting.end, result)).inc()
        self._metrics.end_seconds.observe((self._clock.monotonic_ms() - waiting.since_ms) / 1000)
