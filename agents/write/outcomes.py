"""The outcomes of record batches, counted as their clients see them (`siltstone_produce_batches_total`).

An error is a *failure* if the client could do nothing about it, whatever error code tells it to try again. Failures are
the share of produce that an operator promises; a refusal is for the client to mend, or sends it to another agent.
"""

from __future__ import annotations

from collections.abc import Sequence

from agents.write.submission import Submission
from metadata.contract.l0_commit import BatchResult
from runtime.metrics import Metrics
from wire.error_codes import ErrorCode
from wire.messages.produce import ProduceResponse

FAILURES = frozenset(
    {
        int(ErrorCode.KAFKA_STORAGE_ERROR),  # the object store, the write stall, a full index, too many walks
        int(ErrorCode.LEADER_NOT_AVAILABLE),  # the metadata store did not say in time whether there is such a topic
        int(ErrorCode.REQUEST_TIMED_OUT),
        int(ErrorCode.UNKNOWN_SERVER_ERROR),
    }
)
_LEASE_LOST = int(ErrorCode.NOT_LEADER_OR_FOLLOWER)
"""As an answer from behind the write path; an agent that stops answers with it before."""
GIVEN_UP_SHARE = 0.9
"""A client that leaves after this share of its own timeout gave up waiting: its clock began before ours."""


class BatchOutcomes:
    def __init__(self, metrics: Metrics) -> None:
        outcomes = metrics.produce_batches_total
        self._stored = outcomes.labels(outcome="stored")
        self._duplicates = outcomes.labels(outcome="duplicate")
        self._refused = outcomes.labels(outcome="refused")
        self._failed = outcomes.labels(outcome="failed")
        self._bytes = metrics.produce_bytes_total

    def answered(self, submission: Submission, results: Sequence[BatchResult]) -> None:
        """The results of batches that the write path took. Call it before the promise is kept."""
        duplicates = refused = failed = stored = stored_bytes = 0
        for batch, result in zip(submission.batches, results, strict=True):
            if result.duplicate:
                duplicates += 1
            elif not result.error:
                stored += 1
                stored_bytes += len(batch.records)
            elif result.error in FAILURES or result.error == _LEASE_LOST:
                failed += 1
            else:
                refused += 1
        # Not for each batch: a submission may have thousands, and this is a turn of the event loop.
        if duplicates:
            self._duplicates.inc(duplicates)
        if refused:
            self._refused.inc(refused)
        # A client that gave up was counted then, and one that went away before sees no failure.
        if failed and not submission.promise.done():
            self._failed.inc(failed)
        if stored:
            self._stored.inc(stored)
            self._bytes.inc(stored_bytes)

    def refused_at_once(self, response: ProduceResponse, taken: int) -> None:
        """The errors in an answer, of whose batches the write path took `taken`."""
        # Nearly every request has none, and is not looked through.
        if sum(len(topic.partition_responses) for topic in response.responses) == taken:
            return
        errors = [part.error_code for topic in response.responses for part in topic.partition_responses]
        failed = sum(error in FAILURES for error in errors)
        if failed:
            self._failed.inc(failed)
        if refused := len(errors) - taken - failed:
            self._refused.inc(refused)

    def given_up(self, batches: int) -> None:
        """A client waited as long as it wanted for this many."""
        self._failed.inc(batches)
