"""Compaction on demand: ask for a pass over a topic and watch until it is done.

The order: what lies there is measured, the request is stored (`request_compaction`), and the views are polled until
cleaned-through of every partition has reached the offset that the request answered. What is written meanwhile is beyond
that offset and not waited for. The request is durable: who stops waiting leaves it to the compactors. A crash here
leaves nothing half done, for the merging is theirs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compactor.dirtiness import stretch_end, unbroken_stretch
from metadata.compaction import JobState, MergeJob, Metadata, NotCompactedError, PartitionView
from metadata.packed_index import iter_index
from metadata.service import MetadataService, Topic, UnknownTopicError
from siltstone.clock import Clock
from siltstone.compaction_report import deduped_partitions, is_compacted
from siltstone.errors import BadInputError, SiltstoneError

POLL_MS = 200
JOBS_READ = 1_000


class NoSuchTopicError(BadInputError):
    """There is no topic of this name (any more)."""


class StillCompactingError(SiltstoneError):
    """The wait ended before the work did. The request stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """What a topic holds below the requested offsets, in all its partitions and levels."""

    records: int
    """In L0 an offset counts as a record."""
    size_bytes: int
    l0_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far it is, at one poll."""

    cleaned: Mapping[int, tuple[int, int, int]]
    """Partition number -> (cleaned-through at the start, now, target)."""
    pending: frozenset[int]
    """Partition numbers whose request stands."""
    jobs: Sequence[MergeJob]
    """Live ones, oldest first, of any topic: what is leveled for this topic is leveled together with others."""
    failed: Sequence[MergeJob]
    """That ended as failed since the request."""
    elapsed_ms: float

    @property
    def done(self) -> bool:
        return not self.pending and all(now >= target for _, now, target in self.cleaned.values())

    @property
    def fraction(self) -> float:
        """0 to 1, by offsets."""
        spans = [
            (max(0, min(now, target) - start), max(0, target - start)) for start, now, target in self.cleaned.values()
        ]
        asked = sum(whole for _, whole in spans)
        return sum(part for part, _ in spans) / asked if asked else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Compacted:
    """What a finished request did."""

    topic: str
    through: Mapping[int, int]
    """Partition number -> the offset (exclusive) up to which it was asked for."""
    before: Size
    after: Size
    jobs: Sequence[MergeJob]
    """That ended as done meanwhile and had to do with the topic."""
    took_ms: float

    @property
    def tombstones_dropped(self) -> int:
        return sum(_number(job, "tombstones_dropped") for job in self.jobs)

    @property
    def tombstones_kept(self) -> int:
        """By the last merge of each partition: what an earlier one kept, the next one read again."""
        counted: set[int] = set()
        kept = 0
        for job in sorted(self.jobs, key=lambda job: -job.job_id):
            partition_ids = deduped_partitions(job)
            if counted.isdisjoint(partition_ids):
                kept += _number(job, "tombstones_kept")
            counted |= partition_ids
        return kept

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "through": {str(number): offset for number, offset in self.through.items()},
            "records_before": self.before.records,
            "records_after": self.after.records,
            "bytes_before": self.before.size_bytes,
            "bytes_after": self.after.size_bytes,
            "tombstones_kept": self.tombstones_kept,
            "tombstones_dropped": self.tombstones_dropped,
            "jobs": [job.job_id for job in self.jobs],
            "took_ms": round(self.took_ms),
        }


def _number(job: MergeJob, name: str) -> int:
    value = job.result.get(name, 0)
    return value if isinstance(value, int) else 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A stored request and what lay there when it was made."""

    topic: Topic
    through: Mapping[int, int]
    """Partition number -> the offset (exclusive) to which it goes."""
    started_from: Mapping[int, int]
    """Partition number -> cleaned-through then."""
    before: Size
    last_job_id: int


async def find_topic(metadata: MetadataService, name: str) -> Topic:
    """Raises NoSuchTopicError."""
    topics = await metadata.topics()
    for topic in topics:
        if topic.name == name:
            return topic
    import difflib

    near = difflib.get_close_matches(name, [topic.name for topic in topics], n=1)
    hint = f"did you mean {near[0]!r}?" if near else "`siltstone topics list` shows the topics there are"
    raise NoSuchTopicError(f"there is no topic {name!r}", remedy=hint)


def require_compacted(topic: Topic) -> None:
    """Raises NotCompactedError."""
    if not is_compacted(topic.configs):
        policy = topic.configs.get("cleanup.policy", "delete")
        raise NotCompactedError(
            f"{topic.name} is not a compacted topic: its cleanup.policy is {policy or 'empty'}",
            remedy=f"siltstone topics alter {topic.name} --config cleanup.policy=compact",
        )


async def request(metadata: Metadata, name: str) -> Request:
    """Measure the topic and ask for its compaction. Raises NoSuchTopicError, NotCompactedError."""
    topic = await find_topic(metadata, name)
    require_compacted(topic)
    newest = await metadata.jobs(limit=1)
    views = await metadata.partition_views(topic.topic_id)
    wanted = await metadata.request_compaction(topic.topic_id)
    through = {view.partition: wanted[view.partition_id] for view in views if view.partition_id in wanted}
    return Request(
        topic=topic,
        through=through,
        started_from={view.partition: view.cleaned_through_offset for view in views},
        before=await _size(metadata, views, through),
        last_job_id=newest[0].job_id if newest else 0,
    )


async def wait(
    metadata: Metadata,
    asked: Request,
    *,
    clock: Clock,
    timeout_ms: float,
    on_progress: Callable[[Progress], None] = lambda _progress: None,
) -> Compacted:
    """Until every partition is cleaned through what was asked for.

    Raises StillCompactingError after `timeout_ms`, NoSuchTopicError when the topic is deleted meanwhile.
    """
    started_ms = clock.monotonic_ms()
    while True:
        views = await _views(metadata, asked)
        elapsed_ms = clock.monotonic_ms() - started_ms
        progress = await _progress(metadata, asked, views, elapsed_ms)
        on_progress(progress)
        if progress.done:
            break
        if elapsed_ms > timeout_ms:
            failed = f"; job {progress.failed[0].job_id} failed: {progress.failed[0].error}" if progress.failed else ""
            raise StillCompactingError(
                f"{asked.topic.name} is not compacted after {elapsed_ms / 1000:.0f} s ({progress.fraction:.0%} of its "
                f"offsets){failed}",
                remedy=f"the request stays; `siltstone topics explain {asked.topic.name}` says what it waits for",
            )
        await clock.sleep_ms(POLL_MS)
    return Compacted(
        topic=asked.topic.name,
        through=asked.through,
        before=asked.before,
        after=await _size(metadata, views, asked.through),
        jobs=await _jobs_since(metadata, asked, views, JobState.DONE),
        took_ms=clock.monotonic_ms() - started_ms,
    )


async def _views(metadata: Metadata, asked: Request) -> Sequence[PartitionView]:
    try:
        return await metadata.partition_views(asked.topic.topic_id)
    except UnknownTopicError as error:
        raise NoSuchTopicError(f"topic {asked.topic.name!r} was deleted meanwhile") from error


async def _progress(metadata: Metadata, asked: Request, views: Sequence[PartitionView], elapsed_ms: float) -> Progress:
    live = await metadata.jobs(states=[JobState.READY, JobState.RUNNING], limit=JOBS_READ)
    mine = [view for view in views if view.partition in asked.through]
    return Progress(
        cleaned={
            view.partition: (
                asked.started_from[view.partition],
                # what was deleted meanwhile needs no cleaning
                max(view.cleaned_through_offset, view.log_start_offset),
                asked.through[view.partition],
            )
            for view in mine
        },
        # a request for more, made by somebody else since, is not ours
        pending=frozenset(
            view.partition
            for view in mine
            if view.requested_through_offset is not None
            and view.log_start_offset < view.requested_through_offset <= asked.through[view.partition]
        ),
        jobs=sorted(live, key=lambda job: job.job_id),
        failed=await _jobs_since(metadata, asked, views, JobState.FAILED),
        elapsed_ms=elapsed_ms,
    )


async def _jobs_since(
    metadata: Metadata, asked: Request, views: Sequence[PartitionView], state: JobState
) -> Sequence[MergeJob]:
    """Jobs made after the request that ended so and name a partition of the topic, or level L0 for all topics."""
    mine = {view.partition_id for view in views}
    ended = await metadata.jobs(states=[state], limit=JOBS_READ)
    return [
        job
        for job in ended
        if job.job_id > asked.last_job_id and (job.kind == "level" or not mine.isdisjoint(deduped_partitions(job)))
    ]


async def _size(metadata: Metadata, views: Sequence[PartitionView], through: Mapping[int, int]) -> Size:
    """Below `through`: extents and L0 rows that begin there count whole."""
    l0_from = {view.partition_id: stretch_end(view, unbroken_stretch(view)) for view in views}
    until = {view.partition_id: through.get(view.partition, 0) for view in views}
    records = size_bytes = l0_records = 0
    for view in views:
        for extent in view.extents:
            if extent.base_offset < until[view.partition_id]:
                records += extent.record_count
                size_bytes += extent.length
    if any(l0_from[each] < until[each] for each in until):
        for file in (await metadata.snapshot()).files:
            for row in iter_index(file.index):
                if l0_from.get(row.partition_id, row.last_offset + 1) <= row.last_offset and (
                    row.base_offset < until[row.partition_id]
                ):
                    l0_records += min(row.last_offset + 1, until[row.partition_id]) - row.base_offset
                    size_bytes += row.length
    return Size(records=records + l0_records, size_bytes=size_bytes, l0_records=l0_records)
