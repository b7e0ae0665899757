"""Compaction on demand: request a pass over a topic and wait until it is done.

The order: measure the topic, store the request (`request_compaction`), then poll the views until every partition is
cleaned through the offset that the request answered. Records written meanwhile are beyond that offset and are not
waited for. Neither are records that `min.compaction.lag.ms` or an open transaction holds back; the result counts them.
Merging joins stretches, so more records may turn out to be too young than there were at first. Then cleaning cannot
reach that offset, and the wait ends where cleaning does.

The request is durable: after the wait is stopped, the compactors still carry it out. A crash here leaves nothing half
done, because the compactors do the merging.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from compactor.planning.dirtiness import config_int, measure, stretch_end, unbroken_stretch
from metadata.contract.agents import each_live_file
from metadata.contract.compactors import PartitionView
from metadata.contract.jobs import JobState, MergeJob
from metadata.contract.store import MetadataStore
from metadata.contract.topics import NotCompactedError, Topic, UnknownTopicError
from metadata.rules.packed_index import iter_index
from runtime.clock import Clock
from runtime.errors import BadInputError, SiltstoneError
from siltstone.ops.compaction.evidence import deduped_partitions, is_compacted
from siltstone.ops.hint_options import NO_HINT_OPTIONS, HintOptions

POLL_MS = 200
JOBS_READ = 1_000
JOBS_NAMED = 3


class NoSuchTopicError(BadInputError):
    """No topic has this name (any more)."""


class StillCompactingError(SiltstoneError):
    """The wait timed out before the compaction was done. A stored request stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The records and bytes of a topic below given end offsets of its partitions, in all levels."""

    records: int
    """Each offset in L0 counts as a record."""
    size_bytes: int
    l0_records: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """The progress at one poll."""

    cleaned: Mapping[int, tuple[int, int, int]]
    """Partition number -> (cleaned-through at the start, now, target)."""
    pending: frozenset[int]
    """Numbers of the partitions whose request still stands."""
    jobs: Sequence[MergeJob]
    """Live jobs of any topic, oldest first, because a merge of L0 files serves all topics together."""
    failed: Sequence[MergeJob]
    """Jobs of the topic that failed since the request."""
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
    """The result of a finished request."""

    topic: str
    through: Mapping[int, int]
    """Partition number -> the requested offset (exclusive)."""
    held_by_lag: int
    """Offsets below the ends at the request that `min.compaction.lag.ms` keeps from being cleaned."""
    held_by_transactions: int
    """Offsets below those ends that open transactions keep from being cleaned."""
    before: Size
    after: Size
    jobs: Sequence[MergeJob]
    """Jobs of the topic that ended as done since the request."""
    took_ms: float

    @property
    def tombstones_dropped(self) -> int:
        return sum(_number(job, "tombstones_dropped") for job in self.jobs)

    @property
    def tombstones_kept(self) -> int:
        """Counted by the last merge of each partition, because it read again the tombstones that earlier merges
        kept."""
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
            "held_by_lag": self.held_by_lag,
            "held_by_transactions": self.held_by_transactions,
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
    """A request, and the state of the topic when it was made."""

    topic: Topic
    through: Mapping[int, int]
    """Partition number -> the requested offset (exclusive)."""
    started_from: Mapping[int, int]
    """Partition number -> cleaned-through at the request."""
    ends: Mapping[int, int]
    """Partition number -> high watermark at the request, or the requested offset if that is higher."""
    held_by_transactions: int
    before: Size
    last_job_id: int
    live_job_ids: frozenset[int]
    """Jobs that lived at the request; they count as work since, because one of them may do all that was requested."""
    hints: HintOptions
    is_stored: bool
    """Whether compactors carry it out even after the wait is stopped."""


async def find_topic(metadata: MetadataStore, name: str, *, hints: HintOptions = NO_HINT_OPTIONS) -> Topic:
    """Raises NoSuchTopicError."""
    topics = await metadata.agents.list_topics()
    for topic in topics:
        if topic.name == name:
            return topic
    raise NoSuchTopicError(
        f"there is no topic {name!r}", remedy=did_you_mean(name, [topic.name for topic in topics], hints)
    )


def did_you_mean(name: str, names: Sequence[str], hints: HintOptions = NO_HINT_OPTIONS) -> str:
    """A remedy for an unknown topic name. Names that differ only in case are suggested too: they are two topics."""
    import difflib

    by_lower = {each.lower(): each for each in names}
    near = difflib.get_close_matches(name.lower(), by_lower, n=1)
    if near:
        return f"did you mean {by_lower[near[0]]!r}?"
    return f"`siltstone topics list{hints.agents}` lists the topics"


def require_compacted(topic: Topic, configs: Mapping[str, str], *, hints: HintOptions = NO_HINT_OPTIONS) -> None:
    """`configs` are those of a view of the topic, with the cluster-wide defaults. Raises NotCompactedError."""
    if not is_compacted(configs):
        policy = configs.get("cleanup.policy", "delete")
        raise NotCompactedError(
            f"{topic.name} is not a compacted topic: its cleanup.policy is {policy or 'empty'}",
            remedy="none, if that is intended. To keep only the latest record of each key, and lose the others: "
            f"`siltstone topics alter {topic.name} --config cleanup.policy=compact{hints.agents}`",
        )


def configs_in_force(topic: Topic, views: Sequence[PartitionView]) -> Mapping[str, str]:
    """The topic's overrides over the cluster-wide defaults, as the views of its partitions say."""
    return views[0].configs if views else topic.configs


async def request(metadata: MetadataStore, name: str, *, hints: HintOptions = NO_HINT_OPTIONS) -> Request:
    """Measure the topic and ask for its compaction. Raises NoSuchTopicError, NotCompactedError."""

    async def ask(topic: Topic, _views: Sequence[PartitionView]) -> Mapping[int, int]:
        return await metadata.operators.request_compaction(topic.topic_id)

    return await _measured(metadata, name, ask, hints, is_stored=True)


async def unstored_request(metadata: MetadataStore, name: str, *, hints: HintOptions = NO_HINT_OPTIONS) -> Request:
    """As `request`, but nothing is stored: the caller runs the merges itself."""

    async def stable(_topic: Topic, views: Sequence[PartitionView]) -> Mapping[int, int]:
        return {view.partition_id: view.last_stable_offset for view in views}

    return await _measured(metadata, name, stable, hints, is_stored=False)


async def _measured(
    metadata: MetadataStore,
    name: str,
    ask: Callable[[Topic, Sequence[PartitionView]], Awaitable[Mapping[int, int]]],
    hints: HintOptions,
    *,
    is_stored: bool,
) -> Request:
    topic = await find_topic(metadata, name, hints=hints)
    newest = await metadata.operators.jobs(limit=1)
    live = await metadata.operators.jobs(states=[JobState.READY, JobState.RUNNING], limit=JOBS_READ)
    views = await metadata.operators.partition_views(topic.topic_id)
    require_compacted(topic, configs_in_force(topic, views), hints=hints)
    wanted = await ask(topic, views)
    through = {view.partition: wanted[view.partition_id] for view in views if view.partition_id in wanted}
    ends = {view.partition: max(view.high_watermark, through.get(view.partition, 0)) for view in views}
    return Request(
        topic=topic,
        through=through,
        started_from={view.partition: view.cleaned_through_offset for view in views},
        ends=ends,
        held_by_transactions=sum(view.high_watermark - view.last_stable_offset for view in views),
        before=await _size(metadata, views, ends),
        last_job_id=newest[0].job_id if newest else 0,
        live_job_ids=frozenset(job.job_id for job in live),
        hints=hints,
        is_stored=is_stored,
    )


async def wait(
    metadata: MetadataStore,
    asked: Request,
    *,
    clock: Clock,
    timeout_ms: float,
    on_progress: Callable[[Progress], None] = lambda _progress: None,
) -> Compacted:
    """Wait until every partition is cleaned through the requested offset, as far as that can be reached.

    Raises StillCompactingError after `timeout_ms`, NoSuchTopicError when the topic is deleted meanwhile.
    """
    started_ms = clock.monotonic_ms()
    while True:
        views = await _views(metadata, asked)
        elapsed_ms = clock.monotonic_ms() - started_ms
        reachable = await _reachable(metadata, asked, views)
        progress = await _progress(metadata, asked, views, reachable, elapsed_ms)
        on_progress(progress)
        if progress.done:
            break
        if elapsed_ms > timeout_ms:
            failed = f"; job {progress.failed[0].job_id} failed: {progress.failed[0].error}" if progress.failed else ""
            raise StillCompactingError(
                f"{asked.topic.name} is not compacted after {elapsed_ms / 1000:.0f} s ({progress.fraction:.0%} of its "
                f"offsets){failed}{await _in_the_way(metadata, asked)}",
                remedy=(
                    "the request stays, and compactors carry it out; "
                    if asked.is_stored
                    else "no request was stored: run it again; "
                )
                + f"`siltstone topics explain {asked.topic.name}{asked.hints.places}` tells what it waits for",
            )
        await clock.sleep_ms(POLL_MS)
    held = sum(max(0, asked.ends[number] - offset) for number, offset in reachable.items())
    return Compacted(
        topic=asked.topic.name,
        through=asked.through,
        held_by_lag=max(0, held - asked.held_by_transactions),
        held_by_transactions=asked.held_by_transactions,
        before=asked.before,
        after=await _size(metadata, views, asked.ends),
        jobs=await _jobs_since(metadata, asked, views, JobState.DONE),
        took_ms=clock.monotonic_ms() - started_ms,
    )


async def _in_the_way(metadata: MetadataStore, asked: Request) -> str:
    live = await metadata.operators.jobs(
        states=[JobState.RUNNING, JobState.READY], topic_id=asked.topic.topic_id, limit=JOBS_READ
    )
    hosts = dict(await metadata.compactors.live_compactors()) if live else {}
    return "".join(f"; {who_has(job, hosts)}" for job in sorted(live, key=lambda job: job.job_id)[:JOBS_NAMED])


def who_has(job: MergeJob, hosts: Mapping[int, str]) -> str:
    """A live job and its holder in words; `hosts` by node id."""
    if job.state is JobState.READY or job.holder is None:
        return f"job {job.job_id} ({job.kind}) waits for a compactor"
    at = (
        f" at {hosts[job.holder]}"
        if job.holder in hosts
        else ", which is gone; another one takes the job when the lease ends"
    )
    return f"job {job.job_id} ({job.kind}) is run by compactor {job.holder}{at}"


async def _views(metadata: MetadataStore, asked: Request) -> Sequence[PartitionView]:
    try:
        return await metadata.operators.partition_views(asked.topic.topic_id)
    except UnknownTopicError as error:
        raise NoSuchTopicError(f"topic {asked.topic.name!r} was deleted meanwhile") from error


async def _reachable(metadata: MetadataStore, asked: Request, views: Sequence[PartitionView]) -> Mapping[int, int]:
    """Partition number -> the requested offset, or the lower one up to which `min.compaction.lag.ms` lets cleaning
    go."""
    now_ms = await metadata.now_ms()
    reachable = dict(asked.through)
    for view in views:
        target = asked.through.get(view.partition, 0)
        if config_int(view, "min.compaction.lag.ms") > 0:
            dirty = measure(view, now_ms=now_ms)
            if dirty.held_by_lag and dirty.leveled_through_offset >= target:
                reachable[view.partition] = min(target, dirty.first_uncleanable_offset)
    return reachable


async def _progress(
    metadata: MetadataStore,
    asked: Request,
    views: Sequence[PartitionView],
    reachable: Mapping[int, int],
    elapsed_ms: float,
) -> Progress:
    live = await metadata.operators.jobs(states=[JobState.READY, JobState.RUNNING], limit=JOBS_READ)
    mine = [view for view in views if view.partition in asked.through]
    return Progress(
        cleaned={
            view.partition: (
                asked.started_from[view.partition],
                # Offsets that were deleted meanwhile need no cleaning.
                max(view.cleaned_through_offset, view.log_start_offset),
                reachable[view.partition],
            )
            for view in mine
        },
        # A later request that goes further belongs to another caller.
        pending=frozenset(
            view.partition
            for view in mine
            if view.requested_through_offset is not None
            and view.log_start_offset < view.requested_through_offset <= reachable[view.partition]
        ),
        jobs=sorted(live, key=lambda job: job.job_id),
        failed=await _jobs_since(metadata, asked, views, JobState.FAILED),
        elapsed_ms=elapsed_ms,
    )


async def _jobs_since(
    metadata: MetadataStore, asked: Request, views: Sequence[PartitionView], state: JobState
) -> Sequence[MergeJob]:
    """Jobs that ended in `state` since the request and concern the topic: they dedupe one of its partitions, or take L0
    files, which hold records of all topics."""
    mine = {view.partition_id for view in views}
    ended = await metadata.operators.jobs(states=[state], limit=JOBS_READ)
    return [
        job
        for job in ended
        if (job.job_id > asked.last_job_id or job.job_id in asked.live_job_ids)
        and (job.kind == "level" or not mine.isdisjoint(deduped_partitions(job)))
    ]


async def _size(metadata: MetadataStore, views: Sequence[PartitionView], ends: Mapping[int, int]) -> Size:
    """The size below `ends` (by partition number). An extent or an L0 row that crosses an end counts in proportion."""
    l0_from = {view.partition_id: stretch_end(view, unbroken_stretch(view)) for view in views}
    until = {view.partition_id: ends.get(view.partition, 0) for view in views}
    records = size_bytes = l0_records = 0
    for view in views:
        end = until[view.partition_id]
        for extent in view.extents:
            if extent.base_offset < end:
                offsets = extent.last_offset + 1 - extent.base_offset
                below = min(offsets, end - extent.base_offset)
                records += min(extent.record_count, below)
                size_bytes += extent.length * below // offsets
    if any(l0_from[each] < until[each] for each in until):
        async for file in each_live_file(metadata.agents):
            for row in iter_index(file.index):
                if l0_from.get(row.partition_id, row.last_offset + 1) <= row.last_offset and (
                    row.base_offset < until[row.partition_id]
                ):
                    offsets = row.last_offset + 1 - row.base_offset
                    below = min(offsets, until[row.partition_id] - row.base_offset)
                    l0_records += below
                    size_bytes += row.length * below // offsets
    return Size(records=records + l0_records, size_bytes=size_bytes, l0_records=l0_records)
