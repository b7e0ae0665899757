"""Rows in the order of a table, as Iceberg defines it: bytes and texts by their bytes, NaN above all numbers. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow.compute as _compute  # pyright: ignore[reportMissingTypeStubs]

from spark_jobs.scan.arrow import pa
from spark_jobs.tables.layout.layout import SortField

compute: Any = _compute


def in_order(table: Any, order: Sequence[SortField]) -> Any:
    """The `pyarrow.Table` with its rows sorted; rows that are equal by the order keep theirs."""
    keys: dict[str, Any] = {}
    directions: list[tuple[str, str]] = []
    for number, field in enumerate(order):
        column = table.column(field.column[0])
        if len(field.column) > 1:
            column = compute.struct_field(column, list(field.column[1:]))
        # Arrow has one place for all nulls, and puts NaN there too; so each column gets one in front that ranks them.
        for name, values, descending in (
            (f"rank{number}", _rank(column, field), False),
            (f"value{number}", column, field.descending),
        ):
            keys[name] = values
            directions.append((name, "descending" if descending else "ascending"))
    return table.take(compute.sort_indices(pa.table(keys), sort_keys=directions))


def _rank(column: Any, field: SortField) -> Any:
    """0 for nulls that come first, then 1 and 2 for numbers and NaN in the field's direction, 3 for nulls that come
    last."""
    nan = compute.is_nan(column) if pa.types.is_floating(column.type) else pa.scalar(False)
    first, last = (pa.scalar(each, pa.int8()) for each in ((2, 1) if field.descending else (1, 2)))
    null = pa.scalar(0 if field.nulls_first else 3, pa.int8())
    ranks = compute.if_else(nan, last, first)
    return compute.if_else(column.is_null(), null, ranks)
