"""The latest record of each key as one job of a Spark session: keys through the shuffle, then each task writes a slice.

The outcome of a slice is its result, or an error of ours that another try cannot heal, as in `on_spark.py`.
"""

from __future__ import annotations

import pickle
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from compactor.heavy.key_scan import KeyBlock
from runtime.errors import SiltstoneError
from runtime.logging import get_logger
from spark_jobs import worker_process
from spark_jobs.keys.shuffle import Surviving, own_session, surviving
from spark_jobs.latest.places import places_of
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.contract import Slice
from spark_jobs.tables.dead_letters.rows import Judged
from spark_jobs.tables.file_task import WriteResult, WriteTask
from spark_jobs.tables.keyed.writes import keys_of, write_survivors

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

OUTCOME_TYPE = "slice int, outcome binary"
_OUTCOME_SCHEMA = pa.schema([("slice", pa.int32()), ("outcome", pa.binary())])
_log = get_logger(__name__)

Outcome = WriteResult | SiltstoneError


def written(spark: SparkSession, tasks: Sequence[WriteTask], counter: Any) -> list[Outcome]:
    """The outcomes of tasks `by_key`, in their order. `counter`: an accumulator of slices done."""
    work = _Work.of(tasks, counter)
    places = places_of([each.part for each in tasks])
    rows = surviving(own_session(spark), places, work.read, work.take, OUTCOME_TYPE).collect()
    # Our own tasks have pickled them.
    return [pickle.loads(row.outcome) for row in sorted(rows, key=lambda row: row.slice)]  # noqa: S301


@dataclass(frozen=True, slots=True, kw_only=True)
class _Work:
    """Pickled once for all tasks, which differ by their slices alone: compressed JSON until its own task reads it."""

    task: WriteTask
    parts: tuple[bytes, ...]
    judged: tuple[Judged, ...]
    counter: Any

    @classmethod
    def of(cls, tasks: Sequence[WriteTask], counter: Any) -> _Work:
        parts = tuple(zlib.compress(each.part.to_json().encode(), 1) for each in tasks)
        return cls(task=tasks[0], parts=parts, judged=tuple(each.judged for each in tasks), counter=counter)

    def read(self, number: int) -> Iterator[KeyBlock]:
        """The keys of a slice. Raises errors that another try may heal.

        Others end it early. The same job reads the slice again to write it. Then it meets the same error, or finds more
        records than reached the reducers, and either is an outcome that nobody commits.
        """
        worker_process.prepare()
        try:
            yield from keys_of(self._of(number))
        except SiltstoneError as error:
            if error.retriable:
                raise
            _log.warning("the keys of a slice cannot be read", slice=number, error=error.message)
        worker_process.settle()

    def take(self, number: int, found: Surviving) -> Iterator[Any]:
        """Write the survivors of a slice. Raises errors that another try may heal."""
        worker_process.prepare()
        try:
            outcome: Outcome = write_survivors(self._of(number), found)
            self.counter.add(1)
        except SiltstoneError as error:
            if error.retriable:
                raise
            outcome = error
        row = {"slice": number, "outcome": pickle.dumps(outcome)}
        yield pa.RecordBatch.from_pylist([row], schema=_OUTCOME_SCHEMA)
        worker_process.settle()

    def _of(self, number: int) -> WriteTask:
        part = Slice.from_json(zlib.decompress(self.parts[number]))
        return replace(self.task, part=part, judged=self.judged[number])
