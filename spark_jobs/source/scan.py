"""From options and a snapshot to the tasks of a query: the Spark source calls the scan room here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metadata.contract.readers import TopicSnapshot
from metadata.contract.store import ClusterIdentity, MetadataStore
from metadata.contract.topics import UnknownTopicError
from runtime.clock import Clock
from runtime.logging import get_logger
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import LATEST_VIEW, LOG, AtTimestamp, ScanOptions, Slice
from spark_jobs.scan.plan import partition_bounds, plan_slices
from spark_jobs.source.filters import EVERYTHING, Narrowing
from spark_jobs.source.metadata import MetadataThread
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.pins import Pin, let_go, renew, take_pin
from storage.cluster import ClusterMismatchError, decide, decode_cluster_file
from storage.keys import CLUSTER_KEY

_log = get_logger(__name__)
CLUSTER_FILE_BYTES_MAX = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class SliceTask:
    """A slice that travels pickled from the driver to a task."""

    slice: str
    """JSON."""
    topic: str
    topic_id: str
    pin: Pin | None = None
    """The pin that the task must renew; None if the driver renews it."""


class TopicScan(NamedTuple):
    snapshot: TopicSnapshot
    scan: ScanOptions


class ScanPlanner:
    """Plans scans; opens the object store when it needs it."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def look_up(self, snapshot: TopicSnapshot, scan: ScanOptions) -> ScanOptions:
        """The scan with offsets in place of timestamps."""
        if not any(isinstance(edge, AtTimestamp) for edge in (scan.starting, scan.ending)):
            return scan
        from spark_jobs.scan.timestamps import look_up  # loads the compiled kernels

        return look_up(self._store, snapshot, scan)

    def slices(self, scans: Sequence[TopicScan]) -> Sequence[Sequence[Slice]]:
        """The slices of each; together `minPartitions` or more, given the records. Raises as `plan_slices`."""
        found = [self._planned(each, self._options.slice_bytes) for each in scans]
        wanted, planned = self._options.min_partitions, sum(map(len, found))
        if 0 < planned < wanted and self._options.scan.view == LOG:
            size = max(1, sum(each.bytes for slices in found for each in slices) // wanted)
            found = [self._planned(each, min(size, self._options.slice_bytes)) for each in scans]
        return found

    def _planned(self, each: TopicScan, slice_bytes: int) -> Sequence[Slice]:
        slices = plan_slices(each.snapshot, each.scan, slice_bytes=slice_bytes)
        if each.scan.since_ms is None or not slices:
            return slices
        from spark_jobs.scan.timestamps import since  # loads the compiled kernels

        return list(since(self._store, slices, each.scan.since_ms))

    def check_cluster(self, identity: ClusterIdentity) -> None:
        """Check that the object store belongs to this metadata. Raises ClusterMismatchError."""
        body = self._store.get_range(CLUSTER_KEY, 0, CLUSTER_FILE_BYTES_MAX).result()
        if body is None:
            raise ClusterMismatchError(
                f"the object store at {self._options.object_store_url} has no {CLUSTER_KEY}: no agent ever wrote there",
                remedy="objectStoreUrl must be the agents' object.store.url, with its prefix",
            )
        decide(identity.cluster_id, identity.store_bound, decode_cluster_file(body), prefix_is_empty=False)
        self._store.check_second(identity.cluster_id)

    @property
    def _store(self) -> BlockingStore:
        return BlockingStore.at(self._options.object_store_url)


class PlannedScan(NamedTuple):
    topic_id: str
    slices: Sequence[Slice]
    bounds: Mapping[int, tuple[int, int]]
    """The first offset and the end (exclusive) of each partition that is read."""
    pin: Pin
    """Let go of already when there are no slices."""


def plan_batch(
    options: SourceOptions, metadata: MetadataThread, clock: Clock, wanted: Narrowing = EVERYTHING
) -> list[SliceTask]:
    """The tasks of a batch query, under a pin that they renew. Raises UnknownTopicError, and as `plan_slices`."""
    tasks: list[SliceTask] = []
    pin, planned = _plan(options, metadata, clock, wanted)
    for each, slices in planned:
        if options.scan.view == LATEST_VIEW:
            _point_to_read_latest(options, each.scan.topic, slices)
        topic, topic_id = each.scan.topic, str(each.snapshot.topic.topic_id)
        tasks += [SliceTask(slice=one.to_json(), topic=topic, topic_id=topic_id, pin=pin) for one in slices]
    return tasks


def plan_pinned(options: SourceOptions, metadata: MetadataThread, clock: Clock) -> PlannedScan:
    """The slices of a batch query of one topic, under a pin that its tasks must renew. Raises as `plan_batch`."""
    pin, [(each, slices)] = _plan(options, metadata, clock, EVERYTHING)
    bounds = partition_bounds(each.snapshot, each.scan)
    return PlannedScan(str(each.snapshot.topic.topic_id), slices, bounds, pin)


def _plan(
    options: SourceOptions, metadata: MetadataThread, clock: Clock, wanted: Narrowing
) -> tuple[Pin, Sequence[tuple[TopicScan, Sequence[Slice]]]]:
    planner = ScanPlanner(options)
    planner.check_cluster(metadata.call(lambda opened: opened.cluster_identity()))
    pin = take_pin(metadata, f"spark query of {options.topics.label}", ttl_ms=options.pin_ttl_ms, clock=clock)
    found: Sequence[Sequence[Slice]] = ()
    try:
        scans: list[TopicScan] = []
        for topic in filter(wanted.takes_topic, topics_of(options, metadata)):
            snapshot = snapshot_of(topic, options, metadata)
            if snapshot is None:
                continue
            scan = wanted.of(options.scan_of(topic), len(snapshot.partitions))
            scans.append(TopicScan(snapshot, planner.look_up(snapshot, scan)))
        found = planner.slices(scans)
        if clock.wall_ms() - pin.made_ms > pin.renew_every_ms:
            renew(metadata, pin)  # looking up times took long
    finally:
        # Nothing to read, or an error: no task will renew this pin.
        if not any(found):
            let_go(metadata, [pin])
    return pin, list(zip(scans, found, strict=True))


def topics_of(options: SourceOptions, metadata: MetadataThread) -> Sequence[str]:
    """The names of the chosen topics; those of a pattern exist. Raises SourceOptionError for offsets of others."""
    if options.topics.pattern is None:
        return options.topics.names

    async def names(opened: MetadataStore) -> list[str]:
        return [topic.name for topic in await opened.readers.topics()]

    found = options.topics.among(metadata.call(names))
    options.check_offsets(found)
    return found


def snapshot_of(topic: str, options: SourceOptions, metadata: MetadataThread) -> TopicSnapshot | None:
    """The snapshot of a chosen topic. A topic of a pattern that was deleted since `topics_of` has none, as if it had
    not matched. Raises UnknownTopicError for one that is named.
    """
    try:
        return metadata.call(lambda opened: opened.readers.topic_snapshot(topic))
    except UnknownTopicError:
        if options.topics.pattern is None or options.names_offsets_of(topic):
            raise
        return None


def _point_to_read_latest(options: SourceOptions, topic: str, slices: Sequence[Slice]) -> None:
    largest = max(slices, key=lambda each: each.bytes, default=None)
    if largest is not None and largest.bytes > options.slice_bytes:
        _log.warning(
            "the latest view takes one task a partition; read_latest of pyspark_siltstone shares a large one out",
            topic=topic,
            partition=largest.partition,
            task_bytes=largest.bytes,
        )
