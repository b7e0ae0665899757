"""The table of dead letters: its progress, the judgements that it holds, and its commits.

Two tables cannot commit together. So the dead letters of a group of records are committed first, with offsets of their
own, and then the table. Such a commit comes before each commit of the table, even with no dead letters: it settles the
judgement of all records below its offsets, for this writer and for every other. After a crash, a refusal, or a commit
of another writer, the run that reads these records again asks for the dead letters among them and keeps to them. No run
adds one below the offsets, because each commit is refused unless the table is as it was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from metadata.contract.readers import TopicSnapshot
from runtime.logging import get_logger
from spark_jobs.scan.arrow import pa
from spark_jobs.scan.contract import Slice
from spark_jobs.tables.contract import Table
from spark_jobs.tables.dead_letters.rows import LETTERS, Judged, LetterFiles
from spark_jobs.tables.erasing.gone import Erased
from spark_jobs.tables.erasing.run import Erasing
from spark_jobs.tables.errors import RecreatedTopicError, WrongTableError
from spark_jobs.tables.file_writer import Place, WrittenFile
from spark_jobs.tables.progress import Progress
from spark_jobs.tables.tidying.decide import are_to_tidy
from spark_jobs.tables.tidying.run import tidy

_MODE = "dead letters of "
"""The beginning of the mode in the progress of a table of dead letters."""
_log = get_logger(__name__)
_REMEDY = "name another table by --dead-letters"


class DeadLetters:
    """One writer's view of the table."""

    def __init__(self, table: Table, erasing: Erasing) -> None:
        self._table, self._erasing = table, erasing
        self._held: Progress | None = None
        self._files = 0
        """The number of files when the progress was read."""
        self._dead: Mapping[int, NDArray[np.int64]] = {}

    @property
    def place(self) -> Place:
        return self._table.place

    def load(self, snapshot: TopicSnapshot, *, mode: str, values: str, filled: bool) -> None:
        """Read the progress. `filled`: the main table has records already. Raises WrongTableError,
        RecreatedTopicError, and as `Table.load`."""
        held = self._table.load()
        if held is None and filled:
            _log.warning(
                "a new table of dead letters begins with the next records: earlier ones are in the table itself, or in"
                " the table of dead letters that earlier exports named",
                table=self._table.name,
            )
        if held is not None:
            self._check(held, snapshot, mode, values)
            self._erasing.warn(held)
        self._held, self._files = held, self._table.file_count

    def begin(self, slices: Sequence[Slice], topic: str) -> None:
        """Make the table if it does not exist, and read which records of the slices are dead letters already."""
        self._table.ensure(LETTERS, LETTERS, topic)
        self._dead = self._read(slices)

    def _read(self, slices: Sequence[Slice]) -> Mapping[int, NDArray[np.int64]]:
        again = [each for each in slices if each.start < self._below(each.partition)]
        if not again:
            return {}
        numbers = {each.partition for each in again}
        rows = self._table.held_rows(min(each.start for each in again), max(map(self._below, numbers)))
        partitions, offsets = (rows[name].to_numpy() for name in ("kafka_partition", "kafka_offset"))
        return {number: np.unique(offsets[partitions == number]).astype(np.int64) for number in numbers}

    def files(self) -> LetterFiles:
        """The place and form of the files of the next commit."""
        return LetterFiles(
            place=self.place,
            file_schema=self._table.file_schema(self._columns()),
            stem=self._table.stem,
            layout=self._table.layout,
        )

    def judged(self, part: Slice) -> Judged:
        """The judgements of earlier runs, as of `begin`."""
        dead = self._dead.get(part.partition, np.zeros(0, dtype=np.int64))
        low, high = np.searchsorted(dead, (part.start, part.end))
        return Judged.of(self._below(part.partition), dead[low:high])

    def commit(self, files: Sequence[WrittenFile], progress: Progress) -> None:
        """Commit the dead letters of the records below the offsets of `progress`, the table's own next one.

        Raises as `Table.commit`.
        """
        offsets = {number: max(offset, self._below(number)) for number, offset in progress.offsets.items()}
        held: Mapping[int, int] = {} if self._held is None else self._held.offsets
        if not files and self._held is not None and {**held, **offsets} == held:
            return
        ours = replace(progress, mode=_MODE + progress.mode, offsets={**held, **offsets})
        ours = self._erasing.noted(ours, self._held)
        self._table.commit(files, self._columns(), ours, replaces=False)
        self._held = ours

    def erase(self) -> Erased:
        """Erase what is due from the dead letters too. Raises as `Table.erase`."""
        if self._held is None:
            return Erased()
        self._held, done = self._erasing.apply(self._held)
        return done

    def note(self) -> None:
        """Write down that this run asked for erasures, if that is due. Raises as `Table.commit`."""
        if self._held is not None:
            self._held = self._erasing.note(self._held)

    def tidy(self) -> None:
        """Merge small files, if this run made that due. Raises as `Table.commit`."""
        # As in a table of one partition: most dead letters come from few.
        if self._held is not None and are_to_tidy(self._files, self._table.file_count, 1):
            tidy(self._table, self._held)

    def finish_erasures(self, now_ms: int) -> None:
        if self._held is not None:
            self._table.finish_erasures(now_ms)

    def _below(self, partition: int) -> int:
        return 0 if self._held is None else self._held.offsets.get(partition, 0)

    def _columns(self) -> Any:
        """All columns of the table after the next commit; another program may have added some."""
        columns = self._table.columns
        if columns is None:
            return LETTERS
        return pa.schema([*columns, *(each for each in LETTERS if columns.get_field_index(each.name) < 0)])

    def _check(self, held: Progress, snapshot: TopicSnapshot, mode: str, values: str) -> None:
        name, topic = self._table.name, snapshot.topic
        if not is_of_dead_letters(held):
            raise WrongTableError(f"{name} is a table of records, not of dead letters", remedy=_REMEDY)
        theirs = (held.topic, held.mode.removeprefix(_MODE), held.values)
        for what, has, wanted in zip(
            ("the topic", "--mode", "values read as"), theirs, (topic.name, mode, values), strict=True
        ):
            if has != wanted:
                raise WrongTableError(f"{name} has the dead letters of {what} {has}, not {wanted}", remedy=_REMEDY)
        if held.topic_id != str(topic.topic_id):
            raise RecreatedTopicError(
                f"the topic {topic.name!r} was deleted and created again since {name} was written, and the offsets of"
                " both would be mixed there",
                remedy=_REMEDY,
            )


def is_of_dead_letters(progress: Progress) -> bool:
    return progress.mode.startswith(_MODE)


def check_no_dead_letters(name: str, progress: Progress | None) -> None:
    """Refuse to write records into a table of dead letters. Raises WrongTableError."""
    if progress is not None and is_of_dead_letters(progress):
        raise WrongTableError(
            f"{name} holds the dead letters of the topic {progress.topic!r}", remedy="export to another table"
        )
