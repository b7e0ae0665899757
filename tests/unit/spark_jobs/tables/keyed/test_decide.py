"""The decision to add the tail of a topic to a table."""

from __future__ import annotations

import dataclasses

from metadata.contract.leveled import LeveledExtent
from spark_jobs.tables.keyed.decide import tail_rows, with_gaps
from tests.unit.spark_jobs.scan.test_scan_plan import partition, topic


def test_a_gap_in_the_tail_is_one_behind_the_tables_end() -> None:
    part = partition(end=300)
    whole, other = part.extents
    gap = replace_count(other, 40)
    both = topic(dataclasses.replace(part, extents=[whole, gap]))
    assert with_gaps(both, {0: 99}) == [0]
    assert with_gaps(both, {0: 199}) == [0]
    assert with_gaps(both, {0: 200}) == []
    assert with_gaps(topic(dataclasses.replace(part, extents=[whole])), {0: 0}) == []
    assert (tail_rows(both, {0: 120}), tail_rows(both, {})) == ({0: 180}, {0: 300})


def replace_count(extent: LeveledExtent, records: int) -> LeveledExtent:
    return extent._replace(record_count=records)
