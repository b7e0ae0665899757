"""The benchmark of the large database measures calls that find the rows that were made for them."""

from __future__ import annotations

from pathlib import Path

from bench.cases.postgres.large_metadata import CALLS, COLUMNS, L0_ROWS_EACH, Shape, measure
from siltstone.embedded.postgres import EmbeddedPostgres

SHAPE = Shape(
    topics=4, compacted=1, partitions=L0_ROWS_EACH, writers=3, producers=50, merged_files=20, extents=1_000,
    apart_ms=10_000_000_000, l0_files=2, dead=7, deleted=9,
)  # fmt: skip


async def test_every_call_has_a_row_and_finds_its_rows(tmp_path: Path) -> None:
    tmp_path.chmod(0o711)
    with EmbeddedPostgres(tmp_path / "postgres") as server:
        rows = await measure(server, SHAPE)

    titles = [column.name for column in COLUMNS]
    found = {str(row[0]): row[titles.index("rows")] for row in rows}
    assert set(found) == {call.name for call in CALLS} | {"the planner's view, again"}
    assert found["an agent's cold start"] == 2 * L0_ROWS_EACH
    assert found["the gauge of dead files"] == 7
    assert found["the janitor's next 1,000 files"] == 7
    assert found["expiry of producers, all slices"] == 5
    assert found["forgetting, all batches"] == 9
    assert found["retention, one round"] not in (None, 0)
    assert all(row[titles.index("longest statement")] for row in rows)
