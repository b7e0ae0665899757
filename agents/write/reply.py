"""The answer to one produce request while it waits. Commits fill it in; it is given when all its submissions are done.

There may be thousands of these at a time, so each is a future and a timer, not a task. The first of three events ends
it: the last result; the client's own timeout (the batches may still be committed, and an idempotent producer's retry is
then a duplicate); the end of the connection, which cancels the future. While the write stall delays answers, the last
result only starts the delay.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextvars import Context

from agents.write.full_store import FullStore
from agents.write.outcomes import GIVEN_UP_SHARE, BatchOutcomes
from agents.write.stall import WriteStall, patience_ms
from metadata.contract.l0_commit import BatchResult
from runtime.runtime import Runtime
from wire.error_codes import ErrorCode
from wire.messages.produce import PartitionProduceResponse, ProduceResponse

TIMEOUT_MS_MIN = 1_000
"""A client's `request.timeout.ms` is about replicas. A file that lingers for part of a second is no reason to fail."""


class ProduceReply:
    def __init__(
        self,
        response: ProduceResponse,
        *,
        timeout_ms: int,
        stall: WriteStall,
        full: FullStore,
        outcomes: BatchOutcomes,
        runtime: Runtime,
        timers: Context | None = None,
        gone: ErrorCode = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ) -> None:
        """`timers`: the context that the time-out runs in. `gone`: the error for a topic that no longer exists."""
        loop = asyncio.get_running_loop()
        self.future: asyncio.Future[ProduceResponse | None] = loop.create_future()
        self._response = response
        self.gone = gone
        self._timeout_ms = timeout_ms
        self._patience_ms = max(timeout_ms, TIMEOUT_MS_MIN)
        self._stall = stall
        self.full = full
        self._outcomes = outcomes
        self._clock = runtime.clock
        self._metrics = runtime.metrics
        self._shares: list[Share] = []
        self._missing = 0
        self._started_ms = runtime.clock.monotonic_ms()
        self._timer = loop.call_later(self._patience_ms / 1000, self._time_out, context=timers)
        self._delay: asyncio.Task[None] | None = None
        self.future.add_done_callback(self._end)

    def share(self, answers: Sequence[PartitionProduceResponse]) -> Share:
        """The promise of one submission, whose results go into `answers`. Ask for all promises before the first is
        handed on."""
        share = Share(self, answers)
        self._shares.append(share)
        self._missing += 1
        return share

    def settle(self, settled: int) -> None:
        """This many more submissions have their results."""
        self._missing -= settled
        if self._missing:
            return
        # The results are here. From now on only the stall delays, and it leaves the client half of its time.
        self._timer.cancel()
        if self._stall.delays:
            self._delay = asyncio.create_task(self._hold_back(), name="delayed answer")
        else:
            self._give()

    async def _hold_back(self) -> None:
        waited_ms = self._clock.monotonic_ms() - self._started_ms
        await self._stall.hold_back(patience_ms(self._timeout_ms, waited_ms), refused=not self._shares)
        self._give()

    def _time_out(self) -> None:
        if self.future.done():
            return
        # As in Kafka, a partition that has its result keeps it.
        missing = self._unsettled()
        for answer in missing:
            answer.error_code = ErrorCode.REQUEST_TIMED_OUT
            answer.error_message = "the records were not committed in time; they may still be committed later"
        self._outcomes.given_up(len(missing))
        self._give()

    def _unsettled(self) -> list[PartitionProduceResponse]:
        return [answer for share in self._shares if not share.is_settled for answer in share.answers]

    def _end(self, future: asyncio.Future[ProduceResponse | None]) -> None:
        """Given, or the client is gone: keep nothing until the timeout, which the client chose."""
        self._timer.cancel()
        if not future.cancelled():
            return
        if self._delay is not None:
            self._delay.cancel()
        if self._clock.monotonic_ms() - self._started_ms >= GIVEN_UP_SHARE * self._patience_ms:
            self._outcomes.given_up(len(self._unsettled()))

    def _give(self) -> None:
        if not self.future.done():
            self.future.set_result(self._response)
        self._metrics.produce_latency_seconds.observe((self._clock.monotonic_ms() - self._started_ms) / 1000)


class Share:
    """The promise of one submission (`submission.Promise`)."""

    __slots__ = ("_reply", "answers", "is_settled")

    def __init__(self, reply: ProduceReply, answers: Sequence[PartitionProduceResponse]) -> None:
        self._reply = reply
        self.answers = answers
        self.is_settled = False

    def done(self) -> bool:
        """No client waits any more: its request timed out, or it disconnected."""
        return self._reply.future.done()

    def set_result(self, result: Sequence[BatchResult], /) -> None:
        for answer, each in zip(self.answers, result, strict=True):
            if each.error == int(ErrorCode.KAFKA_STORAGE_ERROR):
                answer.error_message = self._reply.full.reason
            is_gone = each.error == int(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
            answer.error_code = self._reply.gone if is_gone else each.error
            answer.base_offset = each.base_offset
            answer.log_append_time_ms = each.log_append_time_ms
        self.is_settled = True
        self._reply.settle(1)
