"""The batches that a Produce request hands to the write path, and a promise of a result for each."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol, cast

from agents.request_context import RequestContext
from agents.sender import Sender
from metadata.contract.l0_commit import BatchResult
from wire.batch import BatchHeader


@dataclass(frozen=True, slots=True)
class PendingBatch:
    """One validated batch; `records` is a view of the request's frame, which it keeps alive."""

    partition_id: int
    topic_id: uuid.UUID
    partition: int
    records: memoryview
    header: BatchHeader
    log_append_time: bool
    api_version: int = 0
    """Of its Produce request; looked at if the batch is transactional."""
    transactional_id: str = ""
    """Of its Produce request."""


class Promise(Protocol):
    """Takes the results: an asyncio.Future in the agent, a list in a test."""

    def done(self) -> bool: ...

    def set_result(self, result: Sequence[BatchResult], /) -> None: ...


BATCHES_MAX = 5_000
"""Batches of one submission, and so of one file. A commit takes about 20 microseconds per batch and must end well
within the store's statement timeout, however slow the machine is."""


SUBMISSION_BYTES = 2_560
BATCH_BYTES = 1_024
"""Measured memory that this process holds for a waiting request, and for each batch in it, besides the records. A bound
that counted records alone would let requests of one small record each take fifteen times as much."""


@dataclass(slots=True)
class Submission:
    batches: Sequence[PendingBatch]
    promise: Promise
    request: RequestContext | None = None
    sender: Sender | None = None
    """The connection that waits for the answer; None if none waits."""
    bytes: int = field(init=False)
    """Bytes of records; a file is sealed by this."""
    held_bytes: int = field(init=False)
    """Bytes of everything that waits for the answer; memory is bounded by this."""

    def __post_init__(self) -> None:
        self.bytes = sum(len(batch.records) for batch in self.batches)
        # One small batch keeps the whole request alive, even if all its other batches were refused.
        frame_bytes = max((memoryview(cast(bytes, batch.records.obj)).nbytes for batch in self.batches[:1]), default=0)
        self.held_bytes = max(self.bytes, frame_bytes) + SUBMISSION_BYTES + BATCH_BYTES * len(self.batches)
