"""Log lines and the span of an L0 file on its way from the buffer to its commit.

Every line about a file names its object key, so that one search for the key shows the file's life. At level debug, each
request whose records the file carries has a line of its own with that key ("records sealed"): a client's correlation id
leads to the file. The span of a file has no parent. It is linked, both ways, to the traced requests that the file
carries; if none of them is traced, neither is the file.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from agents.write.buffer import SealReason
from agents.write.seal import SealedL0
from agents.write.submission import Submission
from runtime.logging import About, get_logger, log_context, shows_debug
from runtime.tracing import Span, SpanKind, Tracing

_log = get_logger(__name__)

REQUESTS_NAMED_MAX = 50


def note_sealed(key: str, seq: int, reason: SealReason, sealed: SealedL0) -> None:
    """Mark the requests with their file, and log both at level debug."""
    for submission in sealed.submissions:
        if submission.request is not None:
            submission.request.file_key = key
    if not shows_debug():
        return
    body_bytes, batches = len(sealed.file.parts), len(sealed.batches)
    facts = {"requests": len(sealed.submissions), "batches": batches, "bytes": body_bytes}
    with log_context(about_file(key)):
        _log.debug("file sealed", seq=seq, reason=reason.value, **facts)
    for submission in sealed.submissions:
        with log_context(submission.request):
            _log.debug("records sealed", key=key, batches=len(submission.batches), bytes=submission.bytes)


def begin_span(tracing: Tracing, key: str, reason: SealReason, sealed: SealedL0) -> Span | None:
    """None if no request that the file carries is traced."""
    requests = {id(each.request): each.request for each in sealed.submissions}
    carried = [each.trace for each in requests.values() if each is not None and each.trace is not None]
    if not carried:
        return None
    file = tracing.start(
        "write L0 file",
        links=[trace.span for trace in carried],
        attributes={
            "siltstone.file.key": key,
            "siltstone.file.bytes": len(sealed.file.parts),
            "siltstone.file.requests": len(sealed.submissions),
            "siltstone.file.sealed.by": reason.value,
            "messaging.batch.message_count": sum(batch.record_count for batch in sealed.batches),
        },
    )
    for trace in carried:
        # The request's "buffered" step ends here; the file's own span goes on from it.
        trace.end_part()
        trace.span.link(file)
        trace.span.set({"siltstone.file.key": key})
    return file


def begin_commit(file: Span | None) -> Span | None:
    if file is None:
        return None
    return file.child("commit", kind=SpanKind.CLIENT, attributes={"db.system.name": "postgresql"})


def about_file(key: str) -> About:
    return About(key=key)


def requests_named(submissions: Sequence[Submission]) -> dict[str, Any]:
    """The requests that the records came from, as CONNECTION:CORRELATION_ID, for a line about a file that failed."""
    names = [each.request.name for each in submissions[:REQUESTS_NAMED_MAX] if each.request is not None]
    more = len(submissions) - len(submissions[:REQUESTS_NAMED_MAX])
    return {"requests": names, **({"more_requests": more} if more else {})}
