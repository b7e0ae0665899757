"""The rows that erasures take from a table."""

from __future__ import annotations

from typing import Any

import pyarrow as _pyarrow  # pyright: ignore[reportMissingTypeStubs]

from metadata.erasures.contract import KeyMark
from spark_jobs.tables.erasing.gone import Erased, GoneRows
from tests.fixtures.erasures import hash_of

pa: Any = _pyarrow


def gone() -> GoneRows:
    """The key "a" goes below offset 5 in partition 2 and below 9 in partition 4; "b" goes up to its tombstone at 7."""
    marks = {
        2: [KeyMark(hash_of(b"a"), 5), KeyMark(hash_of(b"b"), 7, tombstone=True), KeyMark(hash_of(b"a"), 3)],
        4: [KeyMark(hash_of(b"a"), 9)],
        6: [KeyMark(hash_of(b"a"), 9)],
    }
    return GoneRows.of(marks, {2: (1, 8), 4: (0, 6)}, frozenset({1, 3}))


def test_rows_go_by_partition_key_and_offset() -> None:
    rows = [
        (2, 4, b"a", True),
        (2, 5, b"a", False),
        (2, 7, b"b", True),
        (2, 8, b"b", False),
        (2, 1, b"c", False),
        (2, 1, None, False),
        (2, 1, b"", False),
        (4, 8, b"a", True),
        (3, 1, b"a", False),
        (6, 1, b"a", False),
    ]
    columns = {
        "kafka_partition": pa.array([row[0] for row in rows], pa.int32()),
        "kafka_offset": pa.array([row[1] for row in rows], pa.int64()),
        "kafka_key": pa.array([row[2] for row in rows], pa.binary()),
    }
    # in two batches, whose rows are numbered on
    batches = [{name: each.slice(0, 3) for name, each in columns.items()}, {n: c.slice(3) for n, c in columns.items()}]
    assert gone().positions(batches).tolist() == [at for at, row in enumerate(rows) if row[3]]
    # a key that is no text lies in a column of its own
    as_text = {
        **columns,
        "kafka_key": pa.array([None] * len(rows), pa.string()),
        "kafka_key_bytes": columns["kafka_key"],
    }
    assert gone().positions([as_text]).tolist() == gone().positions([columns]).tolist()


def test_files_are_searched_by_their_bounds() -> None:
    rows = gone()
    assert rows.may_be_in(2, 0, 1) and not rows.may_be_in(2, 0, 0)
    assert rows.may_be_in(2, 7, 20) and not rows.may_be_in(2, 8, 20)
    assert not rows.may_be_in(3, 0, 20) and not rows.may_be_in(4, 6, 20)
    # one with rows of several partitions
    assert rows.may_be_in(None, 7, 7) and not rows.may_be_in(None, 8, 9)


def test_what_was_erased_is_summed_up_and_told() -> None:
    assert Erased().text == ""
    both = Erased(2, 1, frozenset({1})).plus(Erased(1, 1, frozenset({1, 4})))
    assert both == Erased(3, 2, frozenset({1, 4}))
    assert both.text == "erased 3 rows of 2 requests from 2 files"
    assert Erased(0, 0, frozenset({1})).text == "erased 0 rows of 1 request from 0 files"
