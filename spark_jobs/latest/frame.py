"""`read_latest`: the latest record of each key of a topic as a DataFrame, however large a partition is.

`spark.read.format("siltstone").option("view", "latest")` takes one task for each partition, because a data source
cannot shuffle. Here the slices are those of a plain read. Each is read twice: first its keys, whose hashes and offsets
are shuffled (`spark_jobs/keys/shuffle.py`), then the records that survive. No record passes through the shuffle.

The plan is made at the call, on the driver: snapshot, slices and pin. Spark reads nothing before an action.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

from runtime.clock import SystemClock
from runtime.errors import BadInputError
from spark_jobs.latest.given import read_options
from spark_jobs.latest.places import places_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_TYPES: Mapping[str, str] = {
    "topic": "STRING NOT NULL",
    "partition": "INT NOT NULL",
    "offset": "BIGINT NOT NULL",
    # Not TIMESTAMP, whose meaning is a setting of the session.
    "timestamp": "TIMESTAMP_LTZ NOT NULL",
    "key": "BINARY",
    "value": "BINARY",
    "headers": "ARRAY<STRUCT<key: STRING NOT NULL, value: BINARY>>",
    "timestampType": "INT NOT NULL",
}
"""Spark's types of the columns that `spark_jobs.scan.contract` names."""
_ends: WeakKeyDictionary[DataFrame, Mapping[int, int]] = WeakKeyDictionary()


def read_latest(spark: SparkSession, **options: object) -> DataFrame:
    """The latest record of each key of a topic, between two places of each partition, as a lazy DataFrame.

    Options are those of `spark.read.format("siltstone")`: topic, partitions, startingOffsets, startingTimestamp,
    endingOffsets, endingTimestamp, columns, isolation, failOnDataLoss, minPartitions, sliceBytes, pinTtl, metadataUrl,
    objectStoreUrl, produceStoreUrl. A value is its text, or what Python has for it: offsets by partition (`{0: 23}`), a
    `datetime` (UTC if it has no zone), a list of columns, a bool.

    Records without a key are left out. So are tombstones, unless `keepTombstones=True`: then a deleted key is a row
    with a null value. With `startingOffsets=end_offsets(before)` these are the changes since the read `before`.

    Raises SourceOptionError, UnknownTopicError, UnknownPartitionError, OffsetOutOfRangeError, BadScanError and
    DataLossError. An action may raise Spark's error with PinLostError in its text: files were deleted, since no task
    had renewed the pin for `pinTtl`; call this again.
    """
    from spark_jobs.keys.shuffle import surviving
    from spark_jobs.latest.tasks import LatestTasks, pin_renewal
    from spark_jobs.source.metadata import MetadataThread
    from spark_jobs.source.scan import plan_pinned

    asked = read_options(options, os.environ)
    clock = SystemClock()
    with MetadataThread(asked.metadata_url, clock=clock) as metadata:
        planned = plan_pinned(asked, metadata, clock)
    tasks = LatestTasks.of(asked, planned.pin, planned.slices)
    # Without a description: it would stay on all later jobs of the caller's thread.
    during = functools.partial(pin_renewal, asked.metadata_url, planned.pin)
    places, schema = places_of(planned.slices), schema_text(asked.scan.columns)
    frame = surviving(spark, places, tasks.read, tasks.take, schema, during=during)
    _ends[frame] = {number: max(start, end) for number, (start, end) in planned.bounds.items()}
    return frame


def end_offsets(frame: DataFrame) -> dict[int, int]:
    """The end offset (exclusive) of each partition in what `read_latest` returned; the next read may begin there.

    Raises BadInputError for any other DataFrame, also for one made from it.
    """
    if frame not in _ends:
        raise BadInputError(
            "this DataFrame does not come from read_latest", remedy="ask the one that read_latest returned"
        )
    return dict(_ends[frame])


def schema_text(columns: Sequence[str]) -> str:
    """The columns in Spark's spelling, as `spark.read.format("siltstone")` has them."""
    return ", ".join(f"`{name}` {_TYPES[name]}" for name in columns)
