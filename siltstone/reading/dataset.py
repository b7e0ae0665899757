"""A topic as a `pyarrow.dataset.Dataset`: DuckDB, polars and others ask it for columns and for rows of a filter.

Each scan reads the parts of the topic that the filter leaves (`fragments.py`), decodes the columns that it needs, and
filters exactly. It is pulled batch by batch and reads ahead only bytes, so its memory is that of a reader. Scans may
run in several threads at once; each sees the topic as it was when the dataset was made.

pyarrow's own scanner would read hundreds of MiB ahead of a slow caller, so the scanner is ours. Methods of pyarrow that
go around `scanner` (`sort_by`, `join`, fragments) find no file and say so.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from typing import Any

from runtime.errors import SiltstoneError
from siltstone.reading.arrow import ds, pa
from siltstone.reading.fragments import FORMAT, NOWHERE, PartIndex
from siltstone.reading.open_topic import NotOpenError, OpenTopic
from siltstone.reading.question import Question, Selection, question_of
from spark_jobs.scan.blocking import LoopClosedError
from spark_jobs.scan.contract import SCHEMA
from spark_jobs.scan.read import BATCH_ROWS, read_slice


class TopicDataset(ds.FileSystemDataset):  # pyright: ignore[reportUntypedBaseClass] -- pyarrow ships no types
    """A snapshot of a topic, pinned until `close`, the end of a `with` block, or collection."""

    def __init__(self, topic: OpenTopic) -> None:
        self._topic = topic
        self._index = PartIndex(topic.snapshot, topic.options)
        base: Any = super()
        base.__init__(self._index.fragments, SCHEMA, FORMAT, NOWHERE)

    def scanner(
        self,
        columns: Selection = None,
        filter: Any = None,
        batch_size: int = BATCH_ROWS,
        **_tuning: Any,
    ) -> TopicScanner:
        """A scan, which begins when the scanner is read. pyarrow's options of reading ahead have no effect."""
        self._topic.check()
        condition = self._scanner_options({"filter": filter})["filter"]
        return TopicScanner(self._topic, self._index, question_of(columns, condition), batch_size)

    def count_rows(self, filter: Any = None, **_tuning: Any) -> int:
        """The number of records, without decoding columns that do not matter for it."""
        return self.scanner(columns=(), filter=filter).count_rows()

    def filter(self, expression: Any) -> TopicDataset:
        """A dataset of the records for which the expression is true too. It shares the snapshot."""
        base: Any = super()
        filtered: TopicDataset = base.filter(expression)  # pyarrow's copy, without attributes of Python
        filtered._topic, filtered._index = self._topic, self._index
        return filtered

    def close(self) -> None:
        """End the pin. Scans that still run fail. May be repeated."""
        self._topic.close()

    def __enter__(self) -> TopicDataset:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __reduce__(self) -> Any:
        raise NotOpenError(
            "a dataset of a topic cannot be sent to another process", remedy="call topic_dataset in each process"
        )


class TopicScanner(ds.Scanner):  # pyright: ignore[reportUntypedBaseClass] -- pyarrow ships no types
    """One question to a dataset. It may be read any number of times."""

    def __init__(self, topic: OpenTopic, index: PartIndex, question: Question, batch_rows: int) -> None:
        # No call of `super`: pyarrow's scanner has a dataset in C++ behind it, so all its methods are replaced here.
        self._topic, self._index, self._question = topic, index, question
        self._batch_rows = max(1, min(batch_rows, BATCH_ROWS))

    @property
    def dataset_schema(self) -> Any:
        return SCHEMA

    @property
    def projected_schema(self) -> Any:
        return self._question.schema

    def to_reader(self) -> Any:
        return pa.RecordBatchReader.from_batches(self.projected_schema, self.to_batches())

    def to_batches(self) -> Iterator[Any]:
        for batch in _batches(self._topic, self._index, self._question, self._batch_rows):
            yield from self._question.answers(batch)

    def scan_batches(self) -> Iterator[Any]:
        for batch in self.to_batches():
            yield ds.TaggedRecordBatch(record_batch=batch, fragment=None)

    def to_table(self) -> Any:
        return pa.Table.from_batches(self.to_batches(), self.projected_schema)

    def count_rows(self) -> int:
        return sum(batch.num_rows for batch in self.to_batches())

    def head(self, num_rows: int) -> Any:
        found: list[Any] = []
        left = num_rows
        for batch in self.to_batches() if left > 0 else ():
            found.append(batch.slice(0, left))
            left -= found[-1].num_rows
            if left <= 0:
                break
        return pa.Table.from_batches(found, self.projected_schema)

    def take(self, indices: Sequence[int]) -> Any:
        return self.to_table().take(indices)


def _batches(topic: OpenTopic, index: PartIndex, question: Question, batch_rows: int) -> Iterator[Any]:
    """The batches of the columns that are read, not yet filtered."""
    try:
        topic.check()
        store, options = topic.store, replace(topic.options, columns=question.read)
        for part in index.parts(store, question.condition):
            for batch in read_slice(store, part, options, batch_rows=batch_rows):
                topic.check()
                yield batch
    except (LoopClosedError, CancelledError):
        topic.check()  # says that the dataset was closed, if that is why
        raise
    except SiltstoneError as error:
        topic.failure = error.message, error.remedy
        raise
