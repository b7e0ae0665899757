"""Rows cut into sections, and sorted, against Iceberg's definitions written out row by row."""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

import mmh3
import pyarrow as _pyarrow  # pyright: ignore[reportMissingTypeStubs]
import pytest
from pyiceberg.transforms import parse_transform

from spark_jobs.tables.layout.layout import SectionField, SortField
from spark_jobs.tables.layout.sections import Sections, decoded, primitive
from spark_jobs.tables.layout.sorting import in_order

pa: Any = _pyarrow
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TYPES = {
    "at": ("timestamptz", pa.timestamp("us", "UTC")),
    "day": ("date", pa.date32()),
    "n": ("long", pa.int64()),
    "small": ("int", pa.int32()),
    "text": ("string", pa.string()),
    "raw": ("binary", pa.binary()),
    "price": ("decimal(9, 2)", pa.decimal128(9, 2)),
    "share": ("double", pa.float64()),
    "yes": ("boolean", pa.bool_()),
}


def micros(at: datetime) -> int:
    return (at - EPOCH) // timedelta(microseconds=1)


def hashed(value: bytes, buckets: int) -> int:
    return (mmh3.hash(value) & 0x7FFFFFFF) % buckets


WANTED: Mapping[tuple[str, str], Callable[[Any], Any]] = {
    ("at", "year"): lambda at: at.year - 1970,
    ("at", "month"): lambda at: (at.year - 1970) * 12 + at.month - 1,
    ("at", "day"): lambda at: (at.date() - EPOCH.date()).days,
    ("at", "hour"): lambda at: micros(at) // 3_600_000_000,
    ("at", "identity"): micros,
    ("at", "bucket[5]"): lambda at: hashed(struct.pack("<q", micros(at)), 5),
    ("day", "month"): lambda day: (day.year - 1970) * 12 + day.month - 1,
    ("day", "identity"): lambda day: (day - EPOCH.date()).days,
    ("n", "identity"): lambda n: n,
    ("n", "bucket[4]"): lambda n: hashed(struct.pack("<q", n), 4),
    ("small", "bucket[4]"): lambda n: hashed(struct.pack("<q", n), 4),
    ("n", "truncate[10]"): lambda n: n // 10 * 10,
    ("text", "truncate[2]"): lambda text: text[:2],
    ("text", "bucket[7]"): lambda text: hashed(text.encode(), 7),
    ("raw", "bucket[7]"): lambda raw: hashed(raw, 7),
    ("raw", "truncate[1]"): lambda raw: raw[:1],
    ("price", "identity"): lambda price: price,
    ("price", "truncate[50]"): lambda price: Decimal(int(price * 100) // 50 * 50) / 100,
    ("yes", "identity"): lambda yes: yes,
    ("share", "identity"): lambda share: share,
    ("n", "void"): lambda _: None,
}


def rows(chance: random.Random, count: int) -> list[dict[str, Any]]:
    step = chance.choice([7, 10**11])

    def maybe(value: Any) -> Any:
        return None if chance.random() < 0.15 else value

    return [
        {
            "at": maybe(EPOCH + timedelta(microseconds=chance.randrange(-(10**14), 10**15, step))),
            "day": maybe(date(1969, 12, 1) + timedelta(days=chance.randrange(400))),
            "n": maybe(chance.choice([0, -1, chance.randrange(-30, 30), 2**62])),
            "small": maybe(chance.choice([0, chance.randrange(-30, 30)])),
            "text": maybe(chance.choice(["", "a", "äöü", "äöx", "b" * chance.randrange(4)])),
            "raw": maybe(chance.choice([b"", b"\xff\x00", b"a"])),
            "price": maybe(Decimal(chance.randrange(-300, 300)) / 100),
            "share": maybe(chance.choice([0.5, -1.5, math.nan, math.inf, -math.inf])),
            "yes": maybe(chance.random() < 0.5),
        }
        for _ in range(count)
    ]


def batch(held: list[dict[str, Any]]) -> Any:
    schema = pa.schema([pa.field(name, kind) for name, (_, kind) in TYPES.items()])
    return pa.RecordBatch.from_pylist(held, schema=schema)


def same(one: Any, other: Any) -> bool:
    return one == other or (one != one and other != other)


@pytest.mark.parametrize("number", range(20))
def test_each_row_is_in_the_section_of_its_values(number: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    held = rows(chance, chance.choice([1, 2, 200]))
    chosen = chance.sample(list(WANTED), chance.randint(1, 3))
    fields = [SectionField((name,), TYPES[name][0], transform) for name, transform in chosen]
    make: Any = parse_transform
    results = [make(field.transform).result_type(primitive(field.type)) for field in fields]
    found = dict[int, list[Any]]()
    sections = list(Sections(fields).cut(batch(held)))
    assert len({section for section, _ in sections}) == len(sections)
    for section, positions in sections:
        taken = range(len(held)) if positions is None else positions.tolist()
        assert list(taken) == sorted(taken)
        found.update(dict.fromkeys(taken, decoded(section, results)))
    for at, row in enumerate(held):
        wanted = [None if row[name] is None else WANTED[name, how](row[name]) for name, how in chosen]
        assert all(map(same, found[at], wanted)), (row, chosen, found[at], wanted)


def test_values_at_the_ends_of_their_types_have_sections() -> None:
    y10k_us, y1_us, latest_us = 253_402_300_800_000_000, -62_135_596_800_000_000, 2**63 - 1
    held = {
        "at": pa.array([y10k_us, y10k_us - 1, y1_us, y1_us - 1, latest_us], pa.timestamp("us", "UTC")),
        "day": pa.array([2_932_897, -719_162], pa.date32()),
        "n": pa.array([-(2**63), 2**63 - 1], pa.int64()),
        "small": pa.array([-(2**31), 2**31 - 1], pa.int32()),
        "price": pa.array([Decimal("-99.99"), Decimal("99.99")], pa.decimal128(4, 2)),
    }
    wanted = {
        ("at", "year"): [8030, 8029, -1969, -1970, 294_247 - 1970],
        ("at", "month"): [8030 * 12, 8030 * 12 - 1, -1969 * 12, -1969 * 12 - 1, (294_247 - 1970) * 12],
        ("at", "hour"): [each // 3_600_000_000 for each in (y10k_us, y10k_us - 1, y1_us, y1_us - 1)] + [2**31 - 1],
        ("day", "year"): [8030, -1969],
        ("n", "truncate[10]"): [-(2**63), (2**63 - 1) // 10 * 10],
        ("small", "truncate[10]"): [-(2**31), (2**31 - 1) // 10 * 10],
        ("price", "truncate[50000]"): [Decimal("-99.99"), Decimal(0)],
    }
    make: Any = parse_transform
    for (name, how), values in wanted.items():
        kind = TYPES[name][0] if name != "price" else "decimal(4, 2)"
        parts = list(Sections([SectionField((name,), kind, how)]).cut(pa.RecordBatch.from_pydict({name: held[name]})))
        found = [decoded(section, [make(how).result_type(primitive(kind))])[0] for section, _ in parts]
        assert found == values, (name, how)


def test_a_value_in_a_struct_and_a_column_that_the_file_has_not() -> None:
    held = pa.RecordBatch.from_pylist([{"in": {"x": 1}}, {"in": None}, {"in": {"x": None}}, {"in": {"x": 1}}])
    inside = Sections([SectionField(("in", "x"), "long", "identity")])
    parts = {str(decoded(section, [primitive("long")])): taken for section, taken in inside.cut(held)}
    assert {value: [] if taken is None else taken.tolist() for value, taken in parts.items()} == {
        "[1]": [0, 3],
        "[None]": [1, 2],
    }
    [(section, taken)] = Sections([SectionField(("gone",), "long", "identity")]).cut(held)
    assert (section, taken) == ((None,), None)


@pytest.mark.parametrize("number", range(20))
def test_rows_are_sorted_as_iceberg_defines_it(number: int) -> None:
    seed = random.randrange(1 << 32)
    print("seed", seed)
    chance = random.Random(seed)
    held = rows(chance, 100)
    order = [
        SortField((name,), chance.random() < 0.5, chance.random() < 0.5)
        for name in chance.sample(list(TYPES), chance.randint(1, 3))
    ]
    table = pa.Table.from_batches([batch(held[:40]), batch(held[40:])])
    table = table.append_column("place", pa.array(range(100)))
    sorted_rows = in_order(table, order).to_pylist()
    expected = list(range(100))
    for field in reversed(order):  # Python's sort is stable too
        [name] = field.column

        def rank(at: int, name: str = name, field: SortField = field) -> tuple[int, Any]:
            value = held[at][name]
            if value is None:
                return (0 if field.nulls_first != field.descending else 2), 0
            if value != value:
                return 1, (1, 0)
            return 1, (0, value.encode() if isinstance(value, str) else value)

        expected.sort(key=rank, reverse=field.descending)
    assert [row["place"] for row in sorted_rows] == expected
    for row in sorted_rows:
        assert all(same(row[name], value) for name, value in held[row["place"]].items())
