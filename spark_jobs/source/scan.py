"""From options and a snapshot to the tasks of a query: the Spark source calls the scan room here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from metadata.contract.readers import TopicSnapshot
from metadata.contract.store import ClusterIdentity
from runtime.clock import Clock
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.contract import LATEST_VIEW, AtTimestamp, ScanOptions, Slice
from spark_jobs.scan.plan import plan_slices
from spark_jobs.source.metadata import MetadataThread
from spark_jobs.source.options import SourceOptions
from spark_jobs.source.pins import Pin, let_go, renew, take_pin
from storage.cluster import ClusterMismatchError, decide, decode_cluster_file
from storage.keys import CLUSTER_KEY

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


def plan_batch(options: SourceOptions, metadata: MetadataThread, clock: Clock) -> list[SliceTask]:
    """The tasks of a batch query, under a pin that they renew. Raises UnknownTopicError, and as `plan_slices`."""
    planner = ScanPlanner(options)
    planner.check_cluster(metadata.call(lambda opened: opened.cluster_identity()))
    topic = options.scan.topic
    pin = take_pin(metadata, f"spark query of {topic}", ttl_ms=options.pin_ttl_ms, clock=clock)
    slices: Sequence[Slice] = ()
    try:
        snapshot = metadata.call(lambda opened: opened.readers.topic_snapshot(topic))
        slices = planner.slices(snapshot, planner.look_up(snapshot, options.scan))
        if clock.wall_ms() - pin.made_ms > pin.renew_every_ms:
            renew(metadata, pin)  # looking up times took long
    finally:
        # Nothing to read, or an error: no task will renew this pin.
        if not slices:
            let_go(metadata, [pin])
    topic_id = str(snapshot.topic.topic_id)
    return [SliceTask(slice=each.to_json(), topic_id=topic_id, pin=pin) for each in slices]
