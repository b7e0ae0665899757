"""Columns that grow to a wider type, as Iceberg's promotions allow. Pure.

Old files keep the narrow type, so these are the changes that every reader makes up for without loss: int to long, float
to double, and decimals to more digits before the point. They are allowed inside of records, lists and maps too.
"""

from __future__ import annotations

from typing import Any

from spark_jobs.scan.arrow import pa
from spark_jobs.tables.columns.kinds import Field


def can_become(have: Field, wanted: Field) -> bool:
    """Whether a column is, or can grow to be, exactly the wanted one."""
    same = have.name == wanted.name and have.nullable == wanted.nullable and have.metadata == wanted.metadata
    return same and _can_hold(have.type, wanted.type)


def _can_hold(have: Any, wanted: Any) -> bool:
    types = pa.types
    if types.is_decimal128(have) and types.is_decimal128(wanted):
        return have.scale == wanted.scale and have.precision <= wanted.precision
    if types.is_struct(have) and types.is_struct(wanted):
        return have.num_fields == wanted.num_fields and all(map(can_become, have, wanted))
    if types.is_list(have) and types.is_list(wanted):
        return can_become(have.value_field, wanted.value_field)
    if types.is_map(have) and types.is_map(wanted):
        return have.key_type == wanted.key_type and can_become(have.item_field, wanted.item_field)
    return have == wanted or (have, wanted) in ((pa.int32(), pa.int64()), (pa.float32(), pa.float64()))
