"""Columns from a JSON Schema file, for values that are JSON. Pure.

It reads the parts of JSON Schema (json-schema.org, any draft) that name types: `type`, `properties`, `items`, and
unions with null. A part that allows several things at once (`oneOf`, `$ref`, ...) becomes a column of JSON text, which
holds any value. So do lists and objects inside DEPTH_MAX others, as in columns that are made from the values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

from spark_jobs.scan.arrow import pa
from spark_jobs.tables.columns.kinds import DEPTH_MAX, Field, can_name, list_field, shown, text_field
from spark_jobs.tables.errors import BadTableError

_SIMPLE = {"integer": pa.int64(), "number": pa.float64(), "string": pa.string(), "boolean": pa.bool_()}

_NESTED = ("array", "object")


def fields_of_json_schema(text: str) -> list[Field]:
    """The columns of a schema. Raises BadTableError."""
    try:
        schema: Any = json.loads(text)
    except ValueError as error:
        raise BadTableError(f"the schema is not JSON: {error}") from None
    except RecursionError:
        raise BadTableError(
            "the schema has lists or objects inside of each other, too many to be read",
            remedy=f"columns go {DEPTH_MAX} deep: anything deeper is JSON text, and needs only its name",
        ) from None
    properties: Any = cast("Any", schema).get("properties") if isinstance(schema, dict) else None
    if not isinstance(properties, dict) or not properties:
        raise BadTableError(
            "the schema names no columns",
            remedy='give a JSON Schema of an object, for example {"type": "object", "properties": '
            '{"id": {"type": "integer"}}}',
        )
    return [_field(name, each, 1) for name, each in cast("Mapping[str, Any]", properties).items()]


def _field(name: str, schema: Any, depth: int) -> Field:
    """`depth`: the lists and objects around it."""
    if not can_name(name):
        raise BadTableError(f"the schema names a column {shown(name)!r}, which cannot be")
    if not isinstance(schema, dict):
        return text_field(name)
    described = cast("Mapping[str, Any]", schema)
    named = described.get("type")
    types = [each for each in (cast("list[Any]", named) if isinstance(named, list) else [named]) if each != "null"]
    if len(types) != 1:
        return text_field(name)
    of = str(types[0])
    if named is not None and of not in (*_SIMPLE, *_NESTED):
        raise BadTableError(
            f"the schema gives {shown(name)!r} the type {shown(of)!r}, which JSON Schema does not have",
            remedy=f"one of {', '.join((*_SIMPLE, *_NESTED, 'null'))}",
        )
    if of in _SIMPLE:
        return pa.field(name, _SIMPLE[of])
    if depth >= DEPTH_MAX:
        return text_field(name)
    if of == "array" and isinstance(described.get("items"), dict):
        return list_field(name, _field("element", described["items"], depth + 1))
    if of == "object" and isinstance(described.get("properties"), dict) and described["properties"]:
        inner = cast("Mapping[str, Any]", described["properties"])
        return pa.field(name, pa.struct([_field(each, of_each, depth + 1) for each, of_each in inner.items()]))
    return text_field(name)
