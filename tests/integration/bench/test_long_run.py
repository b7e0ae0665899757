"""The long run: writers, merges and sweeps work together, by a clock that is faster too."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.cases.postgres.long_run import MEASURES, Case, measure, tables
from siltstone.embedded.postgres import EmbeddedPostgres


@pytest.mark.parametrize("speed", [1, 1_000])
async def test_it_has_a_row_for_each_part_and_compares_quarters(tmp_path: Path, speed: int) -> None:
    tmp_path.chmod(0o711)
    case = Case(2, 5, 6, speed, row_s=1.5)
    with EmbeddedPostgres(tmp_path / "postgres") as server:
        rows = await measure(server, case)

    assert [len(row) for row in rows] == [len(MEASURES)] * 4
    of_extents = [column.name for column in MEASURES].index("indexes of extents")
    assert rows[-1][of_extents] > 0
    long, flat = tables(case, rows)
    assert (len(long.rows), len(flat.rows)) == (4, len(MEASURES))
