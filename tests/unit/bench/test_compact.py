"""The compaction benchmark in a tiny size: its inputs are like those of clients, and every step is measured."""

from __future__ import annotations

import numpy as np
import pytest

from bench.cases.compact import Shape, measure
from bench.loads.merge_inputs import NOW_MS, json_values, numbered_keys, stamped_batches
from wire.batch import crc_matches, iter_headers, stamp_offset
from wire.codecs import Codec
from wire.records import NewRecord, build_batch


@pytest.mark.parametrize("codec", Codec)
@pytest.mark.parametrize("value_bytes", [8, 100, 1024])
def test_batches_made_by_template_are_those_of_the_codec(codec: Codec, value_bytes: int) -> None:
    numbers = np.array([7, 12, 999_999_999_999, 0, 5, 6], dtype=np.int64)
    values = json_values(value_bytes, count=4)
    made = b"".join(stamped_batches(numbered_keys(numbers), values, base_offset=40, codec=codec, batch_records=3))
    expected = b""
    for first in (0, 3):
        records = [
            NewRecord(NOW_MS + at, b"key-%012d" % numbers[first + at], values[(first + at) % 4].tobytes())
            for at in range(3)
        ]
        batch = build_batch(records, codec=codec)
        expected += stamp_offset(memoryview(batch), 40 + first) + batch[16:]
    assert made == expected
    assert all(crc_matches(made, at, header) for at, header in iter_headers(made))


async def test_a_row_for_each_shape_holds_the_whole_against_its_parts() -> None:
    shapes = [
        Shape("100 B", 2_000, kafka_ns=615),
        Shape("100 B", 2_000, codec=Codec.LZ4),
        Shape("8 B", 1_600, value_bytes=8, distinct_keys=900),
    ]
    table = await measure(shapes, repeats=1, keys_max=2_000)
    rows = [dict(zip([column.title for column in table.columns], row, strict=True)) for row in table.rows]
    assert [row["records"] for row in rows] == [2_000, 2_000, 1_600]
    assert [row["codec"] for row in rows] == ["none", "lz4", "none"]
    assert rows[2]["kept (%)"] == pytest.approx(100 * 900 / 1_600)
    measured = [cell for row in table.rows for cell in row if isinstance(cell, float)]
    assert len(measured) >= 30 and all(cell > 0 for cell in measured)
