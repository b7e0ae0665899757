"""From options and a snapshot to the tasks of a query: the Spark source calls the scan room here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from metadata.contract.readers import TopicSnapshot
from metadata.contract.store import ClusterIdentity
from runtime.clock import Clock
from runtime.logging import get_logger
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import LATEST_VIEW, AtTimestamp, ScanOptions, Slice
from spark_jobs.scan.plan import partition_bounds, plan_slices
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
    topic_id: str
    pin: Pin | None = None
    """The pin that the task must renew; None if the driver renews it."""


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

    def slices(self, snapshot: TopicSnapshot, scan: ScanOptions) -> Sequence[Slice]:
        """The slices: at least `minPartitions`, if there are enough records. Raises as `plan_slices`."""
        found = plan_slices(snapshot, scan, slice_bytes=self._options.slice_bytes)
        wanted = self._options.min_partitions
        if 0 < len(found) < wanted and scan.view != LATEST_VIEW:
            size = max(1, sum(each.bytes for each in found) // wanted)
            found = plan_slices(snapshot, scan, slice_bytes=min(size, self._options.slice_bytes))
        return found

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


def plan_batch(options: SourceOptions, metadata: MetadataThread, clock: Clock) -> list[SliceTask]:
    """The tasks of a batch query, under a pin that they renew. Raises UnknownTopicError, and as `plan_slices`."""
    planned = plan_pinned(options, metadata, clock)
    if options.scan.view == LATEST_VIEW:
        _point_to_read_latest(options, planned.slices)
    return [SliceTask(slice=each.to_json(), topic_id=planned.topic_id, pin=planned.pin) for each in planned.slices]


def plan_pinned(options: SourceOptions, metadata: MetadataThread, clock: Clock) -> PlannedScan:
    """The slices of a batch query, under a pin that its tasks must renew. Raises as `plan_batch`."""
    planner = ScanPlanner(options)
    planner.check_cluster(metadata.call(lambda opened: opened.cluster_identity()))
    topic = options.scan.topic
    pin = take_pin(metadata, f"spark query of {topic}", ttl_ms=options.pin_ttl_ms, clock=clock)
    slices: Sequence[Slice] = ()
    try:
        snapshot = metadata.call(lambda opened: opened.readers.topic_snapshot(topic))
        scan = planner.look_up(snapshot, options.scan)
        slices = planner.slices(snapshot, scan)
        if clock.wall_ms() - pin.made_ms > pin.renew_every_ms:
            renew(metadata, pin)  # looking up times took long
    finally:
        # Nothing to read, or an error: no task will renew this pin.
        if not slices:
            let_go(metadata, [pin])
    return PlannedScan(str(snapshot.topic.topic_id), slices, partition_bounds(snapshot, scan), pin)


def _point_to_read_latest(options: SourceOptions, slices: Sequence[Slice]) -> None:
    largest = max(slices, key=lambda each: each.bytes, default=None)
    if largest is not None and largest.bytes > options.slice_bytes:
        _log.warning(
            "the latest view takes one task a partition; read_latest of pyspark_siltstone shares a large one out",
            topic=options.scan.topic,
            partition=largest.partition,
            task_bytes=largest.bytes,
        )
