"""The trace span of a merge. With tracing on, every merge is traced, because a compactor runs few of them.

Its child spans are the claim, the wait for memory, the merge itself, and the commit. The merge has a span for each
request to the object store (ranged GETs read the inputs, parts of uploads write the outputs), or one for each driver of
a Spark job.
"""

from __future__ import annotations

from metadata.contract.jobs import ClaimedJob, CommitMerge
from runtime.tracing import CURRENT_SPAN, Span, SpanKind, Tracing

SHOWN = ("records_in", "records_out", "bytes_in", "bytes_out", "gets", "outputs", "passes")
"""The figures of a merge's summary that become attributes."""


def merge_span(tracing: Tracing, claimed: ClaimedJob, claim_ms: float) -> Span:
    """`claim_ms`: the time since the claim was sent. The answer has come just now."""
    job = claimed.job
    span = tracing.start(
        f"merge {job.kind}",
        ago_ms=claim_ms,
        attributes={
            "siltstone.job.id": job.job_id,
            "siltstone.job.kind": job.kind,
            "siltstone.job.epoch": job.epoch,
            "siltstone.job.bytes": job.input_bytes,
            "siltstone.job.l0.files": len(claimed.l0_files),
            "siltstone.job.extents": len(claimed.extents),
        },
    )
    attributes = {"db.system.name": "postgresql"}
    span.child("claim", kind=SpanKind.CLIENT, ago_ms=claim_ms, attributes=attributes).end()
    return span


def note_outputs(commit: CommitMerge) -> None:
    span = CURRENT_SPAN.get()
    if span is None:
        return
    span.set({f"siltstone.merge.{name}": commit.summary[name] for name in SHOWN if name in commit.summary})
    span.set({"siltstone.merge.files": [output.key for output in commit.outputs[:20]]})
