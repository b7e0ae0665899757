"""What JSON values are, and which columns hold them. Pure.

A value's *kind* is a name, or a list or object of kinds; kinds of many values are merged, and a merged kind becomes an
Arrow type. What the values disagree about, and what no Arrow type holds exactly, becomes a column of JSON text, so that
nothing is rounded, cut or dropped. A column of a table that has been committed keeps its type for ever; values that do
not fit it are the caller's to report.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

from spark_jobs.scan.arrow import pa

Kind: TypeAlias = "str | tuple[str, Any]"
"""A name of those below, or ("list", kind of its elements), or ("struct", ((name, kind), ...) by name)."""

NULL, BOOL, SMALL, LONG, DOUBLE, STRING, JSON = "null", "bool", "small", "long", "double", "string", "json"
"""SMALL is a whole number that a double holds exactly, LONG any other of 64 bits, JSON whatever is beyond all types."""
EXACT_MAX = 2**53
LONG_MAX = 2**63
JSON_DOC = "JSON text"
"""The description by which a column of JSON text is known from one of plain strings."""
DOC = b"doc"
Field: TypeAlias = Any
"""A `pyarrow.Field`; pyarrow carries no types."""


def kind_of(value: Any) -> Kind:
    """Of what `json.loads` gives."""
    if value is None:
        return NULL
    of = value.__class__
    if of is str:
        return STRING
    if of is bool:
        return BOOL
    if of is int:
        if -EXACT_MAX <= value <= EXACT_MAX:
            return SMALL
        return LONG if -LONG_MAX <= value < LONG_MAX else JSON
    if of is float:
        return DOUBLE
    if of is list:
        return ("list", merged(kind_of(each) for each in value))
    return ("struct", tuple(sorted((name, kind_of(each)) for name, each in value.items())))


def merged(kinds: Iterable[Kind]) -> Kind:
    whole: Kind = NULL
    for kind in kinds:
        whole = merge(whole, kind)
    return whole


def merge(one: Kind, other: Kind) -> Kind:
    """The least kind that holds the values of both."""
    if one == other or other == NULL:
        return one
    if one == NULL:
        return other
    if isinstance(one, tuple) and isinstance(other, tuple) and one[0] == other[0]:
        if one[0] == "list":
            return ("list", merge(one[1], other[1]))
        fields = dict(one[1])
        for name, kind in other[1]:
            fields[name] = merge(fields.get(name, NULL), kind)
        return ("struct", tuple(sorted(fields.items())))
    numbers = {one, other}
    if numbers == {SMALL, LONG}:
        return LONG
    return DOUBLE if numbers == {SMALL, DOUBLE} else JSON


def field_of(name: str, kind: Kind) -> Field | None:
    """None for what is null throughout: such a column would have no type yet, and loses nothing by not being there."""
    if kind == NULL:
        return None
    if isinstance(kind, tuple) and kind[0] == "list":
        element = field_of("element", kind[1])
        return text_field(name) if element is None else pa.field(name, pa.list_(element))
    if isinstance(kind, tuple):
        children = named_fields(kind[1])
        # neither Parquet nor a reader that ignores case can hold the rest as columns
        return pa.field(name, pa.struct(children)) if children else text_field(name)
    types = {BOOL: pa.bool_(), SMALL: pa.int64(), LONG: pa.int64(), DOUBLE: pa.float64(), STRING: pa.string()}
    return text_field(name) if kind == JSON else pa.field(name, types[kind])


def named_fields(kinds: Iterable[tuple[str, Kind]], taken: Iterable[str] = ()) -> list[Field]:
    """A column for each that can have one: names that differ from one before in case alone, or are `taken`, cannot."""
    names = {name.lower() for name in taken}
    found: list[Field] = []
    for name, kind in kinds:
        field = field_of(name, kind) if _can_name(name) and name.lower() not in names else None
        if field is not None:
            names.add(name.lower())
            found.append(field)
    return found


def _can_name(name: str) -> bool:
    return bool(name) and name.isprintable()  # lone surrogates are not


def text_field(name: str) -> Field:
    return pa.field(name, pa.string(), metadata={DOC: JSON_DOC.encode()})


def is_text(field: Field) -> bool:
    return bool(field.metadata) and field.metadata.get(DOC) == JSON_DOC.encode()


def extended(fields: Sequence[Field], kind: Kind, taken: Iterable[str] = ()) -> list[Field]:
    """`fields` as they are, then columns for what an object of that kind has beside them; inside of objects too."""
    seen = dict(kind[1]) if isinstance(kind, tuple) and kind[0] == "struct" else {}
    kept = [_extended(field, seen.pop(field.name, NULL)) for field in fields]
    return kept + named_fields(sorted(seen.items()), [*taken, *(field.name for field in fields)])


def _extended(field: Field, kind: Kind) -> Field:
    if not isinstance(kind, tuple):
        return field
    if kind[0] == "struct" and pa.types.is_struct(field.type):
        return field.with_type(pa.struct(extended(list(field.type), kind)))
    if kind[0] == "list" and pa.types.is_list(field.type):
        return field.with_type(pa.list_(_extended(field.type.value_field, kind[1])))
    return field


def fits(kind: Kind, field: Field) -> bool:
    """Whether every value of that kind can stand in the column exactly, with nothing of it left out."""
    of = field.type
    if kind == NULL:
        return bool(field.nullable)
    if is_text(field):
        return True
    if isinstance(kind, tuple):
        if kind[0] == "list":
            return pa.types.is_list(of) and fits(kind[1], of.value_field)
        if not pa.types.is_struct(of):
            return False
        children = {child.name: child for child in of}
        return all(each == NULL or (name in children and fits(each, children[name])) for name, each in kind[1])
    if pa.types.is_int64(of):
        return kind in (SMALL, LONG)
    if pa.types.is_float64(of):
        return kind in (SMALL, DOUBLE)
    return (kind == BOOL and pa.types.is_boolean(of)) or (kind == STRING and pa.types.is_string(of))


def has_text(field: Field) -> bool:
    """Whether a column holds JSON text anywhere."""
    if is_text(field):
        return True
    return any(map(has_text, _children(field.type)))


def _children(of: Any) -> list[Field]:
    if pa.types.is_struct(of):
        return list(of)
    return [of.value_field] if pa.types.is_list(of) else []


def as_text(value: Any, field: Field) -> Any:
    """The value, with JSON text where the column has it."""
    if value is None:
        return None
    if is_text(field):
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    if pa.types.is_struct(field.type) and isinstance(value, dict):
        inner = cast("dict[str, Any]", value)
        return {child.name: as_text(inner.get(child.name), child) for child in field.type}
    if pa.types.is_list(field.type) and isinstance(value, list):
        return [as_text(each, field.type.value_field) for each in cast("list[Any]", value)]
    return value


def kind_text(kind: Kind) -> str:
    """For people."""
    if isinstance(kind, tuple):
        return {"list": "a list", "struct": "an object"}[kind[0]]
    return {
        SMALL: "a whole number",
        LONG: "a whole number beyond 2^53",
        DOUBLE: "a fraction",
        BOOL: "true or false",
        STRING: "a string",
        JSON: "of several types, or beyond 64 bits",
        NULL: "null",
    }[kind]
