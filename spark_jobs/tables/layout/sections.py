"""The section of each row. Pure.

pyiceberg's transforms take one value each, so each distinct value of a batch is transformed once. A time counts as the
begin of its hour, because no transform tells two times of one hour apart. Years and months are numpy's: pyiceberg's end
with the year 9999, and records may have any time.
"""

from __future__ import annotations

from base64 import b64decode, b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any, NamedTuple, cast

import numpy as np
import pyarrow.compute as _compute  # pyright: ignore[reportMissingTypeStubs]
from numpy.typing import NDArray

from spark_jobs.scan.arrow import pa
from spark_jobs.tables.iceberg.catalog import missing
from spark_jobs.tables.layout.layout import Section, SectionField
from spark_jobs.tables.layout.wanted import TIMES

try:
    from pyiceberg.conversions import from_bytes, to_bytes
    from pyiceberg.transforms import parse_transform
    from pyiceberg.types import DateType, DecimalType, IntegerType, LongType, NestedField
except ModuleNotFoundError as _error:
    raise missing(_error.name or "pyiceberg") from _error

HOUR_US = 3_600_000_000
_SPANS = {"year": "Y", "month": "M"}
compute: Any = _compute
_to_bytes: Any = to_bytes
_from_bytes: Any = from_bytes
_parse_transform: Any = parse_transform


class _Field(NamedTuple):
    column: tuple[str, ...]
    transform: Callable[[Any], Any]
    result: Any
    by_time: bool

    def value(self, source: Any) -> str:
        return b64encode(_to_bytes(self.result, _within(self.result, self.transform(source)))).decode()


class Sections:
    """Cuts batches by the fields of a partition spec."""

    def __init__(self, fields: Sequence[SectionField], schema: Any = None) -> None:
        """`schema`: `pyarrow.Schema` of the files, which may have a wider type than the table had until now."""
        self._fields = [_opened(each if schema is None else _as_written(each, schema)) for each in fields]

    def cut(self, batch: Any) -> Iterator[tuple[Section, NDArray[np.int64] | None]]:
        """Each section that the batch has, with the numbers of its rows, rising; None for all of them."""
        codes = np.zeros(batch.num_rows, dtype=np.int64)
        sections: list[Section] = [()]
        for field in self._fields:
            own, values = _codes(field, batch)
            pairs, codes = np.unique(codes * len(values) + own, return_inverse=True)
            sections = [(*sections[pair // len(values)], values[pair % len(values)]) for pair in pairs.tolist()]
        if len(sections) == 1:
            yield sections[0], None
            return
        order = np.argsort(codes, kind="stable")
        edges = np.searchsorted(codes[order], np.arange(len(sections) + 1))
        for number, section in enumerate(sections):
            yield section, order[edges[number] : edges[number + 1]].astype(np.int64)


def decoded(section: Section, types: Sequence[Any]) -> list[Any]:
    """The values of a section, whose fields have these types of Iceberg's, as its partition records hold them."""
    pairs = zip(section, types, strict=True)
    return [None if text is None else _from_bytes(kind, b64decode(text)) for text, kind in pairs]


def _opened(field: SectionField) -> _Field:
    source = primitive(field.type)
    transform = _parse_transform(field.transform)
    result = transform.result_type(source)
    span = _SPANS.get(field.transform)
    return _Field(
        column=field.column if field.transform != "void" else (),
        transform=transform.transform(source) if span is None else _spans(source, span),
        result=result,
        by_time=field.transform in TIMES,
    )


def _as_written(field: SectionField, schema: Any) -> SectionField:
    """The field with the type that the files have, of those to which a column can grow."""
    if not field.column or field.column[0] not in schema.names:
        return field
    of, kind = pa.types, schema.field(field.column[0]).type
    for name in field.column[1:]:
        kind = kind.field(name).type
    if of.is_int64(kind):
        return replace(field, type="long")
    if of.is_float64(kind):
        return replace(field, type="double")
    return replace(field, type=f"decimal({kind.precision}, {kind.scale})") if of.is_decimal128(kind) else field


def _spans(source: Any, unit: str) -> Callable[[int], int]:
    """The number of the span, from 1970 on, of a date or time in its physical form."""
    own = "D" if isinstance(source, DateType) else "us"
    return lambda value: int(np.datetime64(value, own).astype(f"datetime64[{unit}]").astype(np.int64))


def _within(result: Any, value: Any) -> Any:
    """The value, or the nearest that the type can hold: the tens of the least number lie below all numbers. So sections
    stay in the order of their values, on which readers rely."""
    if isinstance(result, DecimalType):
        return max(value, Decimal((1, (9,) * result.precision, -result.scale)))
    if isinstance(result, IntegerType | LongType):
        least = -(2**63) if isinstance(result, LongType) else -(2**31)
        return min(max(value, least), -least - 1)
    return value


def primitive(text: str) -> Any:
    """The `pyiceberg.types.PrimitiveType` that Iceberg writes so."""
    read: Any = NestedField.model_validate
    return read({"id": 1, "name": "x", "type": text, "required": False}).field_type


def _codes(field: _Field, batch: Any) -> tuple[NDArray[np.int64], list[str | None]]:
    """The number of each row's value, and the values."""
    names: Sequence[str] = batch.schema.names
    count: int = batch.num_rows
    if not field.column or field.column[0] not in names:
        return np.zeros(count, dtype=np.int64), [None]
    column = batch.column(field.column[0])
    if len(field.column) > 1:
        column = compute.struct_field(column, list(field.column[1:]))
    held = _physical(column, by_time=field.by_time).dictionary_encode(null_encoding="encode")
    numbers: dict[str | None, int] = {}
    known = [
        numbers.setdefault(None if value is None else field.value(value), len(numbers))
        for value in held.dictionary.to_pylist()
    ]
    rows = cast("NDArray[np.int32]", held.indices.to_numpy(zero_copy_only=False))
    codes: Any = np.array(known, dtype=np.int64)[rows]
    return codes, list(numbers)


def _physical(column: Any, *, by_time: bool) -> Any:
    """Dates and times as numbers, as Iceberg's transforms take them."""
    of = pa.types
    if of.is_timestamp(column.type):
        numbers = column.cast(pa.timestamp("us", column.type.tz)).cast(pa.int64())
        return _by_hour(numbers) if by_time else numbers
    if of.is_date32(column.type):
        return column.cast(pa.int32())
    if of.is_time64(column.type):
        return column.cast(pa.int64())
    return column


def _by_hour(micros: Any) -> Any:
    missing = micros.is_null().to_numpy(zero_copy_only=False)
    held = cast("NDArray[np.int64]", micros.fill_null(0).to_numpy(zero_copy_only=False))
    return pa.array(held // HOUR_US * HOUR_US, mask=missing)
