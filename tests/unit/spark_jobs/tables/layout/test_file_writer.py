"""Files of sections and sorted files: all rows are there once, and what is open stays small."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as _pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pyarrow.parquet as _parquet  # pyright: ignore[reportMissingTypeStubs]
import pytest

from spark_jobs.tables import file_writer
from spark_jobs.tables.file_writer import FileWriter
from spark_jobs.tables.keyed.key_index import KeyIndex, SoughtKeys, index_name, key_hashes
from spark_jobs.tables.layout.layout import Layout, SectionField, SortField
from spark_jobs.tables.layout.sections import decoded, primitive

pa: Any = _pyarrow
parquet: Any = _parquet
SCHEMA = pa.schema([pa.field("offset", pa.int64()), pa.field("user", pa.int64()), pa.field("text", pa.string())])
BY_USER = Layout(spec_id=3, sections=(SectionField(("user",), "long", "identity"),))
BY_TEXT = Layout(order_id=5, order=(SortField(("text",), True, False),))


@dataclass
class Shelf:
    files: dict[str, bytes] = field(default_factory=dict[str, bytes])

    def put(self, name: str, body: memoryview) -> None:
        assert name not in self.files
        self.files[name] = bytes(body)

    def remove(self, names: Sequence[str]) -> None:
        for name in names:
            del self.files[name]

    def rows(self, name: str) -> list[dict[str, Any]]:
        return parquet.read_table(io.BytesIO(self.files[name])).to_pylist()


def batches(chance: random.Random, users: int) -> list[Any]:
    found: list[Any] = []
    offset = 0
    for _ in range(80):
        rows = [
            {"offset": offset + at, "user": chance.choice([None, *range(users)]), "text": f"{chance.random():.12f}"}
            for at in range(chance.randrange(1, 60))
        ]
        offset += len(rows)
        found.append(pa.RecordBatch.from_pylist(rows, schema=SCHEMA))
    return found


@pytest.mark.parametrize("indexed", [False, True])
@pytest.mark.parametrize(("users", "budget"), [(3, 8_000), (30, 20_000)])
def test_each_file_is_of_one_section_and_memory_stays_bounded(
    monkeypatch: pytest.MonkeyPatch, indexed: bool, users: int, budget: int
) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    monkeypatch.setattr(file_writer, "FILE_BYTES", budget)
    monkeypatch.setattr(file_writer, "INDEXED_BYTES", 9_000)
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 3_000)
    given = batches(random.Random(seed), users)
    shelf, keys = Shelf(), Shelf()
    writer = FileWriter(
        place=shelf,
        key_indexes=keys if indexed else None,
        schema=SCHEMA,
        partition=2,
        start=0,
        stem="s",
        layout=BY_USER,
    )
    most = end = 0
    for batch in given:
        end += batch.num_rows
        writer.write(batch, key_hashes(batch.column(2)) if indexed else None, end)
        open_files: Any = vars(writer)["_open"]
        most = max(most, sum(file.held_bytes for file in open_files.values()))
    writer.close(end)
    # then what was open at once stayed below the budget
    assert most <= budget
    # and all rows are there once, each file with those of one section
    held: list[dict[str, Any]] = []
    ends: dict[Any, int] = {}
    for file in writer.written:
        rows = shelf.rows(file.name)
        [user] = {row["user"] for row in rows}
        assert (file.placed.spec_id, decoded(file.placed.section, [primitive("long")])) == (3, [user])
        offsets = [row["offset"] for row in rows]
        assert offsets == sorted(offsets) and file.start <= offsets[0] and offsets[-1] < file.end
        assert (file.start, file.rows) == (ends.get(user, 0), len(rows))
        ends[user] = file.end
        held += rows
        if indexed:
            body = keys.files[index_name(file.name)]
            index = KeyIndex(lambda at, length, body=body: body[at : at + length], len(body))
            middle = rows[len(rows) // 2]["text"]
            found = index.find(SoughtKeys.of(key_hashes(pa.array([middle]))))
            assert [rows[at]["text"] for at in found.tolist()] == [middle]
    assert sorted(held, key=lambda row: row["offset"]) == pa.Table.from_batches(given).to_pylist()
    assert len(writer.written) > len(ends)


def test_sorted_files_are_sorted_each_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    monkeypatch.setattr(file_writer, "SORTED_BYTES", 10_000)
    monkeypatch.setattr(file_writer, "ROW_GROUP_BYTES", 3_000)
    given = batches(random.Random(seed), 3)
    shelf = Shelf()
    writer = FileWriter(place=shelf, key_indexes=None, schema=SCHEMA, partition=0, start=0, stem="s", layout=BY_TEXT)
    end = 0
    for batch in given:
        writer.write(batch, None, end := end + batch.num_rows)
    writer.close(end)
    held: list[dict[str, Any]] = []
    for file in writer.written:
        rows = shelf.rows(file.name)
        assert all(one["text"] >= other["text"] for one, other in pairwise(rows))
        assert {row["offset"] for row in rows} == set(range(file.start, file.end))
        assert file.placed.order_id == 5
        held += rows
        groups = parquet.ParquetFile(io.BytesIO(shelf.files[file.name])).num_row_groups
        assert groups > 1 or file is writer.written[-1]
    assert sorted(held, key=lambda row: row["offset"]) == pa.Table.from_batches(given).to_pylist()
    assert len(writer.written) > 3
    assert np.all(np.diff([file.start for file in writer.written]) > 0)
