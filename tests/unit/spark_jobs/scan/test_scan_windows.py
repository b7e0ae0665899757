"""The ranges that a scan asks a store for."""

from __future__ import annotations

from concurrent.futures import Future
from typing import cast

from metadata.contract.readers import PartitionSnapshot
from spark_jobs.scan.blocking import BlockingStore
from spark_jobs.scan.losses import Losses
from spark_jobs.scan.plan import slice_of
from spark_jobs.scan.windows import windows
from tests.unit.spark_jobs.scan.test_scan_plan import merged


class Empty:
    """A store without objects."""

    def __init__(self) -> None:
        self.lengths: list[int] = []

    def get_range(self, _key: str, _start: int, length: int) -> Future[bytes | None]:
        self.lengths.append(length)
        found: Future[bytes | None] = Future()
        found.set_result(None)
        return found


def test_ranges_of_no_bytes_are_not_asked_for() -> None:
    # given a partition of an empty extent and a flagged one
    part = PartitionSnapshot(
        partition=0,
        partition_id=7,
        log_start_offset=0,
        last_stable_offset=200,
        high_watermark=200,
        extents=[merged(0, 99, 0), merged(100, 199, 10)._replace(flagged_reason="damaged")],
        l0=[],
        aborted=[],
    )
    store, losses = Empty(), Losses("flights", 0, fails=False)
    # when it is read
    whole = slice_of(part, 0, 200, isolation="read_committed")
    assert list(windows(cast("BlockingStore", store), whole, losses)) == []
    # then the store was only asked for the flagged extent's bytes
    assert store.lengths == [10]
    assert losses.ranges == {(100, 199)}
