"""The report of an export that other writers interrupt."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from metadata.contract.readers import TopicSnapshot
from metadata.erasures.contract import KeyMark, TopicErasure
from spark_jobs.scan.contract import ScanOptions, Slice
from spark_jobs.tables.columns.convert import ValueFormat
from spark_jobs.tables.columns.kinds import NULL
from spark_jobs.tables.contract import Ask, DeadRows, Engine, KeyedFile, Pinned
from spark_jobs.tables.erasing.gone import Erased, GoneRows
from spark_jobs.tables.errors import StaleWriterError
from spark_jobs.tables.export import export
from spark_jobs.tables.file_task import WriteResult, WriteTask
from spark_jobs.tables.file_writer import WrittenFile
from spark_jobs.tables.layout.layout import PLAIN, Layout
from spark_jobs.tables.progress import LOG_MODE, Progress
from tests.unit.spark_jobs.scan.test_scan_plan import MIB, partition, topic


class Nowhere:
    def put(self, name: str, body: memoryview) -> None: ...

    def remove(self, names: Sequence[str]) -> None: ...


@dataclass
class FencedTable:
    """A table in memory. Another writer is quicker at the commits whose numbers are in `fenced`."""

    fenced: set[int]
    name: str = "table"
    columns: Any = None
    stem: str = "stem"
    place: Nowhere = field(default_factory=Nowhere)
    held: Progress | None = None
    tries: int = 0

    def load(self) -> Progress | None:
        return self.held

    def ensure(self, columns: Any, sampled: Any, topic: str) -> None:
        self.columns = columns

    def file_schema(self, columns: Any) -> Any:
        return columns

    key_indexes: None = None
    layout: Layout = PLAIN

    file_count: int = 0

    def keyed_files(self) -> None:
        return None

    def erase(self, gone: GoneRows, progress: Progress, *, by_index: bool, now_ms: int) -> Erased:
        raise AssertionError("nothing is erased here")

    def finish_erasures(self, now_ms: int) -> None: ...

    def rewrite(self, groups: Sequence[Sequence[KeyedFile]], progress: Progress) -> None:
        raise AssertionError("nothing is rewritten here")

    def commit(
        self,
        files: Sequence[WrittenFile],
        columns: Any,
        progress: Progress,
        *,
        replaces: bool,
        dead: Sequence[DeadRows] = (),
    ) -> str:
        self.tries += 1
        if self.tries in self.fenced:
            raise StaleWriterError("somebody else committed")
        self.held = progress
        return f"commit {self.tries}"


class OneTopic:
    snapshot: TopicSnapshot = topic(partition())
    object_store_url: str = "memory:"

    @property
    def reader(self) -> OneTopic:
        return self

    def read(self, part: Slice, options: ScanOptions) -> Iterator[Any]:
        raise AssertionError("nothing is read here")

    @contextmanager
    def pinned(self) -> Generator[Pinned]:
        yield self

    def check(self) -> None: ...

    def topic_erasures(self) -> Sequence[TopicErasure]:
        return ()

    def erasure_marks(self, erasure_id: int) -> Mapping[int, Sequence[KeyMark]]:
        raise AssertionError("there is no erasure")

    def at_time(self, snapshot: TopicSnapshot, timestamp_ms: int) -> Mapping[int, int]:
        raise AssertionError("no times are asked for")


class CountingEngine:
    """Writes nothing: each task has one file with a row for each offset."""

    name = "counting"
    shuffles = False

    def run(self, tasks: Sequence[WriteTask], done: Callable[[int], None]) -> Sequence[WriteResult]:
        return [self._result(task.part) for task in tasks]

    def _result(self, part: Slice) -> WriteResult:
        rows = part.end - part.start
        file = WrittenFile(
            name=f"{part.start}", partition=0, start=part.start, end=part.end, rows=rows, size_bytes=rows
        )
        return WriteResult(
            partition=0, start=part.start, end=part.end, rows=rows, errors=0, files=(file,), complete=True, seen=NULL
        )


def chosen(_size_bytes: int) -> Engine:
    return CountingEngine()


def unseen(_done: int, _total: int) -> None: ...


def test_commits_before_a_fence_are_in_the_report() -> None:
    # given three groups of 100 records, and another writer that is quicker at the second commit
    ask = Ask(topic="flights", mode=LOG_MODE, values=ValueFormat(), slice_bytes=10 * MIB, commit_bytes=1)
    report = export(OneTopic(), FencedTable(fenced={2}), chosen, ask, unseen)
    # then the report counts the first commit and those of the second try
    assert report.commits == ("commit 1", "commit 3", "commit 4")
    assert (report.files, report.rows, report.size_bytes, report.fenced) == (3, 300, 300, 1)
    assert report.offsets == {0: (0, 300)} and report.held == {0: 300}
