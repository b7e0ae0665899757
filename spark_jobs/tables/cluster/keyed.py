"""The units of a plan by key, as one job of Spark: all keys go through the shuffle, then units are written.

A driver that goes on after another one reads again the keys of each partition that is not written to its end; a unit
that has its result is not written again. The files of the plan are pinned and reading them is exact or fails, so all
drivers find the same survivors. (Where lost records are skipped, that is not sure, and no second driver is started:
`ExportHead.can_go_on`.) An error that another try cannot heal leaves a note, in both passes.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from compactor.heavy.key_scan import KeyBlock
from spark_jobs import worker_process
from spark_jobs.keys.layout import KeyPlace, Surviving
from spark_jobs.keys.shuffle import own_session, surviving
from spark_jobs.scan.arrow import pa
from spark_jobs.tables.cluster.unit import OpenExport, noted
from spark_jobs.tables.keyed.writes import keys_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

WriteUnit = Callable[[int, Surviving], object]
"""Called in a task with the number of a unit and the records that it writes."""
_DONE_TYPE = "unit int"
_DONE_SCHEMA = pa.schema([("unit", pa.int32())])


def run(spark: SparkSession, places: Sequence[KeyPlace], plan_url: str, write: WriteUnit) -> None:
    """Write the units of these places. Raises Spark's errors."""
    read, take = functools.partial(read_unit, plan_url), functools.partial(_take, write)
    surviving(own_session(spark), places, read, take, _DONE_TYPE).collect()


def places_left(export: OpenExport) -> Sequence[KeyPlace]:
    """Those of all partitions of which some unit has no result."""
    finished = set(export.finished())
    left = {place.partition_id for place in export.head.places if place.number not in finished}
    return [place for place in export.head.places if place.partition_id in left]


def read_unit(plan_url: str, unit: int) -> Iterator[KeyBlock]:
    """The keys of a unit's slice. Raises as `key_blocks`."""
    worker_process.prepare()
    opened = OpenExport.at(plan_url)
    with noted(opened, unit):
        yield from keys_of(opened.head.task(opened.unit(unit), opened.place()))
    worker_process.settle()


def _take(write: WriteUnit, unit: int, found: Surviving) -> Iterator[Any]:
    write(unit, found)
    yield pa.RecordBatch.from_pydict({"unit": [unit]}, schema=_DONE_SCHEMA)
