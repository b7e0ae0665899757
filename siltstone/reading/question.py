"""The question of one scan of a dataset: the columns to read for it, and the answer from batches of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from siltstone.reading.arrow import acero, ds, pa
from spark_jobs.scan.contract import COLUMNS, SCHEMA

Selection = Sequence[str] | Mapping[str, Any] | None
"""Names of columns, or expressions of pyarrow by name; None for all columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Made by `question_of`."""

    wanted: Sequence[str] | Mapping[str, Any]
    condition: Any
    """An expression of pyarrow, or None."""
    read: tuple[str, ...]
    """The columns that the answer needs, those of the condition among them."""
    schema: Any
    """The schema of the answer."""

    def answers(self, batch: Any) -> Iterator[Any]:
        """A batch of the columns `read`, filtered and projected. Gives none without rows."""
        if isinstance(self.wanted, Mapping):
            yield from self._computed(batch, self.wanted)
            return
        kept = batch if self.condition is None else batch.filter(self.condition)
        if kept.num_rows:
            yield kept.select(list(self.wanted))

    def _computed(self, batch: Any, wanted: Mapping[str, Any]) -> Iterator[Any]:
        steps = [acero.Declaration("table_source", acero.TableSourceNodeOptions(pa.Table.from_batches([batch])))]
        if self.condition is not None:
            steps.append(acero.Declaration("filter", acero.FilterNodeOptions(self.condition)))
        steps.append(acero.Declaration("project", acero.ProjectNodeOptions(list(wanted.values()), list(wanted))))
        found = acero.Declaration.from_sequence(steps).to_table(use_threads=False)
        for each in found.to_batches():
            if each.num_rows:
                yield pa.RecordBatch.from_arrays(each.columns, schema=self.schema)


def question_of(wanted: Selection, condition: Any) -> Question:
    """Raises pyarrow's errors for names that are no columns and for expressions that do not fit them."""
    whole = _bound(COLUMNS, wanted, condition)
    read = COLUMNS if wanted is None else _needed(wanted, condition)
    if isinstance(wanted, Mapping):
        return Question(wanted=wanted, condition=condition, read=read, schema=whole.projected_schema)
    names = COLUMNS if wanted is None else tuple(wanted)
    schema = pa.schema([SCHEMA.field(name) for name in names])
    return Question(wanted=names, condition=condition, read=read, schema=schema)


def _needed(wanted: Selection, condition: Any) -> tuple[str, ...]:
    """The columns without which pyarrow cannot answer."""
    kept = COLUMNS
    for name in COLUMNS:
        fewer = tuple(each for each in kept if each != name)
        try:
            _bound(fewer, wanted, condition)
        except pa.ArrowInvalid:
            continue
        kept = fewer
    return kept or ("partition",)  # the cheapest, because rows must be counted even so


def _bound(columns: Sequence[str], wanted: Selection, condition: Any) -> Any:
    """A scanner of nothing. pyarrow makes it only if the names and types fit."""
    schema = pa.schema([SCHEMA.field(name) for name in columns])
    names = dict(wanted) if isinstance(wanted, Mapping) else wanted if wanted is None else list(wanted)
    return ds.InMemoryDataset([], schema=schema).scanner(columns=names, filter=condition)
