"""The kinds of JSON values, and the columns that hold them. Pure.

A value's *kind* is a name, or a list or object of kinds. Kinds of many values are merged, and a merged kind becomes an
Arrow type. Three things become columns of JSON text: parts in which the values disagree, parts deeper than readers of
tables follow, and whole numbers beyond 64 bits. A fraction is the double next to it, as in every JSON reader of
doubles, in JSON text too: digits that no double holds are lost, and that is no error. A number beyond all doubles
(1e400) fits nothing and is an error. A column of a committed table keeps its type for ever; the caller reports values
that do not fit it.

**Every name in a table must be one that all its readers can have.** `Columns` says which names get no column.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, cast

from spark_jobs.scan.arrow import pa

Kind: TypeAlias = "str | tuple[str, Any]"
"""A name of those below, or ("list", kind of its elements), or ("struct", ((name, kind), ...) by name)."""

NULL, BOOL, SMALL, LONG, DOUBLE, STRING, JSON = "null", "bool", "small", "long", "double", "string", "json"
"""SMALL is a whole number that a double holds exactly, LONG any other of 64 bits, JSON everything beyond all types."""
HUGE = "huge"
"""A number beyond all doubles, which was read as infinity: it fits no column, and no column is made for it."""
DEPTH_MAX = 20
"""Lists and objects inside this many others become JSON text: readers refuse schemas of 40 to 50 levels."""
COLUMNS_MAX = 1_000
"""The most columns of a table's values, nested ones included. Objects with ever new names are maps, not rows."""
SEEN_MAX = 10 * COLUMNS_MAX
"""The most names that are remembered; more would find no column."""
NAME_CHARS_MAX = 255
EXACT_MAX = 2**53
LONG_MAX = 2**63
JSON_DOC = "JSON text"
"""The description that tells a column of JSON text from one of plain strings."""
DOC = b"doc"
Field: TypeAlias = Any
"""A `pyarrow.Field`; pyarrow carries no types."""


def kind_of(value: Any, depth: int = 0) -> Kind:
    """The kind of a value from `json.loads`; `depth`: the lists and objects around it."""
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
        return DOUBLE if math.isfinite(value) else HUGE
    if depth >= DEPTH_MAX:
        return JSON
    if of is list:
        return ("list", merged(kind_of(each, depth + 1) for each in value))
    return ("struct", tuple(sorted((name, kind_of(each, depth + 1)) for name, each in value.items())))


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
    if HUGE in numbers:
        return HUGE
    if numbers == {SMALL, LONG}:
        return LONG
    return DOUBLE if numbers == {SMALL, DOUBLE} else JSON


class Seen:
    """The kind of many values, collected in place: a value costs its own size, not that of all before it."""

    def __init__(self) -> None:
        self._tree: Any = NULL
        """A name of a kind, or a list of its elements' tree, or a dict."""
        self._names = 0

    def add(self, kind: Kind) -> None:
        self._tree = self._added(self._tree, kind)

    @property
    def kind(self) -> Kind:
        return _frozen(self._tree)

    def _added(self, tree: Any, kind: Kind) -> Any:
        if kind in (NULL, HUGE):
            return tree
        if isinstance(kind, str):
            return merge(tree, kind) if isinstance(tree, str) else JSON
        if kind[0] == "list":
            if tree != NULL and not isinstance(tree, list):
                return JSON
            inner = cast("list[Any]", [NULL] if tree == NULL else tree)
            return [self._added(inner[0], kind[1])]
        if tree != NULL and not isinstance(tree, dict):
            return JSON
        fields = cast("dict[str, Any]", {} if tree == NULL else tree)
        for name, each in kind[1]:
            if name not in fields:
                if self._names >= SEEN_MAX:
                    continue
                self._names += 1
            fields[name] = self._added(fields.get(name, NULL), each)
        return fields


def _frozen(tree: Any) -> Kind:
    if isinstance(tree, dict):
        inner = cast("dict[str, Any]", tree)
        return ("struct", tuple(sorted((name, _frozen(each)) for name, each in inner.items())))
    return ("list", _frozen(cast("list[Any]", tree)[0])) if isinstance(tree, list) else tree


def field_of(name: str, kind: Kind) -> Field | None:
    """The column, or None if all values are null: such a column would have no type yet, and leaving it out loses
    nothing.
    """
    if kind in (NULL, HUGE):
        return None
    if isinstance(kind, tuple) and kind[0] == "list":
        return list_field(name, field_of("element", kind[1]))
    if isinstance(kind, tuple):
        if len(kind[1]) > COLUMNS_MAX:
            return text_field(name)  # a map
        children = named_fields(kind[1])
        # Neither Parquet nor a reader that ignores case can hold the rest as columns.
        return pa.field(name, pa.struct(children)) if children else text_field(name)
    types = {BOOL: pa.bool_(), SMALL: pa.int64(), LONG: pa.int64(), DOUBLE: pa.float64(), STRING: pa.string()}
    return text_field(name) if kind == JSON else pa.field(name, types[kind])


def named_fields(kinds: Iterable[tuple[str, Kind]], taken: Iterable[str] = ()) -> list[Field]:
    """A column for each name that can have one beside those before it, and those `taken`."""
    return _fields(kinds, Columns(taken), COLUMNS_MAX)


def _fields(kinds: Iterable[tuple[str, Kind]], names: Columns, room: int) -> list[Field]:
    """At most `room` columns, nested ones included; objects for which no room is left become JSON text."""
    found: list[Field] = []
    for name, kind in kinds:
        made = field_of(name, kind) if len(found) < room and names.can_have(name, kind) else None
        if made is not None:
            names.add(made)
            found.append(made)
    spare = room - len(found)
    for number, made in enumerate(found):
        inside = size(made) - 1
        if inside > spare:
            found[number] = text_field(made.name)
        else:
            spare -= inside
    return found


@dataclass(slots=True)
class Columns:
    """The names of columns side by side. Not allowed as names are:

    - those that cannot be printed or encoded (lone surrogates, control characters), very long ones, and the empty name;
    - those that differ from another in case alone, because readers that ignore case would see one column twice;
    - those that equal the path of a nested column: Iceberg knows columns by their paths joined by dots, so `a.b` cannot
      stand beside an `a` that has columns inside, nor the other way round. A taken name counts as one of a column with
      others inside: `kafka_headers` has some.
    """

    taken: Iterable[str] = ()
    _names: set[str] = field(default_factory=set[str])
    _nested: set[str] = field(default_factory=set[str])
    _beginnings: set[str] = field(default_factory=set[str])
    """The beginnings of names, up to each dot."""

    def __post_init__(self) -> None:
        self._names.update(name.lower() for name in self.taken)
        self._nested.update(self._names)

    def can_have(self, name: str, kind: Kind) -> bool:
        low = name.lower()
        if low in self._names or not can_name(name) or not self._nested.isdisjoint(_beginnings(low)):
            return False
        return not (isinstance(kind, tuple) and low in self._beginnings)

    def add(self, column: Field) -> None:
        low = column.name.lower()
        self._names.add(low)
        self._beginnings.update(_beginnings(low))
        if _children(column.type):
            self._nested.add(low)


def _beginnings(name: str) -> list[str]:
    return [name[:at] for at, each in enumerate(name) if each == "."]


def can_name(name: str) -> bool:
    """Whether a column can have that name at all."""
    return 0 < len(name) <= NAME_CHARS_MAX and name.isprintable()  # isprintable is false for lone surrogates


def wrong_name(fields: Iterable[Field], taken: Iterable[str] = ()) -> str | None:
    """The first name, nested ones included, that cannot stand beside those before it; for people."""
    names = Columns(taken)
    for each in fields:
        nested = _children(each.type)
        if not names.can_have(each.name, ("struct", ()) if nested else NULL):
            return shown(each.name)
        names.add(each)
        inside = wrong_name(nested)
        if inside is not None:
            return f"{each.name}.{inside}"
    return None


def shown(name: str) -> str:
    """A name as text that can be encoded, not endless."""
    return name[:NAME_CHARS_MAX].encode("utf-8", "backslashreplace").decode()


def size(column: Field) -> int:
    """The column and its nested columns."""
    return 1 + sum(map(size, _children(column.type)))


def text_field(name: str) -> Field:
    return pa.field(name, pa.string(), metadata={DOC: JSON_DOC.encode()})


def list_field(name: str, element: Field | None) -> Field:
    """A column of lists. Iceberg and Delta describe no elements, so later runs would take such of JSON text for plain
    strings: the list becomes JSON text as a whole."""
    return text_field(name) if element is None or is_text(element) else pa.field(name, pa.list_(element))


def is_text(field: Field) -> bool:
    return bool(field.metadata) and field.metadata.get(DOC) == JSON_DOC.encode()


def extended(fields: Sequence[Field], kind: Kind, taken: Iterable[str] = ()) -> list[Field]:
    """`fields` unchanged, then columns for everything else in an object of that kind, nested objects included.

    At most COLUMNS_MAX of them all together, nested ones included.
    """
    room = max(0, COLUMNS_MAX - sum(map(size, fields)))
    return _extended_all(fields, kind, taken, room)


def _extended_all(fields: Sequence[Field], kind: Kind, taken: Iterable[str], room: int) -> list[Field]:
    seen = dict(kind[1]) if isinstance(kind, tuple) and kind[0] == "struct" else {}
    names = Columns(taken)
    for each in fields:
        names.add(each)
    kinds = [seen.pop(each.name, NULL) for each in fields]
    new = _fields(sorted(seen.items()), names, room)
    room -= sum(map(size, new))
    kept: list[Field] = []
    for each, inner in zip(fields, kinds, strict=True):
        longer = _extended(each, inner, room)
        room -= size(longer) - size(each)
        kept.append(longer)
    return kept + new


def _extended(field: Field, kind: Kind, room: int) -> Field:
    if not isinstance(kind, tuple):
        return field
    if kind[0] == "struct" and pa.types.is_struct(field.type):
        return field.with_type(pa.struct(_extended_all(list(field.type), kind, (), room)))
    if kind[0] == "list" and pa.types.is_list(field.type):
        return field.with_type(pa.list_(_extended(field.type.value_field, kind[1], room)))
    return field


def fits(kind: Kind, field: Field) -> bool:
    """Whether every value of that kind fits the column exactly, with nothing left out."""
    of = field.type
    if kind == NULL:
        return bool(field.nullable)
    if kind == HUGE:
        return False
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
    """The value, with JSON text where the column has it. Raises ValueError (a number beyond all doubles), and
    RecursionError.
    """
    if value is None:
        return None
    if is_text(field):
        return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
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
        JSON: "of several types, beyond 64 bits, or too deep",
        HUGE: "a number beyond all doubles",
        NULL: "null",
    }[kind]
